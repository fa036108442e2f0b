"""Losses that hold back the tokens that drive entropy down: Clip-Cov and KL-Cov.

Both rank tokens by cov = (A - mean A) (logprob - mean logprob) over the whole batch, so both have a pre-pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from coterie.algos import surrogates
from coterie.algos.checks import Overrides, require, require_between
from coterie.algos.losses import PPOClip, clip_metrics
from coterie.algos.policy_loss import ActionTokens, PolicyLoss, TokenMetrics
from coterie.core import keys
from coterie.core.batch import Batch


def covariances(logprobs: Float[Tensor, "A"], advantages: Float[Tensor, "A"]) -> Float[Tensor, "A"]:
    """(A - mean A) (logprob - mean logprob) over all tokens given; constant (arXiv 2505.22617)."""
    logprobs = logprobs.detach()
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


@dataclass(frozen=True)
class ClipCov(PPOClip):
    """PPO-clip without a few random tokens of high covariance between advantage and logprob.

    Equation:

        cov_t = (A_t - mean A) (logprob_t - mean logprob)         means over the whole batch
        loss_t = 0 for max(1, int(share * tokens)) tokens drawn among cov_low < cov_t < cov_high that PPO didn't clip,
                 PPO-clip's loss for the others

    Paper: Clip-Cov, arXiv 2505.22617.

    Differences: verl and SkyRL draw in each micro-batch; here once over the whole batch, and the draw depends on the
    tokens of a sequence, `seed` and step alone, not on their place in the batch.

    Degenerate cases: with no token between the bounds it is PPO-clip.

    Attributes:
        share: share of the batch's action tokens taken out.
        cov_low: lower bound of the covariance (exclusive).
        cov_high: upper bound (exclusive).
        seed: of the draw.
    """

    paper: ClassVar[str] = "2505.22617"
    conventions: ClassVar[Overrides] = {"verl": {"log_ratio_bound": 0.0}, "skyrl": {"log_ratio_bound": 0.0}}
    whole_batch: ClassVar[bool] = True

    share: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0.0, 1.0, "share")
        require(self, "cov_high", self.cov_high > self.cov_low, "must be above cov_low")

    def statistics(self, tokens: ActionTokens, batch: Batch, kept: Bool[Tensor, "N"]) -> Mapping[str, Tensor]:
        ratio = surrogates.log_ratio(tokens.logprobs, tokens.old_logprobs, self.log_ratio_bound).exp()
        clipped = clip_metrics(ratio, tokens.advantages, self.clip_low, self.clip_high)["policy/clip_frac"]
        cov = covariances(tokens.logprobs, tokens.advantages)
        candidates = torch.nonzero((cov > self.cov_low) & (cov < self.cov_high) & ~clipped).flatten()
        draws = token_draws(batch, self.seed, int(batch.scalars.get("step", 0))).to(kept.device)[kept]
        order = torch.argsort(draws[candidates], stable=True)
        chosen = candidates[order[: max(1, int(self.share * len(cov)))]]
        return {"loss/clip_cov": torch.zeros_like(cov).index_fill(0, chosen, 1.0)}

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        losses, shown = super().surrogate(tokens)
        out = tokens.statistic("loss/clip_cov") > 0.5
        return torch.where(out, torch.zeros_like(losses), losses), {**shown, "policy/clip_cov_frac": out}


@dataclass(frozen=True)
class KLCov(PolicyLoss):
    """The unclipped ratio, with a penalty on the move of the tokens of highest covariance.

    Equation:

        cov_t = (A_t - mean A) (logprob_t - mean logprob)         means over the whole batch
        loss_t = -A rho + penalty |logprob - old_logprob|   for the max(1, int(share * tokens)) tokens of highest cov_t
        loss_t = -A rho                                     for the others

    Paper: KL-Cov, arXiv 2505.22617.

    Differences: verl ranks within each micro-batch, with penalty 0.1 in its configuration and 1 in its docstring;
    SkyRL's share is 0.2, a thousand times verl's.

    Degenerate cases: on-policy the penalty is 0 and its gradient, at the kink, 0.

    Attributes:
        share: share of the batch's action tokens penalised.
        penalty: coefficient of |logprob - old_logprob|.
    """

    paper: ClassVar[str] = "2505.22617"
    conventions: ClassVar[Overrides] = {
        "verl": {"share": 2e-4, "penalty": 0.1, "log_ratio_bound": 0.0},
        "skyrl": {"share": 0.2, "penalty": 1.0, "log_ratio_bound": 0.0},
    }
    whole_batch: ClassVar[bool] = True

    share: float = 2e-4
    penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0.0, 1.0, "share")
        require(self, "penalty", self.penalty >= 0, "must be >= 0")

    def statistics(self, tokens: ActionTokens, batch: Batch, kept: Bool[Tensor, "N"]) -> Mapping[str, Tensor]:
        cov = covariances(tokens.logprobs, tokens.advantages)
        order = torch.argsort(cov, descending=True, stable=True)
        chosen = order[: max(1, int(self.share * len(cov)))]
        return {"loss/kl_cov": torch.zeros_like(cov).index_fill(0, chosen, 1.0)}

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        streams = (tokens.logprobs, tokens.old_logprobs)
        loss = surrogates.importance_sampling(*streams, tokens.advantages, log_ratio_bound=self.log_ratio_bound)
        chosen = tokens.statistic("loss/kl_cov") > 0.5
        moved = surrogates.log_ratio(*streams, self.log_ratio_bound).abs()
        return torch.where(chosen, loss + self.penalty * moved, loss), {"policy/kl_cov_frac": chosen}


def token_draws(batch: Batch, *coordinates: int) -> Float[Tensor, "A"]:
    """One uniform number an action token, a function of its sequence's tokens and the coordinates alone."""
    tokens, bounds = batch.tokens.cpu().numpy(), batch.cu_seqlens.tolist()
    counts = batch.action_lengths.tolist()
    drawn = [
        keys.uniforms("loss", *coordinates, tokens[start:end].tobytes().hex(), count=count)
        for start, end, count in zip(bounds[:-1], bounds[1:], counts, strict=True)
    ]
    return torch.from_numpy(np.concatenate(drawn)) if drawn else torch.zeros(0, dtype=torch.float64)
