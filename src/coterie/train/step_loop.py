"""The loop of `coterie dpo` and `coterie rm`: one optimizer step a batch of rows, held-out rows now and then."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.core.batch import Batch
from coterie.core.metrics import Metrics, Stat, gauge, merge, total, values
from coterie.core.protocols import Learner, LossFn
from coterie.data.cursor import Cursor
from coterie.train.clock import Clock
from coterie.train.session import Session
from coterie.train.sft import Encoded


@dataclass(frozen=True, eq=False)
class StepLoop:
    """What differs between trainers that take one optimizer step a batch.

    Attributes:
        learner: what is trained.
        cursor: training rows.
        loss: what is minimised.
        batch_size: rows of a step.
        steps: the run's last step.
        seed: of the run, for the summary.
        prepare: turns rows into the batch of a step.
        evaluate: metrics of the held-out rows; None without evaluation.
        eval_every: steps between evaluations.
    """

    learner: Learner
    cursor: Cursor[Encoded]
    loss: LossFn
    batch_size: int
    steps: int
    seed: int
    prepare: Callable[[list[Encoded]], Awaitable[Batch]]
    evaluate: Callable[[], Awaitable[Mapping[str, float]]] | None = None
    eval_every: int = 0

    async def run(self, session: Session, restored: Mapping[str, Any] | None) -> dict[str, Any]:
        """From the restored state to the last step or a stop request; returns the summary."""
        step = int(restored["step"]) if restored else 0
        evaluations = dict(restored["evaluations"]) if restored else {}
        if step == 0 and "0" not in evaluations and not session.stopping:
            await self._record(session, 0, {}, evaluations)
        while step < self.steps and not session.stopping:
            step += 1
            await self._record(session, step, values(await self._step()), evaluations)
            if session.save_is_due(step):
                self._save(session, step, evaluations)
        if step > session.saved_step:
            self._save(session, step, evaluations)
        return session.finish({"steps": step, "seed": self.seed, **_ends(evaluations), "evaluations": evaluations})

    async def _step(self) -> dict[str, Stat]:
        clock = Clock()
        rows = self.cursor.take(self.batch_size)
        with clock("update"):
            batch = await self.prepare(rows)
            metrics: list[Metrics] = [
                await self.learner.forward_backward(batch, self.loss),
                await self.learner.step(),
                {"data/epoch": gauge(self.cursor.epoch), "data/tokens": total(len(batch.tokens))},
            ]
        return merge(metrics) | clock.metrics(rollouts=batch.num_sequences, tokens=0)

    async def _record(
        self, session: Session, step: int, record: dict[str, float], evaluations: dict[str, float]
    ) -> None:
        """Write the step's record, with an evaluation where one is due."""
        due = self.eval_every and (step % self.eval_every == 0 or step == self.steps)
        if due and self.evaluate is not None:
            found = await self.evaluate()
            evaluations[str(step)] = found.get("eval/accuracy", math.nan)
            record = {**record, **found}
        if record:
            session.record(step, record)

    def _save(self, session: Session, step: int, evaluations: Mapping[str, float]) -> None:
        session.save(step, {"step": step, "evaluations": dict(evaluations)}, self.learner, self.cursor)


def _ends(evaluations: Mapping[str, float]) -> dict[str, float]:
    """First and last held-out accuracy."""
    found = list(evaluations.values())
    return {"eval_before": found[0], "eval_after": found[-1]} if found else {}
