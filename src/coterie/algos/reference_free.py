"""Pairwise preference losses without a reference model: ORPO, CPO, SimPO, AlphaPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from coterie.algos import preference
from coterie.algos.checks import Overrides, require
from coterie.algos.pairs import Pairs, PreferenceLoss
from coterie.core.batch import Batch

PairTensors = tuple[Float[Tensor, "P"], Float[Tensor, "P"]]


@dataclass(frozen=True)
class ORPO(PreferenceLoss):
    """Odds-ratio preference optimisation: supervised loss on the chosen answer plus a log odds ratio.

    Equation:

        loss = NLL(chosen) - beta log sig(log odds(a_c) - log odds(a_r))
        log odds(a) = a - log(1 - exp(a)),   a the mean logprob of an answer's tokens

    Paper: ORPO, arXiv 2403.07691, eq. 6-7.

    Differences: TRL's NLL is the token mean over the micro-batch's chosen answers (and their prompts where they aren't
    masked); here it is the mean over pairs of each answer's token mean, which no split changes.

    Degenerate cases: equal mean logprobs give NLL + beta log 2.

    Attributes:
        sft_coef: coefficient of the chosen answer's mean negative logprob.
    """

    paper: ClassVar[str] = "2403.07691 eq. 6-7"
    conventions: ClassVar[Overrides] = {"trl": {}}
    reference: ClassVar[bool] = False

    sft_coef: float = 1.0

    def scores(self, pairs: Pairs) -> PairTensors:
        return pairs.means

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.orpo(*pairs.means, self.beta)


@dataclass(frozen=True)
class CPO(PreferenceLoss):
    """Contrastive preference optimisation: DPO without a reference, plus supervised loss on the chosen answer.

    Equation: `loss = -log sig(beta (logprob(chosen) - logprob(rejected))) + sft_coef NLL(chosen)`, summed logprobs.

    Paper: CPO, arXiv 2401.08417, eq. 3-4.

    Differences: TRL's NLL is the token mean over the micro-batch's chosen answers; here each answer's token mean.

    Degenerate cases: equal logprobs give log 2 + NLL.

    Attributes:
        sft_coef: coefficient of the chosen answer's mean negative logprob.
        label_smoothing: assumed probability that a label is flipped, below 0.5.
    """

    paper: ClassVar[str] = "2401.08417 eq. 3-4"
    conventions: ClassVar[Overrides] = {"trl": {}}
    reference: ClassVar[bool] = False

    sft_coef: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "label_smoothing", 0 <= self.label_smoothing < 0.5, "must lie in [0, 0.5)")

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.cpo(pairs.chosen, pairs.rejected, self.beta, self.label_smoothing)


@dataclass(frozen=True)
class SimPO(PreferenceLoss):
    """Simple preference optimisation: mean logprobs as rewards, with a target margin.

    Equation: `loss = -log sig(beta (a_c - a_r) - gamma)`, a the mean logprob of an answer's tokens.

    Paper: SimPO, arXiv 2405.14734, eq. 6.

    Differences: TRL as here (its simpo_gamma is gamma too, divided by beta inside).

    Degenerate cases: equal mean logprobs give log(1 + exp(gamma)).

    Attributes:
        beta: scale of the mean logprob; > 0, much larger than DPO's.
        gamma: target margin; >= 0.
        label_smoothing: assumed probability that a label is flipped, below 0.5.
    """

    paper: ClassVar[str] = "2405.14734 eq. 6"
    conventions: ClassVar[Overrides] = {"trl": {"gamma": 0.5, "beta": 0.1}}
    reference: ClassVar[bool] = False

    beta: float = 2.0
    gamma: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "gamma", self.gamma >= 0, "must be >= 0")
        require(self, "label_smoothing", 0 <= self.label_smoothing < 0.5, "must lie in [0, 0.5)")

    def scores(self, pairs: Pairs) -> PairTensors:
        return pairs.means

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.simpo(*self.scores(pairs), self.beta, self.gamma, self.label_smoothing)


@dataclass(frozen=True)
class AlphaPO(SimPO):
    """SimPO with a reward bent by alpha.

    Equation: `loss = -log sig(beta (r_c - r_r) - gamma)`, r = (1 - p^-alpha) / alpha, p = exp(mean logprob).

    Paper: AlphaPO, arXiv 2501.03884.

    Differences: TRL as here (CPO trainer, alpha > 0 with loss type simpo).

    Degenerate cases: alpha = 0 is SimPO.

    Attributes:
        alpha: bend of the reward; positive punishes unlikely answers more.
    """

    paper: ClassVar[str] = "2501.03884"
    conventions: ClassVar[Overrides] = {"trl": {"gamma": 0.5, "beta": 0.1}}

    alpha: float = 0.25

    def scores(self, pairs: Pairs) -> PairTensors:
        chosen, rejected = (preference.alphapo_reward(mean, self.alpha) for mean in pairs.means)
        return chosen, rejected
