import numpy as np
import pytest

from coterie.core.metrics import values
from coterie.core.types import Example, Group, Rollout, Score
from coterie.evals.run import accuracy_metrics


def problem(name, *scores):
    rollouts = tuple(
        Rollout(np.array([1, 2]), np.array([1]), "", "stop", scores={"reward": s})
        for s in (Score.missing("down") if s is None else Score(s) for s in scores)
    )
    return Group(Example(name, ({"role": "user", "content": "q"},)), rollouts)


def test_accuracy_is_a_mean_over_problems_with_an_interval_around_it():
    found = values(accuracy_metrics([problem("a", 1, 1, 0, 0), problem("b", 0, 0, 0, 0)], 0.5, seed=0))
    assert found["eval/accuracy"] == 0.25
    assert found["eval/accuracy_ci95_low"] <= 0.25 <= found["eval/accuracy_ci95_high"]
    assert found["eval/problems"] == 2


def test_pass_at_k_is_unbiased():
    found = values(accuracy_metrics([problem("a", 1, 0, 0, 0)], 0.5, seed=0))
    assert found["eval/pass@2"] == pytest.approx(0.5)
    assert found["eval/pass@4"] == 1.0


def test_missing_scores_count_neither_as_right_nor_as_wrong():
    found = values(accuracy_metrics([problem("a", 1, None), problem("b", None, None)], 0.5, seed=0))
    assert found["eval/accuracy"] == 1.0
    assert found["eval/problems"] == 1
    assert "eval/pass@2" not in found


def test_nothing_observed_is_no_metric():
    assert accuracy_metrics([problem("a", None)], 0.5, seed=0) == {}
