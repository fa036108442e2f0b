import json
import math

import pytest

from coterie.algos.coefs import AdaptiveEntropy, AdaptiveKL, Fixed


def run(coef, entropies):
    """(value applied at each step, coefficient after each update), updating after the step."""
    state, applied, after = coef.init(), [], []
    for entropy in entropies:
        applied.append(coef.value(state))
        state = coef.update(state, {"policy/entropy": entropy})
        after.append(state["coef"])
    return applied, after


def test_fixed():
    coef = Fixed(0.3)
    state = coef.update(coef.init(), {})
    assert coef.value(state) == 0.3 and state == {}


@pytest.mark.parametrize(("kl", "expected"), [(0.15, 0.00100512), (0.09, 0.00099744)])
def test_golden_adaptive_kl(kl, expected):
    coef = AdaptiveKL(coef=0.001, target=0.1, horizon=1e4, sequences=256)
    state = coef.update(coef.init(), {"kl/ref_k1": kl})
    assert coef.value(state) == pytest.approx(expected, rel=1e-9)


def test_adaptive_kl_error_is_bounded():
    coef = AdaptiveKL(sequences=100)
    up, down = (coef.update(coef.init(), {"kl/ref_k1": kl}) for kl in (50.0, -50.0))
    assert coef.value(up) == pytest.approx(0.001 * 1.002) and coef.value(down) == pytest.approx(0.001 * 0.998)


@pytest.mark.parametrize("coef", [AdaptiveKL(), AdaptiveEntropy(coef=0.002)], ids=repr)
@pytest.mark.parametrize("nothing", [{}, {"kl/ref_k1": math.nan, "policy/entropy": math.nan}])
def test_a_step_that_measured_nothing_changes_nothing(coef, nothing):
    state = coef.update(coef.init(), nothing)
    assert coef.value(state) == coef.value(coef.init()) and state["unmeasured"] == 1
    assert coef.update(state, {"kl/ref_k1": 1.0, "policy/entropy": 1.0})["unmeasured"] == 0


def test_a_metric_that_nobody_reports_is_an_error():
    coef = AdaptiveKL()
    state = coef.init()
    for _ in range(9):
        state = coef.update(state, {"kl/ref_k3": 1.0, "loss/x": 2.0})
    with pytest.raises(KeyError, match=r"'kl/ref_k1', which 10 steps in a row did not report.*\['kl/ref_k3'\]"):
        coef.update(state, {"kl/ref_k3": 1.0, "loss/x": 2.0})


def test_golden_entropy_controller():
    """specs/skywork_darling.md §E."""
    applied, after = run(AdaptiveEntropy(), [0.5, 0.25, 0.19, 0.18, 0.21, 0.19])
    assert applied == pytest.approx([0, 0, 0, 1e-4, 2e-4, 0])
    assert after == pytest.approx([0, 0, 1e-4, 2e-4, 1e-4, 2e-4])


def test_entropy_bounds():
    applied, after = run(AdaptiveEntropy(delta=0.004, high=0.005), [0.1, 0.1, 0.1, 0.5, 0.5, 0.5])
    assert after == pytest.approx([0.004, 0.005, 0.005, 0.001, 0, 0]) and applied[3] == pytest.approx(0.005)


def test_entropy_without_the_switch():
    applied, _ = run(AdaptiveEntropy(coef=0.002, gate=False), [0.5, 0.5])
    assert applied == pytest.approx([0.002, 0.0019])


def test_entropy_in_the_same_step_is_the_papers():
    """alpha_k = c_k 1{e_k <= target}: c_k without this step's move, the flag with this step's entropy."""
    coef = AdaptiveEntropy(timing="same_step")
    state, used = coef.init(), []
    for entropy in [0.1, 0.1, 0.5, 0.1]:
        state = coef.update(state, {"policy/entropy": entropy})
        used.append(coef.value(state))
    assert used == pytest.approx([0, 1e-4, 0, 1e-4])


@pytest.mark.parametrize(
    ("at_target", "coef", "applied"), [("hold", 0.002, 0.002), ("above", 0.0019, 0), ("below", 0.0021, 0.0021)]
)
def test_entropy_equal_to_the_target(at_target, coef, applied):
    piece = AdaptiveEntropy(coef=0.002, at_target=at_target)
    state = piece.update(piece.init(), {"policy/entropy": 0.2})
    assert state == pytest.approx({"coef": coef, "applied": applied, "unmeasured": 0})


def test_state_is_plain_data_and_resumes():
    coef = AdaptiveEntropy()
    state = coef.init()
    for entropy in (0.1, 0.1, 0.3):
        state = coef.update(state, {"policy/entropy": entropy})
    back = json.loads(json.dumps(state))
    assert back == state and coef.value(back) == coef.value(state) == 0.0


def test_update_does_not_change_the_old_state():
    coef = AdaptiveEntropy()
    state = coef.init()
    coef.update(state, {"policy/entropy": 0.1})
    assert state == coef.init()


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Fixed, {"coef": -1}),
        (Fixed, {"coef": math.nan}),
        (AdaptiveKL, {"coef": 0}),
        (AdaptiveKL, {"target": 0}),
        (AdaptiveKL, {"horizon": 0}),
        (AdaptiveKL, {"sequences": 0}),
        (AdaptiveEntropy, {"target": 0}),
        (AdaptiveEntropy, {"delta": 0}),
        (AdaptiveEntropy, {"low": -1}),
        (AdaptiveEntropy, {"high": 0.0}),
        (AdaptiveEntropy, {"coef": 1.0}),
        (AdaptiveEntropy, {"timing": "now"}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [Fixed, AdaptiveKL, AdaptiveEntropy])
def test_conventions_construct(cls):
    for overrides in cls.conventions.values():
        cls(**overrides)
