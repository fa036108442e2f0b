"""Surrogates whose ratio belongs to a whole sequence, as pure functions: one loss an action token.

`sequence_id` says which of the `num_sequences` sequences each action token belongs to; segment sums are differentiable.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie.algos.aggregate import segment_mean, segment_sum
from coterie.algos.surrogates import clipped, log_ratio


def gspo(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    *,
    form: Literal["sequence", "token"] = "sequence",
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """GSPO: PPO's clipped surrogate on the length-normalised sequence ratio (arXiv 2507.18071, eq. 5-7 and §4.3).

        s_i = exp(mean_t (logprob - old_logprob))
        sequence form: ratio_t = s_i
        token form:    ratio_t = sg(s_i) exp(logprob_t - sg(logprob_t))

    Both have the same value; they have the same gradient when the advantage is constant over a sequence.
    """
    segments = (sequence_id, num_sequences)
    ratio = gspo_ratio(logprobs, old_logprobs, *segments, form=form, log_ratio_bound=log_ratio_bound)
    return clipped(ratio, advantages, clip_low, clip_high)


def gspo_ratio(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    *,
    form: Literal["sequence", "token"] = "sequence",
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """The ratio of `gspo` for each action token; its logarithm is bounded to ±log_ratio_bound (0 for no bound)."""
    means = segment_mean(log_ratio(logprobs, old_logprobs, 0.0), sequence_id, num_sequences)[sequence_id]
    logs = means if form == "sequence" else means.detach() + logprobs - logprobs.detach()
    return (logs.clamp(-log_ratio_bound, log_ratio_bound) if log_ratio_bound > 0 else logs).exp()


def gmpo(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    *,
    log_ratio_bound: float = 20.0,
) -> Float[Tensor, "A"]:
    """GMPO: minus the geometric mean of sign-aware clipped ratios times the mean advantage (arXiv 2507.20673).

    d'_t = sgn(A) min(sgn(A) d_t, sgn(A) clip(d_t, -clip_low, clip_high))
    loss_t = -exp(mean_t d'_t) mean_t(A)        the same for every token of a sequence
    """
    advantages = advantages.detach()
    sign = advantages.sign()
    d = log_ratio(logprobs, old_logprobs, log_ratio_bound)
    bounded = sign * torch.minimum(sign * d, sign * d.clamp(-clip_low, clip_high))
    ratio = segment_mean(bounded, sequence_id, num_sequences).exp()
    return (-ratio * segment_mean(advantages, sequence_id, num_sequences))[sequence_id]


def vespo_weight(
    logprobs: Float[Tensor, "A"],
    old_logprobs: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    *,
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
) -> Float[Tensor, "A"]:
    """VESPO's constant weight phi(w) = w^k exp(lam (1 - w)) of the sequence ratio w (arXiv 2602.10693).

    `positive` and `negative` are (k, lam) where A >= 0 and where A < 0; w is bounded to [1e-8, e^20].
    """
    logs = segment_sum(log_ratio(logprobs, old_logprobs).detach(), sequence_id, num_sequences)
    logs = logs.clamp(math.log(1e-8), 20.0)[sequence_id]
    up = advantages >= 0
    k = torch.where(up, logs.new_tensor(positive[0]), logs.new_tensor(negative[0]))
    lam = torch.where(up, logs.new_tensor(positive[1]), logs.new_tensor(negative[1]))
    return (lam + k * logs - lam * logs.exp()).exp()
