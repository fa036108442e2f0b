"""The fields of a loss that say how the gap between sampler and trainer is handled, and what they do to a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from coterie.algos.aggregate import segment_mean
from coterie.algos.checks import require
from coterie.algos.corrections import (
    Correction,
    Rejection,
    all_in_sequence,
    correction_rule,
    importance_weights,
    kept_by,
    opsm_keep,
    within,
)
from coterie.core.batch import Batch, Outputs


@dataclass(frozen=True)
class SamplerCorrection:
    """Weights and rejections from the ratio of the trainer's logprobs to the sampler's.

    A rejected token leaves the surrogate, the KL and the entropy bonus. (verl's and TRL's masked weights zero the
    surrogate alone; verl's rejections and all of ours do as said.)

    Attributes:
        correction: sampler-mismatch weight that multiplies the surrogate: none, token_tis, sequence_tis, geometric_tis
            (truncated), token_mis, icepop, sequence_mis, geometric_mis (rejected outside the bounds).
        correction_low: lower bound on it; null takes the correction's own.
        correction_high: upper bound on it; null takes the correction's own.
        correction_normalize: divide the weights by their mean over the batch.
        rejection: what leaves the loss besides: none, token, sequence, geometric, outlier, token_k2, token_k3,
            sequence_sum_k2, sequence_mean_k2, sequence_max_k2, the same with k3, kpop, m2po.
        rejection_low: lower bound; null takes the rejection's own.
        rejection_high: upper bound or threshold; null takes the rejection's own.
        veto: a sequence with any token weight below this is rejected; 0 for none.
        opsm_delta: negative-advantage tokens of sequences with mean(sampler - logprob) above this are rejected; 0 for
            none. DeepSeek-V3.2, arXiv 2512.02556, eq. 9.
        bypass: take the sampler's logprobs as the old ones: the mismatch becomes part of the ratio and no old-logprob
            pass is needed.
    """

    uses_ratio: ClassVar[bool] = True

    correction: Correction = "none"
    correction_low: float | None = None
    correction_high: float | None = None
    correction_normalize: bool = False
    rejection: Rejection = "none"
    rejection_low: float | None = None
    rejection_high: float | None = None
    veto: float = 0.0
    opsm_delta: float = 0.0
    bypass: bool = False

    def check_correction(self) -> None:
        """Refuse bounds without effect and a mismatch that would count twice.

        Raises:
            ValueError: naming class, field, value and rule.
        """
        for name in ("correction", "rejection"):
            if getattr(self, name) == "none":
                for end in ("low", "high"):
                    bound = f"{name}_{end}"
                    require(self, bound, getattr(self, bound) is None, f"has no effect with {name}=none")
        idle = self.correction_normalize and self.correction == "none"
        require(self, "correction_normalize", not idle, "has no effect with correction=none")
        require(self, "veto", self.veto >= 0, "must be >= 0")
        require(self, "opsm_delta", self.opsm_delta >= 0, "must be >= 0")
        twice = self.bypass and self.uses_ratio and self.correction != "none"
        require(self, "correction", not twice, "with bypass=true the mismatch is in the ratio and would count twice")

    @property
    def reads_sampler(self) -> bool:
        """Whether the sampler's logprobs are needed."""
        return (
            self.correction != "none" or self.rejection != "none" or self.bypass or self.veto > 0 or self.opsm_delta > 0
        )

    @property
    def rejects(self) -> bool:
        """Whether tokens can leave the loss."""
        masks = self.correction != "none" and correction_rule(self.correction).masks
        return masks or self.rejection != "none" or self.veto > 0 or self.opsm_delta > 0

    def anchors(self, outputs: Outputs, batch: Batch) -> tuple[Float[Tensor, "A"], Float[Tensor, "A"]]:
        """`(old, proximal)`: the ratio's denominator, and the logprobs that are held against the sampler's."""
        current = outputs.logprobs.detach()
        if self.bypass:
            return batch.streams["sampler_logprobs"].detach(), current
        old = batch.streams.get("old_logprobs", current).detach()
        return old, old

    def correction_bounds(self) -> tuple[float, float]:
        """The bounds in force."""
        rule = correction_rule(self.correction)
        low = rule.low if self.correction_low is None else self.correction_low
        return low, rule.high if self.correction_high is None else self.correction_high

    def kept(self, outputs: Outputs, batch: Batch, proximal: Float[Tensor, "A"]) -> Bool[Tensor, "A"]:
        """Which action tokens stay."""
        keep = torch.ones_like(batch.sequence_id, dtype=torch.bool)
        if not self.rejects:
            return keep
        sampler = batch.streams["sampler_logprobs"]
        segments = (batch.sequence_id, batch.num_sequences)
        if self.correction != "none" and correction_rule(self.correction).masks:
            level = correction_rule(self.correction).level
            keep &= within(importance_weights(proximal - sampler, *segments, level), *self.correction_bounds())
        if self.rejection != "none":
            keep &= kept_by(
                self.rejection, proximal, sampler, *segments, low=self.rejection_low, high=self.rejection_high
            )
        if self.veto > 0:
            above = importance_weights(proximal - sampler, *segments) >= self.veto
            keep &= all_in_sequence(above, *segments)
        if self.opsm_delta > 0:
            keep &= opsm_keep(outputs.logprobs, sampler, batch.advantages, *segments, delta=self.opsm_delta)
        return keep

    def raw_weights(
        self, batch: Batch, proximal: Float[Tensor, "A"], keep: Bool[Tensor, "A"] | None
    ) -> Float[Tensor, "K"]:
        """Weights of the kept tokens before normalisation; constant. A sequence's weight is that of its kept tokens."""
        rule = correction_rule(self.correction)
        logs = pick(proximal, keep) - pick(batch.streams["sampler_logprobs"], keep)
        weights = importance_weights(logs, pick(batch.sequence_id, keep), batch.num_sequences, rule.level)
        return weights if rule.masks else weights.clamp(*self.correction_bounds())

    def mean_weight(self, batch: Batch, proximal: Float[Tensor, "A"], keep: Bool[Tensor, "A"] | None) -> float:
        """Mean over tokens, or over sequences for a weight that a sequence shares; 1 when it is next to nothing."""
        weights = self.raw_weights(batch, proximal, keep)
        if correction_rule(self.correction).level != "token":
            sequence_id = pick(batch.sequence_id, keep)
            present = torch.bincount(sequence_id, minlength=batch.num_sequences) > 0
            weights = segment_mean(weights, sequence_id, batch.num_sequences)[present]
        found = float(weights.mean()) if len(weights) else 1.0
        return found if found > 1e-8 else 1.0


def pick(values: Tensor, keep: Bool[Tensor, "A"] | None) -> Tensor:
    """The kept entries; all of them for None."""
    return values if keep is None else values[keep]
