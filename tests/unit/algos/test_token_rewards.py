from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.token_rewards import reshaped, returns_to_go, token_rewards, tokens_name, turn_starts


def test_an_outcome_stands_at_the_last_action_token(make_group):
    group = make_group([0.5, None, 2.0], [3, 2, 0])
    np.testing.assert_array_equal(token_rewards(group.rollouts[0], "reward"), [0, 0, 0.5])
    assert token_rewards(group.rollouts[1], "reward") is None
    assert token_rewards(group.rollouts[0], "other") is None
    assert token_rewards(group.rollouts[2], "reward").shape == (0,)


def test_a_stream_replaces_the_outcome(make_group):
    rollout = make_group([3.0], [2], streams={"reward_tokens": [[1.0, 2.0]]}).rollouts[0]
    assert tokens_name("reward") == "reward_tokens"
    np.testing.assert_array_equal(token_rewards(rollout, "reward"), [1, 2])


def test_reshaped_keeps_the_first_value_and_the_sum(make_group):
    rollout = make_group([3.0], [2], streams={"reward_tokens": [[1.0, 2.0]]}).rollouts[0]
    once = reshaped(rollout, "reward", 2.5, "penalty", cost=0.5)
    twice = reshaped(once, "reward", 2.0, "again")
    assert once.scores["reward"].value == 2.5 and once.scores["reward"].info == {"cost": 0.5}
    assert twice.scores["reward_unshaped"].value == 3.0 and twice.scores["reward"].reason == "again"
    np.testing.assert_array_equal(twice.streams["reward_tokens"], [1, 1])
    np.testing.assert_array_equal(rollout.streams["reward_tokens"], [1, 2])


def test_reshaped_leaves_missing_scores_alone(make_group):
    rollout = make_group([None]).rollouts[0]
    assert reshaped(rollout, "reward", 1.0, "x") is rollout


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_returns_to_go(gamma):
    np.testing.assert_allclose(
        returns_to_go(np.array([1.0, 0.0, 4.0]), gamma), [1 + gamma**2 * 4, gamma * 4, 4], rtol=1e-15
    )
    assert returns_to_go(np.zeros(0), gamma).shape == (0,)


def test_turns_are_runs_of_neighbouring_action_tokens(make_group):
    rollout = make_group([1], [4]).rollouts[0]
    np.testing.assert_array_equal(turn_starts(rollout), [0])
    spread = replace(rollout, tokens=np.arange(20), action_index=np.array([2, 5, 6, 9]))
    np.testing.assert_array_equal(turn_starts(spread), [0, 1, 3])
    assert turn_starts(make_group([1], [0]).rollouts[0]).shape == (0,)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 1000])
@pytest.mark.parametrize("gamma", [0.0, 1e-200, 0.3, 0.999, 1.0])
def test_returns_to_go_equal_the_recursion(length, gamma):
    rewards = np.sin(np.arange(length))
    expected, running = np.zeros(length), 0.0
    for t in range(length - 1, -1, -1):
        running = rewards[t] + gamma * running
        expected[t] = running
    np.testing.assert_allclose(returns_to_go(rewards, gamma), expected, rtol=1e-10, atol=1e-12)
