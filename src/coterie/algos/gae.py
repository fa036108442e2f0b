"""Generalised advantage estimation: advantages and returns from a critic's values.

A rollout holds action tokens alone, so prompts, tool output and padding never enter the recursion: the step from one
turn's last token to the next turn's first is one step, and nothing has to be carried through masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from coterie.algos.checks import Overrides, require, require_between, require_choices, require_positive, stream_of
from coterie.algos.moments import Floor
from coterie.algos.token_rewards import returns_to_go, token_rewards, turn_starts
from coterie.algos.transforms import BatchWhitening
from coterie.core.types import FloatArray, Group, Rollout


def gae_advantages(
    rewards: Float[np.ndarray, "A"],
    values: Float[np.ndarray, "A"],
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap_value: float = 0.0,
) -> Float[np.ndarray, "A"]:
    """`A_t = delta_t + gamma lam A_{t+1}`, `delta_t = r_t + gamma V_{t+1} - V_t`, `V_A = bootstrap_value`."""
    delta = rewards + gamma * np.append(values[1:], bootstrap_value)[: len(values)] - values
    return returns_to_go(delta, gamma * lam)


@dataclass(frozen=True)
class GAE:
    """Exponentially weighted temporal-difference errors of a critic, whitened over the batch.

    Equation: `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = delta_t + gamma lambda A_{t+1}` from the last action token
    backwards, with `V` after the last token equal to the rollout's `bootstrap_value` (0 for a finished one); returns
    `A + V` (stream `returns`, before whitening); then `A` minus its mean over the batch's action tokens, times
    `1 / sqrt(var + eps)`.

    With `level="turn"` one step is one turn (a run of neighbouring action tokens): V of its first token, the sum of its
    token rewards, and one advantage for all its tokens.

    Paper: arXiv 1506.02438, eq. 16; `lam_of="length"` and `value_lam` are VAPO, arXiv 2504.05118 (length-adaptive
    lambda `1 - 1 / (alpha n)`, decoupled lambda for the critic); `lam_of="position"` is AReaL's `lam ** (1 / (n - 1))`,
    equal retention of the final reward over every length; `level="turn"` is AReaL's turn-level form.

    Differences: tool and environment tokens are not action tokens and take no step, which is what verl, NeMo-RL and
    AReaL do by carrying value and advantage through masked tokens; SkyRL, TRL and OpenRLHF step through them. verl's
    default lambda is 1. Whitening: verl and SkyRL as here; OpenRLHF and NeMo-RL use the population variance clamped at
    1e-8; AReaL divides by `std + 1e-5`. A truncated rollout bootstraps from
    `bootstrap_value` (set with critic.bootstrap=true); in verl, TRL and OpenRLHF it is 0.

    Degenerate cases: a rollout whose score is missing gets advantage 0 and returns equal to its values, and enters no
    statistic; a batch of one action token has advantage 0 after whitening; a rollout without action tokens stays empty.
    Group size 1 is the normal case.

    Attributes:
        score: outcome score; stream `<score>_tokens` is used instead where a rollout has it.
        level: one step a "token", or one a "turn" (the critic then learns at the first token of each turn alone: the
            others' returns are their values).
        gamma: discount a step, in [0, 1].
        lam: lambda of the policy's advantages, in [0, 1] (with lam_of="position" the retention of the whole rollout).
        lam_of: "fixed" uses lam; "length" uses `1 - 1 / (alpha n)` and at least 0 for n steps; "position" uses
            `lam ** (1 / (n - 1))`.
        alpha: of lam_of="length"; > 0.
        value_lam: lambda of the critic's returns; -1 takes the policy's.
        values: stream of the critic's values before each action token.
        whiten: subtract the batch's mean over action tokens and divide by its deviation.
        ddof: 1 or 0 in the whitening variance.
        eps: see floor; > 0.
        floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
    """

    score: str = "reward"
    level: Literal["token", "turn"] = "token"
    gamma: float = 1.0
    lam: float = 0.95
    lam_of: Literal["fixed", "length", "position"] = "fixed"
    alpha: float = 0.05
    value_lam: float = -1.0
    values: str = "values"
    whiten: bool = True
    ddof: int = 1
    eps: float = 1e-8
    floor: Floor = "variance"

    paper: ClassVar[str] = "1506.02438 eq. 16"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {
        "verl": {"lam": 1.0},
        "skyrl": {},
        "openrlhf": {"ddof": 0, "floor": "clamp"},
        "nemo_rl": {"ddof": 0, "floor": "clamp"},
        "areal": {"floor": "std", "eps": 1e-5},
        "vapo": {"lam_of": "length", "alpha": 0.05, "value_lam": 1.0},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps", "alpha")
        require_between(self, 0, 1, "gamma", "lam")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")
        require(self, "value_lam", self.value_lam == -1 or 0 <= self.value_lam <= 1, "must lie in [0, 1], or be -1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}", f"stream:{self.values}"})

    @property
    def writes(self) -> frozenset[str]:
        """What it makes for the critic's loss."""
        return frozenset({"stream:returns"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        out = [group.with_rollouts(self._of(rollout) for rollout in group.rollouts) for group in groups]
        if not self.whiten:
            return out
        return BatchWhitening(ddof=self.ddof, eps=self.eps, floor=self.floor)(out, (self.score,))

    def lam_for(self, length: int) -> float:
        """The policy's lambda for a rollout of `length` steps."""
        if self.lam_of == "length":
            return max(1.0 - 1.0 / (self.alpha * length), 0.0) if length else 0.0
        if self.lam_of == "position":
            return float(self.lam ** (1.0 / (length - 1))) if length > 1 else 1.0
        return self.lam

    def _of(self, rollout: Rollout) -> Rollout:
        values = stream_of(rollout, self.values)
        rewards = token_rewards(rollout, self.score)
        if rewards is None:
            return replace(rollout.with_streams(returns=values), advantages=np.zeros(rollout.num_actions))
        starts = turn_starts(rollout) if self.level == "turn" else np.arange(rollout.num_actions)
        lengths = np.diff(np.append(starts, rollout.num_actions))
        steps = np.add.reduceat(rewards, starts) if starts.size else rewards
        lam = self.lam_for(len(starts))
        advantages = self._estimate(steps, values[starts], lam, rollout)
        again = self.value_lam not in (-1, lam)
        critic = self._estimate(steps, values[starts], self.value_lam, rollout) if again else advantages
        returns = values.copy()
        returns[starts] += critic
        return replace(rollout.with_streams(returns=returns), advantages=np.repeat(advantages, lengths))

    def _estimate(self, rewards: FloatArray, values: FloatArray, lam: float, rollout: Rollout) -> FloatArray:
        return gae_advantages(rewards, values, gamma=self.gamma, lam=lam, bootstrap_value=rollout.bootstrap_value)
