"""Follow a run from its directory alone: the same board in a second terminal, on any machine that sees the files."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.live import Live

from coterie.errors import DataError, RunDirectoryError
from coterie.train.board import Board, choose_sample
from coterie.train.diagnosis import Diagnosis
from coterie.train.lock import is_alive, read_owner
from coterie.train.metrics_file import decode, numbers
from coterie.train.records import RolloutFiles, read_rollouts
from coterie.train.rundir import CONFIG, MANIFEST, METRICS, SUMMARY


class Follower:
    """Reads what a run has written since the last look; never writes.

    Args:
        path: the run directory.

    Raises:
        RunDirectoryError: when it is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / MANIFEST).is_file():
            raise RunDirectoryError(
                f"{self.path} is no run directory: it has no {MANIFEST}. Give the run.dir of a run."
            )
        self._restart()

    def _restart(self) -> None:
        self.board = Board(self.path.name, _total_steps(self.path))
        self._diagnosis = Diagnosis()
        self._offset = 0
        self._sampled = -1

    def look(self) -> Board:
        """The board with everything that is on the disk now."""
        self._read_metrics()
        self._read_sample()
        self.board.status = _status(self.path)
        self.board.seconds_per_step = self._pace()
        path = self.path / METRICS
        self.board.waited_s = max(0.0, time.time() - path.stat().st_mtime) if path.exists() else 0.0
        return self.board

    @property
    def ended(self) -> bool:
        """Whether no process will write more."""
        return self.board.status != "running"

    def _read_metrics(self) -> None:
        path = self.path / METRICS
        if not path.exists():
            return
        if path.stat().st_size < self._offset:
            self._restart()  # a resumed run cut its records
        with path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                record = decode(line)
                metrics = numbers(record)
                self.board.update(record["step"], metrics)
                self.board.notes.extend(self._diagnosis.notes(record["step"], metrics))

    def _read_sample(self) -> None:
        files = RolloutFiles(self.path / "rollouts")
        steps = files.steps()
        if steps and steps[-1] != self._sampled:
            try:
                self.board.sample = choose_sample(steps[-1], read_rollouts(files.path(steps[-1])))
            except DataError:
                return  # removed by a resumed run between the two looks
            self._sampled = steps[-1]

    def _pace(self) -> float | None:
        start = _read_json(self.path / MANIFEST).get("starts", [{}])[-1]
        done = self.board.step - start.get("step", 0)
        if done < 2:
            return self.board.latest.get("time/step_s")
        began = datetime.datetime.fromisoformat(start["time"]).timestamp()
        return ((self.path / METRICS).stat().st_mtime - began) / done


def follow(path: str | Path, console: Console, *, poll_s: float = 1.0, once: bool = False) -> None:
    """Draw the board until the run ends (or once); Ctrl-C leaves.

    Args:
        path: the run directory.
        console: where to draw.
        poll_s: seconds between looks.
        once: draw what is there and return.

    Raises:
        RunDirectoryError: when it is no run directory.
    """
    follower = Follower(path)
    if once:
        console.print(follower.look())
        return
    try:
        with Live(follower.look(), console=console, auto_refresh=False) as live:
            while not follower.ended:
                time.sleep(poll_s)
                live.update(follower.look(), refresh=True)
    except KeyboardInterrupt:
        return


def _status(path: Path) -> str:
    owner = read_owner(path)
    if owner is not None and is_alive(owner):
        return "running"
    return "finished" if (path / SUMMARY).exists() else "stopped"


def _total_steps(path: Path) -> int:
    try:
        config = yaml.safe_load((path / CONFIG).read_text())
    except (OSError, yaml.YAMLError):
        return 0
    train = config.get("train") if isinstance(config, Mapping) else None
    steps = train.get("steps") if isinstance(train, Mapping) else None
    return steps if isinstance(steps, int) else 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
