"""Shaping: `groups -> groups` that change scores before an estimator reads them.

The number a reward function gave stays as score `<score>_unshaped`; missing scores stay missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.algos.checks import Overrides, require, require_between, require_choices, require_positive, stream_of
from coterie.algos.kl import kl_estimate
from coterie.algos.token_rewards import reshaped, token_rewards, tokens_name, turn_starts
from coterie.core.types import Group, Rollout


def _each_score(groups: list[Group], score: str, note: str, shape: Callable[[Rollout, float], float]) -> list[Group]:
    """Groups in which every score that is there has become `shape(rollout, value)`."""

    def of(rollout: Rollout) -> Rollout:
        value = rollout.scores[score].value if score in rollout.scores else None
        return rollout if value is None else reshaped(rollout, score, shape(rollout, value), note)

    return [group.with_rollouts(of(rollout) for rollout in group.rollouts) for group in groups]


@dataclass(frozen=True)
class KLReward:
    """A KL penalty to the reference policy as a part of the reward.

    Equation: `r_t = R * 1{t is the last action token} - coef * kl_t`, kl_t an estimate from the sampled token alone:
    with `d = log pi - log pi_ref`, k1 `d`, abs `|d|`, k2 `d^2 / 2`, k3 `exp(-d) - 1 + d`. Writes stream
    `<score>_tokens` (token estimators read it), and makes the score its sum (group estimators read that).

    Paper: arXiv 1909.08593 eq. 2 and 2009.01325 (k1 in the reward); estimators: Schulman, "Approximating KL divergence"
    (2020).

    Differences: the clamps (see `coterie.algos.kl`). verl and SkyRL clamp k3 alone, OpenRLHF the value of every
    estimator, TRL nothing, so that one token can decide the reward.

    Degenerate cases: a missing score stays missing. With KL in the reward a group of equal outcomes is no longer
    constant; put `DropConstant` before this if it should go. An adaptive coefficient comes in with
    `dataclasses.replace(piece, coef=controller.value(state))`.

    Attributes:
        score: the outcome score.
        coef: weight of the penalty; >= 0.
        kind: estimator of the KL: "k1", "k2", "k3" or "abs".
        policy: stream of the policy's logprobs: "old_logprobs" (learner) or "sampler_logprobs" (engine).
        reference: stream of the reference's logprobs.
        clamp: "none"; "k3" bounds d to ±20 and the value to ±10 for k3; "all" bounds the value of each to ±10.
    """

    score: str = "reward"
    coef: float = 0.001
    kind: Literal["k1", "k2", "k3", "abs"] = "k1"
    policy: str = "old_logprobs"
    reference: str = "ref_logprobs"
    clamp: Literal["none", "k3", "all"] = "k3"

    paper: ClassVar[str] = "1909.08593 eq. 2"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {
        "verl": {},
        "skyrl": {},
        "trl": {"clamp": "none"},
        "openrlhf": {"clamp": "all", "coef": 0.01},
        "areal": {"coef": 0.1},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require(self, "coef", 0 <= self.coef < float("inf"), "must be a finite number >= 0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}", f"stream:{self.policy}", f"stream:{self.reference}"})

    @property
    def writes(self) -> frozenset[str]:
        """What it makes for later stages."""
        return frozenset({f"score:{self.score}_unshaped", f"stream:{tokens_name(self.score)}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_rollouts(self._of(rollout) for rollout in group.rollouts) for group in groups]

    def _of(self, rollout: Rollout) -> Rollout:
        rewards = token_rewards(rollout, self.score)
        before = rollout.scores[self.score].value if self.score in rollout.scores else None
        if rewards is None or before is None:
            return rollout
        policy, reference = (torch.from_numpy(stream_of(rollout, name)) for name in (self.policy, self.reference))
        kl = kl_estimate(policy, reference, self.kind, self.clamp).numpy()
        mean = float(kl.mean()) if kl.size else 0.0
        out = reshaped(rollout, self.score, before - self.coef * float(kl.sum()), "KL in reward", kl=mean)
        return replace(out, streams={**out.streams, tokens_name(self.score): rewards - self.coef * kl})


@dataclass(frozen=True)
class OverlongPenalty:
    """A penalty that grows with the length of a response that comes close to the limit.

    Equation: with n action tokens and `soft = max_tokens - buffer`: `R += -factor * min(max(n - soft, 0), buffer) /
    buffer`; without `cap` the excess is not limited to the buffer.

    Paper: DAPO, arXiv 2503.14476 §3.4, eq. 13 (soft overlong punishment).

    Differences: verl and AReaL do not cap (n <= max_tokens bounds it in one turn); OpenRLHF caps.

    Degenerate cases: n at most `max_tokens - buffer`: the score is unchanged. A missing score stays missing.

    Attributes:
        score: the outcome score.
        max_tokens: length limit of a response; set it to rollout.max_tokens.
        buffer: tokens before the limit over which the penalty grows; > 0.
        factor: penalty at the limit; > 0.
        cap: limit the penalty to `factor`.
    """

    score: str = "reward"
    max_tokens: int = 20_480
    buffer: int = 4096
    factor: float = 1.0
    cap: bool = True

    paper: ClassVar[str] = "2503.14476 §3.4"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"verl": {"cap": False}, "areal": {"cap": False}, "openrlhf": {}}

    def __post_init__(self) -> None:
        require_positive(self, "buffer", "factor")
        require(self, "max_tokens", self.max_tokens >= self.buffer, f"must be at least buffer={self.buffer}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return _each_score(groups, self.score, "overlong penalty", lambda r, value: value - self.penalty(r.num_actions))

    def penalty(self, length: int) -> float:
        """What a response of this many action tokens loses."""
        excess = max(length - (self.max_tokens - self.buffer), 0)
        return self.factor * (min(excess, self.buffer) if self.cap else excess) / self.buffer


@dataclass(frozen=True)
class StopProperly:
    """Truncated responses keep a share of their reward, or get a fixed one.

    Equation: for a rollout with finish reason "length": `R <- factor * R` for `factor` in [0, 1), `R <- factor`
    for a negative one.

    Paper: ProRL v2's stop-properly penalty (OpenRLHF). AReaL's `mask_no_eos_with_zero` is factor 0.

    Degenerate cases: factor 1 would change nothing and is refused. A missing score stays missing.

    Attributes:
        score: the outcome score.
        factor: factor in [0, 1), or the reward itself when negative.
    """

    score: str = "reward"
    factor: float = 0.0

    paper: ClassVar[str] = "ProRL v2"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"areal": {"factor": 0.0}}

    def __post_init__(self) -> None:
        require(self, "factor", float("-inf") < self.factor < 1, "must be a finite number below 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return _each_score(groups, self.score, "truncation penalty", self._shape)

    def _shape(self, rollout: Rollout, value: float) -> float:
        if not rollout.truncated:
            return value
        return self.factor if self.factor < 0 else self.factor * value


@dataclass(frozen=True)
class LengthPenalty:
    """A penalty for long responses that grows with the group's pass rate: be short where the task is easy.

    Equation: `R_i -= mean_g(R) (output n_i / max_g(n) + context c_i / max_g(c) + turns u_i / max_g(u))`, n action
    tokens, c the other tokens (prompt, tool output), u turns (runs of neighbouring action tokens); means and maxima
    over the rollouts whose score is there.

    Paper: none; prime-rl's linear length penalty.

    Degenerate cases: a quantity that is 0 in the whole group adds no penalty; mean reward 0:
    nothing changes. A missing score stays missing and enters neither mean nor maximum.

    Attributes:
        score: the outcome score.
        output: weight of the action tokens; >= 0.
        context: weight of the other tokens; >= 0.
        turns: weight of the turns; >= 0.
    """

    score: str = "reward"
    output: float = 0.25
    context: float = 0.1
    turns: float = 0.1

    paper: ClassVar[str] = "prime-rl, linear length penalty"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"prime_rl": {}}

    def __post_init__(self) -> None:
        require_between(self, 0, float("inf"), "output", "context", "turns")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> Group:
        scores = group.scores(self.score)
        scored = [r for r, s in zip(group.rollouts, scores, strict=True) if not np.isnan(s)]
        if not scored:
            return group
        weights = np.array([self.output, self.context, self.turns])
        largest = np.array([_sizes(r) for r in scored]).max(axis=0)
        rate = float(np.nanmean(scores))

        def shape(rollout: Rollout, value: float) -> float:
            shares = np.divide(_sizes(rollout), largest, out=np.zeros(3), where=largest > 0)
            return value - rate * float(weights @ shares)

        return _each_score([group], self.score, "length penalty", shape)[0]


def _sizes(rollout: Rollout) -> np.ndarray:
    """Action tokens, other tokens, turns."""
    count = rollout.num_actions
    return np.array([count, len(rollout.tokens) - count, len(turn_starts(rollout))], dtype=np.float64)


@dataclass(frozen=True)
class ScaleReward:
    """Scores shifted, scaled and clipped.

    Equation: `R <- min(max((R + bias) * scale, low), high)`.

    Paper: none; AReaL's reward scaling and clipping; TRL's and OpenRLHF's reward clip range. NeMo-RL's affine map of
    [a, b] to [c, d] is bias = c (b - a) / (d - c) - a, scale = (d - c) / (b - a), low = c, high = d.

    Degenerate cases: a missing score stays missing; infinite bounds are no bounds.

    Attributes:
        score: the outcome score.
        bias: added first.
        scale: multiplies then; not 0.
        low: smallest result.
        high: largest result.
    """

    score: str = "reward"
    bias: float = 0.0
    scale: float = 1.0
    low: float = float("-inf")
    high: float = float("inf")

    paper: ClassVar[str] = "AReaL"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"areal": {"low": -20.0, "high": 20.0}}

    def __post_init__(self) -> None:
        require(self, "bias", abs(self.bias) < float("inf"), "must be a finite number")
        require(self, "scale", 0 < abs(self.scale) < float("inf"), "must be a finite number other than 0")
        require(self, "high", self.high > self.low, f"must be above low={self.low}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return _each_score(groups, self.score, "scaled", lambda _, value: self.scaled(value))

    def scaled(self, value: float) -> float:
        """The score that becomes of `value`."""
        return min(max((value + self.bias) * self.scale, self.low), self.high)
