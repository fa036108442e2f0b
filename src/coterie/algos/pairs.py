"""`PreferenceLoss`: from a batch of groups of two answers to numbers a pair, once for all pairwise losses.

A group holds two sequences; the one with the higher reward is chosen. A micro-batch must hold both: the class says so
with `whole_groups`, and a half pair is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie.algos.checks import Overrides, require, require_choices, require_positive
from coterie.algos.loss_metrics import means
from coterie.core.batch import Batch, Outputs
from coterie.core.metrics import mean
from coterie.core.protocols import LossOutput


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of answers.

    Attributes:
        chosen, rejected: sum of logprobs, with gradient.
        ref_chosen, ref_rejected: sum of the reference's logprobs; 0 without a reference.
        chosen_length, rejected_length: action tokens.
        chosen_id, rejected_id: their sequences in the batch.
    """

    chosen: Float[Tensor, "P"]
    rejected: Float[Tensor, "P"]
    ref_chosen: Float[Tensor, "P"]
    ref_rejected: Float[Tensor, "P"]
    chosen_length: Float[Tensor, "P"]
    rejected_length: Float[Tensor, "P"]
    chosen_id: Int[Tensor, "P"]
    rejected_id: Int[Tensor, "P"]

    @property
    def log_ratios(self) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        """log(policy / reference) of chosen and rejected."""
        return self.chosen - self.ref_chosen, self.rejected - self.ref_rejected

    @property
    def means(self) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        """Mean logprob of chosen and rejected."""
        return self.chosen / self.chosen_length, self.rejected / self.rejected_length


