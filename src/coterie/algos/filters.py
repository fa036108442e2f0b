"""Filters: fewer groups or rollouts, or no advantage for some. The loop counts what is missing afterwards.

A filter never cuts a group to make numbers fit: groups stay whole, or lose rollouts for a reason of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from coterie.algos.checks import Overrides, require, require_between, require_choices
from coterie.algos.moments import present
from coterie.core.types import Group, Rollout, Score


@dataclass(frozen=True)
class DropConstant:
    """Drop whole groups whose scores are all equal: they have no signal.

    Rule: a group is kept when `max(R) - min(R) > tolerance` over the scores that are there.

    Paper: DAPO's dynamic sampling, arXiv 2503.14476 §3.2 (the filter; `sampling.DynamicSampling` refills);
    Skywork-OR1's rejection sampling, arXiv 2505.22312.

    Differences: Skywork-OR1's code compares with 0 and 1 exactly (equal partial scores stay) and then cuts groups to a
    multiple of the world size; here the deviation decides and groups stay whole. verl keeps groups of one. SkyRL's
    `zero_variance_filter` keeps the slot and masks the loss: without this filter a constant group has advantage 0.

    Degenerate cases: a group with one score or none has no deviation and is dropped.

    Attributes:
        score: name of the score read.
        tolerance: largest spread that still counts as constant; >= 0.
        keep_singletons: keep groups that hold one rollout.
    """

    score: str = "reward"
    tolerance: float = 0.0
    keep_singletons: bool = False

    paper: ClassVar[str] = "2503.14476 §3.2"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"verl": {"keep_singletons": True}, "skyrl": {"tolerance": 1e-6}}

    def __post_init__(self) -> None:
        require_between(self, 0, float("inf"), "tolerance")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group for group in groups if self.keeps(group)]

    def keeps(self, group: Group) -> bool:
        """Whether the group has a signal."""
        scores = group.scores(self.score)
        if self.keep_singletons and len(group) == 1:
            return True
        values = scores[present(scores)]
        return values.size > 1 and float(values.max() - values.min()) > self.tolerance


@dataclass(frozen=True)
class Truncated:
    """What a response that the length limit cut off does to the advantages of its group.

    Rule: "none" leaves everything. "before" stands before the estimator: the truncated rollout's scores become missing
    (reason "truncated", the number in `info["value"]`), so that it enters no group statistic and gets advantage 0.
    "after" stands after the estimator: its score was counted in the group, its own advantages become 0.

    Paper: Skywork-OR1, arXiv 2505.22312 (ablation of advantage masks for truncated responses). The paper trains with
    "none":
    "before" raised the truncation rate without a gain, "after" lies between.

    Differences: not in Skywork-OR1's released code. `DropTruncated` removes the rollouts and so their tokens from the
    loss's denominator too, as TRL's `mask_truncated_completions` and SkyRL's `apply_overlong_filtering` do.

    Degenerate cases: "before" with every rollout truncated makes an all-missing group: advantages 0.

    Attributes:
        mode: "none"; "before" as a shaping stage, "after" as a transform.
    """

    mode: Literal["none", "before", "after"] = "none"

    paper: ClassVar[str] = "2505.22312"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    @property
    def stage(self) -> Literal["before", "after"]:
        """On which side of the estimator it has to stand."""
        return "after" if self.mode == "after" else "before"

    def __call__(self, groups: list[Group]) -> list[Group]:
        change = {"none": lambda r: r, "before": self._unscored, "after": self._silenced}[self.mode]
        return [g.with_rollouts(change(r) if r.truncated else r for r in g.rollouts) for g in groups]

    def _unscored(self, rollout: Rollout) -> Rollout:
        if rollout.advantages is not None:
            raise ValueError("Truncated.mode='before' stands before the estimator, but advantages are there already")
        scores = {
            name: score if score.value is None else Score.missing("truncated", **{**score.info, "value": score.value})
            for name, score in rollout.scores.items()
        }
        return replace(rollout, scores=scores)

    def _silenced(self, rollout: Rollout) -> Rollout:
        if rollout.advantages is None:
            raise ValueError("Truncated.mode='after' stands after the estimator, but there are no advantages yet")
        return replace(rollout, advantages=np.zeros(rollout.num_actions))


@dataclass(frozen=True)
class DropTruncated:
    """Remove rollouts that the length limit cut off, with their tokens.

    Rule: rollouts with finish reason "length" leave their group; a group with fewer than `min_rollouts` left is
    dropped. After the estimator their score has counted in the group and their tokens leave the loss and its
    denominators; before the estimator they are as if never sampled.

    Paper: overlong filtering of DAPO, arXiv 2503.14476 §3.4.

    Differences: TRL's `mask_truncated_completions` and SkyRL's `apply_overlong_filtering` are the after-estimator form
    (but count the sequence); AReaL's `mask_no_eos_with_zero` sets the reward to 0 instead (`StopProperly` with coef 0).

    Degenerate cases: all rollouts truncated: the group is dropped.

    Attributes:
        min_rollouts: smallest group kept; >= 1.
    """

    min_rollouts: int = 1

    paper: ClassVar[str] = "2503.14476 §3.4"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require(self, "min_rollouts", self.min_rollouts >= 1, "must be >= 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, groups: list[Group]) -> list[Group]:
        kept = [g.with_rollouts(r for r in g.rollouts if not r.truncated) for g in groups]
        return [group for group in kept if len(group) >= self.min_rollouts]


@dataclass(frozen=True)
class DropMissing:
    """Remove rollouts whose score is missing, instead of giving them advantage 0.

    Rule: rollouts without a value for any of `scores` leave their group, with their tokens; a group with fewer than
    `min_rollouts` left is dropped.

    Paper: none; prime-rl drops errored rollouts so.

    Differences: without it a missing score costs its rollout the advantage but not its place in the loss's
    denominators.

    Degenerate cases: all scores missing: the group is dropped.

    Attributes:
        scores: names of the scores that must be there.
        min_rollouts: smallest group kept; >= 1.
    """

    scores: tuple[str, ...] = ("reward",)
    min_rollouts: int = 1

    paper: ClassVar[str] = "prime-rl"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require(self, "min_rollouts", self.min_rollouts >= 1, "must be >= 1")
        require(self, "scores", len(self.scores) > 0, "must name at least one score")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(f"score:{name}" for name in self.scores)

    def __call__(self, groups: list[Group]) -> list[Group]:
        kept = [g.with_rollouts(r for r in g.rollouts if self._complete(r)) for g in groups]
        return [group for group in kept if len(group) >= self.min_rollouts]

    def _complete(self, rollout: Rollout) -> bool:
        return all(name in rollout.scores and rollout.scores[name].value is not None for name in self.scores)


@dataclass(frozen=True)
class SolveRate:
    """Keep groups whose mean score lies in a window: neither solved always nor never.

    Rule: `low < mean_g(R) < high` over the scores that are there, with `inclusive` `low <= mean_g(R) <= high`.

    Paper: none; OpenRLHF's `dynamic_filtering_range` (0, 1), ROLL's offline mask (0.1 to 0.95), PRIME's accuracy window
    (0.2 to 0.8).

    Differences: for 0/1 scores and the default window it is `DropConstant`; for other scores it is not.

    Degenerate cases: all scores missing: the group is dropped.

    Attributes:
        score: name of the score read.
        low: lower end of the window.
        high: upper end of the window.
        inclusive: groups on an end are kept.
    """

    score: str = "reward"
    low: float = 0.0
    high: float = 1.0
    inclusive: bool = False

    paper: ClassVar[str] = "OpenRLHF, dynamic filtering"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {
        "openrlhf": {},
        "roll": {"low": 0.1, "high": 0.95, "inclusive": True},
        "prime": {"low": 0.2, "high": 0.8, "inclusive": True},
    }

    def __post_init__(self) -> None:
        require(self, "high", self.high > self.low, f"must be above low={self.low}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group for group in groups if self.keeps(group)]

    def keeps(self, group: Group) -> bool:
        """Whether the group's mean score lies in the window."""
        scores = group.scores(self.score)
        values = scores[present(scores)]
        if not values.size:
            return False
        mean = float(values.mean())
        return self.low <= mean <= self.high if self.inclusive else self.low < mean < self.high


@dataclass(frozen=True)
class KeepGroups:
    """Keep the first whole groups: what is left over after over-sampling and a filter.

    Rule: groups 1 to `count`, in order. Sample more prompts than are trained on, drop groups, keep `count`.

    Paper: Skywork-OR1's rejection sampling with a multiplier, arXiv 2505.22312 (its code cuts to a multiple of the
    world size instead, and may cut through a group); the truncation of DAPO's last batch.

    Differences: groups stay whole here.

    Degenerate cases: fewer groups than `count`: all are kept.

    Attributes:
        count: groups kept; >= 1.
    """

    count: int = 1

    paper: ClassVar[str] = "2505.22312"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require(self, "count", self.count >= 1, "must be >= 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, groups: list[Group]) -> list[Group]:
        return groups[: self.count]
