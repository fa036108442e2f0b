"""Further group-baseline advantages: other baselines and scales than GRPO's mean and deviation.

As in `advantages`: one number a rollout; missing scores (NaN) enter no statistic and give 0; constant groups give
exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int

from coterie.algos.advantages import Singleton, singleton_raw
from coterie.algos.checks import Overrides, require, require_choices, require_positive
from coterie.algos.moments import centre, deviation, is_constant, present
from coterie.core.types import Group


def opo_advantages(scores: Float[np.ndarray, "G"], lengths: Int[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
    """OPO on one group: `R_i` minus the mean reward weighted by the number of action tokens (see `OPO`)."""
    out = np.zeros(len(scores))
    here = present(scores)
    weights = lengths[here].astype(np.float64)
    if is_constant(scores) or not weights.sum():
        return out
    out[here] = scores[here] - (weights * scores[here]).sum() / weights.sum()
    return out


@dataclass(frozen=True)
class OPO:
    """Reward minus the length-weighted mean reward of the group: the variance-minimal baseline for summed token losses.

    Equation: `b_g = sum_i n_i R_i / sum_i n_i`, `A_i = R_i - b_g`, n_i the number of action tokens.

    Paper: OPO, arXiv 2505.23585.

    Differences: verl counts every response token of its mask, here tool and environment tokens are never counted; verl
    passes the raw reward of a group of one through. The paper is exactly on-policy and has neither KL nor entropy term.

    Degenerate cases: constant group, group of one score, all scores missing, no action token in the group: exactly 0. A
    missing score enters no statistic and its rollout gets 0.

    Attributes:
        score: name of the score read.
        singleton: advantage of the only score of a group: "zero", or "raw" for the score itself.
    """

    score: str = "reward"
    singleton: Singleton = "zero"

    paper: ClassVar[str] = "2505.23585"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {"singleton": "raw"}}

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages(self._of(group)) for group in groups]

    def _of(self, group: Group) -> Float[np.ndarray, "G"]:
        scores = group.scores(self.score)
        raw = singleton_raw(scores) if self.singleton == "raw" else None
        lengths = np.array([r.num_actions for r in group.rollouts], dtype=np.int64)
        return opo_advantages(scores, lengths) if raw is None else raw


def gpg_scale(scores: Sequence[Float[np.ndarray, "G"]], count: Literal["informative", "nonzero"]) -> float:
    """GPG's alpha over a batch of groups: scored rollouts over those that count (at least one); see `GPG`."""
    total = sum(int(np.count_nonzero(present(s))) for s in scores)
    if count == "nonzero":
        valid = sum(int(np.count_nonzero(s[present(s)])) for s in scores)
    else:
        valid = sum(int(np.count_nonzero(present(s))) for s in scores if not is_constant(s))
    return total / max(valid, 1)


