"""A run as a process: directory, records, checkpoints, console and stop signals around a training loop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from coterie.config.compose import MAY_CHANGE
from coterie.config.schema import LogConfig, RunConfig, TrainConfig
from coterie.core.protocols import Learner
from coterie.core.types import Group
from coterie.data.cursor import Cursor
from coterie.train.console import Kind, make_console
from coterie.train.diagnosis import Diagnosis
from coterie.train.metrics_file import numbers, read_metrics
from coterie.train.rundir import METRICS, RunDirectory
from coterie.train.sinks import make_sinks

FINISHED, STOPPED = "finished", "stop requested"
"""How a run ended, in `summary.json`."""

CRITIC = "critic"
"""Folder of a checkpoint that holds the critic's `model` and `state`."""


class Session:
    """Use as a context manager; leaving it closes sinks and console and releases the directory.

    Attributes:
        directory: the run directory.
        stopping: set by Ctrl-C or SIGTERM: the loop ends after the current step, with a checkpoint.
        saved_step: step of the newest checkpoint written or restored by this process; -1 before any.
    """

    def __init__(self, resolved: Any, directory: RunDirectory, *, total_steps: int) -> None:
        run = resolved.run
        self.directory = directory
        self.train: TrainConfig = run.train
        self.log: LogConfig = run.log
        self.total_steps = total_steps
        self.saved_step = -1
        self.stopping = False
        self.started = time.perf_counter()
        self.diagnosis = Diagnosis()
        self.resume_step: int | None = None
        if directory.resuming:
            self.resume_step = directory.checkpoint.step if directory.checkpoint else -1
        name = run.log.name or directory.path.name
        self.sinks = make_sinks(
            run.log.sinks,
            directory.path,
            project=run.log.project,
            name=name,
            config=resolved.yaml,
            resume_step=self.resume_step,
        )
        kind: Kind = run.log.console
        if run.run.debug and kind in ("auto", "live"):
            kind = "plain"
        self.console = make_console(kind, total_steps=total_steps, sample_every=run.log.sample_every, title=name)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.console.close()
        for sink in self.sinks:
            sink.close()
        self.directory.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        self.console.note("stopping after this step, with a checkpoint; press Ctrl-C again to stop at once")

    def restore(self, learner: Learner, cursor: Cursor, critic: Learner | None = None) -> Mapping[str, Any] | None:
        """Load the newest whole checkpoint into learner, cursor and critic and cut the records after it.

        Returns:
            The loop's state, or None when the run starts from the beginning.
        """
        for note in self.directory.notes:
            self.console.note(note)
        checkpoint = self.directory.checkpoint
        self.directory.cut_after(-1 if checkpoint is None else checkpoint.step)
        for record in read_metrics(self.directory.path / METRICS):
            self.diagnosis.notes(int(record["step"]), numbers(record))
        if checkpoint is None:
            return None
        learner.load(checkpoint.path)
        if critic is not None:
            critic.load(checkpoint.path / CRITIC)
        cursor.restore(checkpoint.state["cursor"])
        self.saved_step = checkpoint.step
        self.console.note(f"resumed from {checkpoint.path} (step {checkpoint.step})")
        return dict(checkpoint.state["loop"])

    def record(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        groups: Sequence[Group] = (),
        eval_groups: Sequence[Group] = (),
    ) -> None:
        """Write the record of a step everywhere, and say in plain words what looks unhealthy."""
        self.directory.metrics.append(step, metrics)
        due = self.log.rollouts_every and step % self.log.rollouts_every == 0
        if groups and due:
            self.directory.rollouts.write(step, groups)
        if eval_groups:
            self.directory.rollouts.write(step, eval_groups, "eval")
        for sink in self.sinks:
            sink.log(step, metrics)
        self.console.update(step, metrics, groups or eval_groups)
        for note in self.diagnosis.notes(step, metrics):
            self.console.note(note)

    def note(self, *lines: str) -> None:
        """Say something on the console."""
        for line in lines:
            self.console.note(line)

    def save_is_due(self, step: int, *, best: bool = False) -> bool:
        """Whether a checkpoint belongs at this step: the schedule, the end, a stop request or a new best."""
        scheduled = self.train.save_every > 0 and step % self.train.save_every == 0
        return scheduled or best or step == self.total_steps or self.stopping

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        learner: Learner,
        cursor: Cursor,
        critic: Learner | None = None,
        *,
        best: bool = False,
    ) -> None:
        """Write `checkpoints/step_%06d/`, a critic in its folder `critic`; whole or not at all."""

        def write(folder: Path) -> None:
            learner.save(folder)
            if critic is not None:
                (folder / CRITIC).mkdir()
                critic.save(folder / CRITIC)

        plain = {"loop": dict(state), "cursor": cursor.state()}
        self.directory.checkpoints.save(step, write, plain, best=best)
        self.saved_step = step

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write `summary.json` and return it."""
        reason = STOPPED if self.stopping else FINISHED
        whole = {**summary, "run_dir": str(self.directory.path), "ended": reason, "wall_s": self.wall_s}
        self.directory.write_summary(whole)
        return whole

    @property
    def wall_s(self) -> float:
        """Seconds since this process opened the run."""
        return round(time.perf_counter() - self.started, 1)


def recorded_threads(run: RunConfig) -> int:
    """The thread count of the run that is to be resumed, 0 when there is none: another count changes the last bits."""
    if run.resume == "never":
        return 0
    return RunDirectory.recorded_threads(run.dir) or 0


def open_directory(resolved: Any, *, threads: int, device: str) -> RunDirectory:
    """The run directory of a resolved configuration."""
    run: RunConfig = resolved.run.run
    return RunDirectory.open(
        run.dir,
        config_yaml=resolved.yaml,
        origins=resolved.origins,
        fingerprint=resolved.fingerprint,
        seed=run.seed,
        resume=run.resume,
        threads=threads,
        device=device,
        files=loaded_files(resolved.tree),
        keep=resolved.run.train.keep,
        free=[key.removesuffix(".*") for key in MAY_CHANGE],
    )


def loaded_files(tree: Any) -> list[Path]:
    """The user's Python files that a resolved configuration loads: slots by path and `reward.path`."""
    if isinstance(tree, Mapping):
        return [path for value in tree.values() for path in loaded_files(value)]
    if isinstance(tree, list):
        return [path for value in tree for path in loaded_files(value)]
    if isinstance(tree, str) and (tree.endswith(".py") or ".py:" in tree):
        path = Path(tree.partition(".py")[0] + ".py")
        return [path] if path.is_file() else []
    return []
