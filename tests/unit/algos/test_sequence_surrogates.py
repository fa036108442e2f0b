import math

import pytest
import torch

from coterie.algos.sequence_surrogates import gmpo, gspo, gspo_ratio, vespo_weight

ROWS = torch.tensor([0, 0, 1])


def t(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_gspo_ratio_is_the_geometric_mean():
    ratio = gspo_ratio(t(0.5, 0.1, 0.4), t(0.1, 0.3, 0.0), ROWS, 2)
    assert ratio.tolist() == pytest.approx([math.exp(0.1), math.exp(0.1), math.exp(0.4)])


@pytest.mark.parametrize("advantages", [(1.0, 1.0, -1.0), (1.0, -2.0, -1.0)])
def test_gspo_forms_agree_when_the_advantage_is_constant(advantages):
    grads = []
    for form in ("sequence", "token"):
        x = t(0.5, 0.1, 0.4).requires_grad_()
        losses = gspo(x, t(0.1, 0.3, 0.0), t(*advantages), ROWS, 2, 0.9, 0.9, form=form)
        (losses / t(2.0, 2.0, 1.0)).sum().backward()
        grads.append(x.grad)
    same = torch.allclose(grads[0], grads[1])
    assert same == (advantages[0] == advantages[1])


def test_gspo_bound():
    assert gspo_ratio(t(30.0), t(0.0), torch.tensor([0]), 1, log_ratio_bound=2.0).tolist() == pytest.approx([math.e**2])
    assert gspo_ratio(t(30.0), t(0.0), torch.tensor([0]), 1, log_ratio_bound=0.0).tolist() == pytest.approx(
        [math.e**30]
    )
    assert gspo_ratio(t(-30.0), t(0.0), torch.tensor([0]), 1).tolist() == pytest.approx([math.e**-20])


def test_gmpo_clips_by_the_sign_of_the_advantage():
    logs, old = t(0.9, -0.9, 0.9), t(0.0, 0.0, 0.0)
    up = gmpo(logs, old, t(1.0, 1.0, 2.0), ROWS, 2, 0.4, 0.3)
    assert up.tolist() == pytest.approx([-math.exp((0.3 - 0.9) / 2)] * 2 + [-2 * math.exp(0.3)])
    down = gmpo(logs, old, t(-1.0, -1.0, -2.0), ROWS, 2, 0.4, 0.3)
    assert down.tolist() == pytest.approx([math.exp((0.9 - 0.4) / 2)] * 2 + [2 * math.exp(0.9)])


def test_vespo_weight_is_1_on_policy_and_uses_both_shapes():
    assert vespo_weight(t(-1.0), t(-1.0), t(1.0), torch.tensor([0]), 1).tolist() == pytest.approx([1.0])
    w = math.exp(0.3)
    out = vespo_weight(t(0.1, 0.2), t(0.0, 0.0), t(0.0, -1.0), torch.tensor([0, 0]), 1)
    assert out.tolist() == pytest.approx([w**2 * math.exp(3 * (1 - w)), w**3 * math.exp(2 * (1 - w))], abs=1e-12)


def test_vespo_is_finite_at_both_ends():
    out = vespo_weight(t(0.0, -90.0), t(-90.0, 0.0), t(1.0, 1.0), torch.tensor([0, 1]), 2)
    assert out[0] == 0.0
    assert 0 < out[1] < 1e-13
    assert not vespo_weight(t(1.0).requires_grad_(), t(0.0), t(1.0), torch.tensor([0]), 1).requires_grad
