import math

import pytest

from coterie.train.diagnosis import Diagnosis

HEALTHY = {
    "reward/reward": 0.5,
    "group/zero_variance_frac": 0.3,
    "policy/entropy": 1.0,
    "optim/grad_norm": 1.0,
    "kl/sampler_k3": 1e-6,
    "optim/skipped_steps": 0.0,
    "someone/elses_metric": 1e9,
}


def test_a_healthy_step_needs_no_words():
    assert Diagnosis().notes(1, HEALTHY) == []


def test_a_metric_outside_its_range_is_said_once_in_n_steps():
    diagnosis = Diagnosis(every=10)
    said = {step: diagnosis.notes(step, {**HEALTHY, "group/zero_variance_frac": 0.78}) for step in range(1, 25)}
    assert [step for step, notes in said.items() if notes] == [1, 11, 21]
    assert len(said[1]) == 1 and said[1][0].startswith("78% of groups have zero variance: ")


def test_bounds_themselves_are_healthy():
    assert Diagnosis().notes(1, {"group/zero_variance_frac": 0.7, "optim/skipped_steps": 0.0}) == []
    assert Diagnosis().notes(1, {"optim/skipped_steps": 1.0}) != []


def test_a_low_bound():
    assert "all but deterministic" in Diagnosis().notes(1, {"policy/entropy": 0.001})[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_overflowed(value):
    (note,) = Diagnosis().notes(4, {"policy/loss": value})
    assert note.startswith(f"policy/loss is {value}:")


def test_entropy_collapse_is_relative_to_the_start():
    diagnosis = Diagnosis()
    for step in range(10):
        assert diagnosis.notes(step, {"policy/entropy": 2.0}) == []
    assert diagnosis.notes(10, {"policy/entropy": 0.21}) == []
    (note,) = diagnosis.notes(11, {"policy/entropy": 0.19})
    assert "fell from 2 to 0.19 nats" in note


def test_a_gradient_spike():
    diagnosis = Diagnosis()
    for step in range(20):
        diagnosis.notes(step, {"optim/grad_norm": 1.0 + step / 100})
    assert diagnosis.notes(20, {"optim/grad_norm": 15.0}) == []
    (note,) = diagnosis.notes(21, {"optim/grad_norm": 44.0})
    assert "40 times its recent median" in note


def evaluation(value, half=0.05):
    return {"eval/accuracy": value, "eval/accuracy_ci95_low": value - half, "eval/accuracy_ci95_high": value + half}


def test_an_evaluation_clearly_below_the_first():
    diagnosis = Diagnosis()
    assert diagnosis.notes(0, evaluation(0.5)) == []
    assert diagnosis.notes(10, evaluation(0.41)) == []
    (note,) = diagnosis.notes(20, evaluation(0.39))
    assert "39.0%" in note and "50.0%" in note


def test_standstill_and_progress():
    still, moving = Diagnosis(every=1000), Diagnosis(every=1000)
    notes = {"still": [], "moving": []}
    for step in range(1, 301):
        wobble = 0.1 * math.sin(step)
        notes["still"] += still.notes(step, {"reward/reward": 0.3 + wobble})
        notes["moving"] += moving.notes(step, {"reward/reward": 0.3 + step / 1000 + wobble})
    assert notes["moving"] == []
    assert len(notes["still"]) == 1 and "nothing is being learned" in notes["still"][0]
