from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.advantages_tokens import OTB, ReinforcePlusPlus, ReinforcePlusPlusBaseline, ReMax, otb_advantages


def flat(groups):
    return [r.advantages for g in groups for r in g.rollouts]


def greedy(group, index=0):
    return group.with_rollouts(replace(r, meta={"greedy": i == index}) for i, r in enumerate(group.rollouts))


def test_golden_reinforce_plus_plus(make_group):
    """specs/skywork_darling.md §E: R = [[0,0,1],[0,0,0]], m = [[1,1,1],[1,1,0]], gamma 1."""
    out = flat(ReinforcePlusPlus()([make_group([1, 0], [3, 2])]))
    np.testing.assert_allclose(out[0], [0.73029673] * 3, atol=1e-7)
    np.testing.assert_allclose(out[1], [-1.0954451] * 2, atol=1e-7)


def test_reinforce_plus_plus_compares_with_the_batch(make_group):
    out = flat(ReinforcePlusPlus()([make_group([1, 1]), make_group([0, 0])]))
    assert all(a > 0 for a in out[0]) and all(a < 0 for a in out[2])  # constant groups, and yet a signal
    assert not np.concatenate(flat(ReinforcePlusPlus()([make_group([1, 1]), make_group([1, 1])]))).any()


def test_reinforce_plus_plus_discounts_and_reads_token_rewards(make_group):
    group = make_group([1.0, 0.0], [2, 2], streams={"reward_tokens": [[0.25, 0.75], [0, 0]]})
    out = flat(ReinforcePlusPlus(gamma=0.5, std=False)([group]))
    returns = np.array([0.25 + 0.5 * 0.75, 0.75, 0, 0])
    np.testing.assert_allclose(np.concatenate(out), returns - returns.mean())


def test_reinforce_plus_plus_openrlhf_variance(make_group):
    out = np.concatenate(flat(ReinforcePlusPlus(**ReinforcePlusPlus.conventions["openrlhf"])([make_group([1, 0])])))
    np.testing.assert_allclose(out, [1, 1, -1, -1])


@pytest.mark.parametrize("cls", [ReinforcePlusPlus, ReinforcePlusPlusBaseline])
def test_missing_scores_get_zero_and_change_nobody(cls, make_group):
    other = make_group([1, 0, 1], [5, 1, 2])
    with_missing = flat(cls()([make_group([1, None, 0], [2, 7, 3]), other]))
    without = flat(cls()([make_group([1, 0], [2, 3]), other]))
    assert not with_missing.pop(1).any()
    for a, b in zip(with_missing, without, strict=True):
        np.testing.assert_array_equal(a, b)


def test_baseline_form_leaves_constant_groups_out(make_group):
    mixed, constant = make_group([1, 0], [3, 1]), make_group([1, 1], [4, 4])
    alone, beside = ReinforcePlusPlusBaseline()([mixed]), ReinforcePlusPlusBaseline()([mixed, constant])
    np.testing.assert_array_equal(np.concatenate(flat(alone)), np.concatenate(flat(beside))[:4])
    assert not np.concatenate(flat(beside))[4:].any()
    along = np.concatenate(flat(ReinforcePlusPlusBaseline(zero_groups=True)([mixed, constant])))
    assert along[4:].any()  # the batch's token mean is not 0: long answers weigh more
    tokens = np.array([0.5, 0.5, 0.5, -0.5, *[0.0] * 8])
    np.testing.assert_allclose(along, (tokens - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8))


def test_baseline_form_without_deviation(make_group):
    out = np.concatenate(flat(ReinforcePlusPlusBaseline(std=False)([make_group([1, 0])])))
    np.testing.assert_allclose(out, [0.5, 0.5, -0.5, -0.5])


def test_raw_singleton_enters_the_normalisation_by_convention(make_group):
    groups = [make_group([0.7]), make_group([1, 0])]
    verl = ReinforcePlusPlusBaseline(**ReinforcePlusPlusBaseline.conventions["verl"])(groups)
    assert flat(verl)[0].any() and not flat(ReinforcePlusPlusBaseline()(groups))[0].any()


