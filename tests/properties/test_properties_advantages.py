"""Laws of the advantage estimators, on random batches with missing scores, constant groups and empty rollouts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coterie.algos.advantages import GRPO, RLOO, DrGRPO, grpo_advantages
from coterie.algos.advantages_dense import PRIME
from coterie.algos.advantages_group import GPG, OPO, MaxRL, PassAtK, maxrl_advantages, pass_at_k_advantages
from coterie.algos.advantages_multi import GDPO, Classmate
from coterie.algos.advantages_tokens import OTB, ReinforcePlusPlus, ReinforcePlusPlusBaseline
from coterie.algos.filters import DropConstant, DropMissing
from coterie.algos.gae import GAE, gae_advantages
from coterie.algos.moments import whiten
from coterie.algos.shaping import KLReward
from coterie.algos.transforms import Whiten
from coterie.core.types import Example, Group, Rollout, Score

SCORES = ("reward", "classmate", "format")
STREAMS = ("old_logprobs", "ref_logprobs", "prm_logprobs")

OWN_GROUP = [
    GRPO(),
    GRPO(std=False),
    GRPO(ddof=0, leave_one_out=True),
    GRPO(std_over="others", leave_one_out=True),
    DrGRPO(),
    RLOO(),
    OPO(),
    PassAtK(),
    PassAtK(k=2, std=True),
    MaxRL(),
    OTB(),
    OTB(zero_tail=True),
    Classmate(),
    Classmate(combine="advantages", std=True),
    GDPO(scores=SCORES, whiten="off"),
    PRIME(whiten=False),
]
CONSTANT_IS_ZERO = [
    *OWN_GROUP[:-1],
    GRPO(std_over="batch"),
    GPG(),
    ReinforcePlusPlusBaseline(),
    GDPO(scores=SCORES),
    GDPO(scores=SCORES, whiten="tokens"),
    Classmate(combine="advantages", whiten=True),
]
EVERYTHING = [*CONSTANT_IS_ZERO, OWN_GROUP[-1], ReinforcePlusPlus(), PRIME(), GAE(), GAE(lam_of="length", whiten=False)]

number = st.floats(0, 4, allow_nan=False).map(lambda x: round(x, 6)) | st.sampled_from([0.0, 1.0])


@st.composite
def rollouts(draw, missing=True):
    n = draw(st.integers(0, 4))
    start = draw(st.integers(0, n))
    score = (number.map(Score) | st.just(Score.missing("test"))) if missing else number.map(Score)
    logprob = st.floats(-5, 0, allow_nan=False)
    streams = {name: np.array(draw(st.lists(logprob, min_size=n, max_size=n))) for name in STREAMS}
    energy = st.floats(0, 1, allow_nan=False)
    streams["values"] = np.array(draw(st.lists(st.floats(-2, 2), min_size=n, max_size=n)))
    squared = np.array(draw(st.lists(energy, min_size=n, max_size=n)))
    streams["sum_probs_squared"] = np.maximum(squared, np.exp(2 * streams["old_logprobs"]))
    return Rollout(
        tokens=np.arange(n + 1),
        action_index=np.arange(1, n + 1),
        text="",
        finish_reason="stop",
        scores={name: draw(score) for name in SCORES},
        streams=streams,
        spans={"cot": ((start, draw(st.integers(start, n))),)},
    )


def group_of(members):
    return Group(Example("e", ()), tuple(members))


def batches(missing=True, groups=3, size=5):
    one = st.lists(rollouts(missing), min_size=1, max_size=size).map(group_of)
    return st.lists(one, min_size=1, max_size=groups)


def flat(groups):
    return np.concatenate([np.zeros(0), *(r.advantages for g in groups for r in g.rollouts)])


def first(group):
    """One number a rollout; every rollout has action tokens."""
    return np.array([r.advantages[0] for r in group.rollouts])


def scored(values, n=1):
    return group_of(
        Rollout(np.arange(n + 1), np.arange(1, n + 1), "", "stop", scores={"reward": Score(float(v))}) for v in values
    )


def settled(function):
    slow = [HealthCheck.too_slow]  # machines are shared
    return settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=slow)(function)


@pytest.mark.parametrize("piece", EVERYTHING, ids=repr)
@settled
@given(batch=batches())
def test_numbers_are_finite_and_fit_the_tokens(piece, batch):
    out = piece(batch)
    for before, after in zip(batch, out, strict=True):
        for old, new in zip(before.rollouts, after.rollouts, strict=True):
            assert new.advantages.shape == (old.num_actions,) and new.advantages.dtype == np.float64
    assert np.all(np.isfinite(flat(out)))


@pytest.mark.parametrize("piece", EVERYTHING, ids=repr)
@settled
@given(batch=batches())
def test_inputs_are_not_changed(piece, batch):
    before = [(dict(r.scores), {n: s.copy() for n, s in r.streams.items()}) for g in batch for r in g.rollouts]
    piece(batch)
    for (scores, streams), rollout in zip(before, (r for g in batch for r in g.rollouts), strict=True):
        assert scores == rollout.scores and rollout.advantages is None
        assert all(np.array_equal(streams[n], rollout.streams[n]) for n in streams)


@pytest.mark.parametrize("piece", EVERYTHING, ids=repr)
@settled
@given(batch=batches())
def test_a_rollout_without_scores_gets_zero_and_changes_nobody(piece, batch):
    """Equal to the batch from which DropMissing took it, bit for bit."""
    scores = getattr(piece, "scores", SCORES[:2] if isinstance(piece, Classmate) else ("reward",))
    lacking = [[any(r.scores[s].value is None for s in scores) for r in g.rollouts] for g in batch]
    whole = [
        g.with_rollouts(
            replace(r, scores=dict.fromkeys(r.scores, Score.missing("test"))) if lacks else r
            for r, lacks in zip(g.rollouts, row, strict=True)
        )
        for g, row in zip(batch, lacking, strict=True)
    ]
    out = piece(whole)
    kept = piece(DropMissing(scores)(whole))
    assert all(
        not r.advantages.any()
        for g, row in zip(out, lacking, strict=True)
        for r, lacks in zip(g.rollouts, row, strict=True)
        if lacks
    )
    rest = [
        r.advantages
        for g, row in zip(out, lacking, strict=True)
        for r, lacks in zip(g.rollouts, row, strict=True)
        if not lacks
    ]
    np.testing.assert_array_equal(np.concatenate([np.zeros(0), *rest]), flat(kept))


@pytest.mark.parametrize("piece", CONSTANT_IS_ZERO, ids=repr)
@settled
@given(batch=batches(), value=number, size=st.integers(1, 7), n=st.integers(0, 3))
def test_constant_groups_are_exactly_zero(piece, batch, value, size, n):
    template = batch[0].rollouts[0]
    constant = replace(template, scores=dict.fromkeys(SCORES, Score(value)))
    out = piece([*batch, group_of([constant] * size)])[-1]
    assert not np.concatenate([np.zeros(0), *(r.advantages for r in out.rollouts)]).any()


@pytest.mark.parametrize("piece", OWN_GROUP, ids=repr)
@settled
@given(batch=batches(), order=st.randoms(use_true_random=False))
def test_permuting_rollouts_permutes_advantages(piece, batch, order):
    group = batch[0]
    index = list(range(len(group)))
    order.shuffle(index)
    shuffled = piece([group.with_rollouts(group.rollouts[i] for i in index)])[0]
    straight = piece([group])[0]
    for position, i in enumerate(index):
        np.testing.assert_allclose(
            shuffled.rollouts[position].advantages, straight.rollouts[i].advantages, rtol=1e-7, atol=1e-8
        )


@pytest.mark.parametrize("piece", EVERYTHING, ids=repr)
@settled
@given(batch=batches())
def test_the_order_of_groups_does_not_matter(piece, batch):
    there, back = piece(batch), piece(batch[::-1])[::-1]
    np.testing.assert_allclose(flat(there), flat(back), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("piece", OWN_GROUP, ids=repr)
@settled
@given(batch=batches())
def test_other_groups_do_not_matter_to_group_estimators(piece, batch):
    alone = [piece([group])[0] for group in batch]
    np.testing.assert_array_equal(flat(piece(batch)), flat(alone))
    np.testing.assert_array_equal(flat(piece([batch[0], batch[0]])[1:]), flat(piece(batch[:1])))


@pytest.mark.parametrize(
    "piece", [GRPO(), GRPO(std_over="batch"), DrGRPO(), RLOO(), GPG(), MaxRL(), GRPO(leave_one_out=True)], ids=repr
)
@settled
@given(values=st.lists(number, min_size=1, max_size=8))
def test_advantages_of_a_group_sum_to_zero(piece, values):
    assert first(piece([scored(values)])[0]).sum() == pytest.approx(0, abs=1e-7)


@settled
@given(values=st.lists(number, min_size=2, max_size=6), lengths=st.data())
def test_opo_sums_to_zero_over_tokens(values, lengths):
    members = [scored([v], lengths.draw(st.integers(1, 5))).rollouts[0] for v in values]
    assert flat(OPO()([group_of(members)])).sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    "piece", [GRPO(), DrGRPO(), RLOO(), OPO(), PassAtK(), PassAtK(k=2), GRPO(std_over="others")], ids=repr
)
@settled
@given(values=st.lists(st.integers(-40, 40), min_size=2, max_size=6), shift=st.integers(-64, 64))
def test_shifting_the_reward_changes_nothing(piece, values, shift):
    """On a grid of eighths, where sums are exact."""
    a = first(piece([scored([v / 8 for v in values])])[0])
    b = first(piece([scored([(v + shift) / 8 for v in values])])[0])
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@settled
@given(values=st.lists(st.integers(0, 8), min_size=2, max_size=6), scale=st.floats(0.01, 100))
def test_scaling_the_reward_is_undone_up_to_the_floor(values, scale):
    scores = np.array(values, dtype=float)
    spread = scores.std(ddof=1)
    assume(spread > 0)
    a, b = grpo_advantages(scores), grpo_advantages(scores * scale)
    np.testing.assert_allclose(a * (spread + 1e-6) / spread, b * (spread * scale + 1e-6) / (spread * scale), rtol=1e-9)
    linear = grpo_advantages(scores * scale, std=False)
    np.testing.assert_allclose(linear, scale * grpo_advantages(scores, std=False), rtol=1e-9, atol=1e-12)


@settled
@given(values=st.lists(st.integers(0, 8), min_size=2, max_size=6), scale=st.floats(0.1, 10))
def test_maxrl_is_scale_free(values, scale):
    scores = np.array(values, dtype=float)
    np.testing.assert_allclose(maxrl_advantages(scores * scale), maxrl_advantages(scores), rtol=1e-9, atol=1e-12)


@settled
@given(values=st.lists(st.integers(0, 8), min_size=2, max_size=5))
def test_doubling_a_group_leaves_the_mean_baseline(values):
    once, twice = first(DrGRPO()([scored(values)])[0]), first(DrGRPO()([scored(values + values)])[0])
    np.testing.assert_allclose(twice, np.concatenate([once, once]), atol=1e-12)


@settled
@given(values=st.lists(number, min_size=2, max_size=7), k=st.integers(2, 7))
def test_pass_at_k_is_never_negative_and_ranks_by_score(values, k):
    scores = np.array(values)
    gains = pass_at_k_advantages(scores, k)
    assert np.all(gains >= 0)
    order = np.argsort(scores, kind="stable")
    assert np.all(np.diff(gains[order]) >= -1e-12)
    assert gains.sum() <= (scores.max() - scores.min()) * len(scores) + 1e-9


@pytest.mark.parametrize("piece", [GRPO(), ReinforcePlusPlusBaseline(), GDPO(), GPG()], ids=repr)
@settled
@given(batch=batches())
def test_dropping_constant_groups_first_changes_no_other(piece, batch):
    """Up to GPG's alpha, which then is 1."""
    drop = DropConstant()
    kept = [i for i, group in enumerate(batch) if drop.keeps(group)]
    assume(kept)
    everything, filtered = piece(batch), piece(drop(batch))
    scale = 1.0
    if isinstance(piece, GPG):
        count = [int(np.count_nonzero(~np.isnan(g.scores()))) for g in batch]
        scale = sum(count) / sum(count[i] for i in kept)
    np.testing.assert_allclose(flat([everything[i] for i in kept]), scale * flat(filtered), rtol=1e-9, atol=1e-12)


