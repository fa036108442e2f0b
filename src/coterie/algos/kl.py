"""Estimators of the KL divergence KL(policy || reference) from the logprobs of sampled tokens.

With d = logprob - ref_logprob:

    k1 = d    abs = |d|    k2 = d^2 / 2    k3 = exp(-d) - 1 + d
    k1+, k3+: the value of k1 or k3 with the gradient of k2 (straight-through)

All but abs are unbiased or nearly so as *values*. As a *loss*, k1 has expected gradient 0 and k3 has the gradient of
the reverse divergence; k2, k1+ and k3+ have the right one on-policy, and `unbiased` (value times the ratio, not
detached) has it off-policy too.

Source: Schulman, "Approximating KL divergence" (2020); straight-through forms: verl; unbiased form: DeepSeek-V3.2,
arXiv 2512.02556.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

KLKind = Literal["none", "k1", "k2", "k3", "abs", "k1+", "k3+"]
KL_KINDS: tuple[str, ...] = ("k1", "k2", "k3", "abs", "k1+", "k3+")
KLClamp = Literal["none", "k3", "all"]

LOG_RATIO_BOUND = 20.0
VALUE_BOUND = 10.0


def kl_estimate(
    logprobs: Float[Tensor, "A"],
    ref_logprobs: Float[Tensor, "A"],
    kind: KLKind | str = "k3",
    clamp: KLClamp | str = "none",
) -> Float[Tensor, "A"]:
    """Per-token estimate in nats; gradient flows into `logprobs` only.

    Args:
        logprobs: of the policy.
        ref_logprobs: of the reference, a constant.
        kind: which estimator (module docstring).
        clamp: "none" (TRL); "k3" bounds d to ±20 and the value to ±10 in k3 and k3+ (verl, SkyRL); "all" bounds the
            value of every estimator to ±10 (OpenRLHF). Outside its bounds a clamp has no gradient.

    Raises:
        ValueError: for an unknown kind or clamp.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"KL kind {kind!r} is not one of {', '.join(KL_KINDS)}")
    if clamp not in ("none", "k3", "all"):
        raise ValueError(f"KL clamp {clamp!r} is not one of none, k3, all")
    difference = logprobs - ref_logprobs.detach()
    value = _value(difference, kind.rstrip("+"), clamp)
    if not kind.endswith("+"):
        return value
    k2 = difference.square() / 2
    return k2 - k2.detach() + value.detach()


def _value(difference: Float[Tensor, "A"], kind: str, clamp: str) -> Float[Tensor, "A"]:
    if kind == "k3":
        if clamp == "none":
            return torch.expm1(-difference) + difference
        d = difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        return (torch.expm1(-d) + d).clamp(-VALUE_BOUND, VALUE_BOUND)
    value = {"k1": difference, "abs": difference.abs(), "k2": difference.square() / 2}[kind]
    return value.clamp(-VALUE_BOUND, VALUE_BOUND) if clamp == "all" else value
