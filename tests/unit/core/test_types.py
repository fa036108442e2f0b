import math

import numpy as np
import pytest

from coterie.core.types import Example, Group, Rollout, Score


def rollout(tokens=(7, 8, 1, 2, 3), actions=(2, 3, 4), **kwargs):
    return Rollout(np.array(tokens), np.array(actions), "text", "stop", **kwargs)


def group(*rollouts):
    return Group(Example("a", ({"role": "user", "content": "q"},)), rollouts)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="finite"):
        Score(value)


def test_a_missing_score_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        Score(None)
    assert Score.missing("judge down", tries=3).info == {"tries": 3}


def test_missing_scores_are_nan_and_never_zero():
    scored = group(rollout(), rollout()).with_scores("reward", [Score(1.0), Score.missing("timeout")])
    values = scored.scores("reward")
    assert values[0] == 1.0
    assert math.isnan(values[1])


def test_an_unknown_score_names_those_that_exist():
    scored = group(rollout()).with_scores("quality", [Score(1.0)])
    with pytest.raises(KeyError, match="quality"):
        scored.scores("reward")


def test_a_number_is_broadcast_and_an_array_is_kept():
    g = group(rollout(), rollout()).with_advantages([2.0, np.array([1.0, 2.0, 3.0])])
    assert g.rollouts[0].advantages.tolist() == [2.0, 2.0, 2.0]
    assert g.rollouts[1].advantages.tolist() == [1.0, 2.0, 3.0]


def test_verbs_return_new_values_and_check_counts():
    g = group(rollout())
    assert g.with_advantages([1.0]) is not g
    assert g.rollouts[0].advantages is None
    with pytest.raises(ValueError, match="shorter|longer"):
        g.with_advantages([1.0, 2.0])
    with pytest.raises(ValueError, match="shorter|longer"):
        g.with_scores("reward", [])


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"actions": (4, 3)}, "increase"),
        ({"actions": (3, 3)}, "increase"),
        ({"actions": (4, 5)}, "outside"),
        ({"streams": {"old_logprobs": np.zeros(2)}}, "old_logprobs"),
        ({"advantages": np.zeros(4)}, "advantages"),
        ({"spans": {"cot": ((0, 4),)}}, "cot"),
        ({"spans": {"cot": ((2, 1),)}}, "cot"),
    ],
)
def test_a_rollout_whose_parts_do_not_fit_is_refused(kwargs, match):
    with pytest.raises(ValueError, match=match):
        rollout(**kwargs)


def test_spans_index_action_tokens():
    r = rollout(spans={"cot": ((0, 1), (2, 3))})
    assert r.span_index("cot").tolist() == [0, 2]
    assert r.span_index("answer").tolist() == []


def test_truncation_is_read_from_the_finish_reason():
    assert not rollout().truncated
    assert Rollout(np.array([1]), np.array([0]), "", "length").truncated
