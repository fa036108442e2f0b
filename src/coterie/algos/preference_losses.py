"""Pairwise preference losses with a reference model: the DPO family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from coterie.algos import preference
from coterie.algos.checks import Overrides, require, require_positive
from coterie.algos.pairs import Pairs, PreferenceLoss
from coterie.algos.preference import Divergence
from coterie.core.batch import Batch

PairTensors = tuple[Float[Tensor, "P"], Float[Tensor, "P"]]


@dataclass(frozen=True)
class MarginLoss(PreferenceLoss):
    """Base of losses that see the difference of two scores alone.

    Attributes:
        divergence: f-divergence whose derivative makes the scores: reverse_kl (DPO), forward_kl, js, alpha.
            f-DPO, arXiv 2309.16240.
        alpha: of the alpha divergence.
        length_normalize: divide each answer's score by its number of action tokens.
    """

    divergence: Divergence = "reverse_kl"
    alpha: float = 0.5
    length_normalize: bool = False

    def scores(self, pairs: Pairs) -> PairTensors:
        chosen, rejected = (
            preference.divergence_score(ratio, self.divergence, self.alpha) for ratio in pairs.log_ratios
        )
        if self.length_normalize:
            return chosen / pairs.chosen_length, rejected / pairs.rejected_length
        return chosen, rejected


@dataclass(frozen=True)
class DPO(MarginLoss):
    """Direct preference optimisation: logistic loss on the margin of implicit rewards.

    Equation:

        loss = -(1 - e) log sig(beta h) - e log sig(-beta h),   e = label_smoothing
        h = log(pi(chosen) / ref(chosen)) - log(pi(rejected) / ref(rejected))

    Paper: DPO, arXiv 2305.18290, eq. 7; e > 0 is conservative DPO; length_normalize is Tülu 3's, arXiv 2411.15124
    (TRL: sigmoid_norm).

    Differences: TRL and OpenRLHF as here.

    Degenerate cases: policy = reference gives log 2 and the largest gradient, beta / 2 on each logprob.

    Attributes:
        label_smoothing: assumed probability that a label is flipped, below 0.5.
    """

    paper: ClassVar[str] = "2305.18290 eq. 7"
    conventions: ClassVar[Overrides] = {"trl": {}, "openrlhf": {}, "tulu3": {"length_normalize": True, "beta": 5.0}}

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "label_smoothing", 0 <= self.label_smoothing < 0.5, "must lie in [0, 0.5)")

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.dpo(*self.scores(pairs), self.beta, self.label_smoothing)


@dataclass(frozen=True)
class RobustDPO(MarginLoss):
    """DPO whose expectation under flipped labels is that under clean ones.

    Equation: `loss = (-(1 - e) log sig(beta h) + e log sig(-beta h)) / (1 - 2 e)`.

    Paper: rDPO, arXiv 2403.00409.

    Differences: TRL as here.

    Degenerate cases: label_smoothing = 0 is DPO.

    Attributes:
        label_smoothing: probability that a label is flipped, below 0.5.
    """

    paper: ClassVar[str] = "2403.00409"
    conventions: ClassVar[Overrides] = {"trl": {}}

    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "label_smoothing", 0 <= self.label_smoothing < 0.5, "must lie in [0, 0.5)")

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.robust_dpo(*self.scores(pairs), self.beta, self.label_smoothing)


@dataclass(frozen=True)
class HingeDPO(MarginLoss):
    """SLiC's hinge on the margin of implicit rewards.

    Equation: `loss = max(0, 1 - beta h)`.

    Paper: SLiC-HF, arXiv 2305.10425, eq. 1, on log-ratios to the reference (RSO, arXiv 2309.06657).

    Differences: TRL as here.

    Degenerate cases: no gradient once beta h > 1.
    """

    paper: ClassVar[str] = "2305.10425 eq. 1"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.hinge(*self.scores(pairs), self.beta)


@dataclass(frozen=True)
class IPO(MarginLoss):
    """Identity preference optimisation: the margin regressed to 1 / (2 beta).

    Equation: `loss = (h - 1 / (2 beta))^2`, h from scores averaged over tokens (length_normalize) or summed.

    Paper: IPO, arXiv 2310.12036, eq. 17.

    Differences: TRL and AReaL average over tokens, which IPO's authors confirmed to TRL; OpenRLHF sums. prime-rl's
    "ipo" is a trust-region policy loss and no preference loss.

    Degenerate cases: the loss has its minimum at a finite margin, so it never pushes without end.

    Attributes:
        length_normalize: average scores over tokens; without, a long answer's margin dwarfs the target.
    """

    paper: ClassVar[str] = "2310.12036 eq. 17"
    conventions: ClassVar[Overrides] = {
        "trl": {"length_normalize": True},
        "areal": {"length_normalize": True},
        "openrlhf": {"length_normalize": False},
    }

    length_normalize: bool = True

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.ipo(*self.scores(pairs), self.beta)


@dataclass(frozen=True)
class EXO(MarginLoss):
    """Exact optimisation: the reverse KL of the policy's preference from the smoothed label.

    Equation: `loss = q (log q - log(1 - e)) + (1 - q) (log(1 - q) - log e)`, q = sig(beta h).

    Paper: EXO, arXiv 2402.00856, eq. 16.

    Differences: TRL as here (exo_pair).

    Degenerate cases: the loss is 0 where q = 1 - e.

    Attributes:
        label_smoothing: e in (0, 0.5).
    """

    paper: ClassVar[str] = "2402.00856 eq. 16"
    conventions: ClassVar[Overrides] = {"trl": {}}

    label_smoothing: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "label_smoothing", 0 < self.label_smoothing < 0.5, "must lie in (0, 0.5)")

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.exo(*self.scores(pairs), self.beta, self.label_smoothing)


@dataclass(frozen=True)
class DiscoPOP(MarginLoss):
    """A blend of logistic and exponential loss, found by search.

    Equation: `loss = -(1 - g) log sig(x) + g exp(-x)`, x = beta h, g = sig(x / tau).

    Paper: DiscoPOP, arXiv 2406.08414, eq. 5.

    Differences: TRL as here.

    Degenerate cases: neither convex nor monotone around x = 0: where policy = reference and tau < 0.102, as by default,
    the slope pushes the margin *down* (into a dip beside 0) until other pairs have moved it.

    Attributes:
        tau: temperature of the gate; > 0.
    """

    paper: ClassVar[str] = "2406.08414 eq. 5"
    conventions: ClassVar[Overrides] = {"trl": {}}

    tau: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "tau")

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.discopop(*self.scores(pairs), self.beta, self.tau)


@dataclass(frozen=True)
class NCA(PreferenceLoss):
    """Noise-contrastive alignment: keeps the chosen answer's likelihood from falling with the rejected one's.

    Equation: `loss = -log sig(beta c) - log sig(-beta c) / 2 - log sig(-beta r) / 2`, c and r the log-ratios.

    Paper: NCA, arXiv 2402.05369.

    Differences: TRL as here (nca_pair).

    Degenerate cases: policy = reference gives 2 log 2.
    """

    paper: ClassVar[str] = "2402.05369"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.nca(*pairs.log_ratios, self.beta)


@dataclass(frozen=True)
class BCO(PreferenceLoss):
    """Binary classifier optimisation on pairs: chosen is class 1, rejected class 0.

    Equation: `loss = -log sig(beta c - shift) - log sig(-(beta r - shift))`.

    Paper: BCO, arXiv 2404.04656.

    Differences: TRL's bco_pair has shift 0; the paper shifts by a running mean of the rewards, which a controller can
    give as `bco_shift` in the batch's scalars.

    Degenerate cases: policy = reference gives 2 log 2.
    """

    paper: ClassVar[str] = "2404.04656"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.bco(*pairs.log_ratios, self.beta, batch.scalars.get("bco_shift", 0.0))


@dataclass(frozen=True)
class SPPO(PreferenceLoss):
    """Self-play preference optimisation with hard labels: each log-ratio regressed to ± 1 / (2 beta).

    Equation: `loss = (c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2`.

    Paper: SPPO, arXiv 2405.00675, eq. 4.7 with win probabilities 1 and 0.

    Differences: TRL as here (sppo_hard).

    Degenerate cases: policy = reference gives 1 / (2 beta^2).
    """

    paper: ClassVar[str] = "2405.00675 eq. 4.7"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.sppo(*pairs.log_ratios, self.beta)


@dataclass(frozen=True)
class APOZero(PreferenceLoss):
    """Anchored preference optimisation for chosen answers better than the model: chosen up, rejected down.

    Equation: `loss = 1 - sig(beta c) + sig(beta r)`.

    Paper: APO, arXiv 2408.06266, eq. 7.

    Differences: TRL as here.

    Degenerate cases: policy = reference gives 1.
    """

    paper: ClassVar[str] = "2408.06266 eq. 7"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.apo_zero(*pairs.log_ratios, self.beta)


@dataclass(frozen=True)
class APODown(PreferenceLoss):
    """Anchored preference optimisation for chosen answers worse than the model: both down, rejected more.

    Equation: `loss = sig(beta c) + 1 - sig(beta (c - r))`.

    Paper: APO, arXiv 2408.06266, eq. 8.

    Differences: TRL as here.

    Degenerate cases: policy = reference gives 1.
    """

    paper: ClassVar[str] = "2408.06266 eq. 8"
    conventions: ClassVar[Overrides] = {"trl": {}}

    def pair_loss(self, pairs: Pairs, batch: Batch) -> Float[Tensor, "P"]:
        return preference.apo_down(*pairs.log_ratios, self.beta)
