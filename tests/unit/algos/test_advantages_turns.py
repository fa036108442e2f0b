from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.advantages import GRPO
from coterie.algos.advantages_turns import GiGPO


def played(make_group, scores, rewards, anchors):
    """Each rollout: turns of two tokens with one tool token between; rewards and anchors one a turn."""
    rollouts = []
    for i, (value, paid, states) in enumerate(zip(scores, rewards, anchors, strict=True)):
        n = len(paid)
        rollout = make_group([value], [2 * n]).rollouts[0]
        tokens = np.zeros(2 * n)
        tokens[1::2] = paid
        rollouts.append(
            replace(
                rollout,
                index=i,
                tokens=np.arange(3 * n),
                action_index=np.array([3 * k + j for k in range(n) for j in (0, 1)]),
                streams={"reward_tokens": tokens},
                meta={"anchors": tuple(states)},
            )
        )
    return make_group([1]).with_rollouts(rollouts)


def test_by_hand(make_group):
    group = played(make_group, [1, 0], [[0, 1], [0, 0, 0]], [["start", "door"], ["start", "wall", "door"]])
    out = GiGPO(std=False, gamma=0.5, step_weight=2.0)([group])[0]
    # returns of turns: 0.5, 1 and 0, 0, 0; "start": 0.5 against 0, "door": 1 against 0, "wall" alone
    np.testing.assert_allclose(out.rollouts[0].advantages, np.repeat([0.5 + 2 * 0.25, 0.5 + 2 * 0.5], 2))
    np.testing.assert_allclose(out.rollouts[1].advantages, np.repeat([-0.5 - 2 * 0.25, -0.5, -0.5 - 2 * 0.5], 2))


def test_a_state_visited_twice_is_compared_with_itself(make_group):
    group = played(make_group, [1, 1], [[0, 1], [1]], [["s", "s"], ["other"]])
    out = GiGPO(std=False, gamma=0.5)([group])[0]
    np.testing.assert_allclose(out.rollouts[0].advantages, [-0.25, -0.25, 0.25, 0.25])
    assert not out.rollouts[1].advantages.any()


def test_deviation_and_eps(make_group):
    group = played(make_group, [1, 1], [[0, 1], [1]], [["s", "s"], ["other"]])
    out = GiGPO(gamma=0.5, eps=0.5)([group])[0]
    np.testing.assert_allclose(out.rollouts[0].advantages[2:], 0.25 / (np.std([0.5, 1], ddof=1) + 0.5))
    population = GiGPO(gamma=0.5, ddof=0, eps=1e-12)([group])[0]
    np.testing.assert_allclose(population.rollouts[0].advantages[2:], 1)


def test_without_step_weight_it_is_grpo(make_group):
    group = played(make_group, [1, 0], [[0, 1], [0, 0]], [["a", "b"], ["a", "b"]])
    out, grpo = GiGPO(step_weight=0)([group])[0], GRPO()([group])[0]
    for a, b in zip(out.rollouts, grpo.rollouts, strict=True):
        np.testing.assert_array_equal(a.advantages, b.advantages)


def test_degenerate_groups(make_group):
    constant = played(make_group, [1, 1], [[0, 1], [0, 1]], [["a", "b"], ["a", "b"]])
    assert not np.concatenate([r.advantages for r in GiGPO()([constant])[0].rollouts]).any()
    lone = played(make_group, [0.7], [[0, 0.7]], [["a", "b"]])
    assert not GiGPO()([lone])[0].rollouts[0].advantages.any()


def test_missing_scores_get_zero_and_change_nobody(make_group):
    group = played(make_group, [1, None, 0], [[0, 1], [0, 9], [0, 0]], [["a", "b"]] * 3)
    out = GiGPO()([group])[0]
    rest = GiGPO()([group.with_rollouts([group.rollouts[0], group.rollouts[2]])])[0]
    assert not out.rollouts[1].advantages.any()
    np.testing.assert_array_equal(out.rollouts[0].advantages, rest.rollouts[0].advantages)
    np.testing.assert_array_equal(out.rollouts[2].advantages, rest.rollouts[1].advantages)


def test_rollouts_without_action_tokens(make_group):
    group = played(make_group, [1, 0], [[0, 1], []], [["a", "b"], []])
    out = GiGPO(std=False)([group])[0]
    assert out.rollouts[1].advantages.shape == (0,)
    np.testing.assert_allclose(out.rollouts[0].advantages, 0.5)


def test_anchors_must_fit_the_turns(make_group):
    group = played(make_group, [1, 0], [[0, 1], [0, 0]], [["a"], ["a", "b"]])
    with pytest.raises(ValueError, match=r"rollout 0 has 2 turns and 1 entries in meta\['anchors'\]"):
        GiGPO()([group])


@pytest.mark.parametrize("fields", [{"eps": 0}, {"gamma": 1.5}, {"gamma": -0.1}, {"step_weight": -1}, {"ddof": 2}])
def test_bad_fields(fields):
    with pytest.raises(ValueError, match=f"GiGPO.{next(iter(fields))}="):
        GiGPO(**fields)


def test_declaration():
    assert GiGPO.min_group_size == 2 and GiGPO(score="s").needs == {"score:s"} and GiGPO.paper
