"""Losses that replace PPO's clip on a token's own ratio: CISPO, SAPO, DPPO, TOPR, DRO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.algos import surrogates
from coterie.algos.checks import Overrides, require, require_positive
from coterie.algos.policy_loss import ActionTokens, PolicyLoss, TokenMetrics


@dataclass(frozen=True)
class CISPO(PolicyLoss):
    """A clipped, constant importance weight on the log-likelihood, so that no token loses its gradient.

    Equation: `loss_t = -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A logprob`.

    Paper: MiniMax-M1, arXiv 2506.13585, eq. 4-5; ScaleRL, arXiv 2510.13786.

    Differences: five conventions share the name. Ours are distances from 1: clip_low = 1 means no lower bound,
    clip_high = 4 an upper bound of 5, which is TRL's absolute 5 and SkyRL's default. verl, slime and AReaL use PPO's
    0.2 on both sides, tinker the absolute range [0, 4].

    Degenerate cases: on-policy the weight is 1 and the loss that of REINFORCE.

    Attributes:
        clip_low: distance below 1 at which the weight is clipped; 1 for no lower bound.
        clip_high: distance above 1 at which it is clipped.
    """

    paper: ClassVar[str] = "2506.13585 eq. 4"
    conventions: ClassVar[Overrides] = {
        "verl": {"clip_low": 0.2, "clip_high": 0.2},
        "trl": {"clip_low": 1.0, "clip_high": 4.0, "log_ratio_bound": 0.0},
        "skyrl": {"clip_low": 1.0, "clip_high": 4.0},
        "slime": {"clip_low": 0.2, "clip_high": 0.2, "log_ratio_bound": 0.0},
        "areal": {"clip_low": 0.2, "clip_high": 0.2},
        "tinker": {"clip_low": 1.0, "clip_high": 3.0, "bypass": True, "aggregate": "token_sum"},
    }

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "clip_low", self.clip_low >= 0, "must be >= 0")
        require(self, "clip_high", self.clip_high >= 0, "must be >= 0; it is a distance from 1, not the bound itself")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        ratio = surrogates.log_ratio(tokens.logprobs, tokens.old_logprobs, self.log_ratio_bound).exp().detach()
        loss = surrogates.cispo(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.advantages,
            self.clip_low,
            self.clip_high,
            log_ratio_bound=self.log_ratio_bound,
        )
        low, high = ratio < 1 - self.clip_low, ratio > 1 + self.clip_high
        return loss, {"policy/clip_frac": low | high, "policy/clip_frac_low": low, "policy/clip_frac_high": high}


@dataclass(frozen=True)
class SAPO(PolicyLoss):
    """A soft sigmoid gate in place of the clip.

    Equation: `loss_t = -(4 / tau) sigmoid(tau (rho - 1)) A`, tau = tau_positive where A > 0, else tau_negative.

    Paper: SAPO, arXiv 2511.20347.

    Differences: verl and TRL as here, averaged per sequence in both.

    Degenerate cases: on-policy the gradient is the policy gradient (the gate's slope at rho = 1 is 1) while the loss is
    -2 A / tau.

    Attributes:
        tau_positive: temperature of the gate where the advantage is positive; > 0.
        tau_negative: temperature elsewhere; larger shuts sooner.
    """

    paper: ClassVar[str] = "2511.20347"
    conventions: ClassVar[Overrides] = {
        "verl": {"aggregate": "sequence_mean"},
        "trl": {"aggregate": "sequence_mean", "log_ratio_bound": 0.0},
    }

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "tau_positive", "tau_negative")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        loss = surrogates.sapo(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.advantages,
            self.tau_positive,
            self.tau_negative,
            log_ratio_bound=self.log_ratio_bound,
        )
        return loss, {}


@dataclass(frozen=True)
class DPPO(PolicyLoss):
    """A trust region on the probability itself (or a binary KL), in place of one on the ratio.

    Equation:

        loss_t = -A sg(min(rho, ratio_cap)) logprob   where kept, else 0
        tv: A > 0 keeps p - p_old <= clip_high;                  A <= 0 keeps p - p_old >= -clip_low
        kl: A > 0 keeps KL(p_old, p) <= clip_high or p <= p_old; A <= 0 keeps KL <= clip_low or p >= p_old
        plus drift_coef (logprob - old_logprob)^2

    with KL that of two Bernoulli variables, the sampled token against all others.

    Paper: DPPO, arXiv 2602.04879.

    Differences: verl as here, against the trainer's old logprobs; SkyRL and prime-rl against the sampler's (`bypass`),
    without a cap; prime-rl adds drift_coef = 1e-3 and calls its symmetric variant "ipo", which is no preference loss.

    Degenerate cases: on-policy every token is kept and the gradient is the policy gradient.

    Attributes:
        clip_low: how far the probability (or KL) may fall where A <= 0.
        clip_high: how far it may rise where A > 0.
        divergence: "tv" or "kl".
        ratio_cap: truncation of the constant importance weight.
        drift_coef: coefficient of the squared log-ratio on all tokens.
    """

    paper: ClassVar[str] = "2602.04879"
    conventions: ClassVar[Overrides] = {
        "verl": {},
        "skyrl": {"bypass": True, "ratio_cap": 1e9},
        "prime_rl": {"bypass": True, "ratio_cap": 1e9, "drift_coef": 1e-3},
    }

    clip_low: float = 0.2
    clip_high: float = 0.2
    divergence: Literal["tv", "kl"] = "tv"
    ratio_cap: float = 20.0
    drift_coef: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "clip_low", "clip_high", "ratio_cap")
        require(self, "drift_coef", self.drift_coef >= 0, "must be >= 0")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        streams = (tokens.logprobs, tokens.old_logprobs, tokens.advantages)
        bounds = (self.clip_low, self.clip_high)
        loss = surrogates.dppo(*streams, *bounds, divergence=self.divergence, ratio_cap=self.ratio_cap)
        if self.drift_coef:
            loss = loss + self.drift_coef * surrogates.log_ratio(*streams[:2], self.log_ratio_bound).square()
        return loss, {"policy/clip_frac": ~surrogates.dppo_keep(*streams, *bounds, self.divergence)}


@dataclass(frozen=True)
class TOPR(PolicyLoss):
    """Tapered off-policy REINFORCE: full weight for positives, a ratio truncated to [0, 1] for the rest.

    Equation:

        positive:  loss_t = -A logprob
        otherwise: loss_t = -sg(clip(ratio, 0, 1)) A logprob

    Paper: TOPR, arXiv 2503.14286.

    Differences: the paper's ratio is the whole trajectory's (level=sequence); ROLL takes the token's.

    Degenerate cases: on-policy both weights are 1 and the loss is that of REINFORCE.

    Attributes:
        positive_by: whether a sequence is positive by the sign of its "reward" (a missing one is not), or each token
            by that of its "advantage".
        level: whose ratio tapers: the "sequence"'s product or the "token"'s.
    """

    paper: ClassVar[str] = "2503.14286"
    conventions: ClassVar[Overrides] = {"roll": {"level": "token", "positive_by": "reward"}}

    positive_by: Literal["advantage", "reward"] = "advantage"
    level: Literal["token", "sequence"] = "sequence"

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        by_reward = self.positive_by == "reward"
        positive = (tokens.rewards > 0)[tokens.sequence_id] if by_reward else tokens.advantages > 0
        logs = surrogates.log_ratio(tokens.logprobs, tokens.old_logprobs, 0.0).detach()
        if self.level == "sequence":
            logs = tokens.sequence_sum(logs)[tokens.sequence_id]
        streams = (tokens.logprobs, tokens.old_logprobs, tokens.advantages)
        taper = torch.where(positive, torch.ones_like(logs), logs.clamp(max=0.0).exp())
        return surrogates.topr(*streams, positive, logs), {"policy/taper_mean": taper}


@dataclass(frozen=True)
class DRO(PolicyLoss):
    """A quadratic anchor to the old policy in place of a clip.

    Equation: `loss_t = -(A logprob - beta / 2 (logprob - old_logprob)^2)`.

    Paper: DRO, arXiv 2405.19107 (per-token form of verl and tinker).

    Differences: verl and tinker as here.

    Degenerate cases: on-policy the anchor has gradient 0 and the loss is that of REINFORCE.

    Attributes:
        beta: strength of the anchor; > 0.
    """

    paper: ClassVar[str] = "2405.19107"
    conventions: ClassVar[Overrides] = {"verl": {}, "tinker": {"bypass": True, "aggregate": "token_sum"}}

    beta: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "beta")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        return surrogates.dro(tokens.logprobs, tokens.old_logprobs, tokens.advantages, self.beta), {}
