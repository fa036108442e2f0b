import math

import pytest
import torch

from coterie.algos.distill import generalised_jsd, kl_divergence, topk_forward_kl, topk_of

P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]


def logs(p):
    return torch.tensor([p], dtype=torch.float64).log()


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_generalised_jsd(beta):
    m = [(1 - beta) * s + beta * t for s, t in zip(P, Q, strict=True)]
    expected = {0.0: kl(Q, P), 1.0: kl(P, Q)}.get(beta, beta * kl(Q, m) + (1 - beta) * kl(P, m))
    assert generalised_jsd(logs(P), logs(Q), beta).tolist() == pytest.approx([expected])


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_equal_distributions_have_divergence_0_and_the_teacher_no_gradient(beta):
    teacher = logs(Q).requires_grad_()
    student = logs(P).requires_grad_()
    assert generalised_jsd(logs(P), logs(P), beta).tolist() == pytest.approx([0.0])
    generalised_jsd(student, teacher, beta).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None


def test_zero_probabilities_count_nothing():
    p = torch.tensor([[0.0, -float("inf")]], dtype=torch.float64)
    assert kl_divergence(p, logs([0.5, 0.5])).tolist() == pytest.approx([math.log(2)])


def test_topk():
    found, ids = topk_of(logs(P), 2)
    assert (found.exp().tolist(), ids.tolist()) == ([pytest.approx([0.5, 0.3])], [[0, 1]])
    teacher, student = logs([0.6, 0.2]), logs([0.2, 0.5])
    expected = 0.6 * math.log(3) + 0.2 * math.log(0.4)
    assert topk_forward_kl(student, teacher).tolist() == pytest.approx([expected])
    assert topk_forward_kl(teacher, student - 5.0).tolist() == [0.0]
    floored = topk_forward_kl(logs([0.001, 0.5]), teacher, floor=math.log(0.1))
    assert floored.tolist() == pytest.approx([0.6 * math.log(6) + 0.2 * math.log(0.4)])


def test_beta_out_of_range_is_refused():
    with pytest.raises(ValueError, match="beta"):
        generalised_jsd(logs(P), logs(Q), 1.1)