@dataclass(frozen=True)
class PreferenceLoss:
    """A loss over pairs of answers to one prompt, averaged over the pairs of the whole batch.

    Attributes:
        beta: scale of the implicit reward; > 0.
        sft_coef: coefficient of the chosen answer's mean negative logprob (a mean over tokens, then over pairs).
        tail_weight: weight of the logprobs of tokens past the shorter answer's length; 1 for plain sums. LD-DPO,
            arXiv 2409.06411.
        weighted: multiply each pair by exp(mean_t (logprob - log sum_v p_v^2)) of both answers, constant. WPO,
            arXiv 2406.11827, eq. 2.
    """

    paper: ClassVar[str] = ""
    conventions: ClassVar[Overrides] = {}
    reference: ClassVar[bool] = True
    whole_groups: ClassVar[bool] = True

    beta: float = 0.1
    sft_coef: float = 0.0
    tail_weight: float = 1.0
    weighted: bool = False

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "beta")
        require(self, "sft_coef", self.sft_coef >= 0, "must be >= 0")
        require(self, "tail_weight", 0 <= self.tail_weight <= 1, "must lie in [0, 1]")

    @property
    def needs(self) -> frozenset[str]:
        """The reference's logprobs, where the loss has a reference."""
        return frozenset({"ref_logprobs"} if self.reference else ())

    @property
    def wants(self) -> frozenset[str]:
        """The squared probabilities that WPO's weights need."""
        return frozenset({"sum_probs_squared"} if self.weighted else ())

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        """One loss a pair."""
        raise TypeError(f"{type(self).__name__} defines no pair_loss")

    def scores(self, pairs: Pairs) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"]]:
        """What beta multiplies, of chosen and rejected; reported as rewards."""
        return pairs.log_ratios

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        """The loss of a (micro-)batch of whole pairs.

        Raises:
            ValueError: for a group without exactly one chosen and one rejected answer.
        """
        pairs = self.pairs(outputs, batch)
        losses = self.pair_loss(pairs, batch)
        if self.weighted:
            losses = losses * self._weights(outputs, batch, pairs)
        total = losses.sum() / max(batch.counts.groups, 1)
        nll = -batch.segment_mean(outputs.logprobs)[pairs.chosen_id]
        if self.sft_coef:
            total = total + self.sft_coef * nll.sum() / max(batch.counts.groups, 1)
        chosen, rejected = (self.beta * s.detach() for s in self.scores(pairs))
        metrics = means(
            {
                "preference/chosen_reward": chosen,
                "preference/rejected_reward": rejected,
                "preference/margin": chosen - rejected,
                "preference/accuracy": chosen > rejected,
                "preference/chosen_logprob": pairs.chosen,
                "preference/rejected_logprob": pairs.rejected,
                "preference/chosen_nll": nll,
            }
        )
        metrics["preference/loss"] = mean(float(losses.detach().sum()), len(losses))
        return LossOutput(total, metrics)

    def pairs(self, outputs: Outputs, batch: Batch) -> Pairs:
        """The pairs of a batch."""
        chosen, rejected = pair_index(batch)
        lengths = batch.action_lengths
        weights = self._tail_weights(batch, chosen, rejected)
        sums = batch.segment_sum(outputs.logprobs * weights)
        ref = torch.zeros_like(sums)
        if self.reference:
            ref = batch.segment_sum(batch.streams["ref_logprobs"].detach().to(sums.dtype) * weights)
        counted = lengths.clamp(min=1).to(sums.dtype)
        return Pairs(
            chosen=sums[chosen],
            rejected=sums[rejected],
            ref_chosen=ref[chosen],
            ref_rejected=ref[rejected],
            chosen_length=counted[chosen],
            rejected_length=counted[rejected],
            chosen_id=chosen,
            rejected_id=rejected,
        )

    def _tail_weights(self, batch: Batch, chosen: Int[Tensor, "P"], rejected: Int[Tensor, "P"]) -> Float[Tensor, "A"]:
        """1 up to the shorter answer's length, `tail_weight` beyond."""
        weights = torch.ones_like(batch.advantages)
        if self.tail_weight == 1:
            return weights
        lengths = batch.action_lengths
        shared = lengths.clone()
        shared[chosen] = shared[rejected] = torch.minimum(lengths[chosen], lengths[rejected])
        starts = torch.cumsum(lengths, 0) - lengths
        position = torch.arange(batch.num_actions, device=lengths.device) - starts[batch.sequence_id]
        return torch.where(position < shared[batch.sequence_id], weights, self.tail_weight * weights)

    def _weights(self, outputs: Outputs, batch: Batch, pairs: Pairs) -> Float[Tensor, "P"]:
        if "sum_probs_squared" not in outputs.extra:
            raise ValueError("weighted=true needs sum_probs_squared in the outputs")
        aligned = outputs.logprobs.detach() - outputs.extra["sum_probs_squared"].detach().log()
        weights = batch.segment_mean(aligned).exp()
        return weights[pairs.chosen_id] * weights[pairs.rejected_id]


def pair_index(batch: Batch) -> tuple[Int[Tensor, "P"], Int[Tensor, "P"]]:
    """Sequences of the chosen and rejected answers, group by group.

    Raises:
        ValueError: for a group that hasn't exactly two sequences here, or whose rewards are equal or missing.
    """
    order = torch.argsort(batch.rewards, descending=True, stable=True)
    order = order[torch.argsort(batch.group_id[order], stable=True)]
    groups, sizes = torch.unique(batch.group_id, return_counts=True)
    if bool((sizes != 2).any()):
        worst = int(groups[sizes != 2][0])
        raise ValueError(
            f"group {worst} has {int(sizes[sizes != 2][0])} of its sequences in this batch; a preference loss takes a "
            "chosen and a rejected answer a prompt, both in one micro-batch"
        )
    chosen, rejected = order[0::2], order[1::2]
    wrong = ~(batch.rewards[chosen] > batch.rewards[rejected])
    if bool(wrong.any()):
        worst = int(batch.group_id[chosen[wrong][0]])
        raise ValueError(f"group {worst} has no preference: its two rewards are equal or missing")
    return chosen, rejected