@settled
@given(batch=batches(missing=False, groups=4))
def test_whitened_advantages_have_mean_zero_and_variance_one(batch):
    out = flat(Whiten(zero_groups=True)(DrGRPO()(batch)))
    raw = flat(DrGRPO()(batch))
    assume(raw.size > 1 and raw.std() > 0.01)
    assert out.mean() == pytest.approx(0, abs=1e-9) and out.var(ddof=1) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(
        flat(Whiten(zero_groups=True)(Whiten(zero_groups=True)(DrGRPO()(batch)))), out, atol=1e-3
    )


@settled
@given(values=st.lists(st.integers(-20, 20), min_size=2, max_size=8), shift=st.integers(-5, 5), scale=st.integers(1, 9))
def test_whitening_undoes_shift_and_scale(values, shift, scale):
    raw = np.array(values, dtype=float)
    np.testing.assert_allclose(whiten(raw * scale + shift), whiten(raw), atol=1e-6)


@settled
@given(
    rewards=st.lists(st.floats(-2, 2), min_size=1, max_size=8),
    data=st.data(),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    bootstrap=st.floats(-2, 2),
)
def test_gae_is_the_discounted_sum_of_errors(rewards, data, gamma, lam, bootstrap):
    n = len(rewards)
    values = np.array(data.draw(st.lists(st.floats(-2, 2), min_size=n, max_size=n)))
    after = np.append(values[1:], bootstrap)
    delta = np.array(rewards) + gamma * after - values
    expected = [sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, n)) for t in range(n)]
    out = gae_advantages(np.array(rewards), values, gamma=gamma, lam=lam, bootstrap_value=bootstrap)
    np.testing.assert_allclose(out, expected, atol=1e-9)


@settled
@given(batch=batches(), coef=st.floats(0, 1))
def test_kl_in_the_reward_keeps_the_sum(batch, coef):
    for group in KLReward(coef=coef)(batch):
        for rollout in group.rollouts:
            value = rollout.scores["reward"].value
            if value is not None and rollout.num_actions:
                assert math.isclose(rollout.streams["reward_tokens"].sum(), value, abs_tol=1e-9)


@pytest.mark.parametrize("piece", EVERYTHING, ids=repr)
def test_an_empty_batch_stays_empty(piece):
    assert piece([]) == []
