import math

import pytest
import torch

from coterie.algos import preference as pref


def t(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def sig(x):
    return 1 / (1 + math.exp(-x))


C, R, B = 1.3, -0.4, 0.5
H = B * (C - R)
CASES = {
    "dpo": (lambda c, r: pref.dpo(c, r, B), -math.log(sig(H))),
    "cdpo": (lambda c, r: pref.dpo(c, r, B, 0.2), -0.8 * math.log(sig(H)) - 0.2 * math.log(sig(-H))),
    "robust": (
        lambda c, r: pref.robust_dpo(c, r, B, 0.2),
        (-0.8 * math.log(sig(H)) + 0.2 * math.log(sig(-H))) / 0.6,
    ),
    "hinge": (lambda c, r: pref.hinge(c, r, B), 1 - H),
    "ipo": (lambda c, r: pref.ipo(c, r, B), (1.7 - 1.0) ** 2),
    "exo": (
        lambda c, r: pref.exo(c, r, B, 0.1),
        sig(H) * math.log(sig(H) / 0.9) + sig(-H) * math.log(sig(-H) / 0.1),
    ),
    "nca": (
        lambda c, r: pref.nca(c, r, B),
        -math.log(sig(B * C)) - 0.5 * math.log(sig(-B * C)) - 0.5 * math.log(sig(-B * R)),
    ),
    "bco": (lambda c, r: pref.bco(c, r, B), -math.log(sig(B * C)) - math.log(sig(-B * R))),
    "bco shift": (lambda c, r: pref.bco(c, r, B, 0.3), -math.log(sig(B * C - 0.3)) - math.log(sig(0.3 - B * R))),
    "sppo": (lambda c, r: pref.sppo(c, r, B), (C - 1.0) ** 2 + (R + 1.0) ** 2),
    "apo_zero": (lambda c, r: pref.apo_zero(c, r, B), 1 - sig(B * C) + sig(B * R)),
    "apo_down": (lambda c, r: pref.apo_down(c, r, B), sig(B * C) + 1 - sig(H)),
    "discopop": (
        lambda c, r: pref.discopop(c, r, B, 0.4),
        -(1 - sig(H / 0.4)) * math.log(sig(H)) + sig(H / 0.4) * math.exp(-H),
    ),
    "cpo": (lambda c, r: pref.cpo(c, r, B, 0.1), -0.9 * math.log(sig(H)) - 0.1 * math.log(sig(-H))),
    "simpo": (lambda c, r: pref.simpo(c, r, B, 0.3), -math.log(sig(H - 0.3))),
}


@pytest.mark.parametrize("name", CASES)
def test_formula(name):
    function, expected = CASES[name]
    assert function(t(C), t(R)).tolist() == pytest.approx([expected], abs=1e-12)


def test_orpo_and_its_odds():
    def odds(a):
        return math.log(math.exp(a) / (1 - math.exp(a)))

    expected = -B * math.log(sig(odds(-0.2) - odds(-1.5)))
    assert pref.orpo(t(-0.2), t(-1.5), B).tolist() == pytest.approx([expected], abs=1e-12)


def test_cs336_dpo_definition():
    """specs/cs336.md §1.16: -log sig(beta (margin - reference margin))."""
    policy_margin, reference_margin = -3.0 - -7.0, -4.0 - -6.5
    assert pref.dpo(t(-3.0 - -4.0), t(-7.0 - -6.5), 0.5).tolist() == pytest.approx(
        [-math.log(sig(0.5 * (policy_margin - reference_margin)))]
    )


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        ("reverse_kl", 0.7),
        ("forward_kl", 1 - math.exp(-0.7)),
        ("js", math.log(2) + math.log(sig(0.7))),
        ("alpha", (math.exp(-0.7 * 0.7) - 1) / -0.7),
    ],
)
def test_divergence_scores(divergence, expected):
    assert pref.divergence_score(t(0.7), divergence, 0.3).tolist() == pytest.approx([expected], abs=1e-12)
    x = t(0.0).requires_grad_()
    score = pref.divergence_score(x, divergence, 0.3)
    score.backward()
    assert score.item() == pytest.approx(0.0, abs=1e-12)
    assert x.grad.item() == pytest.approx(0.5 if divergence == "js" else 1.0)


def test_divergence_limits_and_refusal():
    assert pref.divergence_score(t(0.7), "alpha", 1.0).tolist() == [0.7]
    assert torch.isfinite(pref.divergence_score(torch.tensor([-500.0]), "forward_kl")).all()
    assert torch.isfinite(pref.divergence_score(torch.tensor([-500.0]), "alpha", 0.5)).all()
    with pytest.raises(ValueError, match="kl2"):
        pref.divergence_score(t(0.0), "kl2")


def test_kto():
    out = pref.kto(t(1.0, 1.0), torch.tensor([True, False]), 0.4, 0.5, 2.0, 3.0)
    assert out.tolist() == pytest.approx([2.0 * (1 - sig(0.3)), 3.0 * (1 - sig(-0.3))])


def test_bradley_terry():
    assert pref.bradley_terry(t(2.0), t(1.0)).tolist() == pytest.approx([-math.log(sig(1.0))])
    both = pref.bradley_terry(t(2.0), t(1.0), 0.4, 0.1)
    assert both.tolist() == pytest.approx([-math.log(sig(0.6)) + 0.9])


def test_alphapo_reward():
    p = math.exp(-0.7)
    assert pref.alphapo_reward(t(-0.7), 0.3).tolist() == pytest.approx([(1 - p**-0.3) / 0.3])
    assert pref.alphapo_reward(t(-0.7), 0.0).tolist() == [-0.7]
    assert pref.alphapo_reward(t(-0.7), 1e-9).tolist() == pytest.approx([-0.7])


def test_aligned_pairs_equal_ranks():
    assert pref.aligned(t(3.0, 1.0, 2.0), t(10.0, 30.0, 20.0)).tolist() == [30.0, 10.0, 20.0]
    other = t(1.0, 2.0).requires_grad_()
    assert not pref.aligned(t(1.0, 2.0).requires_grad_(), other).requires_grad


def test_log1mexp_at_both_ends():
    x = t(-1e-12, -0.5, -0.7, -5.0, -60.0).requires_grad_()
    out = pref.log1mexp(x)
    expected = [math.log(-math.expm1(v)) for v in x.tolist()]
    assert out.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-26)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
