"""Losses whose ratio belongs to a whole sequence: GSPO, LUSPO, GMPO, VESPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from coterie.algos import sequence_surrogates as surrogates
from coterie.algos.aggregate import Aggregation
from coterie.algos.checks import Overrides, require, require_positive
from coterie.algos.losses import clip_metrics
from coterie.algos.policy_loss import ActionTokens, PolicyLoss, TokenMetrics
from coterie.algos.surrogates import clipped, log_ratio


@dataclass(frozen=True)
class SequenceLoss(PolicyLoss):
    """Base of losses with one ratio a sequence: their denominators are those of sequences.

    Attributes:
        aggregate: "sequence_mean", "sequence_sum" or "fixed_length"; a token-wise denominator is another objective.
    """

    aggregate: Aggregation = "sequence_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "the ratio is the sequence's; a token-wise denominator is another objective, take sequence_mean"
        require(self, "aggregate", self.aggregate in ("sequence_mean", "sequence_sum", "fixed_length"), rule)


@dataclass(frozen=True)
class GSPO(SequenceLoss):
    """Group sequence policy optimisation: PPO's clip on the length-normalised sequence ratio.

    Equation:

        s_i = exp(mean_t (logprob_t - old_logprob_t))
        loss_t = max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high))
        form=sequence: s = s_i;   form=token: s = sg(s_i) exp(logprob_t - sg(logprob_t))

    Paper: GSPO, arXiv 2507.18071, eq. 5-7; the token form is GSPO-token, §4.3.

    Differences: verl and SkyRL run the token form, OpenRLHF, NeMo-RL, AReaL and slime the sequence form; both have the
    same value, and the same gradient where the advantage is constant over a sequence. AReaL averages the advantage over
    the sequence; verl bounds log s at 10 from above.

    Degenerate cases: on-policy s = 1 and the gradient is that of GRPO with sequence_mean.

    Attributes:
        clip_low: distance below 1 at which the sequence ratio is clipped (much narrower than a token's).
        clip_high: distance above 1 at which it is clipped.
        form: "sequence" or "token".
        mean_advantage: replace the advantages of a sequence by their mean.
    """

    paper: ClassVar[str] = "2507.18071 eq. 5-7"
    conventions: ClassVar[Overrides] = {
        "verl": {"form": "token", "log_ratio_bound": 10.0},
        "skyrl": {"form": "token", "log_ratio_bound": 10.0},
        "trl": {"log_ratio_bound": 0.0},
        "openrlhf": {},
        "nemo_rl": {},
        "slime": {"log_ratio_bound": 0.0},
        "areal": {"mean_advantage": True},
    }

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    form: Literal["sequence", "token"] = "sequence"
    mean_advantage: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "clip_low", "clip_high")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        advantages = tokens.advantages
        if self.mean_advantage:
            advantages = tokens.sequence_mean(advantages)[tokens.sequence_id]
        ratio = surrogates.gspo_ratio(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.sequence_id,
            tokens.num_sequences,
            form=self.form,
            log_ratio_bound=self.log_ratio_bound,
        )
        shown = {**clip_metrics(ratio, advantages, self.clip_low, self.clip_high), "policy/sequence_ratio_mean": ratio}
        return clipped(ratio, advantages, self.clip_low, self.clip_high), shown


@dataclass(frozen=True)
class LUSPO(GSPO):
    """GSPO with each sequence's loss multiplied by its length, against GSPO's bias to short answers.

    Equation: GSPO's loss summed over a sequence's tokens and averaged over sequences (`aggregate=sequence_sum`).

    Paper: LUSPO, arXiv 2602.05261.

    Differences: TRL as here, with the sequence-level ratio.

    Degenerate cases: as `GSPO`; sequences of equal length make it GSPO times that length.
    """

    paper: ClassVar[str] = "2602.05261"
    conventions: ClassVar[Overrides] = {"trl": {"log_ratio_bound": 0.0}}

    aggregate: Aggregation = "sequence_sum"


@dataclass(frozen=True)
class GMPO(SequenceLoss):
    """Geometric-mean policy optimisation: the geometric mean of clipped token ratios.

    Equation:

        d'_t = sgn(A) min(sgn(A) d_t, sgn(A) clip(d_t, -clip_low, clip_high)),   d = logprob - old_logprob
        loss_i = -exp(mean_t d'_t) mean_t(A)

    Paper: GMPO, arXiv 2507.20673.

    Differences: verl as here; a sampler-mismatch weight enters by its geometric mean over the sequence.

    Degenerate cases: on-policy the gradient is that of GRPO with sequence_mean.

    Attributes:
        clip_low: bound on the log-ratio from below.
        clip_high: bound on the log-ratio from above.
    """

    paper: ClassVar[str] = "2507.20673"
    conventions: ClassVar[Overrides] = {"verl": {"clip_low": 0.2, "clip_high": 0.2, "log_ratio_bound": 0.0}}

    clip_low: float = 0.4
    clip_high: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "clip_low", "clip_high")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        loss = surrogates.gmpo(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.advantages,
            tokens.sequence_id,
            tokens.num_sequences,
            self.clip_low,
            self.clip_high,
            log_ratio_bound=self.log_ratio_bound,
        )
        ratio = log_ratio(tokens.logprobs, tokens.old_logprobs, self.log_ratio_bound).detach()
        low = (ratio < -self.clip_low) & (tokens.advantages < 0)
        high = (ratio > self.clip_high) & (tokens.advantages > 0)
        return loss, {"policy/clip_frac": low | high, "policy/clip_frac_low": low, "policy/clip_frac_high": high}

    def weigh(
        self, losses: Float[Tensor, "A"], weights: Float[Tensor, "A"], tokens: ActionTokens
    ) -> Float[Tensor, "A"]:
        """The geometric mean of a sequence's weights."""
        return losses * tokens.sequence_mean(weights.clamp(min=1e-10).log()).exp()[tokens.sequence_id]


@dataclass(frozen=True)
class VESPO(PolicyLoss):
    """A smooth gamma-shaped weight of the whole sequence's ratio on the log-likelihood.

    Equation:

        w_i = exp(clip(sum_t (logprob_t - old_logprob_t), log 1e-8, 20))
        loss_t = -sg(phi(w_i)) A logprob_t,   phi(w) = w^k exp(lam (1 - w))

    with (k, lam) = (k_positive, lam_positive) where A >= 0, else (k_negative, lam_negative).

    Paper: VESPO, arXiv 2602.10693.

    Differences: TRL multiplies the sampler's mismatch into w; here that is `bypass`, and `correction` is refused.

    Degenerate cases: on-policy phi = 1 and the loss is that of REINFORCE.

    Attributes:
        k_positive: exponent of w where A >= 0; > 0.
        lam_positive: decay where A >= 0; > 0.
        k_negative: exponent of w where A < 0; > 0.
        lam_negative: decay where A < 0; > 0.
    """

    paper: ClassVar[str] = "2602.10693"
    conventions: ClassVar[Overrides] = {"trl": {"bypass": True}}

    k_positive: float = 2.0
    lam_positive: float = 3.0
    k_negative: float = 3.0
    lam_negative: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "k_positive", "lam_positive", "k_negative", "lam_negative")
        require(self, "correction", self.correction == "none", "the mismatch belongs inside w; take bypass=true")

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        weight = surrogates.vespo_weight(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.advantages,
            tokens.sequence_id,
            tokens.num_sequences,
            positive=(self.k_positive, self.lam_positive),
            negative=(self.k_negative, self.lam_negative),
        )
        return -weight * tokens.advantages * tokens.logprobs, {"policy/vespo_weight_mean": weight}
