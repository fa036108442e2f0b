"""Copies of the metrics for other tools: TensorBoard, Weights & Biases, trackio. The record itself is metrics.jsonl."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml  # type: ignore[import-untyped]

from coterie.errors import ConfigError

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes the metrics of a step somewhere."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Send what is waiting."""
        ...


def make_sinks(
    names: Sequence[str], path: Path, *, project: str, name: str, config: str = "", resume_step: int | None = None
) -> list[Sink]:
    """The sinks named in `log.sinks`, writing below the run directory.

    Args:
        names: any of "tensorboard", "wandb", "trackio".
        path: run directory.
        project: `log.project`.
        name: run name.
        config: the resolved configuration as YAML, shown by the tools that show one.
        resume_step: step the run goes on from; later points of an earlier start are hidden where the tool can do that.

    Raises:
        ConfigError: for an unknown name, a name given twice, or a package that isn't installed.
    """
    makers: dict[str, Callable[..., Sink]] = {
        "tensorboard": TensorBoardSink,
        "wandb": WandbSink,
        "trackio": TrackioSink,
    }
    for given in names:
        if given not in makers:
            raise ConfigError(f"log.sinks: no sink {given!r}; there are {', '.join(makers)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"log.sinks={list(names)} names a sink twice; name each once")
    settings = yaml.safe_load(config) or {}
    return [
        makers[given](Path(path), project=project, name=name, config=settings, resume_step=resume_step)
        for given in names
    ]


class TensorBoardSink:
    """Event files in `tensorboard/`; look at them with `tensorboard --logdir RUN_DIR`."""

    def __init__(
        self, path: Path, *, project: str, name: str, config: Mapping[str, Any], resume_step: int | None
    ) -> None:
        _needed("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar a metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink:
    """A run in Weights & Biases, resumed under the same id; recorded offline where nobody is logged in."""

    def __init__(
        self, path: Path, *, project: str, name: str, config: Mapping[str, Any], resume_step: int | None
    ) -> None:
        wandb = _needed("wandb", "wandb")
        settings = {
            "project": project,
            "name": name,
            "dir": str(path.absolute()),
            "id": _run_id(path),
            "resume": "allow",
            "config": dict(config),
        }
        try:
            self._run = wandb.init(**settings)
        except wandb.errors.UsageError as error:
            log.warning("wandb: %s Recording offline below %s; send it later with `wandb sync`.", error, path / "wandb")
            self._run = wandb.init(**settings, mode="offline")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until everything is sent, or written when offline."""
        self._run.finish()


class TrackioSink:
    """A run in trackio's local database (no account); look at it with `trackio show`."""

    def __init__(
        self, path: Path, *, project: str, name: str, config: Mapping[str, Any], resume_step: int | None
    ) -> None:
        trackio = _needed("trackio", "trackio")
        resume = "never" if resume_step is None else "allow"
        self._run = trackio.init(project=project, name=name, config=dict(config), resume=resume, embed=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Write what is waiting."""
        self._run.finish()


def _needed(module: str, extra: str) -> Any:
    """The imported module.

    Raises:
        ConfigError: when it isn't installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ConfigError(
            f"log.sinks names {module!r}, but the package isn't installed. Install it with "
            f"`pip install 'coterie[{extra}]'`, or take {module!r} out of log.sinks."
        ) from error


def _run_id(path: Path) -> str | None:
    """The id that the run directory was given when it was made; None outside of one."""
    try:
        found = json.loads((path / "manifest.json").read_bytes()).get("id")
    except (OSError, ValueError):
        return None
    return str(found) if found else None
