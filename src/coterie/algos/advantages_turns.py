"""Advantages of multi-turn rollouts: credit for each turn among those that met the same situation."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.algos.advantages import grpo_advantages
from coterie.algos.checks import Overrides, require, require_between, require_positive
from coterie.algos.token_rewards import returns_to_go, token_rewards, turn_starts
from coterie.core.types import FloatArray, Group, Rollout


@dataclass(frozen=True)
class GiGPO:
    """GRPO over whole rollouts, plus GRPO over the turns of a group that started from the same state.

    Equation: episode part `E_i = N(R_i)` over the group; with the return of turn k,
    `G_{i,k} = sum_{l >= k} gamma^{l-k} r_{i,l}` (r the sum of the turn's token rewards), step part
    `S_{i,k} = N(G_{i,k})` over all turns of the group with the same anchor; `A = E_i + step_weight S_{i,k}` on the
    tokens of turn k. N subtracts the mean and, with `std`, divides by `std + eps`.

    Paper: GiGPO, arXiv 2505.10978 (gamma 0.95, step_weight 1).

    Differences: verl-agent and ROLL as here. A turn is a run of neighbouring action tokens; its anchor is entry k of
    `rollout.meta["anchors"]`, any hashable value that the environment gives to the state before the turn.

    Degenerate cases: an anchor that no other turn shares, or equal returns: step part exactly 0. Constant group, group
    of one: episode part exactly 0. A missing score enters no statistic and its rollout gets 0. A rollout whose anchors
    are not one a turn: ValueError.

    Attributes:
        score: outcome score; stream `<score>_tokens` holds the rewards of turns where the environment pays them.
        step_weight: weight of the step part; >= 0.
        gamma: discount a turn, in [0, 1].
        std: divide by deviations.
        ddof: 1 for unbiased deviations, 0 for the population's.
        eps: added to deviations; > 0.
    """

    score: str = "reward"
    step_weight: float = 1.0
    gamma: float = 0.95
    std: bool = True
    ddof: int = 1
    eps: float = 1e-6

    paper: ClassVar[str] = "2505.10978"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require_positive(self, "eps")
        require_between(self, 0, 1, "gamma")
        require_between(self, 0, float("inf"), "step_weight")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages(self._of(group)) for group in groups]

    def _of(self, group: Group) -> list[FloatArray]:
        episode = self._normal(group.scores(self.score))
        turns = {i: t for i, r in enumerate(group.rollouts) if (t := self._returns(r)) is not None}
        at: dict[Hashable, list[tuple[int, int]]] = {}
        for i in turns:
            for k, anchor in enumerate(_anchors(group.rollouts[i])):
                at.setdefault(anchor, []).append((i, k))
        steps = {i: np.zeros(len(t)) for i, t in turns.items()}
        for places in at.values():
            for (i, k), value in zip(places, self._normal(np.array([turns[i][k] for i, k in places])), strict=True):
                steps[i][k] = value
        out = []
        for i, rollout in enumerate(group.rollouts):
            lengths = np.diff(np.append(turn_starts(rollout), rollout.num_actions))
            own = np.repeat(steps[i], lengths) if i in steps else np.zeros(rollout.num_actions)
            out.append(episode[i] + self.step_weight * own)
        return out

    def _returns(self, rollout: Rollout) -> FloatArray | None:
        rewards = token_rewards(rollout, self.score)
        starts = turn_starts(rollout)
        if rewards is None or not starts.size:
            return None
        return returns_to_go(np.add.reduceat(rewards, starts), self.gamma)

    def _normal(self, scores: FloatArray) -> FloatArray:
        return grpo_advantages(scores, std=self.std, ddof=self.ddof, eps=self.eps)


def _anchors(rollout: Rollout) -> tuple[Hashable, ...]:
    """The state before each turn.

    Raises:
        ValueError: when there is not one a turn.
    """
    anchors = tuple(rollout.meta.get("anchors", ()))
    turns = len(turn_starts(rollout))
    if len(anchors) != turns:
        raise ValueError(f"rollout {rollout.index} has {turns} turns and {len(anchors)} entries in meta['anchors']")
    return anchors
