"""Preference losses as pure functions: one loss a pair (or a labelled answer), positive means minimise.

Notation: `chosen` and `rejected` are scores of the two answers of a pair: for the losses with a reference, log-ratios
sum_t (logprob_t - ref_logprob_t), or what `divergence_score` makes of them; for those without, sequence logprobs,
summed or averaged as each docstring says. margin = chosen - rejected, sig the logistic function, b = beta.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

Divergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]


def divergence_score(
    log_ratio: Float[Tensor, "P"], divergence: Divergence | str = "reverse_kl", alpha: float = 0.5
) -> Float[Tensor, "P"]:
    """f'(exp(log_ratio)) of an f-divergence, the implicit reward of f-DPO (arXiv 2309.16240, eq. 9).

        reverse_kl: x                      js:    log 2 + log sig(x)
        forward_kl: 1 - exp(-x)            alpha: (exp((alpha - 1) x) - 1) / (alpha - 1)

    Additive constants cancel in a margin. The exponent is bounded to 80; alpha = 1 is the reverse KL.
    """
    if divergence == "reverse_kl" or (divergence == "alpha" and abs(alpha - 1) < 1e-6):
        return log_ratio
    if divergence == "forward_kl":
        return -torch.expm1((-log_ratio).clamp(max=80.0))
    if divergence == "js":
        return math.log(2) + logsigmoid(log_ratio)
    if divergence == "alpha":
        return torch.expm1(((alpha - 1) * log_ratio).clamp(max=80.0)) / (alpha - 1)
    raise ValueError(f"divergence={divergence!r} is not one of reverse_kl, forward_kl, js, alpha")


def dpo(
    chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1, label_smoothing: float = 0.0
) -> Float[Tensor, "P"]:
    """DPO: -(1 - e) log sig(b margin) - e log sig(-b margin); e > 0 is cDPO (arXiv 2305.18290, eq. 7)."""
    logits = beta * (chosen - rejected)
    return -(1 - label_smoothing) * logsigmoid(logits) - label_smoothing * logsigmoid(-logits)


def robust_dpo(
    chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1, label_smoothing: float = 0.1
) -> Float[Tensor, "P"]:
    """rDPO: (-(1 - e) log sig(b margin) + e log sig(-b margin)) / (1 - 2 e) (arXiv 2403.00409).

    Its expectation under labels flipped with probability e is DPO's under clean ones.
    """
    logits = beta * (chosen - rejected)
    return (-(1 - label_smoothing) * logsigmoid(logits) + label_smoothing * logsigmoid(-logits)) / (
        1 - 2 * label_smoothing
    )


def hinge(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """SLiC's hinge: max(0, 1 - b margin) (arXiv 2305.10425, eq. 1)."""
    return torch.relu(1 - beta * (chosen - rejected))


