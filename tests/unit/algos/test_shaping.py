from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.advantages import DrGRPO
from coterie.algos.advantages_tokens import ReinforcePlusPlus
from coterie.algos.coefs import AdaptiveKL
from coterie.algos.shaping import KLReward, LengthPenalty, OverlongPenalty, ScaleReward, StopProperly


def value(group, i=0):
    return group.rollouts[i].scores["reward"].value


def kl_group(make_group, policy, reference, scores=None):
    streams = {"old_logprobs": policy, "ref_logprobs": reference}
    return make_group(scores or [1.0] * len(policy), [len(p) for p in policy], streams=streams)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [0.5, -0.5, 2]),
        ("k2", [0.125, 0.125, 2]),
        ("k3", [0.1065307, 0.1487213, 1.1353353]),
        ("abs", [0.5, 0.5, 2]),
    ],
)
def test_golden_kl(kind, expected, make_group):
    """specs/skywork_darling.md §E: (logp, ref) = (-1, -1.5), (-1, -.5), (-1, -3)."""
    group = kl_group(make_group, [[-1.0, -1.0, -1.0]], [[-1.5, -0.5, -3.0]])
    out = KLReward(coef=1.0, kind=kind)([group])[0].rollouts[0]
    np.testing.assert_allclose(out.streams["reward_tokens"], np.array([0, 0, 1]) - expected, atol=1e-7)
    assert out.scores["reward"].value == pytest.approx(1 - sum(expected), abs=1e-6)
    assert out.scores["reward"].info["kl"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert out.scores["reward_unshaped"].value == 1.0


def test_kl_reaches_group_and_token_estimators(make_group):
    group = kl_group(make_group, [[-1.0, -1.0], [-1.0]], [[-2.0, -1.0], [-1.0]], [1, 1])
    shaped = KLReward(coef=0.1)([group])
    grouped = DrGRPO()(shaped)[0]
    np.testing.assert_allclose([r.advantages[0] for r in grouped.rollouts], [-0.05, 0.05])
    tokens = ReinforcePlusPlus(std=False)(shaped)[0]
    returns = np.array([0.9, 1.0, 1.0])
    np.testing.assert_allclose(np.concatenate([r.advantages for r in tokens.rollouts]), returns - returns.mean())


def test_kl_clamps(make_group):
    group = kl_group(make_group, [[-1.0]], [[-31.0]])

    def cost(**fields):
        return 1 - value(KLReward(coef=1.0, **fields)([group])[0])

    assert cost(kind="k1") == pytest.approx(30) and cost(kind="k1", clamp="all") == pytest.approx(10)
    assert cost(kind="k3") == pytest.approx(10) and cost(kind="k3", clamp="none") == pytest.approx(29)
    far = kl_group(make_group, [[-31.0]], [[-1.0]])
    assert 1 - value(KLReward(coef=1.0, kind="k3", clamp="none")([far])[0]) > 1e12  # trap 13
    assert 1 - value(KLReward(coef=1.0, kind="k3")([far])[0]) == pytest.approx(10)


def test_kl_keeps_missing_scores_and_refuses_missing_logprobs(make_group):
    group = kl_group(make_group, [[-1.0]], [[-2.0]], [None])
    assert KLReward()([group])[0].rollouts[0] is group.rollouts[0]
    with pytest.raises(ValueError, match="stream 'ref_logprobs' of rollout 0 is nan"):
        KLReward()([kl_group(make_group, [[-1.0]], [[np.nan]])])
    with pytest.raises(KeyError, match="ref_logprobs"):
        KLReward()([make_group([1], [1], streams={"old_logprobs": [[-1.0]]})])


def test_kl_takes_a_controlled_coefficient(make_group):
    controller = AdaptiveKL(coef=0.5)
    piece = replace(KLReward(), coef=controller.value(controller.init()))
    assert value(piece([kl_group(make_group, [[-1.0]], [[-2.0]])])[0]) == pytest.approx(0.5)
    assert KLReward().writes == {"score:reward_unshaped", "stream:reward_tokens"}
    assert KLReward(policy="sampler_logprobs").needs == {
        "score:reward",
        "stream:sampler_logprobs",
        "stream:ref_logprobs",
    }


@pytest.mark.parametrize(("length", "expected"), [(15_000, 0.0), (17_000, 0.1503906), (20_480, 1.0), (16_384, 0.0)])
def test_golden_overlong(length, expected):
    assert OverlongPenalty().penalty(length) == pytest.approx(expected, abs=1e-7)


def test_overlong_cap_and_factor(make_group):
    assert OverlongPenalty(max_tokens=10, buffer=4).penalty(30) == 1.0
    assert OverlongPenalty(max_tokens=10, buffer=4, cap=False).penalty(30) == 6.0
    out = OverlongPenalty(max_tokens=4, buffer=2, factor=0.5)([make_group([1, None], [3, 4])])[0]
    assert value(out) == 0.75 and value(out, 1) is None


def test_stop_properly(make_group):
    group = make_group([2.0, 2.0, None], finish=["length", "stop", "length"])
    assert [value(StopProperly(factor=0.5)([group])[0], i) for i in range(3)] == [1.0, 2.0, None]
    assert [value(StopProperly(factor=-0.3)([group])[0], i) for i in range(3)] == [-0.3, 2.0, None]
    assert value(StopProperly()([group])[0]) == 0.0


def test_length_penalty(make_group):
    group = make_group([1, 0, None], [4, 2, 8])
    out = LengthPenalty(output=0.5, context=0, turns=0)([group])[0]
    assert [value(out, i) for i in range(3)] == [1 - 0.5 * 0.5 * 1, -0.5 * 0.5 * 0.5, None]
    everything = LengthPenalty()([group])[0]
    assert value(everything) == pytest.approx(1 - 0.5 * (0.25 + 0.1 + 0.1))
    assert LengthPenalty()([make_group([None, None])])[0].scores().size == 2
    assert [value(LengthPenalty()([make_group([0, 0])])[0], i) for i in range(2)] == [0, 0]


def test_length_penalty_counts_turns(make_group):
    group = make_group([1, 1], [3, 3])
    rollouts = list(group.rollouts)
    rollouts[0] = replace(rollouts[0], tokens=np.arange(20), action_index=np.array([2, 8, 9]))
    out = LengthPenalty(output=0, context=0, turns=1)([group.with_rollouts(rollouts)])[0]
    assert [value(out, i) for i in range(2)] == [0, 0.5]


def test_scale_reward(make_group):
    group = make_group([1, 3, None])
    out = ScaleReward(bias=1, scale=2, high=5)([group])[0]
    assert [value(out, i) for i in range(3)] == [4, 5, None]
    assert value(ScaleReward(**ScaleReward.conventions["areal"])([make_group([99])])[0]) == 20
    a, b, c, d = 0.0, 10.0, -1.0, 1.0
    affine = ScaleReward(bias=c * (b - a) / (d - c) - a, scale=(d - c) / (b - a), low=c, high=d)
    assert [affine.scaled(x) for x in (-5, 0, 5, 10, 12)] == pytest.approx([-1, -1, 0, 1, 1])


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (KLReward, {"coef": -1}),
        (KLReward, {"coef": float("inf")}),
        (KLReward, {"kind": "full"}),
        (KLReward, {"clamp": "k1"}),
        (OverlongPenalty, {"buffer": 0}),
        (OverlongPenalty, {"factor": 0}),
        (OverlongPenalty, {"max_tokens": 10}),
        (StopProperly, {"factor": 1.0}),
        (StopProperly, {"factor": float("-inf")}),
        (LengthPenalty, {"turns": -1}),
        (ScaleReward, {"scale": 0}),
        (ScaleReward, {"bias": float("inf")}),
        (ScaleReward, {"high": float("-inf")}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [KLReward, OverlongPenalty, StopProperly, LengthPenalty, ScaleReward])
def test_conventions_construct(cls):
    assert cls(score="s").needs >= {"score:s"}
    for overrides in cls.conventions.values():
        cls(**overrides)
