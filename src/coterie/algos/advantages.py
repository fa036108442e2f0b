"""Group-baseline advantages: GRPO and its closest relatives.

One score a rollout, one number a rollout, broadcast over its action tokens. Each estimator is a frozen dataclass
`groups -> groups`; beside it stands the pure function over one group's scores. Missing scores (NaN) enter no statistic
and their rollout gets advantage 0; a constant group, a group of one score and an all-missing group get exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from coterie.algos.checks import Overrides, require, require_choices, require_positive
from coterie.algos.moments import centre, deviation, deviation_of_others, present
from coterie.core.types import Group

Singleton = Literal["zero", "raw"]


def grpo_advantages(
    scores: Float[np.ndarray, "G"],
    *,
    std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    leave_one_out: bool = False,
) -> Float[np.ndarray, "G"]:
    """GRPO on one group's scores: `(R_i - mean) / (std + eps)`; NaN scores are missing (see `GRPO`)."""
    centred = centre(scores, leave_one_out)
    return centred / (deviation(scores, ddof) + eps) if std else centred


def rloo_advantages(scores: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
    """RLOO on one group's scores: `R_i` minus the mean of the others; NaN scores are missing (see `RLOO`)."""
    return centre(scores, leave_one_out=True)


def singleton_raw(scores: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"] | None:
    """The scores with 0 for missing ones when exactly one is there (what verl lets through), else None."""
    return np.nan_to_num(scores) if np.count_nonzero(present(scores)) == 1 else None


@dataclass(frozen=True)
class GRPO:
    """Reward relative to the group's mean, in units of the group's deviation.

    Equation: `A_i = (R_i - mean_g(R)) / (std_g(R) + eps)`; with `leave_one_out` the mean of the *other* rollouts;
    with `std=false` no division (see `DrGRPO`).

    Paper: GRPO, arXiv 2402.03300, §4.1.2 (outcome supervision); `std_over="batch"` is LitePPO, arXiv 2508.08221.

    Differences: the paper does not say ddof or eps. On a 0/1 group ddof 1 makes the deviation
    `sqrt(p (1 - p) G / (G - 1))`. verl and SkyRL pass the raw reward of a group of one through; slime yields NaN there
    (here 0), and silently takes the whole batch as one group when group sizes differ; NeMo-RL takes leave-one-out
    moments and does not divide where the others' deviation is 0; prime-rl and tinker-cookbook never divide; eps is 1e-9
    (OpenRLHF), 1e-6 (verl, SkyRL, slime, NeMo-RL), 1e-5 (AReaL), 1e-4 (TRL).

    Degenerate cases: constant group, group of one score, all scores missing: exactly 0. A missing score enters no
    statistic and its rollout gets 0.

    Attributes:
        score: name of the score read.
        std: divide by a standard deviation.
        std_over: whose deviation: the scores of the "group", of the whole "batch" handed to this call, or of the
            "others" of the group (where theirs is 0, the difference stays undivided).
        ddof: 1 for the unbiased deviation, 0 for the population's.
        eps: added to the deviation; > 0.
        leave_one_out: baseline is the mean of the other rollouts' scores.
        singleton: advantage of the only score of a group: "zero", or "raw" for the score itself over `1 + eps`
            (the score alone without std).
        uneven: what unequal group sizes do: every group keeps its "own" statistics, or they are silently "pooled" into
            one group of the whole batch (slime).
    """

    score: str = "reward"
    std: bool = True
    std_over: Literal["group", "batch", "others"] = "group"
    ddof: int = 1
    eps: float = 1e-6
    leave_one_out: bool = False
    singleton: Singleton = "zero"
    uneven: Literal["own", "pooled"] = "own"

    paper: ClassVar[str] = "2402.03300 §4.1.2"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {
        "verl": {"singleton": "raw"},
        "skyrl": {"singleton": "raw"},
        "trl": {"eps": 1e-4},
        "openrlhf": {"eps": 1e-9},
        "areal": {"eps": 1e-5},
        "slime": {"uneven": "pooled"},
        "nemo_rl": {"leave_one_out": True, "std_over": "others"},
        "prime_rl": {"std": False},
        "lite_ppo": {"std_over": "batch"},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        scores = [group.scores(self.score) for group in groups]
        everyone = np.concatenate([np.zeros(0), *scores])
        batch = deviation(everyone, self.ddof) if self.std_over == "batch" else 0.0
        if self.uneven == "pooled" and len({len(s) for s in scores}) > 1:
            cuts = np.cumsum([len(s) for s in scores])[:-1]
            parts = np.split(self.of_scores(everyone, batch), cuts)
            return [g.with_advantages(part) for g, part in zip(groups, parts, strict=True)]
        return [g.with_advantages(self.of_scores(s, batch)) for g, s in zip(groups, scores, strict=True)]

    def of_scores(self, scores: Float[np.ndarray, "G"], batch_deviation: float = 0.0) -> Float[np.ndarray, "G"]:
        """Advantages of one group's scores, given the deviation of the batch's (for std_over="batch")."""
        raw = singleton_raw(scores) if self.singleton == "raw" else None
        if raw is not None:
            return raw / (1.0 + self.eps) if self.std else raw
        centred = centre(scores, self.leave_one_out)
        if not self.std:
            return centred
        if self.std_over == "others":
            others = deviation_of_others(scores, self.ddof)
            return np.where(others > 0, centred / (others + self.eps), centred)
        own = batch_deviation if self.std_over == "batch" else deviation(scores, self.ddof)
        return centred / (own + self.eps)


@dataclass(frozen=True)
class DrGRPO:
    """Reward minus the group's mean, without division by the deviation.

    Equation: `A_i = R_i - mean_g(R)`. Pair it with a loss that sums tokens and divides by a constant (fixed-length
    aggregation), which removes the length bias too; the estimator alone is half of the method.

    Paper: Dr. GRPO, arXiv 2503.20783, §3.2.

    Differences: `A = RLOO * (G - 1) / G`. verl's `norm_adv_by_std_in_grpo=False`, the default of prime-rl and
    tinker-cookbook; DARLING and Classmate-CoT train with it. verl and SkyRL pass the raw reward of a group of one
    through.

    Degenerate cases: constant group, group of one score, all scores missing: exactly 0. A missing score enters no
    statistic and its rollout gets 0.

    Attributes:
        score: name of the score read.
        singleton: advantage of the only score of a group: "zero", or "raw" for the score itself.
    """

    score: str = "reward"
    singleton: Singleton = "zero"

    paper: ClassVar[str] = "2503.20783 §3.2"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {"singleton": "raw"}, "skyrl": {"singleton": "raw"}, "prime_rl": {}}

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return GRPO(score=self.score, std=False, singleton=self.singleton)(groups)


@dataclass(frozen=True)
class RLOO:
    """Reward minus the mean reward of the other rollouts of the group: an unbiased baseline.

    Equation: `A_i = R_i - (sum_{j != i} R_j) / (G - 1) = (R_i - mean_g(R)) * G / (G - 1)`.

    Paper: RLOO, arXiv 2402.14740; leave-one-out baseline of Kool et al. (2019).

    Differences: verl's list version passes the raw reward of a group of one through, its vectorised version and SkyRL
    give 0. TRL's trainer can whiten over the batch afterwards (`Whiten` with over="sequences"). The paper puts the KL
    into the reward (`KLReward` before this).

    Degenerate cases: constant group, group of one score, all scores missing: exactly 0. A missing score enters no
    statistic (G counts the scores that are there) and its rollout gets 0.

    Attributes:
        score: name of the score read.
        singleton: advantage of the only score of a group: "zero", or "raw" for the score itself.
    """

    score: str = "reward"
    singleton: Singleton = "zero"

    paper: ClassVar[str] = "2402.14740"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {"singleton": "raw"}, "skyrl": {}, "trl": {}, "openrlhf": {}}

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return GRPO(score=self.score, std=False, leave_one_out=True, singleton=self.singleton)(groups)
