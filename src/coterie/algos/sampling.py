"""Which groups a step trains on: refilling, replacing, resampling.

Draws are functions of coordinates (seed, the examples at hand, their weights' versions), never of process history.
Whatever lives longer than one call is an explicit state: the caller keeps it and puts it into the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from coterie.algos.checks import Overrides, require, require_between, require_choices, require_positive
from coterie.algos.filters import DropConstant
from coterie.core.keys import Coordinate, generator
from coterie.core.types import Group
from coterie.errors import CoterieError


def batch_coordinates(groups: list[Group]) -> tuple[Coordinate, ...]:
    """Coordinates that belong to these groups: their example ids and the version of the weights that sampled each."""
    versions = [max((r.weights_version for r in g.rollouts), default=0) for g in groups]
    return tuple(c for g, version in zip(groups, versions, strict=True) for c in (g.example.id, version))


@dataclass(frozen=True, eq=False)
class Refill:
    """What dynamic sampling has gathered for one step.

    Attributes:
        groups: kept so far, in the order sampled.
        batches: batches sampled for it so far.
        sampled: groups sampled for it so far.
    """

    groups: tuple[Group, ...] = ()
    batches: int = 0
    sampled: int = 0


@dataclass(frozen=True)
class DynamicSampling:
    """Sample on until a step has enough groups with a signal.

    Rule: keep sampling batches, filter each, gather what is left until `target` groups are there; extra groups are cut
    off at the end, in order. After `max_batches` batches: an error, or the step goes on with what there is.

        refill = sampling.init()
        while sampling.wanted(refill, target):
            groups = ...                                    # sampled and scored
            refill = sampling.add(refill, groups, kept=drop_constant(groups))
        groups = sampling.take(refill, target)

    Paper: DAPO, arXiv 2503.14476 §3.2.

    Differences: verl raises after `max_num_gen_batches` (<= 0: never), as "error" here; Skywork-OR1 never refills and
    trains on a smaller batch. The state holds sampled rollouts; it is empty between steps and needs no checkpoint.

    Degenerate cases: nothing kept and when_exhausted="partial": `take` returns no groups and the step has to be
    skipped.

    Attributes:
        max_batches: batches sampled for one step at most; 0 for no bound.
        when_exhausted: "error" or "partial" once they are used up.
    """

    max_batches: int = 10
    when_exhausted: Literal["error", "partial"] = "error"

    paper: ClassVar[str] = "2503.14476 §3.2"
    conventions: ClassVar[Overrides] = {"verl": {}, "skywork": {"max_batches": 1, "when_exhausted": "partial"}}

    def __post_init__(self) -> None:
        require_choices(self)
        require(self, "max_batches", self.max_batches >= 0, "must be >= 0")

    def init(self) -> Refill:
        """An empty step."""
        return Refill()

    def add(self, refill: Refill, sampled: list[Group], kept: list[Group]) -> Refill:
        """The step after one more batch, of which a filter kept `kept`."""
        return Refill((*refill.groups, *kept), refill.batches + 1, refill.sampled + len(sampled))

    def wanted(self, refill: Refill, target: int) -> int:
        """Groups still to be found; 0 when there are enough or no further batch may be sampled."""
        exhausted = self.max_batches > 0 and refill.batches >= self.max_batches
        return 0 if exhausted else max(target - len(refill.groups), 0)

    def take(self, refill: Refill, target: int) -> list[Group]:
        """The groups of the step, at most `target`.

        Raises:
            CoterieError: when there are too few and when_exhausted="error".
        """
        if len(refill.groups) < target and self.when_exhausted == "error":
            raise CoterieError(
                f"dynamic sampling kept {len(refill.groups)} of {refill.sampled} groups in {refill.batches} batches, "
                f"and the step needs {target}: the data is too easy or too hard for the policy. Raise max_batches, "
                "choose other data, or set when_exhausted=partial"
            )
        return list(refill.groups[:target])


@dataclass(frozen=True)
class ReplaceConstant:
    """Put copies of groups with a signal in the place of groups without.

    Rule: groups that `DropConstant` would drop are replaced by copies of kept ones, drawn with replacement; when the
    kept share is below `min_good`, they are dropped instead.

    Paper: none; SkyRL's dynamic sampling "replace" (min_good 0.3).

    Differences: SkyRL samples another batch when the share is too small. Copies weigh their examples twice in the step;
    `DynamicSampling` pays for new samples instead.

    Degenerate cases: no group has a signal: none is left.

    Attributes:
        score: name of the score read.
        tolerance: largest spread that counts as constant; >= 0.
        min_good: least share of groups with a signal, in [0, 1].
        seed: of the draws.
    """

    score: str = "reward"
    tolerance: float = 0.0
    min_good: float = 0.3
    seed: int = 0

    paper: ClassVar[str] = "SkyRL, dynamic sampling"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"skyrl": {"tolerance": 1e-6}}

    def __post_init__(self) -> None:
        require_between(self, 0, float("inf"), "tolerance")
        require_between(self, 0, 1, "min_good")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        rule = DropConstant(self.score, self.tolerance)
        good = rule(groups)
        if not good or len(good) < self.min_good * len(groups):
            return good
        draws = generator("replace", self.seed, *batch_coordinates(groups)).integers(len(good), size=len(groups))
        return [group if rule.keeps(group) else good[draw] for group, draw in zip(groups, draws, strict=True)]


Weighing = Literal["power", "extremes", "best"]


def resampling_weights(
    scores: Float[np.ndarray, "N"], weighing: Weighing = "power", power: float = 2.0
) -> Float[np.ndarray, "N"]:
    """PF-PPO's weights of a batch's scores (see `PFPPO`); 0 for a missing score, else at least 1e-8."""
    here = ~np.isnan(scores)
    if not here.any():
        return np.zeros(len(scores))
    values = np.where(here, scores, 0.0)
    low, high = values[here].min(), values[here].max()
    if weighing == "power":
        weights = np.abs(values) ** power
    elif weighing == "extremes":
        weights = ((values == high) | (values == low)).astype(np.float64)
    else:
        weights = np.where(values == high, 0.4, 0.1)
    return np.where(here, weights + 1e-8, 0.0)


@dataclass(frozen=True)
class PFPPO:
    """Train on rollouts drawn again by how reliable their reward is.

    Rule: as many draws with replacement as there are scored rollouts in the batch, with probability proportional to
    `|R|^power` ("power"), 1 for the batch's best and worst and 0 otherwise ("extremes"), or 0.4 for the best and 0.1
    otherwise ("best"), each + 1e-8. Stands after the estimator: advantages are those of the original batch.

    Paper: PF-PPO, arXiv 2409.06957.

    Differences: verl's `pf_ppo` ("pow", "max_min", "max_random") as here. Rollouts stay in their groups; groups that no
    draw hit are gone.

    Degenerate cases: all scores missing: nothing changes. A missing score is never drawn.

    Attributes:
        score: name of the score read.
        weighing: "power", "extremes" or "best".
        power: exponent of weighing="power"; > 0.
        seed: of the draws.
    """

    score: str = "reward"
    weighing: Weighing = "power"
    power: float = 2.0
    seed: int = 0

    paper: ClassVar[str] = "2409.06957"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"verl": {}}

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "power")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        scores = np.concatenate([np.zeros(0), *(g.scores(self.score) for g in groups)])
        weights = resampling_weights(scores, self.weighing, self.power)
        if not weights.any():
            return groups
        draws = generator("pf_ppo", self.seed, *batch_coordinates(groups)).choice(
            len(scores), size=int(np.count_nonzero(~np.isnan(scores))), p=weights / weights.sum()
        )
        counts = np.split(np.bincount(draws, minlength=len(scores)), np.cumsum([len(g) for g in groups])[:-1])
        drawn = [
            group.with_rollouts(r for r, n in zip(group.rollouts, part, strict=True) for _ in range(int(n)))
            for group, part in zip(groups, counts, strict=True)
        ]
        return [group for group in drawn if len(group)]
