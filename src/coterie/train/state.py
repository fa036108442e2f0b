"""What the RL loop carries from step to step; plain data, kept in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from coterie.config.primary import RLRun


@dataclass(frozen=True)
class LoopState:
    """The loop between two steps.

    Attributes:
        step: steps done.
        controls: states of the controllers, by the name of the coefficient they set.
        best: best `eval.metric` so far, None before the first evaluation.
        best_step: the step it was reached at.
        evals_without_gain: evaluations since then.
        evaluations: `eval.metric` by step.
    """

    step: int = 0
    controls: Mapping[str, Any] = field(default_factory=dict)
    best: float | None = None
    best_step: int = 0
    evals_without_gain: int = 0
    evaluations: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def fresh(cls, run: RLRun) -> Self:
        """The state before step 1."""
        return cls(controls={name: coef.init() for name, coef in controllers(run).items()})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `state/loop.json`."""
        return asdict(self)

    def coefficients(self, run: RLRun) -> dict[str, float]:
        """Values that the controllers give to the next step's loss and shaping."""
        return {name: coef.value(self.controls[name]) for name, coef in controllers(run).items()}

    def advanced(self, run: RLRun, step: int, metrics: Mapping[str, float]) -> Self:
        """After a training step: controllers have seen its metrics."""
        found = controllers(run)
        return replace(self, step=step, controls={n: c.update(self.controls[n], metrics) for n, c in found.items()})

    def evaluated(self, run: RLRun, metrics: Mapping[str, float]) -> Self:
        """After an evaluation; an evaluation without `eval.metric` counts as no gain."""
        value = metrics.get(run.eval.metric)
        if value is None:
            return replace(self, evals_without_gain=self.evals_without_gain + 1)
        seen = {**self.evaluations, str(self.step): value}
        if self.best is None or value > self.best:
            return replace(self, best=value, best_step=self.step, evals_without_gain=0, evaluations=seen)
        return replace(self, evals_without_gain=self.evals_without_gain + 1, evaluations=seen)

    @property
    def is_best(self) -> bool:
        """Whether the last evaluation was the best so far and belongs to this step."""
        return self.best is not None and self.best_step == self.step


def controllers(run: RLRun) -> dict[str, Any]:
    """The controllers in the configuration, by the coefficient they set."""
    slots = {"entropy_coef": run.entropy_control, "kl_coef": run.kl_control}
    return {name: coef for name, coef in slots.items() if coef is not None}
