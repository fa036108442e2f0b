"""Losses over single answers with a label or a score: KTO, the implicit process reward model, and reward models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from coterie.algos import preference
from coterie.algos.checks import Overrides, require, require_choices, require_positive
from coterie.algos.loss_metrics import means
from coterie.algos.pairs import pair_index
from coterie.algos.policy_loss import whole_batch_scalar
from coterie.core.batch import Batch, Outputs
from coterie.core.protocols import LossOutput


@dataclass(frozen=True)
class KTO:
    """Kahneman-Tversky optimisation: single answers, labelled desirable (reward above 0) or not.

    Equation:

        d = log(pi(y) / ref(y)),   z = max(0, mean of d over mismatched answers), constant, over the whole batch
        desirable:   loss = desirable_weight (1 - sig(beta (d - z)))
        undesirable: loss = undesirable_weight (1 - sig(beta (z - d)))

    averaged over the labelled answers. Mismatched answers (another row's answer under this prompt) are the sequences
    without a reward; they make z and have no loss.

    Paper: KTO, arXiv 2402.01306, eq. 7-8.

    Differences: TRL takes z over one micro-batch of all ranks, here it is over the whole batch. reference_point=zero is
    TRL's apo_zero_unpaired (APO, arXiv 2408.06266).

    Degenerate cases: policy = reference gives half the mean weight. Labels of one kind only are fine.

    Attributes:
        beta: scale of the implicit reward; > 0.
        desirable_weight: weight of desirable answers; with unbalanced labels, weight times count should be about equal.
        undesirable_weight: weight of the others.
        reference_point: "kl" estimates z in a pre-pass, "zero" takes 0 and needs no mismatched answers.
    """

    paper: ClassVar[str] = "2402.01306 eq. 7-8"
    conventions: ClassVar[Overrides] = {"trl": {}}
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})
    wants: ClassVar[frozenset[str]] = frozenset()

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    reference_point: Literal["kl", "zero"] = "kl"

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "beta", "desirable_weight", "undesirable_weight")
        if self.reference_point == "kl":
            # As in PolicyLoss: core.protocols.HasPrepass asks whether the attribute is there.
            object.__setattr__(self, "prepass", self.whole_batch_statistics)

    def whole_batch_statistics(self, outputs: Outputs, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        """z and the number of labelled answers.

        Raises:
            ValueError: when there are no mismatched answers.
        """
        mismatched = batch.rewards.isnan()
        if not bool(mismatched.any()):
            raise ValueError("KTO's reference point needs mismatched answers (no reward); or take reference_point=zero")
        point = self._log_ratios(outputs, batch).detach()[mismatched].mean().clamp(min=0.0)
        return {}, {"loss/kto_point": float(point), "loss/kto_labelled": float((~mismatched).sum())}

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        labelled = ~batch.rewards.isnan()
        point, count = 0.0, float(batch.counts.sequences)
        if self.reference_point == "kl":
            point, count = whole_batch_scalar(batch, "loss/kto_point"), whole_batch_scalar(batch, "loss/kto_labelled")
        elif not bool(labelled.all()):
            raise ValueError("an answer has no label (its reward is missing)")
        ratios = self._log_ratios(outputs, batch)[labelled]
        desirable = batch.rewards[labelled] > 0
        weights = (self.desirable_weight, self.undesirable_weight)
        losses = preference.kto(ratios, desirable, point, self.beta, *weights)
        rewards = self.beta * ratios.detach()
        metrics = means(
            {
                "preference/loss": losses,
                "preference/desirable_reward": rewards[desirable],
                "preference/undesirable_reward": rewards[~desirable],
                "preference/reference_point": torch.full_like(rewards, point),
            }
        )
        return LossOutput(losses.sum() / max(count, 1.0), metrics)

    def _log_ratios(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "S"]:
        return batch.segment_sum(outputs.logprobs - batch.streams["ref_logprobs"].detach().to(outputs.logprobs.dtype))


@dataclass(frozen=True)
class ImplicitPRM:
    """PRIME's reward model: a language model whose summed log-ratio predicts whether an answer is right.

    Equation: `loss = BCE(sig(beta sum_t (logprob_t - ref_logprob_t)), right)`, right = reward above 0.

    Paper: PRIME, arXiv 2502.01456, eq. 6; implicit rewards, arXiv 2412.01981.

    Differences: verl's recipe as here (ce).

    Degenerate cases: model = reference gives log 2.

    Attributes:
        beta: scale of the log-ratio; > 0.
    """

    paper: ClassVar[str] = "2502.01456"
    conventions: ClassVar[Overrides] = {"verl": {}}
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})
    wants: ClassVar[frozenset[str]] = frozenset()

    beta: float = 0.05

    def __post_init__(self) -> None:
        require_positive(self, "beta")

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        if bool(batch.rewards.isnan().any()):
            raise ValueError("an answer has no label (its reward is missing)")
        ratios = outputs.logprobs - batch.streams["ref_logprobs"].detach().to(outputs.logprobs.dtype)
        logits = self.beta * batch.segment_sum(ratios)
        right = (batch.rewards > 0).to(logits.dtype)
        losses = binary_cross_entropy_with_logits(logits, right, reduction="none")
        metrics = means({"reward_model/loss": losses, "reward_model/accuracy": (logits > 0) == (right > 0)})
        return LossOutput(losses.sum() / max(batch.counts.sequences, 1), metrics)


@dataclass(frozen=True)
class BradleyTerry:
    """Reward model on pairs: the chosen answer's score above the rejected one's.

    Equation: `loss = -log sig(r_c - r_r - margin) + centre_coef (r_c + r_r)^2`, averaged over pairs.

    The score r is the model output named "score" at the last action token of each answer.

    Paper: Llama 2, arXiv 2307.09288, eq. 2 (margin); centring, arXiv 2312.09244.

    Differences: TRL and OpenRLHF as here; a margin of 1 scales with the gap of the two rewards (Llama 2's discrete
    margins by graded preference).

    Degenerate cases: equal scores give log 2.

    Attributes:
        margin: times the difference of the two rewards of the pair; 0 for none.
        centre_coef: weight of the squared sum, which keeps scores around 0.
    """

    paper: ClassVar[str] = "2307.09288 eq. 2"
    conventions: ClassVar[Overrides] = {"trl": {}, "openrlhf": {}}
    needs: ClassVar[frozenset[str]] = frozenset()
    wants: ClassVar[frozenset[str]] = frozenset({"score"})
    whole_groups: ClassVar[bool] = True

    margin: float = 0.0
    centre_coef: float = 0.0

    def __post_init__(self) -> None:
        require(self, "margin", self.margin >= 0, "must be >= 0")
        require(self, "centre_coef", self.centre_coef >= 0, "must be >= 0")

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        if "score" not in outputs.extra:
            raise ValueError('a reward model needs "score" in the outputs')
        if bool((batch.action_lengths == 0).any()):
            raise ValueError("a reward model needs at least one action token in every answer: there it reads the score")
        scores = outputs.extra["score"][torch.cumsum(batch.action_lengths, 0) - 1]
        chosen, rejected = pair_index(batch)
        gap = (batch.rewards[chosen] - batch.rewards[rejected]).to(scores.dtype)
        losses = preference.bradley_terry(scores[chosen], scores[rejected], self.margin * gap, self.centre_coef)
        metrics = means(
            {
                "reward_model/loss": losses,
                "reward_model/accuracy": scores[chosen] > scores[rejected],
                "reward_model/margin": scores[chosen] - scores[rejected],
                "reward_model/score_mean": scores,
            }
        )
        return LossOutput(losses.sum() / max(batch.counts.groups, 1), metrics)
