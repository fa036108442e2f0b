"""Alignment via optimal transport: preference as an order of whole distributions, so sorted over the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.algos import preference
from coterie.algos.checks import Overrides, require
from coterie.algos.pairs import Pairs, PreferenceLoss
from coterie.algos.policy_loss import RUN_PREPASS
from coterie.core.batch import Batch, Outputs

Streams = tuple[dict[str, Tensor], dict[str, float]]
TARGET = "loss/transport_target"


@dataclass(frozen=True)
class TransportLoss(PreferenceLoss):
    """Base of the sorted losses: each answer is compared with the one of equal rank, found before any split.

    Attributes:
        label_smoothing: assumed probability that a label is flipped, below 0.5.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "label_smoothing", 0 <= self.label_smoothing < 0.5, "must lie in [0, 0.5)")

    def targets(self, pairs: Pairs) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        """What each chosen and each rejected answer is compared with."""
        raise TypeError(f"{type(self).__name__} defines no targets")

    def prepass(self, outputs: Outputs, batch: Batch) -> Streams:
        """Ranks over the whole batch, as a stream that is constant over each sequence.

        Raises:
            ValueError: for an answer without action tokens.
        """
        if bool((batch.action_lengths == 0).any()):
            raise ValueError("a sorted preference loss needs at least one action token in every answer")
        pairs = self.pairs(outputs, batch)
        chosen, rejected = self.targets(pairs)
        per_sequence = chosen.new_zeros(batch.num_sequences)
        per_sequence[pairs.chosen_id], per_sequence[pairs.rejected_id] = chosen, rejected
        return {TARGET: per_sequence[batch.sequence_id]}, {}

    def _found(self, pairs: Pairs, batch: Batch) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        if TARGET not in batch.streams:
            raise ValueError(f"the ranks are a statistic of the whole batch: {RUN_PREPASS}")
        lengths = batch.action_lengths
        first = torch.cumsum(lengths, 0) - lengths
        per_sequence = batch.streams[TARGET][first]
        return per_sequence[pairs.chosen_id], per_sequence[pairs.rejected_id]


@dataclass(frozen=True)
class AOT(TransportLoss):
    """Paired optimal transport: the policy's sorted margins against the reference's sorted margins.

    Equation:

        m = logprob(chosen) - logprob(rejected), m_ref the reference's; both sorted over the batch
        loss = dpo loss of (m_(k) - m_ref_(k)), averaged over the ranks k

    Paper: AOT, arXiv 2406.05882.

    Differences: TRL sorts within the micro-batch; here over the whole batch, through the pre-pass.

    Degenerate cases: one pair is DPO.
    """

    paper: ClassVar[str] = "2406.05882"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def targets(self, pairs: Pairs) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        matched = preference.aligned(pairs.chosen - pairs.rejected, pairs.ref_chosen - pairs.ref_rejected)
        return matched, matched

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        matched, _ = self._found(pairs, batch)
        return preference.dpo(pairs.chosen - pairs.rejected, matched, self.beta, self.label_smoothing)


@dataclass(frozen=True)
class AOTUnpaired(TransportLoss):
    """Unpaired optimal transport: sorted log-ratios of the chosen answers against those of the rejected ones.

    Equation:

        c and r the log-ratios of chosen and rejected, each sorted over the batch
        loss = dpo loss of (c_(k) - r_(k)), averaged over the ranks k

    Paper: AOT, arXiv 2406.05882.

    Differences: TRL sorts within the micro-batch; here over the whole batch, through the pre-pass, with the gradient
    of the sorted sum into both answers.

    Degenerate cases: one pair is DPO.
    """

    paper: ClassVar[str] = "2406.05882"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def targets(self, pairs: Pairs) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        chosen, rejected = pairs.log_ratios
        return preference.aligned(chosen, rejected), preference.aligned(rejected, chosen)

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        below, above = self._found(pairs, batch)
        chosen, rejected = pairs.log_ratios
        sides = (
            preference.dpo(chosen, below, self.beta, self.label_smoothing),
            preference.dpo(above, rejected, self.beta, self.label_smoothing),
        )
        # Each rank appears on both sides, with the gradient of one answer each: half the value, the whole gradient.
        halves = [side - side.detach() / 2 for side in sides]
        return halves[0] + halves[1]
