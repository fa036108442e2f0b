"""Controlled coefficients: KL and entropy. State is a plain dict of floats, kept in the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.algos.checks import Overrides, require, require_choices, require_positive

State = dict[str, float]
PATIENCE = 10
"""Steps in a row without the followed metric after which a controller gives up."""


def measured(state: State, metrics: Mapping[str, float], name: str) -> float | None:
    """The metric a controller follows; None when the step measured nothing (no action token), up to `PATIENCE` times.

    Raises:
        KeyError: when `PATIENCE` steps in a row had no such metric, with those that share its prefix.
    """
    if name in metrics and not math.isnan(metrics[name]):
        return metrics[name]
    if state["unmeasured"] + 1 >= PATIENCE:
        near = sorted(m for m in metrics if m.split("/")[0] == name.split("/")[0])
        raise KeyError(
            f"a controller follows metric {name!r}, which {PATIENCE} steps in a row did not report; of its kind there "
            f"are: {near}"
        )
    return None


def unmeasured(state: State) -> State:
    """The state after a step that measured nothing."""
    return {**state, "unmeasured": state["unmeasured"] + 1}


@dataclass(frozen=True)
class Fixed:
    """A coefficient that never changes.

    Attributes:
        coef: the value; >= 0.
    """

    coef: float = 0.0

    paper: ClassVar[str] = ""
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require(self, "coef", math.isfinite(self.coef) and self.coef >= 0, "must be a finite number >= 0")

    def init(self) -> State:
        return {}

    def update(self, state: State, metrics: Mapping[str, float]) -> State:
        return state

    def value(self, state: State) -> float:
        return self.coef


@dataclass(frozen=True)
class AdaptiveKL:
    """A KL coefficient that steers the measured KL to a target.

    Equation: `err = clip(KL / target - 1, -0.2, 0.2)`; `coef *= 1 + err * n / horizon`, n the number of sequences of
    the step.

    Paper: Ziegler et al., arXiv 1909.08593, §2.2.

    Differences: verl, OpenRLHF and SkyRL as here, with the batch mean of each sequence's mean KL as the measured value.

    Degenerate cases: a step that measured nothing leaves the coefficient as it is; ten such steps in a row are an
    error.

    Attributes:
        coef: value at the start; > 0 (0 could never move).
        target: KL aimed at, in nats a token; > 0.
        horizon: sequences over which a full correction of 20 % acts; > 0.
        sequences: n, sequences of a step (train.prompts_per_step * rollout.n); >= 1.
        metric: the metric followed.
    """

    coef: float = 0.001
    target: float = 0.1
    horizon: float = 10_000.0
    sequences: int = 256
    metric: str = "kl/ref_k1"

    paper: ClassVar[str] = "1909.08593 §2.2"
    conventions: ClassVar[Overrides] = {}

    def __post_init__(self) -> None:
        require_positive(self, "coef", "target", "horizon", "sequences")

    def init(self) -> State:
        return {"coef": self.coef, "unmeasured": 0.0}

    def update(self, state: State, metrics: Mapping[str, float]) -> State:
        kl = measured(state, metrics, self.metric)
        if kl is None:
            return unmeasured(state)
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return {"coef": state["coef"] * (1.0 + error * self.sequences / self.horizon), "unmeasured": 0.0}

    def value(self, state: State) -> float:
        return state["coef"]


@dataclass(frozen=True)
class AdaptiveEntropy:
    """Skywork-OR1's entropy coefficient: raised while entropy is below a target, and switched off above it.

    Equation: `c_{k+1} = clip(c_k + delta if e_k < target else c_k - delta if e_k > target, low, high)`, and the loss
    uses `c * 1{e <= target}`. With `timing="lagged"` step k uses `c` and flag made from `e_{k-1}`; with "same_step" it
    uses `c_k` and the flag of its own `e_k`, so `update` has to be called with the entropy of the rollouts before the
    step's loss.

    Paper: Skywork-OR1, arXiv 2505.22312, eq. 3.2 (same step; target 0.2, delta 0.005, c_0 = 0).

    Differences: the released code is lagged, counts `e == target` as above, follows minus the mean logprob of the
    sampled tokens on rank 0 alone, forgets its state on resume, and its scripts use delta 1e-4 and high 0.005. TRL
    counts `e == target` as below. Here the metric is the mean over all ranks and the state is in the checkpoint.

    Degenerate cases: a step that measured nothing changes nothing; ten such steps in a row are an error. Before the
    first measurement the switch is on.

    Attributes:
        coef: value at the start; in [low, high].
        target: entropy aimed at, in nats a token; > 0.
        delta: step of the coefficient; > 0.
        low: smallest coefficient; >= 0.
        high: largest coefficient.
        gate: apply the coefficient only while the measured entropy is at most the target.
        timing: "lagged" (update after the step) or "same_step" (update before the step's loss).
        at_target: what an entropy equal to the target counts as: "hold" keeps the coefficient and the switch on,
            "above" lowers and switches off, "below" raises and keeps on.
        metric: the metric followed: `policy/entropy` (whole vocabulary) or a sampled estimate.
    """

    coef: float = 0.0
    target: float = 0.2
    delta: float = 1e-4
    low: float = 0.0
    high: float = 0.005
    gate: bool = True
    timing: Literal["lagged", "same_step"] = "lagged"
    at_target: Literal["hold", "above", "below"] = "hold"
    metric: str = "policy/entropy"

    paper: ClassVar[str] = "2505.22312 eq. 3.2"
    conventions: ClassVar[Overrides] = {
        "skywork": {"at_target": "above"},
        "paper": {"timing": "same_step", "delta": 0.005, "high": 1.0},
        "trl": {"at_target": "below", "delta": 0.005, "high": 1.0},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "target", "delta")
        require(self, "low", self.low >= 0, "must be >= 0")
        require(
            self, "high", math.isfinite(self.high) and self.high > self.low, f"must be finite and above low={self.low}"
        )
        require(self, "coef", self.low <= self.coef <= self.high, f"must lie in [low={self.low}, high={self.high}]")

    def init(self) -> State:
        return {"coef": self.coef, "applied": self.coef, "unmeasured": 0.0}

    def update(self, state: State, metrics: Mapping[str, float]) -> State:
        entropy = measured(state, metrics, self.metric)
        if entropy is None:
            return unmeasured(state)
        below = entropy < self.target or (entropy == self.target and self.at_target == "below")
        above = entropy > self.target or (entropy == self.target and self.at_target == "above")
        moved = min(max(state["coef"] + self.delta * (below - above), self.low), self.high)
        used = state["coef"] if self.timing == "same_step" else moved
        return {"coef": moved, "applied": 0.0 if self.gate and above else used, "unmeasured": 0.0}

    def value(self, state: State) -> float:
        return state["applied"]
