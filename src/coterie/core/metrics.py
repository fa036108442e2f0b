"""Metrics that add up exactly over micro-batches and ranks.

A `Stat` is what a mean, sum, maximum or minimum needs to be merged; `Metrics` is a plain dict of them. A loss returns
`mean(values)` over what it saw, and the learner merges: the result does not depend on the split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["mean", "sum", "max", "min"]

WALL_PREFIXES = ("time/", "throughput/", "memory/", "wall/")
"""Metric prefixes that may differ between two runs of one configuration; every other metric is bit-exact on resume."""


@dataclass(frozen=True)
class Stat:
    """A mergeable number: `total / weight` for a mean, `total` otherwise. A mean of weight 0 has no value."""

    kind: Kind
    total: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        """The number itself; NaN for a mean over nothing."""
        if self.kind != "mean":
            return self.total
        return self.total / self.weight if self.weight else math.nan

    def merge(self, other: Stat) -> Stat:
        """The statistic over both parts."""
        if self.kind != other.kind:
            raise ValueError(f"can't merge a {self.kind} with a {other.kind}")
        if self.kind in ("mean", "sum"):
            return Stat(self.kind, self.total + other.total, self.weight + other.weight)
        pick = max if self.kind == "max" else min
        return Stat(self.kind, pick(self.total, other.total))


Metrics = Mapping[str, Stat]


def mean(total: float, weight: float) -> Stat:
    """A mean given as its sum and its count (or weight)."""
    return Stat("mean", float(total), float(weight))


def total(value: float) -> Stat:
    """A sum."""
    return Stat("sum", float(value))


def maximum(value: float) -> Stat:
    """A maximum."""
    return Stat("max", float(value))


def minimum(value: float) -> Stat:
    """A minimum."""
    return Stat("min", float(value))


def gauge(value: float) -> Stat:
    """One observation, averaged where several are merged (a learning rate, a coefficient)."""
    return Stat("mean", float(value), 1.0)


def merge(parts: Iterable[Metrics]) -> dict[str, Stat]:
    """One `Metrics` from many; a name missing in a part is not counted there."""
    out: dict[str, Stat] = {}
    for part in parts:
        for name, stat in part.items():
            out[name] = out[name].merge(stat) if name in out else stat
    return out


def values(metrics: Metrics) -> dict[str, float]:
    """Plain numbers for the records; a mean over nothing is left out, a NaN that was computed is not."""
    return {name: stat.value for name, stat in metrics.items() if stat.kind != "mean" or stat.weight}


@dataclass(frozen=True)
class MetricSpec:
    """What a metric means, and when a reader should worry.

    Attributes:
        name: `stage/name[_unit]`; a part in angle brackets stands for any name (`reward/<name>`).
        meaning: one sentence.
        low, high: the healthy range; None where there is no such bound.
        advice: what it means to be outside it and what to try, with `{value}` filled in.
        after_step: leave the first steps alone (a warm-up may be unhealthy by nature).
    """

    name: str
    meaning: str
    low: float | None = None
    high: float | None = None
    advice: str = ""
    after_step: int = 0
