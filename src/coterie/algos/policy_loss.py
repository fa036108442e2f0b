"""`PolicyLoss`: everything a policy loss has besides its surrogate, once.

A subclass gives one loss an action token (`surrogate`); this class takes rejected tokens out by index, multiplies the
sampler-mismatch weight, adds the KL to the reference and the entropy bonus, divides by global denominators and reports
the metrics that are always wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coterie.algos.aggregate import (
    Aggregation,
    check_aggregation,
    kept_token_weights,
    segment_mean,
    segment_sum,
    token_weights,
)
from coterie.algos.checks import Overrides, require, require_choices
from coterie.algos.kl import KLClamp, KLKind, kl_estimate
from coterie.algos.loss_metrics import maxima, means
from coterie.algos.mismatch import mismatch_metrics
from coterie.algos.sampler_correction import SamplerCorrection, pick
from coterie.algos.surrogates import log_ratio
from coterie.core.batch import Batch, Outputs
from coterie.core.metrics import Stat, mean
from coterie.core.protocols import LossOutput

TokenMetrics = Mapping[str, Tensor]
RUN_PREPASS = "run the loss's prepass on it and put the result into the batch before splitting"


@dataclass(frozen=True, eq=False)
class ActionTokens:
    """What a surrogate sees: the action tokens that were not rejected. A of them, in S sequences.

    Attributes:
        logprobs: under the current policy, with gradient.
        old_logprobs: under the policy at the start of the update (under the sampler with `bypass`); constant.
        advantages: constant.
        sequence_id: sequence of each token, non-decreasing.
        num_sequences: S.
        rewards: of each sequence, NaN where missing.
        streams: the batch's per-action-token arrays.
    """

    logprobs: Float[Tensor, "A"]
    old_logprobs: Float[Tensor, "A"]
    advantages: Float[Tensor, "A"]
    sequence_id: Int[Tensor, "A"]
    num_sequences: int
    rewards: Float[Tensor, "S"]
    streams: Mapping[str, Float[Tensor, "A"]] = field(default_factory=dict)

    def statistic(self, name: str) -> Float[Tensor, "A"]:
        """A stream that the loss's pre-pass made.

        Raises:
            ValueError: when none ran.
        """
        if name not in self.streams:
            raise ValueError(f"{name} is a statistic of the whole batch: {RUN_PREPASS}")
        return self.streams[name]

    def sequence_sum(self, values: Float[Tensor, "A"]) -> Float[Tensor, "S"]:
        """Sum per sequence; differentiable."""
        return segment_sum(values, self.sequence_id, self.num_sequences)

    def sequence_mean(self, values: Float[Tensor, "A"]) -> Float[Tensor, "S"]:
        """Mean per sequence over the tokens that are left; differentiable."""
        return segment_mean(values, self.sequence_id, self.num_sequences)


@dataclass(frozen=True)
class PolicyLoss(SamplerCorrection):
    """A policy-gradient loss over action tokens; subclasses say which.

    Equation:

        loss = sum_t (w_t surrogate_t + kl_coef KL_t - entropy_coef H_t) / denominator_t

    with the global denominator of `aggregate` and w_t the sampler-mismatch weight (`correction`). Without a stream
    `old_logprobs` the update is exactly on-policy: the old logprobs are the current ones, detached, so the ratio is 1
    and its gradient the policy gradient. Sums over micro-batches are exact. Rejected tokens leave by index before any
    arithmetic, so what their streams hold (NaN, too) has no effect.

    Attributes:
        aggregate: denominator: "token_mean" (DAPO), "sequence_mean" (GRPO), "sequence_sum", "fixed_length" (Dr. GRPO),
            "prompt_mean" (ScaleRL), "token_sum".
        fixed_length: tokens a sequence is divided by with aggregate=fixed_length; 0 otherwise.
        denominator: "all" counts rejected tokens in the denominator (AReaL, slime), "kept" doesn't (verl).
        kl: estimator of the KL to the reference in the loss: none, k1, k2, k3, abs, k1+, k3+.
        kl_coef: its coefficient.
        kl_clamp: "k3" bounds k3's log-ratio to ±20 and value to ±10; "all" bounds every estimator's value to ±10;
            "none" lets one token blow up the loss.
        kl_unbiased: multiply the KL by the (undetached) ratio, so that its gradient is right off-policy.
            DeepSeek-V3.2, arXiv 2512.02556.
        entropy_coef: coefficient of the entropy bonus; the bonus has the same denominator as the loss.
        top_entropy: share of action tokens, those of highest entropy in the whole batch, whose surrogate counts; the
            others keep their place in the denominator. 1 for all. arXiv 2506.01939.
        positive_nll_coef: coefficient of the mean negative logprob over the tokens of sequences with reward above 0.
            VAPO, arXiv 2504.05118.
        log_entropy: report `policy/entropy` even where nothing else needs it.
        log_ratio_bound: log-ratios are bounded to ± this; 0 for no bound.
        controlled: coefficients that a controller sets each step ("entropy_coef", "kl_coef"), so that what they need
            is computed even while they are 0.
    """

    paper: ClassVar[str] = ""
    conventions: ClassVar[Overrides] = {}
    whole_batch: ClassVar[bool] = False

    aggregate: Aggregation = "token_mean"
    fixed_length: int = 0
    denominator: Literal["all", "kept"] = "all"
    kl: KLKind = "none"
    kl_coef: float = 0.0
    kl_clamp: KLClamp = "k3"
    kl_unbiased: bool = False
    entropy_coef: float = 0.0
    top_entropy: float = 1.0
    positive_nll_coef: float = 0.0
    log_entropy: bool = True
    log_ratio_bound: float = 20.0
    controlled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_choices(self)
        check_aggregation(self.aggregate, self.fixed_length)
        self.check_correction()
        idle = self.kl == "none" and "kl_coef" in self.controlled
        require(self, "controlled", not idle, "kl_coef has no effect with kl=none; choose an estimator, e.g. kl=k3")
        for name in ("kl_coef", "kl_unbiased"):
            idle = self.kl == "none" and bool(getattr(self, name))
            require(self, name, not idle, "has no effect with kl=none; choose an estimator, e.g. kl=k3")
        require(self, "top_entropy", 0 < self.top_entropy <= 1, "must be a share of tokens in (0, 1]")
        idle = self.denominator == "kept" and not self.rejects
        require(self, "denominator", not idle, "has no effect when nothing is rejected; drop it or set a rejection")
        known = set(self.controlled) <= {"entropy_coef", "kl_coef"}
        require(self, "controlled", known, "only entropy_coef and kl_coef can be controlled")
        if self.needs_prepass:
            # core.protocols.HasPrepass asks whether the attribute is there, so only an instance that needs it has it.
            object.__setattr__(self, "prepass", self.whole_batch_statistics)

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        """One loss an action token (no denominator, no weight), and per-token values whose means are reported."""
        raise TypeError(f"{type(self).__name__} defines no surrogate")

    def statistics(self, tokens: ActionTokens, batch: Batch, kept: Bool[Tensor, "N"]) -> Mapping[str, Tensor]:
        """Per-token streams that `surrogate` reads and that need the whole batch; for classes with `whole_batch`.

        Args:
            tokens: the A kept action tokens of the whole batch.
            batch: the whole batch, with N action tokens.
            kept: which of them are in `tokens`.
        """
        return {}

    def weigh(
        self, losses: Float[Tensor, "A"], weights: Float[Tensor, "A"], tokens: ActionTokens
    ) -> Float[Tensor, "A"]:
        """Apply the sampler-mismatch weights."""
        return losses * weights

    @property
    def needs(self) -> frozenset[str]:
        """Streams that must be in the batch. `old_logprobs` never is: without it the update is on-policy."""
        names = {"sampler_logprobs"} if self.reads_sampler else set()
        return frozenset(names | ({"ref_logprobs"} if self.kl != "none" else set()))

    @property
    def wants(self) -> frozenset[str]:
        """Outputs to compute with gradient."""
        used = self.entropy_coef != 0 or self.top_entropy < 1 or "entropy_coef" in self.controlled
        return frozenset({"entropy"} if used or self.log_entropy else ())

    @property
    def needs_prepass(self) -> bool:
        """Whether something here is a statistic of the whole batch."""
        return (
            self.whole_batch
            or self.denominator == "kept"
            or self.correction_normalize
            or self.top_entropy < 1
            or self.positive_nll_coef != 0
            or self.rejection == "m2po"
        )

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        """The loss of a (micro-)batch under its global counts.

        Raises:
            ValueError: when the entropy bonus has no entropy, or statistics of the whole batch are missing.
        """
        old, proximal = self.anchors(outputs, batch)
        keep = self._keep(outputs, batch, proximal)
        tokens = self._tokens(outputs, batch, old, keep)
        weights = pick(self._weights(batch), keep).to(tokens.logprobs.dtype)
        losses, shown = self.surrogate(tokens)
        if self.correction != "none":
            correction = self.raw_weights(batch, proximal, keep)
            if self.correction_normalize:
                correction = correction / whole_batch_scalar(batch, "loss/weight_mean")
            losses = self.weigh(losses, correction, tokens)
            shown = {**shown, "mismatch/correction_mean": correction}
        policy = losses * weights
        if self.top_entropy < 1:
            policy = policy[pick(whole_batch_stream(batch, "loss/top_entropy"), keep) > 0.5]
        parts = {"policy/policy_loss": policy.sum(), **self._regularisers(outputs, batch, tokens, weights, keep)}
        metrics = self._metrics(outputs, batch, tokens, keep, {**shown, **_ref_kl(tokens)}, parts)
        if "sampler_logprobs" in batch.streams:
            sampler = batch.streams["sampler_logprobs"]
            metrics |= mismatch_metrics(proximal, sampler, batch.sequence_id, batch.num_sequences)
        return LossOutput(torch.stack(list(parts.values())).sum(), metrics)

    def whole_batch_statistics(self, outputs: Outputs, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        """What needs the whole batch, before any split; it is `prepass` where `needs_prepass`.

        Rejections are decided here and stored, so that rounding in another forward pass can't change them.
        """
        old, proximal = self.anchors(outputs, batch)
        keep = self.kept(outputs, batch, proximal)
        tokens = self._tokens(outputs, batch, old, keep)
        found = dict(self.statistics(tokens, batch, keep))
        scalars: dict[str, float] = {}
        if self.top_entropy < 1:
            if outputs.entropy is None:
                raise ValueError("top_entropy below 1 needs the entropy of each action token in the outputs")
            found["loss/top_entropy"] = top_share(outputs.entropy[keep], self.top_entropy)
        if self.correction_normalize:
            scalars["loss/weight_mean"] = self.mean_weight(batch, proximal, keep)
        if self.positive_nll_coef:
            scalars["loss/positive_tokens"] = float((batch.rewards > 0)[tokens.sequence_id].sum())
        streams = {name: _spread(values, keep, batch.advantages) for name, values in found.items()}
        streams["loss/keep"] = keep.to(batch.advantages.dtype)
        if self.denominator == "kept":
            streams["loss/kept_weights"] = kept_token_weights(batch, keep, self.aggregate, self.fixed_length)
        return streams, scalars

    def _weights(self, batch: Batch) -> Float[Tensor, "A"]:
        if self.denominator == "kept":
            return whole_batch_stream(batch, "loss/kept_weights").detach()
        return token_weights(batch, self.aggregate, self.fixed_length)

    def _keep(self, outputs: Outputs, batch: Batch, proximal: Float[Tensor, "A"]) -> Bool[Tensor, "A"] | None:
        """Which action tokens stay; None for all."""
        if not self.rejects:
            return None
        if self.needs_prepass:
            return whole_batch_stream(batch, "loss/keep") > 0.5
        return self.kept(outputs, batch, proximal)

    def _tokens(
        self, outputs: Outputs, batch: Batch, old: Float[Tensor, "A"], keep: Bool[Tensor, "A"] | None
    ) -> ActionTokens:
        return ActionTokens(
            logprobs=pick(outputs.logprobs, keep),
            old_logprobs=pick(old, keep),
            advantages=pick(batch.advantages, keep).detach(),
            sequence_id=pick(batch.sequence_id, keep),
            num_sequences=batch.num_sequences,
            rewards=batch.rewards,
            streams={name: pick(values, keep).detach() for name, values in batch.streams.items()},
        )

    def _regularisers(
        self,
        outputs: Outputs,
        batch: Batch,
        tokens: ActionTokens,
        weights: Float[Tensor, "A"],
        keep: Bool[Tensor, "A"] | None,
    ) -> dict[str, Float[Tensor, ""]]:
        parts = {}
        if self.kl != "none":
            coef = batch.scalars.get("kl_coef", self.kl_coef)
            kl = kl_estimate(tokens.logprobs, tokens.streams["ref_logprobs"], self.kl, self.kl_clamp)
            if self.kl_unbiased:
                kl = kl * log_ratio(tokens.logprobs, tokens.old_logprobs, self.log_ratio_bound).exp()
            parts["policy/kl_loss"] = coef * (kl * weights).sum()
        coef = batch.scalars.get("entropy_coef", self.entropy_coef)
        if coef:
            if outputs.entropy is None:
                raise ValueError("entropy_coef is not 0 but the outputs hold no entropy; name it in `controlled`")
            parts["policy/entropy_loss"] = -coef * (pick(outputs.entropy, keep) * weights).sum()
        if self.positive_nll_coef:
            positive = (batch.rewards > 0)[tokens.sequence_id]
            count = max(whole_batch_scalar(batch, "loss/positive_tokens"), 1.0)
            parts["policy/positive_nll_loss"] = -self.positive_nll_coef / count * tokens.logprobs[positive].sum()
        return parts

    def _metrics(
        self,
        outputs: Outputs,
        batch: Batch,
        tokens: ActionTokens,
        keep: Bool[Tensor, "A"] | None,
        shown: TokenMetrics,
        parts: Mapping[str, Float[Tensor, ""]],
    ) -> dict[str, Stat]:
        moved = log_ratio(tokens.logprobs, tokens.old_logprobs).detach()
        values = {
            "policy/ratio_mean": moved.exp(),
            "kl/policy_k1": -moved,
            "kl/policy_k3": torch.expm1(moved) - moved,
            **shown,
        }
        if outputs.entropy is not None:
            values["policy/entropy"] = outputs.entropy
        if keep is not None:
            values["mismatch/rejected_frac"] = ~keep
        out = means(values) | maxima({"policy/ratio_max": moved.exp()})
        share = batch.num_actions / max(batch.counts.action_tokens, 1)  # so that micro-batches add up to one step
        for name, value in zip(parts, torch.stack(list(parts.values())).tolist(), strict=True):
            out[name] = mean(value, share)
        return out


def top_share(values: Float[Tensor, "A"], share: float) -> Bool[Tensor, "A"]:
    """Entries at or above the (1 - share) quantile, linearly interpolated."""
    if not len(values):
        return torch.zeros_like(values, dtype=torch.bool)
    ordered = torch.sort(values.detach()).values
    position = round((1 - share) * (len(ordered) - 1), 6)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return values.detach() >= torch.lerp(ordered[below], ordered[above], position - below)


def whole_batch_stream(batch: Batch, name: str) -> Float[Tensor, "A"]:
    """A stream that a prepass made.

    Raises:
        ValueError: when no prepass ran.
    """
    if name not in batch.streams:
        raise ValueError(f"{name} is a statistic of the whole batch: {RUN_PREPASS}")
    return batch.streams[name]


def whole_batch_scalar(batch: Batch, name: str) -> float:
    """A number that a prepass made.

    Raises:
        ValueError: when no prepass ran.
    """
    if name not in batch.scalars:
        raise ValueError(f"{name} is a statistic of the whole batch: {RUN_PREPASS}")
    return batch.scalars[name]


def _spread(values: Tensor, keep: Bool[Tensor, "A"], like: Float[Tensor, "A"]) -> Float[Tensor, "A"]:
    """Values of kept tokens at their places, 0 elsewhere."""
    return torch.zeros_like(like).masked_scatter(keep, values.to(like.dtype))


def _ref_kl(tokens: ActionTokens) -> TokenMetrics:
    if "ref_logprobs" not in tokens.streams:
        return {}
    new, ref = tokens.logprobs.detach(), tokens.streams["ref_logprobs"]
    return {f"kl/ref_{kind}": kl_estimate(new, ref, kind, "k3") for kind in ("k1", "k3")}
