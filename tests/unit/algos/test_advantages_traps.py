"""Formula traps of the field, by their number in the survey of peers (§2.9): what each framework does, what we do."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.algos import advantages, advantages_dense, advantages_group, advantages_multi, advantages_tokens, gae
from coterie.algos.advantages import GRPO, RLOO, DrGRPO
from coterie.algos.gae import GAE
from coterie.algos.shaping import KLReward

MODULES = (advantages, advantages_dense, advantages_group, advantages_multi, advantages_tokens, gae)
ESTIMATORS = sorted(
    {
        c
        for m in MODULES
        for c in vars(m).values()
        if hasattr(c, "min_group_size") and c.__module__.startswith("coterie")
    },
    key=lambda c: c.__name__,
)


def of(name, cls=GRPO):
    return cls(**cls.conventions[name])


def test_trap_1_a_group_of_one(make_group, first):
    """Raw reward (verl, SkyRL), NaN (slime), 0 (NeMo-RL, ours)."""
    lone = make_group([0.7])
    assert first(of("verl")([lone])[0])[0] == pytest.approx(0.7, abs=1e-6)
    assert first(of("skyrl")([lone])[0])[0] == pytest.approx(0.7, abs=1e-6)
    for name in ("slime", "nemo_rl", "trl"):
        assert first(of(name)([lone])[0])[0] == 0
    assert first(GRPO()([lone])[0])[0] == 0 and first(RLOO()([lone])[0])[0] == 0


def test_trap_1_a_group_that_became_one_by_failures(make_group, first):
    lone = make_group([0.7, None, None])
    np.testing.assert_array_equal(first(GRPO()([lone])[0]), [0, 0, 0])
    assert first(of("verl")([lone])[0])[0] > 0.6


def test_trap_1_unequal_group_sizes(make_group, first):
    """slime takes the whole batch as one group; here and elsewhere groups stay groups."""
    uneven = [make_group([1, 0]), make_group([5, 5, 5])]
    assert not first(GRPO()(uneven)[1]).any()
    assert first(of("slime")(uneven)[1]).all()


def test_trap_2_eps_and_ddof_on_nearly_constant_rewards(make_group, first):
    group = make_group([0.5, 0.5 + 1e-5])
    sizes = {name: first(of(name)([group])[0])[1] for name in ("trl", "areal", "verl", "openrlhf")}
    assert sorted(sizes, key=sizes.get) == ["trl", "areal", "verl", "openrlhf"]
    assert sizes["openrlhf"] > 10 * sizes["trl"]


def test_trap_5_dr_grpo_depends_on_no_length(make_group, first):
    short, long = make_group([1, 0], [1, 1]), make_group([1, 0], [1, 9])
    np.testing.assert_array_equal(first(DrGRPO()([short])[0]), first(DrGRPO()([long])[0]))


def test_trap_6_gae_through_tool_tokens(make_group):
    """Ten tool tokens between two actions decay nothing: the carry of verl, NeMo-RL and AReaL."""
    group = make_group([1, 1], [2, 2], streams={"values": [[0.1, 0.2]] * 2})
    far = replace(group.rollouts[1], tokens=np.arange(14), action_index=np.array([2, 13]))
    out = GAE(lam=0.5, gamma=0.9, whiten=False)([group.with_rollouts([group.rollouts[0], far])])[0]
    np.testing.assert_array_equal(out.rollouts[0].advantages, out.rollouts[1].advantages)


def test_trap_13_one_bad_token_cannot_decide_the_reward(make_group):
    bad = make_group([1], [1], streams={"old_logprobs": [[-60.0]], "ref_logprobs": [[-1.0]]})

    def cost(**fields):
        return 1 - KLReward(coef=1.0, kind="k3", **fields)([bad])[0].rollouts[0].scores["reward"].value

    assert cost() == pytest.approx(10) and cost(**KLReward.conventions["trl"]) > 1e20


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_trap_15_a_missing_logprob_is_an_error(value, make_group):
    group = make_group([1], [2], streams={"old_logprobs": [[-1.0, value]], "ref_logprobs": [[-1.0, -1.0]]})
    with pytest.raises(ValueError, match="stream 'old_logprobs' of rollout 0 is .* at action token 1"):
        KLReward()([group])


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda c: c.__name__)
def test_trap_17_group_methods_say_how_many_they_need(cls):
    singles = {"GAE", "ReinforcePlusPlus", "ReMax", "OnPolicyDistillation", "MiniLLM", "KLAdvantage"}
    assert cls.min_group_size == (1 if cls.__name__ in singles else 2)
