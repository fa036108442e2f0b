import math

import pytest
import torch

from coterie.algos.corrections import (
    all_in_sequence,
    correction_rule,
    importance_weights,
    kept_by,
    m2po_keep,
    opsm_keep,
    rejection_rule,
    within,
)

ROWS = torch.tensor([0, 0, 1, 1, 1])


def t(*values):
    return torch.tensor(values, dtype=torch.float64)


LOGS = t(0.2, -0.4, 1.0, 0.1, -0.2)


def keep(name, low=None, high=None, logs=LOGS):
    sampler = torch.full_like(logs, -3.0)
    return kept_by(name, logs + sampler, sampler, ROWS, 2, low, high).tolist()


def test_weights_at_each_level():
    assert importance_weights(LOGS, ROWS, 2).tolist() == pytest.approx(LOGS.exp().tolist())
    sums, means = math.exp(-0.2), math.exp(-0.1)
    assert importance_weights(LOGS, ROWS, 2, "sequence").tolist() == pytest.approx([sums] * 2 + [math.exp(0.9)] * 3)
    assert importance_weights(LOGS, ROWS, 2, "geometric").tolist() == pytest.approx([means] * 2 + [math.exp(0.3)] * 3)
    with pytest.raises(ValueError, match="level"):
        importance_weights(LOGS, ROWS, 2, "word")


def test_exponents_are_bounded_and_weights_constant():
    logs = t(50.0, -50.0).requires_grad_()
    weights = importance_weights(logs, torch.tensor([0, 1]), 2)
    assert weights.tolist() == pytest.approx([math.e**20, math.e**-20])
    assert not weights.requires_grad


def test_bounds_are_closed_and_nan_is_outside():
    assert within(t(0.5, 2.0, 0.4999, 2.0001, math.nan), 0.5, 2.0).tolist() == [True, True, False, False, False]


def test_trap_8_bounds_apply_to_the_ratio_not_to_its_inverse():
    """peers.md §2.9: verl's k1 modes bound -log w; symmetric bounds hide it, these don't."""
    logs = t(math.log(3.0), math.log(1 / 3), 0.0, 0.0, 0.0)
    assert keep("token", 0.5, 4.0, logs) == [True, False, True, True, True]


def test_levels_of_rejection():
    assert keep("token", 0.7, 1.5) == [True, False, False, True, True]
    assert keep("sequence", 0.7, 1.5) == [True, True, False, False, False]
    assert keep("geometric", 0.95, 1.5) == [False, False, True, True, True]
    assert keep("outlier", 0.6, 2.0) == [True, True, False, False, False]
    assert keep("outlier", 0.7, 3.0) == [False, False, True, True, True]


def test_k2_and_k3_statistics():
    k2 = [x * x / 2 for x in LOGS.tolist()]
    k3 = [math.exp(x) - 1 - x for x in LOGS.tolist()]
    for kind, values in (("k2", k2), ("k3", k3)):
        assert keep(f"token_{kind}", high=values[1]) == [v <= values[1] for v in values]
        rows = [values[:2], values[2:]]
        for reduction, function in (("sum", sum), ("mean", lambda r: sum(r) / len(r)), ("max", max)):
            found = [function(r) for r in rows]
            middle = sum(found) / 2
            expected = [found[0] <= middle] * 2 + [found[1] <= middle] * 3
            assert keep(f"sequence_{reduction}_{kind}", high=middle) == expected


def test_default_bounds_are_those_of_the_rule():
    for name in ("token", "sequence", "geometric", "outlier", "token_k3", "sequence_mean_k2", "kpop"):
        rule = rejection_rule(name)
        assert keep(name) == keep(name, rule.low, rule.high)
    assert (correction_rule("icepop").low, correction_rule("icepop").high) == (0.5, 5.0)
    assert (correction_rule("token_tis").low, correction_rule("token_tis").high) == (0.0, 2.0)
    assert correction_rule("token_mis").masks
    assert not correction_rule("sequence_tis").masks


