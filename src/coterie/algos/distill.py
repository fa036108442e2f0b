"""Divergences between a student's and a teacher's distribution over the vocabulary, one number an action token.

These need logits, which a learner makes in chunks; on sampled tokens alone use `kl_estimate` with the teacher as the
reference, or distillation as an advantage.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def generalised_jsd(
    student: Float[Tensor, "A V"], teacher: Float[Tensor, "A V"], beta: float = 0.5
) -> Float[Tensor, "A"]:
    """GKD's divergence of logprobs over the vocabulary (arXiv 2306.13649, eq. 1).

        beta = 0: KL(teacher || student)    beta = 1: KL(student || teacher)
        else:     beta KL(teacher || m) + (1 - beta) KL(student || m),   m = (1 - beta) student + beta teacher

    Args:
        student: logprobs with gradient.
        teacher: logprobs, constant.
        beta: in [0, 1].

    Raises:
        ValueError: for beta outside [0, 1].
    """
    teacher = teacher.detach()
    if not 0 <= beta <= 1:
        raise ValueError(f"beta={beta} must lie in [0, 1]")
    if beta == 0:
        return kl_divergence(teacher, student)
    if beta == 1:
        return kl_divergence(student, teacher)
    weight = torch.tensor(beta, dtype=student.dtype, device=student.device)
    mixture = torch.logaddexp(student + torch.log1p(-weight), teacher + weight.log())
    return beta * kl_divergence(teacher, mixture) + (1 - beta) * kl_divergence(student, mixture)


def kl_divergence(p: Float[Tensor, "A V"], q: Float[Tensor, "A V"]) -> Float[Tensor, "A"]:
    """KL(p || q) of logprobs; entries with p = 0 count 0."""
    terms = torch.where(p == -float("inf"), torch.zeros_like(p), p.exp() * (p - q))
    return terms.sum(-1)


def topk_forward_kl(
    student: Float[Tensor, "A K"], teacher: Float[Tensor, "A K"], floor: float | None = None
) -> Float[Tensor, "A"]:
    """Forward KL over the teacher's k likeliest tokens: sum_v p_T (log p_T - log p_S), at least 0.

    The two arrays are logprobs of the same k tokens; `floor` bounds the student's from below (verl, NeMo-RL).
    """
    teacher = teacher.detach()
    if floor is not None:
        student = student.clamp(min=floor)
    return (teacher.exp() * (teacher - student)).sum(-1).clamp(min=0.0)


def topk_of(logprobs: Float[Tensor, "A V"], k: int) -> tuple[Float[Tensor, "A K"], Int[Tensor, "A K"]]:
    """The k largest logprobs of each row and their token ids."""
    found = torch.topk(logprobs, k, dim=-1)
    return found.values, found.indices
