import numpy as np
import pytest

from coterie.algos.transforms import (
    BatchWhitening,
    ClipAdvantages,
    OnlySpan,
    ScaleSpan,
    Whiten,
    advantages_of,
    has_signal,
)

COT = [(0, 1), (1, 3)]


def flat(groups):
    return np.concatenate([r.advantages for g in groups for r in g.rollouts])


def test_transforms_stand_after_the_estimator(make_group):
    group = make_group([1, 0])
    for piece in (Whiten(), ClipAdvantages(), ScaleSpan()):
        with pytest.raises(ValueError, match="stands after the estimator"):
            piece([group])
    with pytest.raises(ValueError, match="stands after the estimator"):
        advantages_of(group.rollouts[0])


def test_whiten_over_tokens_and_over_sequences(make_group):
    groups = [make_group([1, 0], [3, 1], advantages=[2, -1]), make_group([1, 0], [1, 1], advantages=[5, 0])]
    values = flat(groups)
    expected = (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(flat(Whiten()(groups)), expected, rtol=1e-12)
    once = np.array([2, -1, 5, 0.0])
    out = flat(Whiten(over="sequences")(groups))
    np.testing.assert_allclose(out, (values - once.mean()) / np.sqrt(once.var(ddof=1) + 1e-8), rtol=1e-12)


def test_whiten_halves(make_group):
    groups = [make_group([1, 0], [1, 1], advantages=[3, 1])]
    np.testing.assert_allclose(flat(Whiten(scale=False)(groups)), [1, -1])
    np.testing.assert_allclose(flat(Whiten(center=False)(groups)), np.array([3, 1]) / np.sqrt(2 + 1e-8))


def test_whiten_leaves_groups_without_signal(make_group):
    signal, none = make_group([1, 0], [3, 1], advantages=[2, -1]), make_group([1, 1], advantages=[0, 0])
    np.testing.assert_array_equal(flat(Whiten()([signal, none])[:1]), flat(Whiten()([signal])))
    assert not flat(Whiten()([signal, none])[1:]).any()
    assert flat(Whiten(**Whiten.conventions["verl"])([signal, none])[1:]).any()
    assert has_signal(signal) and not has_signal(none)


def test_whiten_leaves_missing_scores(make_group):
    group = make_group([1, None, 0], advantages=[2, 7, -1])
    out = Whiten()([group])
    np.testing.assert_array_equal(out[0].rollouts[1].advantages, [7, 7])
    np.testing.assert_array_equal(
        np.delete(flat(out), [2, 3]), flat(Whiten()([make_group([1, 0], advantages=[2, -1])]))
    )
    assert flat(Whiten(score="")([group]))[2] != 7


def test_whiten_one_span(make_group):
    group = make_group([1, 0], [3, 3], cot=COT, advantages=[2, -1])
    out = Whiten(span="cot")([group])[0]
    inside = np.array([2, -1, -1.0])
    white = (inside - inside.mean()) / np.sqrt(inside.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(out.rollouts[0].advantages, [white[0], 2, 2])
    np.testing.assert_allclose(out.rollouts[1].advantages, [-1, white[1], white[2]])
    assert Whiten(span="cot").needs == {"score:reward", "span:cot"} and Whiten(score="").needs == frozenset()


def test_whiten_degenerate_batches(make_group):
    assert Whiten()([]) == []
    assert not flat(Whiten()([make_group([1], [1], advantages=[4])])).any()
    assert not flat(Whiten()([make_group([1, 1], advantages=[0.1, 0.1])])).any()
    empty = make_group([1, 0], [2, 0], advantages=[1, -1])
    assert Whiten(over="sequences")([empty])[0].rollouts[1].advantages.shape == (0,)


def test_batch_whitening_divisors(make_group):
    groups = [make_group([1, 0], [1, 1], advantages=[3, 1])]
    np.testing.assert_allclose(flat(BatchWhitening(ddof=0, floor="clamp")(groups)), [1, -1])
    np.testing.assert_allclose(
        flat(BatchWhitening(eps=0.5, floor="std")(groups)), np.array([1, -1]) / (np.sqrt(2) + 0.5)
    )


def test_clip(make_group):
    group = make_group([1, 0, 0], advantages=[7, -7, 1])
    np.testing.assert_array_equal(flat(ClipAdvantages(-2, 5)([group])), [5, 5, -2, -2, 1, 1])
    np.testing.assert_array_equal(flat(ClipAdvantages(0, float("inf"))([group])), [7, 7, 0, 0, 1, 1])


def test_scale_span(make_group):
    group = make_group([1, 0], [3, 3], cot=COT, advantages=[2, -1])
    np.testing.assert_array_equal(flat(ScaleSpan()([group])), [2, 0, 0, 0, -1, -1])
    np.testing.assert_array_equal(flat(ScaleSpan(inside=0, outside=2)([group])), [0, 4, 4, -2, 0, 0])
    bare = make_group([1], [2], advantages=[3])
    np.testing.assert_array_equal(flat(ScaleSpan()([bare])), [0, 0])


def test_only_span_takes_tokens_out(make_group):
    group = make_group([1, 0], [3, 3], cot=COT, advantages=[2, -1], streams={"old": [[1, 2, 3], [4, 5, 6]]})
    out = OnlySpan()([group])[0]
    np.testing.assert_array_equal(out.rollouts[0].action_index, [2])
    np.testing.assert_array_equal(out.rollouts[1].action_index, [3, 4])
    np.testing.assert_array_equal(out.rollouts[1].streams["old"], [5, 6])
    assert out.rollouts[1].spans == {"cot": ((0, 2),)} and flat([out]).size == 3
    rest = OnlySpan(invert=True)([group])[0]
    np.testing.assert_array_equal(rest.rollouts[1].streams["old"], [4])
    assert rest.rollouts[1].spans == {"cot": ()}
    assert len(rest.rollouts[1].tokens) == len(group.rollouts[1].tokens)


def test_only_span_before_the_estimator_and_without_the_span(make_group):
    out = OnlySpan()([make_group([1, 0], [3, 3], cot=COT)])[0]
    assert out.rollouts[0].advantages is None
    bare = OnlySpan()([make_group([1], [2])])[0]
    assert bare.rollouts[0].num_actions == 0 and len(bare) == 1
    assert OnlySpan(invert=True)([make_group([1], [2])])[0].rollouts[0].num_actions == 2


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Whiten, {"eps": 0}),
        (Whiten, {"ddof": 2}),
        (Whiten, {"over": "groups"}),
        (Whiten, {"center": False, "scale": False}),
        (ClipAdvantages, {"low": 1.0}),
        (ClipAdvantages, {"high": -1.0}),
        (ScaleSpan, {"inside": float("nan")}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


def test_clip_needs_an_interval():
    with pytest.raises(ValueError, match=r"ClipAdvantages.high=0.0: must be above low=0.0"):
        ClipAdvantages(0.0, 0.0)


@pytest.mark.parametrize("cls", [Whiten, ClipAdvantages, ScaleSpan, OnlySpan])
def test_conventions_construct(cls):
    for overrides in cls.conventions.values():
        cls(**overrides)
