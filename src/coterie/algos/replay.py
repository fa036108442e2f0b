"""Memory over steps: groups worth training on again, and how hard each example was.

The state is an explicit value: the caller keeps it and puts it into the checkpoint. Draws are functions of coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from coterie.algos.checks import Overrides, require
from coterie.algos.moments import deviation, present
from coterie.algos.sampling import batch_coordinates
from coterie.algos.transforms import advantages_of, has_signal
from coterie.core.keys import Coordinate, generator
from coterie.core.types import Group


@dataclass(frozen=True, eq=False)
class Replayed:
    """A group kept for later.

    Attributes:
        priority: sum over rollouts of |mean advantage| times the deviation of the scores.
        version: of the weights that sampled it.
        group: with advantages and streams as they were.
    """

    priority: float
    version: int
    group: Group


@dataclass(frozen=True)
class Replay:
    """Keep the groups with the most signal, and train on them again where a step has groups without.

    Rule: `add` puts groups with a signal into a buffer of at most `size`, highest priority first, and forgets those
    older than `max_age` versions of the weights. `fill` replaces the groups of a step whose advantages are all 0 by
    groups drawn from the buffer without replacement (with, when it holds too few), with probability proportional to
    priority.

    Paper: none; TRL's `grpo_with_replay_buffer`.

    Differences: TRL has no age limit. Replayed groups are off-policy: they need `old_logprobs` (or `sampler_logprobs`)
    of the weights that sampled them, and a loss that corrects for it.

    Degenerate cases: an empty buffer: groups without signal stay.

    Attributes:
        score: whose deviation enters the priority.
        size: groups kept at most; >= 1.
        max_age: versions of the weights after which a group is forgotten; 0 for never.
        seed: of the draws.
    """

    score: str = "reward"
    size: int = 64
    max_age: int = 8
    seed: int = 0

    paper: ClassVar[str] = "TRL, GRPO with replay buffer"
    conventions: ClassVar[Overrides] = {"trl": {"max_age": 0}}

    def __post_init__(self) -> None:
        require(self, "size", self.size >= 1, "must be >= 1")
        require(self, "max_age", self.max_age >= 0, "must be >= 0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def init(self) -> tuple[Replayed, ...]:
        """An empty buffer."""
        return ()

    def add(self, buffer: tuple[Replayed, ...], groups: list[Group], version: int) -> tuple[Replayed, ...]:
        """The buffer after a step with these groups (with advantages), sampled and trained at weights `version`."""
        fresh = [Replayed(p, _version(g), g) for g in groups if has_signal(g) and (p := self.priority(g)) > 0]
        kept = [entry for entry in (*buffer, *fresh) if not self.max_age or version - entry.version <= self.max_age]
        return tuple(sorted(kept, key=lambda entry: -entry.priority)[: self.size])

    def priority(self, group: Group) -> float:
        """Sum of the rollouts' absolute mean advantages, times the deviation of the scores."""
        means = [abs(float(advantages_of(r).mean())) for r in group.rollouts if r.num_actions]
        return sum(means) * deviation(group.scores(self.score))

    def fill(self, buffer: tuple[Replayed, ...], groups: list[Group]) -> list[Group]:
        """The step's groups, those without signal replaced from the buffer."""
        empty = [i for i, group in enumerate(groups) if not has_signal(group)]
        if not empty or not buffer:
            return groups
        weights = np.array([entry.priority for entry in buffer])
        draws = generator("replay", self.seed, *batch_coordinates(groups)).choice(
            len(buffer), size=len(empty), replace=len(empty) > len(buffer), p=weights / weights.sum()
        )
        out = list(groups)
        for i, draw in zip(empty, draws, strict=True):
            out[i] = buffer[draw].group
        return out


def _version(group: Group) -> int:
    return min((r.weights_version for r in group.rollouts), default=0)


@dataclass(frozen=True)
class DifficultyPools:
    """Sample examples by how well the policy did on them last time.

    Rule: an example's rate is its group's last mean score; pool k holds rates above thresholds[k - 1] up to
    thresholds[k], the last pool everything above. An example is drawn with a probability proportional to its pool's
    weight, 1 when it was never seen; weight 0 retires a pool. The state is a dict from example id to rate.

    Paper: none; prime-rl's difficulty pools (the defaults). Skywork-OR1, arXiv 2505.22312, drops examples solved always
    in the stage before: thresholds (0.999, 1.0), weights (1.0, 0.0).

    Differences: prime-rl's generator is a process's history, here draws belong to coordinates.

    Degenerate cases: all scores of a group missing: its rate stays as it was. All candidates retired: none is drawn.

    Attributes:
        score: name of the score read.
        thresholds: upper ends of the pools, increasing.
        weights: one weight a pool; >= 0.
    """

    score: str = "reward"
    thresholds: tuple[float, ...] = (0.25, 0.75, 1.0)
    weights: tuple[float, ...] = (0.2, 1.0, 0.2)

    paper: ClassVar[str] = "prime-rl, difficulty pools"
    conventions: ClassVar[Overrides] = {
        "prime_rl": {},
        "skywork": {"thresholds": (0.999, 1.0), "weights": (1.0, 0.0)},
    }

    def __post_init__(self) -> None:
        require(self, "thresholds", len(self.thresholds) > 0, "must hold at least one number")
        require(self, "thresholds", all(a < b for a, b in pairwise(self.thresholds)), "must increase")
        same = len(self.weights) == len(self.thresholds)
        require(self, "weights", same, f"must hold one weight a threshold ({len(self.thresholds)})")
        finite = all(0 <= w < float("inf") for w in self.weights)
        require(self, "weights", finite, "must be finite numbers >= 0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def init(self) -> dict[str, float]:
        """No example seen."""
        return {}

    def update(self, rates: Mapping[str, float], groups: list[Group]) -> dict[str, float]:
        """The rates after these groups were scored."""
        out = dict(rates)
        for group in groups:
            scores = group.scores(self.score)
            if present(scores).any():
                out[group.example.id] = float(np.nanmean(scores))
        return out

    def pool(self, rates: Mapping[str, float], example_id: str) -> int | None:
        """Number of the example's pool; None while it was never seen."""
        if example_id not in rates:
            return None
        return min(int(np.searchsorted(self.thresholds, rates[example_id])), len(self.thresholds) - 1)

    def weight(self, rates: Mapping[str, float], example_id: str) -> float:
        """Relative probability of drawing the example."""
        pool = self.pool(rates, example_id)
        return 1.0 if pool is None else self.weights[pool]

    def choose(
        self, rates: Mapping[str, float], example_ids: Sequence[str], count: int, *coordinates: Coordinate
    ) -> list[str]:
        """At most `count` of the candidates, drawn without replacement by weight, for these coordinates."""
        weights = np.array([self.weight(rates, i) for i in example_ids])
        able = int(np.count_nonzero(weights))
        if not able:
            return []
        draws = generator("pools", *coordinates).choice(
            len(weights), size=min(count, able), replace=False, p=weights / weights.sum()
        )
        return [example_ids[i] for i in draws]