@dataclass(frozen=True)
class GPG:
    """Reward minus the group's mean, scaled up by the share of rollouts that carry no gradient.

    Equation: `A_i = alpha (R_i - mean_g(R)) / f_norm`, `alpha = B / (B - M)` over the batch, B scored rollouts, M of
    them in constant groups. The loss is plain `-logprob * A`.

    Paper: GPG, arXiv 2504.02546.

    Differences: verl's alpha is B over the number of non-zero *scores*, which is another quantity (in a batch of 0/1
    rewards without constant groups it is 1 / accuracy instead of 1).

    Degenerate cases: constant group, group of one score, all scores missing: exactly 0; a batch of constant groups:
    exactly 0. A missing score enters no statistic, alpha included, and its rollout gets 0. After `DropConstant` alpha
    is 1: the loss's own denominator then does its work.

    Attributes:
        score: name of the score read.
        f_norm: divisor of every advantage; > 0.
        count: what alpha's denominator counts: "informative" rollouts (of groups that are not constant) or "nonzero"
            scores.
        singleton: advantage of the only score of a group: "zero", or "raw" for the scaled score.
    """

    score: str = "reward"
    f_norm: float = 1.0
    count: Literal["informative", "nonzero"] = "informative"
    singleton: Singleton = "zero"

    paper: ClassVar[str] = "2504.02546"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {"count": "nonzero", "singleton": "raw"}}

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "f_norm")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        scores = [group.scores(self.score) for group in groups]
        scale = gpg_scale(scores, self.count) / self.f_norm
        return [g.with_advantages(scale * self._of(s)) for g, s in zip(groups, scores, strict=True)]

    def _of(self, scores: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
        raw = singleton_raw(scores) if self.singleton == "raw" else None
        return centre(scores) if raw is None else raw


def pass_at_k_advantages(scores: Float[np.ndarray, "G"], k: int = 0) -> Float[np.ndarray, "G"]:
    """What each rollout adds to the best of k: the mean over k-subsets S with i of `max S - max (S without i)`.

    k = 0 or above the number of scores takes all of them, where only the best rollout counts: `R_max - R_second`.
    """
    out = np.zeros(len(scores))
    if is_constant(scores):
        return out
    index = np.flatnonzero(present(scores))
    index = index[np.argsort(scores[index], kind="stable")]
    ranked = scores[index]
    n = len(ranked)
    size = n if k == 0 else min(k, n)
    subsets = comb(n - 1, size - 1)
    weights = np.array([comb(q, size - 2) / subsets for q in range(n)])
    for p in range(1, n):
        out[index[p]] = ((ranked[p] - ranked[:p]) * weights[:p]).sum()
    return out


@dataclass(frozen=True)
class PassAtK:
    """Only what a rollout adds to the best of k counts: an advantage for pass@k and best-of-k.

    Equation: `A_i = mean over subsets S of size k that hold i of (max S - max (S without i))`; for k = G that is
    `R_max - R_second` for the best rollout and 0 for the rest. Optionally divided by `std_g(R) + eps`.

    Paper: arXiv 2503.19595 (k = G, leave-one-out baseline); the subset form for k < G is the `loo - 1` estimator of
    PKPO, arXiv 2505.15201, up to the factor k / G.

    Differences: verl's `grpo_passk` has k = G and divides by the deviation by default.

    Degenerate cases: two best rollouts: every advantage is 0 for k = G. Constant group, group of one score, all scores
    missing: exactly 0. A missing score enters no subset and its rollout gets 0. The advantages are never negative and
    do not sum to 0.

    Attributes:
        score: name of the score read.
        k: size of the set whose best counts; 0 for the whole group; not 1.
        std: divide by the group's deviation.
        ddof: 1 for the unbiased deviation, 0 for the population's.
        eps: added to the deviation; > 0.
    """

    score: str = "reward"
    k: int = 0
    std: bool = False
    ddof: int = 1
    eps: float = 1e-6

    paper: ClassVar[str] = "2503.19595"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {"std": True}}

    def __post_init__(self) -> None:
        require_positive(self, "eps")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")
        require(self, "k", self.k == 0 or self.k >= 2, "must be 0 (the whole group) or at least 2")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages(self._of(group.scores(self.score))) for group in groups]

    def _of(self, scores: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
        gains = pass_at_k_advantages(scores, self.k)
        return gains / (deviation(scores, self.ddof) + self.eps) if self.std else gains


def maxrl_advantages(scores: Float[np.ndarray, "G"], eps: float = 0.0) -> Float[np.ndarray, "G"]:
    """MaxRL on one group's scores: `(R_i - mean) / (mean + eps)`, 0 where the mean is 0 (see `MaxRL`).

    Raises:
        ValueError: for a negative score.
    """
    values = scores[present(scores)]
    if np.any(values < 0):
        raise ValueError(f"MaxRL needs scores >= 0, got {values.min()}; shift the reward or take another estimator")
    mean = values.mean() if values.size else 0.0
    return centre(scores) / (mean + eps) if mean > 0 else np.zeros(len(scores))


@dataclass(frozen=True)
class MaxRL:
    """Reward relative to the group's mean, in units of the mean: hard prompts weigh about 1 / pass rate.

    Equation: `A_i = (R_i - mean_g(R)) / (mean_g(R) + eps)`; 0 where the mean is 0. For 0/1 rewards the gradient is
    unbiased for the maximum-likelihood objective truncated at order G.

    Paper: MaxRL, arXiv 2602.02710.

    Differences: SkyRL adds eps = 1e-6 to the mean, prime-rl none (it gives 0 for a mean <= 0). Negative scores are an
    error here: with them the mean is no likelihood and may come close to 0 from either side.

    Degenerate cases: constant group, group of one score, all scores missing, mean 0: exactly 0. A missing score enters
    no statistic and its rollout gets 0.

    Attributes:
        score: name of the score read; its values must be >= 0.
        eps: added to the mean; >= 0.
    """

    score: str = "reward"
    eps: float = 0.0

    paper: ClassVar[str] = "2602.02710"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"skyrl": {"eps": 1e-6}, "prime_rl": {}}

    def __post_init__(self) -> None:
        require(self, "eps", 0 <= self.eps < float("inf"), "must be a finite number >= 0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages(maxrl_advantages(group.scores(self.score), self.eps)) for group in groups]