def test_the_table_of_defaults():
    found = {
        name: (rejection_rule(name).low, rejection_rule(name).high) for name in ("outlier", "kpop", "m2po", "token")
    }
    assert found == {"outlier": (1e-4, 100.0), "kpop": (0.0, 2.0), "m2po": (0.0, 0.04), "token": (0.5, 2.0)}
    names = [
        f"{scope}_{k}" for scope in ("token", "sequence_sum", "sequence_mean", "sequence_max") for k in ("k2", "k3")
    ]
    assert {rejection_rule(name).high for name in names} == {0.01}
    assert {rejection_rule(name).low for name in names} == {0.0}
    for name in ("sequence_mis", "token_mis"):
        assert (correction_rule(name).low, correction_rule(name).high) == (0.5, 2.0)
    for name in ("sequence_tis", "geometric_tis"):
        assert (correction_rule(name).low, correction_rule(name).high) == (0.0, 2.0)
    assert (correction_rule("geometric_mis").low, correction_rule("geometric_mis").high) == (0.999, 1.001)
    assert (rejection_rule("geometric").low, rejection_rule("geometric").high) == (0.999, 1.001)
    assert (rejection_rule("sequence").low, rejection_rule("sequence").high) == (0.5, 2.0)


def test_a_divergence_at_the_threshold_stays():
    logs = t(0.0, 0.0, 0.0, 0.0, 0.0)
    for name in ("kpop", "token_k2", "sequence_max_k3"):
        assert keep(name, high=0.0, logs=logs) == [True] * 5


def test_kpop_takes_the_larger_direction():
    p, q = 0.9, 0.2
    forward = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    backward = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    assert forward < backward
    arguments = (torch.tensor([0]), 1, None)
    for a, b in ((p, q), (q, p)):
        streams = (t(math.log(a)), t(math.log(b)))
        assert kept_by("kpop", *streams, *arguments, backward + 1e-9).tolist() == [True]
        assert kept_by("kpop", *streams, *arguments, backward - 1e-9).tolist() == [False]
    assert kept_by("kpop", t(0.0), t(0.0), *arguments, 2.0).tolist() == [True]


def test_m2po_drops_the_largest_until_the_mean_is_small():
    logs = t(0.1, -0.5, 0.2, 1.0, 0.0)
    assert m2po_keep(logs, 0.02).tolist() == [True, False, True, False, True]
    assert m2po_keep(logs, (0.01 + 0.25 + 0.04) / 4).tolist() == [True, True, True, False, True]
    assert m2po_keep(logs, 9.0).tolist() == [True] * 5
    assert m2po_keep(t(3.0, 2.0), 0.01).tolist() == [False, True]
    assert m2po_keep(t(math.nan, 0.1), 0.5).tolist() == [False, True]
    assert m2po_keep(t(), 0.5).tolist() == []


def test_opsm_drops_stale_negatives_only():
    logprobs, behaviour = t(-1.0, -1.0, -1.0, -1.0, -1.0), t(-0.5, -0.9, -1.0, -1.0, -0.8)
    advantages = t(-1.0, 1.0, -1.0, -1.0, 0.0)
    assert opsm_keep(logprobs, behaviour, advantages, ROWS, 2, 0.2).tolist() == [False, True, True, True, True]
    assert opsm_keep(logprobs, behaviour, advantages, ROWS, 2, 0.31).tolist() == [True] * 5
    assert opsm_keep(logprobs, behaviour, advantages, ROWS, 2, 0.01).tolist() == [False, True, False, False, True]


def test_a_nan_never_stays():
    logs = t(0.0, math.nan, 0.0, 0.0, 0.0)
    wide = {"low": 0.0, "high": 1e9}
    assert keep("token", **wide, logs=logs) == [True, False, True, True, True]
    for name in ("sequence", "geometric", "outlier", "sequence_sum_k2", "sequence_mean_k3"):
        assert keep(name, **wide, logs=logs) == [False, False, True, True, True]
    for name in ("token_k2", "token_k3", "kpop"):
        assert keep(name, **wide, logs=logs) == [True, False, True, True, True]
    assert keep("sequence_max_k3", **wide, logs=logs) == [False, False, True, True, True]


def test_all_in_sequence():
    held = torch.tensor([True, False, True, True, True])
    assert all_in_sequence(held, ROWS, 3).tolist() == [False, False, True, True, True]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="tokenwise"):
        correction_rule("tokenwise")
    with pytest.raises(ValueError, match="k9"):
        rejection_rule("k9")
