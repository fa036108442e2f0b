"""Policy-gradient surrogates as pure functions: one loss an action token, positive means minimise.

`log_ratio` is always logprob - old_logprob; with A the advantage, rho = exp(log_ratio). Gradient flows into `logprobs`
only. Weighting, regularisers and the denominator are the business of `policy_loss` and `aggregate`.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def log_ratio(
    logprobs: Float[Tensor, "A"], old_logprobs: Float[Tensor, "A"], bound: float = 20.0
) -> Float[Tensor, "A"]:
    """logprob - old_logprob, bounded to ±bound where bound > 0 (no gradient outside); old_logprobs is a constant."""
    difference = logprobs - old_logprobs.detach()
    return difference.clamp(-bound, bound) if bound > 0 else difference


def ppo_clip(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    *,
    dual_clip: float = 0.0,
    delta: float = 0.0,
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """PPO's clipped surrogate, optionally dual-clipped and with a two-sided cap.

        loss = max(-A r, -A clip(rho, 1 - clip_low, 1 + clip_high)),   r = min(rho, delta) or rho
        dual clip, where A < 0:  loss = min(loss, -A dual_clip)

    Args:
        logprobs, old_logprobs, advantages: one an action token.
        clip_low, clip_high: trust region below and above 1.
        dual_clip: bound c > 1 on the ratio of tokens with negative advantage; 0 for none. arXiv 1912.09729.
        delta: cap > 1 + clip_high on the ratio itself; 0 for none. INTELLECT-2, arXiv 2505.07291.
        log_ratio_bound: the log-ratio is bounded to ± this first; 0 for no bound.
    """
    return clipped(
        log_ratio(logprobs, old_logprobs, log_ratio_bound).exp(),
        advantages,
        clip_low,
        clip_high,
        dual_clip=dual_clip,
        delta=delta,
    )


def clipped(
    ratio: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    clip_low: float,
    clip_high: float,
    *,
    dual_clip: float = 0.0,
    delta: float = 0.0,
) -> Float[Tensor, "A"]:
    """The clipped surrogate of `ppo_clip` for a ratio that is given."""
    advantages = advantages.detach()
    capped = ratio.clamp(max=delta) if delta > 0 else ratio
    loss = torch.maximum(-advantages * capped, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip > 0:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss


def reinforce(logprobs: Float[Tensor, "A"], advantages: Float[Tensor, "A"]) -> Float[Tensor, "A"]:
    """-A logprob: the policy gradient without a ratio (Williams 1992)."""
    return -advantages.detach() * logprobs


def importance_sampling(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    *,
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """-A rho: the unclipped ratio (CS336's GRPO-No-Clip, tinker's importance_sampling)."""
    return -advantages.detach() * log_ratio(logprobs, old_logprobs, log_ratio_bound).exp()


def cispo(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    clip_low: float = 1.0,
    clip_high: float = 4.0,
    *,
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """CISPO: -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A logprob (arXiv 2506.13585).

    The weight is clipped and constant, so every token keeps a gradient. Bounds are distances from 1.
    """
    ratio = log_ratio(logprobs, old_logprobs, log_ratio_bound).exp().detach()
    return -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages.detach() * logprobs


def sapo(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    *,
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """SAPO: -(4 / tau) sigmoid(tau (rho - 1)) A, a soft gate instead of a clip (arXiv 2511.20347).

    tau is tau_positive where A > 0, else tau_negative; the gradient at rho = 1 is the policy gradient.
    """
    advantages = advantages.detach()
    ratio = log_ratio(logprobs, old_logprobs, log_ratio_bound).exp()
    tau = torch.where(advantages > 0, ratio.new_tensor(tau_positive), ratio.new_tensor(tau_negative))
    return -(4.0 / tau) * torch.sigmoid(tau * (ratio - 1.0)) * advantages


def binary_kl(log_p: Float[Tensor, "A"], log_q: Float[Tensor, "A"], eps: float = 1e-8) -> Float[Tensor, "A"]:
    """KL(Bernoulli(p) || Bernoulli(q)) of the sampled token against all others."""
    p, q = log_p.exp(), log_q.exp()
    return p * (log_p - log_q) + (1 - p) * torch.log((1 - p + eps) / (1 - q + eps))


def dppo_keep(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    divergence: Literal["tv", "kl"] = "tv",
) -> Bool[Tensor, "A"]:
    """Tokens inside DPPO's divergence trust region, or moving back into it (arXiv 2602.04879).

    tv: A > 0 keeps p - p_old <= clip_high;  A <= 0 keeps p - p_old >= -clip_low
    kl: A > 0 keeps KL <= clip_high or p <= p_old;  A <= 0 keeps KL <= clip_low or p >= p_old,
        KL = binary_kl(p_old, p)
    """
    new, old = logprobs.detach(), old_logprobs.detach()
    up = advantages > 0
    if divergence == "tv":
        moved = new.exp() - old.exp()
        return torch.where(up, moved <= clip_high, moved >= -clip_low)
    divergences = binary_kl(old, new)
    return torch.where(up, (divergences <= clip_high) | (new <= old), (divergences <= clip_low) | (new >= old))


def dppo(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    ratio_cap: float = 20.0,
) -> Float[Tensor, "A"]:
    """DPPO: -A sg(min(rho, ratio_cap)) logprob on the tokens of `dppo_keep`, 0 on the others (arXiv 2602.04879)."""
    keep = dppo_keep(logprobs, old_logprobs, advantages, clip_low, clip_high, divergence)
    ratio = log_ratio(logprobs, old_logprobs).exp().detach().clamp(max=ratio_cap)
    loss = -advantages.detach() * ratio * logprobs
    return torch.where(keep, loss, torch.zeros_like(loss))


def topr(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    positive: Bool[Tensor, "A"],
    log_ratios: Float[Tensor, "A"] | None = None,
) -> Float[Tensor, "A"]:
    """TOPR: positives -A logprob, the others tapered, -sg(clip(ratio, 0, 1)) A logprob (arXiv 2503.14286).

    `log_ratios` replaces the token log-ratio, e.g. by the sequence's.
    """
    logs = log_ratio(logprobs, old_logprobs, 0.0) if log_ratios is None else log_ratios
    taper = logs.detach().clamp(max=0.0).exp()
    weight = torch.where(positive, torch.ones_like(taper), taper)
    return -weight * advantages.detach() * logprobs


def dro(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    beta: float = 0.05,
) -> Float[Tensor, "A"]:
    """DRO: -(A logprob - beta / 2 (logprob - old_logprob)^2), a quadratic anchor in place of a clip."""
    return -(advantages.detach() * logprobs - beta / 2 * log_ratio(logprobs, old_logprobs, 0.0).square())
