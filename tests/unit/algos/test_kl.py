import pytest
import torch

from coterie.algos.kl import KL_KINDS, kl_estimate


def one(logprob, ref, kind, clamp="none"):
    x = torch.tensor([logprob], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(x, torch.tensor([ref], dtype=torch.float64), kind, clamp)
    value.sum().backward()
    return float(value.detach()), float(x.grad)


@pytest.mark.parametrize(
    ("pair", "k1", "k2", "k3"),
    [((-1, -1.5), 0.5, 0.125, 0.1065307), ((-1, -0.5), -0.5, 0.125, 0.1487213), ((-1, -3), 2.0, 2.0, 1.1353353)],
)
def test_golden_numbers_of_skywork_spec_e(pair, k1, k2, k3):
    assert one(*pair, "k1")[0] == pytest.approx(k1)
    assert one(*pair, "k2")[0] == pytest.approx(k2)
    assert one(*pair, "k3")[0] == pytest.approx(k3, abs=5e-8)
    assert one(*pair, "abs")[0] == pytest.approx(abs(k1))


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_straight_through_has_the_value_of_one_and_the_gradient_of_k2(kind):
    value, slope = one(-1.0, -1.7, kind + "+")
    assert value == pytest.approx(one(-1.0, -1.7, kind)[0])
    assert slope == pytest.approx(one(-1.0, -1.7, "k2")[1])


def test_trap_13_without_a_clamp_one_bad_token_blows_up_the_loss():
    assert one(-60.0, -1.0, "k3")[0] > 1e25
    value, slope = one(-60.0, -1.0, "k3", "k3")
    assert (value, slope) == (10.0, 0.0)


def test_an_extreme_token_has_no_nan_gradient():
    """exp overflows in float32; a clamp after it alone would give 0 * inf."""
    x = torch.tensor([-200.0], requires_grad=True)
    for clamp in ("k3", "all"):
        x.grad = None
        kl_estimate(x, torch.tensor([0.0]), "k3", clamp).sum().backward()
        assert x.grad.tolist() == [0.0]


@pytest.mark.parametrize(("kind", "clamped"), [("k1", 12.0), ("k2", 72.0), ("abs", 12.0)])
def test_clamp_all_bounds_every_estimator_and_clamp_k3_only_its_own(kind, clamped):
    assert one(-1.0, -13.0, kind, "all")[0] == 10.0
    assert one(-1.0, -13.0, kind, "k3")[0] == clamped
    assert one(-1.0, -13.0, kind)[0] == clamped


def test_clamp_k3_applies_to_the_straight_through_value_too():
    value, slope = one(-40.0, -1.0, "k3+", "k3")
    assert value == 10.0
    assert slope == pytest.approx(-39.0)


def test_bounds_are_those_named():
    assert one(-1.0, -9.0, "k3", "k3")[0] == pytest.approx(7.0 + torch.tensor(-8.0).exp().item(), abs=1e-6)
    assert one(-1.0, -11.5, "k3", "k3")[0] == pytest.approx(9.5, abs=1e-4)


def test_the_reference_gets_no_gradient():
    ref = torch.tensor([-1.0], requires_grad=True)
    for kind in KL_KINDS:
        kl_estimate(torch.tensor([-2.0], requires_grad=True), ref, kind).sum().backward()
    assert ref.grad is None


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="k4"):
        one(-1, -1, "k4")
    with pytest.raises(ValueError, match="clamp"):
        one(-1, -1, "k3", "some")
