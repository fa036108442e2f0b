from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.filters import DropConstant
from coterie.algos.sampling import PFPPO, DynamicSampling, ReplaceConstant, batch_coordinates, resampling_weights
from coterie.errors import CoterieError

NAN = np.nan


def ids(groups):
    return [g.example.id for g in groups]


def test_dynamic_sampling_refills_until_there_are_enough(make_group):
    sampling, drop = DynamicSampling(), DropConstant()
    batches = [
        [make_group([1, 0], example="a"), make_group([1, 1], example="b")],
        [make_group([0, 0], example="c"), make_group([0, 0], example="d")],
        [make_group([1, 0], example="e"), make_group([0, 1], example="f")],
    ]
    refill, wanted = sampling.init(), []
    for batch in batches:
        wanted.append(sampling.wanted(refill, 2))
        refill = sampling.add(refill, batch, drop(batch))
    assert wanted == [2, 1, 1] and sampling.wanted(refill, 2) == 0
    assert ids(sampling.take(refill, 2)) == ["a", "e"]  # what is too much is cut at the end
    assert (refill.batches, refill.sampled) == (3, 6)
    assert sampling.init().groups == ()


def test_dynamic_sampling_is_bounded(make_group):
    batch = [make_group([1, 0])]
    for when in ("error", "partial"):
        sampling = DynamicSampling(max_batches=2, when_exhausted=when)
        refill = sampling.add(sampling.add(sampling.init(), batch, batch), batch, [])
        assert sampling.wanted(refill, 3) == 0
        if when == "partial":
            assert len(sampling.take(refill, 3)) == 1
        else:
            with pytest.raises(CoterieError, match=r"kept 1 of 2 groups in 2 batches, and the step needs 3"):
                sampling.take(refill, 3)
    unbounded = DynamicSampling(max_batches=0)
    refill = unbounded.init()
    for _ in range(50):
        refill = unbounded.add(refill, batch, [])
    assert unbounded.wanted(refill, 1) == 1


def test_replace_constant_fills_the_slots(make_group):
    groups = [make_group([1, 0], example="a"), make_group([1, 1], example="b"), make_group([0, 1], example="c")]
    out = ReplaceConstant()(groups)
    assert len(out) == 3 and out[0] is groups[0] and out[2] is groups[2] and out[1].example.id in ("a", "c")
    assert ids(ReplaceConstant()(groups)) == ids(out)  # a function of coordinates
    seen = {ReplaceConstant(seed=s)(groups)[1].example.id for s in range(20)}
    assert seen == {"a", "c"}


def test_replace_constant_below_the_share_drops(make_group):
    groups = [make_group([1, 0], example="a"), *(make_group([1, 1], example=str(i)) for i in range(9))]
    assert ids(ReplaceConstant()(groups)) == ["a"]
    assert len(ReplaceConstant(min_good=0.1)(groups)) == 10
    assert ReplaceConstant()(groups[1:]) == [] and ReplaceConstant()([]) == []


def test_resampling_weights():
    scores = np.array([2.0, -1.0, NAN, 0.0])
    np.testing.assert_allclose(resampling_weights(scores), [4, 1, 0, 0], atol=1e-7)
    np.testing.assert_allclose(resampling_weights(scores, power=1.0), [2, 1, 0, 0], atol=1e-7)
    np.testing.assert_allclose(resampling_weights(scores, "extremes"), [1, 1, 0, 0], atol=1e-7)
    np.testing.assert_allclose(resampling_weights(scores, "best"), [0.4, 0.1, 0, 0.1], atol=1e-7)
    assert resampling_weights(scores)[3] == 1e-8 and resampling_weights(scores)[2] == 0
    assert not resampling_weights(np.array([NAN, NAN])).any()


def test_pf_ppo_draws_by_weight(make_group):
    groups = [make_group([3, None, 1], example="a"), make_group([0, 0], example="b")]
    counts = np.zeros(5)
    for seed in range(200):
        out = PFPPO(seed=seed)(groups)
        assert sum(len(g) for g in out) == 4  # as many as have a score
        for g in out:
            for r in g.rollouts:
                counts[r.index + (3 if g.example.id == "b" else 0)] += 1
    assert counts[1] == 0 and counts[3] == counts[4] == 0
    assert counts[0] / counts.sum() == pytest.approx(0.9, abs=0.05)
    assert ids(PFPPO()(groups)) == ["a"]  # no draw hit the other


def test_pf_ppo_without_scores(make_group):
    groups = [make_group([None, None])]
    assert PFPPO()(groups) == groups and PFPPO()([]) == []


def test_coordinates_change_with_examples_and_weights(make_group):
    group = make_group([1, 0], example="a")
    newer = group.with_rollouts(replace(r, weights_version=3) for r in group.rollouts)
    assert batch_coordinates([group]) == ("a", 0) and batch_coordinates([newer]) == ("a", 3)


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (DynamicSampling, {"max_batches": -1}),
        (DynamicSampling, {"when_exhausted": "stop"}),
        (ReplaceConstant, {"min_good": 2}),
        (ReplaceConstant, {"tolerance": -1}),
        (PFPPO, {"power": 0}),
        (PFPPO, {"weighing": "abs"}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [DynamicSampling, ReplaceConstant, PFPPO])
def test_conventions_construct(cls):
    for overrides in cls.conventions.values():
        cls(**overrides)
