"""What happens to advantages after the estimator: whitening, clipping, spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool

from coterie.algos.checks import Overrides, require, require_choices, require_positive
from coterie.algos.moments import Floor, whitening
from coterie.core.types import FloatArray, Group, IntArray, Rollout


def advantages_of(rollout: Rollout) -> FloatArray:
    """The rollout's advantages.

    Raises:
        ValueError: before an estimator ran.
    """
    if rollout.advantages is None:
        raise ValueError(f"rollout {rollout.index} has no advantages yet: a transform stands after the estimator")
    return rollout.advantages


def has_signal(group: Group) -> bool:
    """Whether any advantage of the group differs from 0."""
    return any(np.any(advantages_of(r) != 0) for r in group.rollouts)


@dataclass(frozen=True)
class BatchWhitening:
    """How a batch of advantages is whitened; shared by `Whiten` and by the estimators that end in it.

    Attributes:
        over: statistics over action "tokens" (long rollouts weigh more) or over "sequences" (a rollout counts once,
            with its mean).
        center: subtract the mean.
        scale: divide by the deviation.
        ddof: 1 or 0 in the variance.
        eps: see floor.
        floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
        zero_groups: whiten groups whose advantages are all 0 along with the rest.
    """

    over: Literal["tokens", "sequences"] = "tokens"
    center: bool = True
    scale: bool = True
    ddof: int = 1
    eps: float = 1e-8
    floor: Floor = "variance"
    zero_groups: bool = True

    def __call__(
        self,
        groups: list[Group],
        scores: tuple[str, ...] = (),
        span: str = "",
        left_out: Sequence[Bool[np.ndarray, "G"]] | None = None,
    ) -> list[Group]:
        """Whiten the action tokens in `span` (all, when empty).

        Rollouts in which one of `scores` is missing, and those marked in `left_out` (one array a group), enter no
        statistic and keep their advantages.
        """
        marks = left_out if left_out is not None else [np.zeros(len(g), dtype=bool) for g in groups]
        index = [
            [self._index(r, scores, span, bool(out)) for r, out in zip(g.rollouts, row, strict=True)]
            if self.zero_groups or has_signal(g)
            else [np.zeros(0, dtype=np.int64)] * len(g)
            for g, row in zip(groups, marks, strict=True)
        ]
        flat = [advantages_of(r)[i] for g, rows in zip(groups, index, strict=True) for r, i in _pairs(g, rows)]
        if self.over == "sequences":
            flat = [np.array([values.mean()]) for values in flat if values.size]
        values = np.concatenate([np.zeros(0), *flat])
        shift, factor = whitening(
            values, ddof=self.ddof, eps=self.eps, floor=self.floor, center=self.center, scale=self.scale
        )
        return [
            group.with_rollouts(_scaled(r, i, shift, factor) for r, i in _pairs(group, rows))
            for group, rows in zip(groups, index, strict=True)
        ]

    def _index(self, rollout: Rollout, scores: tuple[str, ...], span: str, left_out: bool) -> IntArray:
        if left_out or any(name not in rollout.scores or rollout.scores[name].value is None for name in scores):
            return np.zeros(0, dtype=np.int64)
        return rollout.span_index(span) if span else np.arange(rollout.num_actions)


def _pairs(group: Group, rows: list[IntArray]) -> Iterator[tuple[Rollout, IntArray]]:
    return zip(group.rollouts, rows, strict=True)


def _scaled(rollout: Rollout, index: IntArray, shift: float, factor: float) -> Rollout:
    advantages = advantages_of(rollout).copy()
    advantages[index] = (advantages[index] - shift) * factor
    return replace(rollout, advantages=advantages)


@dataclass(frozen=True)
class Whiten:
    """Advantages minus their mean over the batch, divided by their deviation.

    Equation: `A <- (A - mean(A)) / sqrt(var(A) + eps)`, mean and variance over all action tokens of the batch, or over
    rollouts.

    Paper: "advantage normalisation" of PPO implementations, arXiv 2006.05990.

    Differences: see `floor` and `ddof` for what each framework divides by. All of them whiten constant groups along,
    which gives those the batch's token mean as a signal; here a group whose advantages are all 0 stays 0 and enters no
    statistic, so the result does not depend on whether such groups were filtered before.

    Degenerate cases: one action token, or equal advantages everywhere: 0. Rollouts whose score is missing keep 0.

    Attributes:
        score: rollouts in which this score is missing are left alone; empty for none.
        span: whiten only the action tokens in this span; empty for all.
        over: statistics over action "tokens" (long rollouts weigh more) or over "sequences" (each counts once, with
            its mean).
        center: subtract the mean.
        scale: divide by the deviation.
        ddof: 1 or 0 in the variance.
        eps: see floor; > 0.
        floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
        zero_groups: whiten groups whose advantages are all 0 along with the rest.
    """

    score: str = "reward"
    span: str = ""
    over: Literal["tokens", "sequences"] = "tokens"
    center: bool = True
    scale: bool = True
    ddof: int = 1
    eps: float = 1e-8
    floor: Floor = "variance"
    zero_groups: bool = False

    paper: ClassVar[str] = "2006.05990"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {
        "verl": {"zero_groups": True},
        "skyrl": {"zero_groups": True},
        "openrlhf": {"ddof": 0, "floor": "clamp", "zero_groups": True},
        "nemo_rl": {"ddof": 0, "floor": "clamp", "zero_groups": True},
        "areal": {"floor": "std", "eps": 1e-5, "zero_groups": True},
        "trl": {"over": "sequences", "floor": "std", "eps": 1e-4, "zero_groups": True},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")
        require(self, "center", self.center or self.scale, "with scale=False nothing would be done; drop the transform")

    @property
    def needs(self) -> frozenset[str]:
        names = {"score": self.score, "span": self.span}
        return frozenset(f"{kind}:{name}" for kind, name in names.items() if name)

    def __call__(self, groups: list[Group]) -> list[Group]:
        whitening = BatchWhitening(
            self.over, self.center, self.scale, self.ddof, self.eps, self.floor, self.zero_groups
        )
        return whitening(groups, (self.score,) if self.score else (), self.span)


@dataclass(frozen=True)
class ClipAdvantages:
    """Advantages limited to an interval.

    Equation: `A <- min(max(A, low), high)`.

    Paper: none; NeMo-RL's `advantage_clip_low` and `advantage_clip_high`.

    Degenerate cases: an infinite bound is no bound; 0 must lie in the interval, so that a constant group stays 0.

    Attributes:
        low: smallest advantage kept; <= 0.
        high: largest advantage kept; >= 0.
    """

    low: float = -5.0
    high: float = 5.0

    paper: ClassVar[str] = "NeMo-RL"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require(self, "low", self.low <= 0, "must be <= 0")
        require(self, "high", self.high >= 0, "must be >= 0")
        require(self, "high", self.high > self.low, f"must be above low={self.low}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [g.with_advantages([np.clip(advantages_of(r), self.low, self.high) for r in g.rollouts]) for g in groups]


@dataclass(frozen=True)
class ScaleSpan:
    """Advantages multiplied by one factor inside a span of action tokens and by another outside it.

    Equation: `A_t <- inside * A_t` for t in the span, `A_t <- outside * A_t` elsewhere.

    Paper: none; Classmate-CoT trains "cot_only" (outside 0) and "output_only" (inside 0) so.

    Differences: the tokens stay in the loss's denominators; `OnlySpan` takes them out, as the Classmate-CoT fork does.

    Degenerate cases: a rollout without the span: every token is outside.

    Attributes:
        span: name of the span.
        inside: factor in the span.
        outside: factor elsewhere.
    """

    span: str = "cot"
    inside: float = 1.0
    outside: float = 0.0

    paper: ClassVar[str] = "Classmate-CoT"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            require(self, name, abs(getattr(self, name)) < float("inf"), "must be a finite number")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"span:{self.span}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [g.with_advantages([self._of(r) for r in g.rollouts]) for g in groups]

    def _of(self, rollout: Rollout) -> FloatArray:
        advantages = advantages_of(rollout) * self.outside
        index = rollout.span_index(self.span)
        advantages[index] = advantages_of(rollout)[index] * self.inside
        return advantages


@dataclass(frozen=True)
class OnlySpan:
    """Tokens outside a span stop being action tokens: they leave the loss and its denominators.

    Rule: action tokens in the span are kept (with `invert` those outside it), with their streams and advantages; other
    spans keep what is left of them.

    Paper: none; the Classmate-CoT fork's `token_level_main_reward_mode`.

    Differences: the fork crashes on an empty span. `ScaleSpan` with a factor of 0 keeps the tokens in the denominators.

    Degenerate cases: a rollout without the span has no action tokens left (all with `invert`) and stays in its group.

    Attributes:
        span: name of the span.
        invert: keep the tokens outside the span instead.
    """

    span: str = "cot"
    invert: bool = False

    paper: ClassVar[str] = "Classmate-CoT"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {}

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"span:{self.span}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [g.with_rollouts(self._of(r) for r in g.rollouts) for g in groups]

    def _of(self, rollout: Rollout) -> Rollout:
        keep = np.zeros(rollout.num_actions, dtype=bool)
        keep[rollout.span_index(self.span)] = True
        keep = ~keep if self.invert else keep
        left = np.concatenate([[0], np.cumsum(keep)])
        spans = {
            name: tuple((int(left[a]), int(left[b])) for a, b in ranges if left[a] < left[b])
            for name, ranges in rollout.spans.items()
        }
        return replace(
            rollout,
            action_index=rollout.action_index[keep],
            streams={name: values[keep] for name, values in rollout.streams.items()},
            spans=spans,
            advantages=None if rollout.advantages is None else rollout.advantages[keep],
        )
