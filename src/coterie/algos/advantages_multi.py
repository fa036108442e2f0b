"""Advantages from several scores of one rollout: GDPO, and the estimators of Classmate-CoT.

A rollout that lacks one of the scores enters no statistic in which that score takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from coterie.algos.advantages import GRPO, grpo_advantages
from coterie.algos.checks import Overrides, require, require_choices, require_positive
from coterie.algos.moments import Floor, present, whitening
from coterie.algos.transforms import BatchWhitening
from coterie.core.types import FloatArray, Group, Rollout


@dataclass(frozen=True)
class GDPO:
    """Each score normalised in its group, then summed, then normalised over the batch.

    Equation: `A^k = (R^k - mean_g(R^k)) / (std_g(R^k) + eps)` for every score k, `S = sum_k w_k A^k`,
    `A = (S - mean_batch(S)) / (std_batch(S) + whiten_eps)`.

    Paper: GDPO, arXiv 2601.05242: summing first makes different combinations of rewards collapse to one advantage.

    Differences: batch statistics over rollouts in the paper, TRL and NeMo-RL, over action tokens in verl (long rollouts
    weigh more); weights multiply normalised advantages in all of them, raw rewards in Classmate-CoT's fork, where the
    division by the deviation cancels them; NeMo-RL takes leave-one-out moments; TRL lets a rollout that lacks a score
    count in the others. All normalise constant groups along; here a group whose `S` is all 0 stays 0 and enters no
    statistic.

    Degenerate cases: a score that is constant in the group adds exactly 0; all of them constant, group of one: exactly
    0. A rollout that lacks any score gets 0 and enters no statistic; with missing="own" only that score's part is 0.

    Attributes:
        scores: names of the scores.
        weights: one weight a score; empty for all 1.
        weigh: what the weights multiply: normalised "advantages" or raw "scores".
        std: divide each score by its group's deviation.
        std_over: deviation of the "group", or of the "others" in it (undivided where theirs is 0).
        leave_one_out: each score's baseline is the mean of the others.
        ddof: 1 for unbiased deviations, 0 for the population's.
        eps: added to the group deviation; > 0.
        missing: a rollout without all scores is left out of "any" statistic, or each score has its "own" missing ones.
        whiten: batch normalisation over "sequences", over action "tokens", or "off".
        whiten_eps: see whiten_floor; > 0.
        whiten_floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
        zero_groups: normalise groups whose sum is all 0 along with the rest.
    """

    scores: tuple[str, ...] = ("reward",)
    weights: tuple[float, ...] = ()
    weigh: Literal["advantages", "scores"] = "advantages"
    std: bool = True
    std_over: Literal["group", "others"] = "group"
    leave_one_out: bool = False
    ddof: int = 1
    eps: float = 1e-6
    missing: Literal["any", "own"] = "any"
    whiten: Literal["sequences", "tokens", "off"] = "sequences"
    whiten_eps: float = 1e-6
    whiten_floor: Floor = "std"
    zero_groups: bool = False

    paper: ClassVar[str] = "2601.05242"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {
        "verl": {"whiten": "tokens", "whiten_eps": 1e-8, "whiten_floor": "variance", "zero_groups": True},
        "trl": {"eps": 1e-4, "whiten_eps": 1e-4, "missing": "own", "zero_groups": True},
        "nemo_rl": {"leave_one_out": True, "std_over": "others", "whiten_eps": 1e-30, "zero_groups": True},
        "classmate": {"weigh": "scores", "std": False, "zero_groups": True},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps", "whiten_eps")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")
        require(self, "scores", len(self.scores) > 0, "must name at least one score")
        require(self, "scores", len(set(self.scores)) == len(self.scores), "must not name a score twice")
        same = not self.weights or len(self.weights) == len(self.scores)
        require(self, "weights", same, f"must be empty or hold one weight a score ({len(self.scores)})")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(f"score:{name}" for name in self.scores)

    def __call__(self, groups: list[Group]) -> list[Group]:
        sums = [self._sum(group) for group in groups]
        if self.whiten == "tokens":
            parts = [g.with_advantages(np.nan_to_num(s)) for g, s in zip(groups, sums, strict=True)]
            whitening_of = BatchWhitening(
                ddof=self.ddof, eps=self.whiten_eps, floor=self.whiten_floor, zero_groups=self.zero_groups
            )
            return whitening_of(parts, left_out=[np.isnan(s) for s in sums])
        if self.whiten == "sequences":
            sums = normalised(sums, self.ddof, self.whiten_eps, self.whiten_floor, self.zero_groups)
        return [g.with_advantages(np.nan_to_num(s)) for g, s in zip(groups, sums, strict=True)]

    def _sum(self, group: Group) -> Float[np.ndarray, "G"]:
        """Weighted sum of normalised scores; NaN for a rollout that is left out."""
        table = np.stack([group.scores(name) for name in self.scores])
        here = ~np.isnan(table)
        if self.missing == "any":
            table = np.where(here.all(axis=0), table, np.nan)
        weights = np.array(self.weights or (1.0,) * len(self.scores))
        before, after = (weights, np.ones_like(weights)) if self.weigh == "scores" else (np.ones_like(weights), weights)
        grpo = GRPO(
            std=self.std, std_over=self.std_over, ddof=self.ddof, eps=self.eps, leave_one_out=self.leave_one_out
        )
        total = sum(a * grpo.of_scores(b * row) for row, b, a in zip(table, before, after, strict=True))
        return np.where(np.isnan(table).all(axis=0), np.nan, total)


def normalised(
    values: list[Float[np.ndarray, "G"]], ddof: int, eps: float, floor: Floor, zero_groups: bool = False
) -> list[Float[np.ndarray, "G"]]:
    """One value a rollout, minus the batch's mean, over its deviation; NaN is missing and stays NaN.

    Groups whose values are all 0 enter no statistic and stay 0, unless `zero_groups`.
    """
    taken = [v if zero_groups or np.any(v[present(v)] != 0) else np.zeros(0) for v in values]
    flat = np.concatenate([np.zeros(0), *taken])
    shift, factor = whitening(flat[present(flat)], ddof=ddof, eps=eps, floor=floor)
    return [(v - shift) * factor if t.size else v for v, t in zip(values, taken, strict=True)]


def spread(group: Group, inside: Float[np.ndarray, "G"], outside: Float[np.ndarray, "G"], span: str) -> Group:
    """A copy whose rollout i has advantage `inside[i]` on the action tokens of `span` and `outside[i]` elsewhere."""
    return group.with_advantages(
        [_spread(r, a, b, span) for r, a, b in zip(group.rollouts, inside, outside, strict=True)]
    )


def _spread(rollout: Rollout, inside: float, outside: float, span: str) -> FloatArray:
    advantages = np.full(rollout.num_actions, float(outside))
    advantages[rollout.span_index(span)] = inside
    return advantages


@dataclass(frozen=True)
class Classmate:
    """The policy's own score on every token, its classmates' score on the chain of thought they were shown.

    Equation: N the group normalisation (`R - mean`, divided by `std + eps` with `std`), m the main score, c the
    classmates'. combine="rewards": `J = N(m + c)`; combine="advantages": `J = N(m) + N(c)`, with `non_negative`
    `N(m) + max(N(c), 0)`, with `whiten` `(J - mean_batch(J)) / (std_batch(J) + eps)` over rollouts. Then `A = J` on the
    tokens of `span` and `N(m)` on the others (tokens="partial"), or J everywhere ("all").

    Paper: Classmate-CoT. Its estimators are the conventions of this class: `grpo_w_classmate`, `gdpo`, `gdpo_wo_bn`,
    `grpo_main_classmate_separated` and `grpo_main_classmate_separated_non_neg_cl`. Without `std` the three that do not
    whiten coincide; `gdpo_wo_bn` and the separated form are one formula.

    Differences: in the fork's `gdpo` the span is batch-normalised and the rest is not, as here; runs before February
    2026 divided by the deviation. Constant groups: a group whose J is all 0 stays 0 and enters no batch statistic,
    unless `zero_groups` as in the fork.

    Degenerate cases: both scores constant, group of one: exactly 0. The main score is missing: 0 on every token. The
    classmates' is missing: 0 on the tokens that feel it, N(m) on the others. A rollout without the span feels the main
    score alone (partial).

    Attributes:
        main: score of the policy's own answer.
        classmate: score of the classmates that read its chain of thought, with its weight and condition applied.
        combine: normalise the sum of "rewards", or sum the normalised "advantages".
        tokens: which tokens feel the classmates: those in `span` ("partial"), or "all" of the response.
        span: the action tokens that the classmates were shown.
        non_negative: classmates can only raise an advantage (combine="advantages").
        whiten: batch normalisation of the combined advantage (combine="advantages").
        std: divide by the group's deviation.
        ddof: 1 for unbiased deviations, 0 for the population's.
        eps: added to deviations; > 0.
        zero_groups: normalise groups whose combined advantages are all 0 along with the rest.
    """

    main: str = "reward"
    classmate: str = "classmate"
    combine: Literal["rewards", "advantages"] = "rewards"
    tokens: Literal["partial", "all"] = "partial"
    span: str = "cot"
    non_negative: bool = False
    whiten: bool = False
    std: bool = False
    ddof: int = 1
    eps: float = 1e-6
    zero_groups: bool = False

    paper: ClassVar[str] = "Classmate-CoT"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {
        "grpo_w_classmate": {},
        "gdpo": {"combine": "advantages", "whiten": True, "zero_groups": True},
        "gdpo_wo_bn": {"combine": "advantages"},
        "grpo_main_classmate_separated": {"combine": "advantages"},
        "grpo_main_classmate_separated_non_neg_cl": {"combine": "advantages", "non_negative": True},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")
        require(self, "classmate", self.classmate != self.main, "must differ from main")
        for name in ("non_negative", "whiten"):
            allowed = self.combine == "advantages" or not getattr(self, name)
            require(self, name, allowed, 'has no effect with combine="rewards"; set combine="advantages"')

    @property
    def needs(self) -> frozenset[str]:
        span = {f"span:{self.span}"} if self.tokens == "partial" else set()
        return frozenset({f"score:{self.main}", f"score:{self.classmate}", *span})

    def __call__(self, groups: list[Group]) -> list[Group]:
        mains = [self._normal(group.scores(self.main)) for group in groups]
        joint = [self._joint(group) for group in groups]
        if self.whiten:
            joint = normalised(joint, self.ddof, self.eps, "std", self.zero_groups)
        joint = [np.nan_to_num(j) for j in joint]
        triples = zip(groups, joint, mains, strict=True)
        return [spread(g, j, j if self.tokens == "all" else m, self.span) for g, j, m in triples]

    def _joint(self, group: Group) -> Float[np.ndarray, "G"]:
        """J of each rollout; NaN where a score is missing."""
        main, classmate = group.scores(self.main), group.scores(self.classmate)
        both = main + classmate
        if self.combine == "rewards":
            return np.where(np.isnan(both), np.nan, self._normal(both))
        own = self._normal(classmate)
        return np.where(
            np.isnan(both), np.nan, self._normal(main) + (np.maximum(own, 0.0) if self.non_negative else own)
        )

    def _normal(self, scores: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
        return grpo_advantages(scores, std=self.std, ddof=self.ddof, eps=self.eps)
