"""Rewards made of rewards: weighted sums, products, and one reward for each data set."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from coterie.core.types import Group, Score
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.core.protocols import Context, RewardFn

Operation = Literal["sum", "product"]


@dataclass(frozen=True)
class Combine:
    """Several rewards in one: each part writes a score under its own name, and "reward" is made of them.

    sum: `Σ weight · score`; product: `Π score ^ weight`, for scores that are not negative. A part of weight 0 is a
    metric only. If a score that is needed is missing, the reward is missing too, with that part's reason.

    Attributes:
        parts: rewards by name; what each writes as "reward" becomes the score of that name.
        weights: weight of each part; 1 where none is given.
        operation: "sum" or "product".
    """

    parts: Mapping[str, RewardFn]
    weights: Mapping[str, float] = field(default_factory=dict)
    operation: Operation = "sum"

    def __post_init__(self) -> None:
        _check_names(self.parts, self.weights)

    @property
    def writes(self) -> frozenset[str]:
        """Names of the scores it adds."""
        return frozenset({"reward", *self.parts})

    async def __call__(self, group: Group, context: Context) -> Group:
        """Run all parts at the same time, then combine."""
        results = await asyncio.gather(*(part(group, context) for part in self.parts.values()))
        combined = group
        for name, result in zip(self.parts, results, strict=True):
            extra = {n for r in result.rollouts for n in r.scores} - {
                "reward",
                *(n for r in group.rollouts for n in r.scores),
            }
            for other in sorted(extra):
                combined = combined.with_scores(other, [r.scores[other] for r in result.rollouts])
            combined = combined.with_scores(name, [r.scores["reward"] for r in result.rollouts])
        weights = {name: self.weights.get(name, 1.0) for name in self.parts}
        return combine_scores(combined, weights, self.operation)

    def close(self) -> None:
        """Close the parts that can be closed."""
        close_all(list(self.parts.values()))


@dataclass(frozen=True)
class Route:
    """One reward for each data set, by the example's `source`.

    Attributes:
        routes: reward by exact source name.
        default: reward of every other source; without one, an unknown source stops the run.
    """

    routes: Mapping[str, RewardFn]
    default: RewardFn | None = None

    @property
    def writes(self) -> frozenset[str]:
        """Names of the scores it adds."""
        return frozenset({"reward"})

    async def __call__(self, group: Group, context: Context) -> Group:
        """Score the group with its data set's reward.

        Raises:
            ConfigError: for a source that has no reward.
        """
        reward = self.routes.get(group.example.source, self.default)
        if reward is None:
            raise ConfigError(
                f"example {group.example.id!r} comes from source {group.example.source!r}, which has no reward "
                f"(sources with one: {', '.join(sorted(self.routes))}); add a route for it, or a default"
            )
        return await reward(group, context)

    def close(self) -> None:
        """Close the rewards that can be closed."""
        close_all([*self.routes.values(), self.default])


def combine_scores(
    group: Group, weights: Mapping[str, float], operation: Operation = "sum", into: str = "reward"
) -> Group:
    """The group with score `into` made of its named scores.

    Raises:
        ConfigError: when a rollout lacks one of the scores, or a product meets a negative one.
    """
    combined = []
    for rollout in group.rollouts:
        absent = sorted(set(weights) - set(rollout.scores))
        if absent:
            raise ConfigError(
                f"no score {', '.join(absent)} to combine (scores there: {', '.join(sorted(rollout.scores))})"
            )
        combined.append(_combined({name: (rollout.scores[name], w) for name, w in weights.items() if w}, operation))
    return group.with_scores(into, combined)


def _combined(parts: Mapping[str, tuple[Score, float]], operation: Operation) -> Score:
    values = []
    for name, (score, weight) in parts.items():
        if score.value is None:
            kind, _, detail = score.reason.partition(":")
            return Score.missing(f"{kind}:{detail or ''} (score {name!r})" if detail else f"{kind}: (score {name!r})")
        if operation == "product" and score.value < 0:
            raise ConfigError(
                f"score {name!r} is {score.value}; a product takes scores that are not negative (use a sum)"
            )
        values.append(weight * score.value if operation == "sum" else score.value**weight if score.value else 0.0)
    return Score(math.fsum(values) if operation == "sum" else math.prod(values))


def _check_names(parts: Mapping[str, RewardFn], weights: Mapping[str, float]) -> None:
    if not parts:
        raise ConfigError("a combined reward needs at least one part")
    if "reward" in parts:
        raise ConfigError("a part can't be named 'reward': that is the name of the combined score")
    unknown = sorted(set(weights) - set(parts))
    if unknown:
        raise ConfigError(f"weights for {', '.join(unknown)}, but the parts are {', '.join(parts)}")
    if not any(weights.get(name, 1.0) for name in parts):
        raise ConfigError("all weights are 0: nothing is left of the reward")
    bad = [f"{n}={w}" for n, w in weights.items() if not math.isfinite(w)]
    if bad:
        raise ConfigError(f"weights must be finite numbers: {', '.join(bad)}")


def close_all(rewards: Sequence[object]) -> None:
    """Close those rewards that have something to close."""
    for reward in rewards:
        close = getattr(reward, "close", None)
        if close is not None:
            close()