def ipo(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """IPO: (margin - 1 / (2 b))^2 (arXiv 2310.12036, eq. 17). The caller chooses averaged or summed scores."""
    return (chosen - rejected - 1 / (2 * beta)).square()


def exo(
    chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1, label_smoothing: float = 1e-3
) -> Float[Tensor, "P"]:
    """EXO-pref: KL of (q, 1 - q), q = sig(b margin), from (1 - e, e) (arXiv 2402.00856, eq. 16); 0 < e < 1."""
    logits = beta * (chosen - rejected)
    win, lose = logsigmoid(logits), logsigmoid(-logits)
    return win.exp() * (win - math.log1p(-label_smoothing)) + lose.exp() * (lose - math.log(label_smoothing))


def nca(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """NCA-pair: -log sig(b c) - log sig(-b c) / 2 - log sig(-b r) / 2 (arXiv 2402.05369)."""
    return -logsigmoid(beta * chosen) - (logsigmoid(-beta * chosen) + logsigmoid(-beta * rejected)) / 2


def bco(
    chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1, shift: float = 0.0
) -> Float[Tensor, "P"]:
    """BCO-pair: -log sig(b c - shift) - log sig(-(b r - shift)) (arXiv 2404.04656); shift is the mean reward."""
    return -logsigmoid(beta * chosen - shift) - logsigmoid(shift - beta * rejected)


def sppo(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """SPPO with hard labels: (c - 1 / (2 b))^2 + (r + 1 / (2 b))^2 (arXiv 2405.00675, eq. 4.7)."""
    return (chosen - 0.5 / beta).square() + (rejected + 0.5 / beta).square()


def apo_zero(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """APO-zero: 1 - sig(b c) + sig(b r): chosen up, rejected down (arXiv 2408.06266, eq. 7)."""
    return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)


def apo_down(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """APO-down: sig(b c) + 1 - sig(b margin): both down, rejected more (arXiv 2408.06266, eq. 8)."""
    return torch.sigmoid(beta * chosen) + torch.sigmoid(-beta * (chosen - rejected))


def discopop(
    chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1, tau: float = 0.05
) -> Float[Tensor, "P"]:
    """DiscoPOP: -(1 - g) log sig(x) + g exp(-x), x = b margin, g = sig(x / tau) (arXiv 2406.08414, eq. 5)."""
    x = beta * (chosen - rejected)
    gate = torch.sigmoid(x / tau)
    return -(1 - gate) * logsigmoid(x) + gate * torch.exp(-x)


def orpo(chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1) -> Float[Tensor, "P"]:
    """ORPO's odds-ratio term, -b log sig(log odds(c) - log odds(r)), of *mean* logprobs (arXiv 2403.07691, eq. 7).

    log odds(x) = x - log(1 - exp(x)). The chosen answer's negative log-likelihood is added by the caller.
    """
    odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected))
    return -beta * logsigmoid(odds)


def cpo(
    chosen: Float[Tensor, "P"], rejected: Float[Tensor, "P"], beta: float = 0.1, label_smoothing: float = 0.0
) -> Float[Tensor, "P"]:
    """CPO's preference term: DPO on *summed* logprobs without a reference (arXiv 2401.08417, eq. 3-4)."""
    return dpo(chosen, rejected, beta, label_smoothing)


def simpo(
    chosen: Float[Tensor, "P"],
    rejected: Float[Tensor, "P"],
    beta: float = 2.0,
    gamma: float = 1.0,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "P"]:
    """SimPO: -log sig(b margin - gamma) of *mean* logprobs (arXiv 2405.14734, eq. 6)."""
    return dpo(chosen, rejected + gamma / beta, beta, label_smoothing)


def alphapo_reward(mean_logprob: Float[Tensor, "P"], alpha: float = 0.25) -> Float[Tensor, "P"]:
    """AlphaPO's reward (1 - p^-alpha) / alpha of p = exp(mean logprob); the logprob itself at alpha = 0.

    Source: arXiv 2501.03884.
    """
    return mean_logprob if alpha == 0 else -torch.expm1(-alpha * mean_logprob) / alpha


def kto(
    log_ratio: Float[Tensor, "S"],
    desirable: Bool[Tensor, "S"],
    reference_point: float | Float[Tensor, ""],
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Tensor, "S"]:
    """KTO: w_d (1 - sig(b (d - z))) or w_u (1 - sig(b (z - d))), d the log-ratio (arXiv 2402.01306, eq. 7).

    Args:
        log_ratio: sum of logprob - ref_logprob of each answer.
        desirable: its label.
        reference_point: z = max(0, mean log-ratio of mismatched answers); constant.
        beta: scale of the implicit reward.
        desirable_weight, undesirable_weight: of the two classes.
    """
    moved = beta * (log_ratio - reference_point)
    return torch.where(desirable, desirable_weight * torch.sigmoid(-moved), undesirable_weight * torch.sigmoid(moved))


def bradley_terry(
    chosen: Float[Tensor, "P"],
    rejected: Float[Tensor, "P"],
    margin: float | Float[Tensor, "P"] = 0.0,
    centre_coef: float = 0.0,
) -> Float[Tensor, "P"]:
    """Reward model: -log sig(r_c - r_r - margin) + centre_coef (r_c + r_r)^2.

    Margin: Llama 2, arXiv 2307.09288, eq. 2; centring: arXiv 2312.09244.
    """
    loss = -logsigmoid(chosen - rejected - margin)
    return loss + centre_coef * (chosen + rejected).square() if centre_coef else loss


def aligned(values: Float[Tensor, "P"], other: Float[Tensor, "P"]) -> Float[Tensor, "P"]:
    """For each entry of `values`, the entry of `other` with the same rank; constant (one-dimensional transport).

    Source: AOT, arXiv 2406.05882.
    """
    order = torch.argsort(values.detach(), stable=True)
    return torch.zeros_like(other).index_copy(0, order, torch.sort(other.detach(), stable=True).values)


def log1mexp(x: Float[Tensor, "P"]) -> Float[Tensor, "P"]:
    """log(1 - exp(x)) for x < 0, stable at both ends."""
    near = x > -math.log(2)
    small = torch.where(near, x, torch.full_like(x, -1.0))
    large = torch.where(near, torch.full_like(x, -1.0), x)
    return torch.where(near, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))