def test_remax_subtracts_the_greedy_score_and_drops_the_greedy_rollout(make_group):
    out = ReMax()([greedy(make_group([0.5, 1, 0.5, None], [2, 3, 1, 2]))])[0]
    assert len(out) == 3 and not any(r.meta["greedy"] for r in out.rollouts)
    np.testing.assert_array_equal(out.rollouts[0].advantages, [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(out.rollouts[1].advantages, [0])
    np.testing.assert_array_equal(out.rollouts[2].advantages, [0, 0])


def test_remax_uses_returns_of_token_rewards(make_group):
    group = greedy(make_group([0.5, 1], [2, 2], streams={"reward_tokens": [[0, 0.5], [0.25, 0.75]]}))
    np.testing.assert_array_equal(ReMax()([group])[0].rollouts[0].advantages, [0.5, 0.25])


def test_remax_without_a_baseline(make_group):
    out = ReMax()([greedy(make_group([None, 1, 0]))])[0]
    assert len(out) == 2 and not any(r.advantages.any() for r in out.rollouts)
    with pytest.raises(ValueError, match="ReMax needs a greedy rollout of example 'e'"):
        ReMax()([make_group([1, 0])])
    assert ReMax.greedy_rollouts == 1


def test_otb_weighs_siblings_by_energy():
    out = otb_advantages([np.array([1.0]), np.array([0.0])], [np.array([3.0]), np.array([1.0])], eps=1e-12)
    np.testing.assert_allclose([a[0] for a in out], [0.25, -0.75])


def test_otb_position_t_counts_the_path_so_far():
    returns = [np.array([1.0, 1.0]), np.array([0.0, 0.0])]
    out = otb_advantages(returns, [np.array([1.0, 3.0]), np.array([1.0, 1.0])], eps=1e-12)
    np.testing.assert_allclose(out[0], [0.5, 1 - 4 / 6])
    np.testing.assert_allclose(out[1], [-0.5, -4 / 6])


def test_otb_tail_of_the_longest():
    returns, energies = [np.array([1.0, 1.0]), np.array([0.0])], [np.ones(2), np.ones(1)]
    assert otb_advantages(returns, energies)[0][1] == 0  # exactly, not 1 - 1 / (1 + eps)
    assert otb_advantages(returns, energies, zero_tail=True)[0][1] == 1
    assert otb_advantages([], []) == []


def test_otb_needs_and_energy(make_group):
    streams = {
        "old_logprobs": [[np.log(0.5)], [np.log(0.2)]],
        "sum_probs_squared": [[0.5], [0.68]],
        "w": [[2.0], [1.0]],
    }
    group = make_group([1, 0], [1, 1], streams=streams)
    out = flat(OTB(eps=1e-12)([group]))
    weights = np.array([1 - 1 + 0.5, 1 - 0.4 + 0.68])
    np.testing.assert_allclose(out[0], 1 - weights[0] / weights.sum())
    weighted = flat(OTB(importance="w", eps=1e-12)([group]))
    np.testing.assert_allclose(weighted[0], 1 - 4 * weights[0] / (4 * weights[0] + weights[1]))
    assert OTB(importance="w").needs == {
        "score:reward",
        "stream:old_logprobs",
        "stream:sum_probs_squared",
        "stream:w",
    }


def test_otb_degenerate_groups_are_exactly_zero(make_group):
    streams = {"old_logprobs": [[-0.5]] * 3, "sum_probs_squared": [[0.5]] * 3}
    for scores in ([0.1, 0.1, 0.1], [0.7, None, None], [None, None, None]):
        assert not np.concatenate(flat(OTB()([make_group(scores, [1, 1, 1], streams=streams)]))).any()


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (ReinforcePlusPlus, {"gamma": 1.5}),
        (ReinforcePlusPlus, {"eps": 0}),
        (ReinforcePlusPlus, {"floor": "none"}),
        (ReinforcePlusPlus, {"ddof": 3}),
        (ReinforcePlusPlusBaseline, {"ddof": 3}),
        (ReinforcePlusPlusBaseline, {"eps": -1}),
        (OTB, {"eps": 0}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [ReinforcePlusPlus, ReinforcePlusPlusBaseline, ReMax, OTB])
def test_conventions_construct(cls):
    for overrides in cls.conventions.values():
        piece = cls(**overrides)
        assert {name: getattr(piece, name) for name in overrides} == overrides


def test_otb_default_eps():
    out = otb_advantages([np.array([1.0]), np.array([0.0])], [np.array([1e-8]), np.array([0.0])])
    np.testing.assert_allclose(out[0], 0.5)  # 1 - 1e-8 / (1e-8 + 1e-8)
