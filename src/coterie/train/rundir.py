"""The run directory: the one record of a run.

    config.yaml            the resolved configuration
    manifest.json          versions, commits, host, seed, threads, hashes of loaded files, where each setting came from
    metrics.jsonl          one JSON object a step (`train.metrics_file`)
    rollouts/              step_*.parquet (`train.records`)
    checkpoints/           step_*/{model,state} (`train.checkpoint`)
    summary.json           at the end
    run.lock               who writes (`train.lock`)

Everything is written whole or not at all.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psutil
import yaml  # type: ignore[import-untyped]

from coterie.errors import RunDirectoryError
from coterie.train import manifest
from coterie.train.atomic import disk_errors, sync_folder, write_atomic, write_json
from coterie.train.checkpoint import Checkpoint, Checkpoints
from coterie.train.lock import RunLock
from coterie.train.metrics_file import MetricsWriter
from coterie.train.records import RolloutFiles

CONFIG, MANIFEST, METRICS, SUMMARY = "config.yaml", "manifest.json", "metrics.jsonl", "summary.json"
Resume = Literal["never", "auto", "must"]
_ABSENT = "(absent)"


class RunDirectory:
    """A run directory that this process writes; `open` makes or reopens one.

    Attributes:
        path: the folder.
        manifest: content of manifest.json.
        resuming: whether the directory was there before.
        checkpoint: what to go on from; None starts at step 0.
        notes: what the user should be told about this start.
        metrics: writer of metrics.jsonl, one record a step.
        rollouts: writer of rollouts/.
        checkpoints: writer of checkpoints/.
    """

    def __init__(
        self,
        path: Path,
        lock: RunLock,
        facts: dict[str, Any],
        checkpoints: Checkpoints,
        checkpoint: Checkpoint | None,
        *,
        resuming: bool,
    ) -> None:
        self._lock = lock
        self.path = path
        self.manifest = facts
        self.resuming = resuming
        self.checkpoint = checkpoint
        self.notes: list[str] = []
        self.checkpoints = checkpoints
        self.rollouts = RolloutFiles(path / "rollouts")
        self.metrics = MetricsWriter(path / METRICS)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        config_yaml: str,
        origins: Mapping[str, Any],
        fingerprint: str,
        seed: int,
        resume: Resume,
        threads: int,
        device: str,
        packages: Iterable[str] = manifest.PACKAGES,
        files: Iterable[Path] = (),
        keep: int = 0,
        free: Iterable[str] = (),
    ) -> Self:
        """Make the directory, or go on in it.

        Args:
            path: `run.dir`.
            config_yaml: the resolved configuration.
            origins: where each setting came from, by key.
            fingerprint: of the settings that must stay the same on resume.
            seed: `run.seed`.
            resume: `run.resume`.
            threads: compute threads of a new run; a resumed one keeps its own.
            device: resolved device.
            packages: distributions whose versions are recorded.
            files: files of the user that the run loads (rewards, recipes); they must be the same on resume.
            keep: `train.keep`.
            free: keys, or key prefixes, that may change between starts; they are left out of a complaint.

        Raises:
            RunDirectoryError: when the directory is in use, belongs to another configuration, is no run directory,
                holds nothing to resume from though `resume` is "must", or can't be written.
        """
        path, hashes = Path(path), manifest.hashes(files)
        resuming = _occupied(path, resume)
        if resuming:
            with disk_errors("the run directory", path, lambda: "all that is there"):
                lock = RunLock(path)
        else:
            start = {
                "id": secrets.token_hex(8),
                "fingerprint": fingerprint,
                "seed": seed,
                "threads": threads,
                "origins": dict(origins),
                "starts": [],
                **manifest.facts(device, packages, hashes),
            }
            lock = _create(path, config_yaml, start)
        with ExitStack() as failed:
            failed.callback(lock.close)
            facts = _read_manifest(path)
            checkpoints = Checkpoints(path / "checkpoints", keep)
            checkpoint = None
            if resuming:
                _check_same(path, facts, config_yaml, fingerprint, hashes, tuple(free))
                checkpoint = _find_checkpoint(path, checkpoints, resume)
            run = cls(path, lock, facts, checkpoints, checkpoint, resuming=resuming)
            run._note_changes(threads, packages)
            run._record_start(config_yaml, packages)
            failed.pop_all()
        return run

    @property
    def threads(self) -> int:
        """Compute threads to use: those the run was started with."""
        return int(self.manifest["threads"])

    @staticmethod
    def recorded_threads(path: str | Path) -> int:
        """Thread count of the run in that directory; 0 when there is none."""
        return int(_read_manifest(Path(path))["threads"]) if (Path(path) / MANIFEST).exists() else 0

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        with disk_errors(SUMMARY, self.path, lambda: "metrics, rollouts and checkpoints"):
            write_json(self.path / SUMMARY, dict(summary))

    def cut_after(self, step: int) -> None:
        """Remove every record of later steps (-1: all), so that a resumed run writes them once."""
        (self.path / SUMMARY).unlink(missing_ok=True)
        self.metrics.cut_after(step)
        self.rollouts.cut_after(step)
        self.checkpoints.cut_after(step)

    def close(self) -> None:
        """Close the files and give the directory free."""
        self.metrics.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note_changes(self, threads: int, packages: Iterable[str]) -> None:
        if self.checkpoint is not None and self.checkpoint.note:
            self.notes.append(f"{self.checkpoint.note}; going on from {self.checkpoint.path.name}")
        elif self.checkpoint is None and self.checkpoints.steps():
            self.notes.append("no checkpoint is whole; starting again at step 0")
        if threads != self.threads:
            self.notes.append(f"using {self.threads} compute threads, as this run was started with, not {threads}")
        old, new = self.manifest["versions"], manifest.versions(packages)
        for name in sorted(old.keys() & new.keys()):
            if old[name] != new[name]:
                self.notes.append(f"{name} {old[name]} → {new[name]}: the resumed run may differ in the last bits")

    def _record_start(self, config_yaml: str, packages: Iterable[str]) -> None:
        start = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "pid": os.getpid(),
            "step": self.checkpoint.step if self.checkpoint else 0,
            "versions": manifest.versions(packages),
        }
        self.manifest["starts"].append(start)
        with disk_errors(MANIFEST, self.path, lambda: "all that was there before this start"):
            if (self.path / CONFIG).read_text() != config_yaml:
                write_atomic(self.path / CONFIG, config_yaml.encode())
            write_json(self.path / MANIFEST, self.manifest)


def differences(old: Any, new: Any, free: tuple[str, ...] = ()) -> list[str]:
    """`key: old → new` for every key that differs, dotted, without those under `free` prefixes."""
    was, now = _flat(old), _flat(new)
    changed = [key for key in sorted({*was, *now}) if was.get(key, _ABSENT) != now.get(key, _ABSENT)]
    kept = [key for key in changed if not any(key == f or key.startswith(f"{f}.") for f in free)]
    return [f"{key}: {was.get(key, _ABSENT)} → {now.get(key, _ABSENT)}" for key in kept]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree} if prefix else {}
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
    return out


def _occupied(path: Path, resume: Resume) -> bool:
    """Whether there is a run to go on with; refuses everything that is neither that nor a free place."""
    if path.exists() and not path.is_dir():
        raise RunDirectoryError(f"run.dir={path} is a file; give a folder that doesn't exist yet.")
    if not path.exists() or not any(path.iterdir()):
        if resume == "must":
            raise RunDirectoryError(
                f"run.resume=must, but there is no run in run.dir={path}. Check the path, or use run.resume=never."
            )
        return False
    if not (path / MANIFEST).exists():
        raise RunDirectoryError(
            f"run.dir={path} is not empty and is no run directory (it has no {MANIFEST}). Give another run.dir."
        )
    if resume == "never":
        raise RunDirectoryError(
            f"run.dir={path} holds a run already. Give another run.dir, or go on with it by run.resume=auto."
        )
    return True


def _create(path: Path, config_yaml: str, start: dict[str, Any]) -> RunLock:
    """Fill a hidden folder beside, lock it, and rename it into place."""
    temporary = path.parent / f".{path.name}.creating-{os.getpid()}"
    try:
        with disk_errors("the run directory", path, lambda: "what was there before; this run wrote nothing"):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path)
            temporary.mkdir()
            lock = RunLock(temporary)
            (temporary / "checkpoints").mkdir()
            (temporary / "rollouts").mkdir()
            write_atomic(temporary / CONFIG, config_yaml.encode())
            write_json(temporary / MANIFEST, start)
            try:
                temporary.rename(path)
            except OSError as error:
                if not path.exists():
                    raise
                raise RunDirectoryError(
                    f"run.dir={path} was made by another process just now. Give another run.dir."
                ) from error
            sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return lock


def _remove_leftovers(path: Path) -> None:
    """Hidden folders of processes that were killed while they made this directory."""
    prefix = f".{path.name}.creating-"
    for left in [p for p in path.parent.iterdir() if p.name.startswith(prefix)]:
        pid = left.name.removeprefix(prefix)
        if pid == str(os.getpid()) or not (pid.isdigit() and psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        read = json.loads((path / MANIFEST).read_bytes())
        missing = {"fingerprint", "threads", "files", "versions", "starts"} - read.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise RunDirectoryError(f"{path / MANIFEST} can't be read: {error}. Give another run.dir.") from error
    if missing:
        raise RunDirectoryError(f"{path / MANIFEST} lacks {sorted(missing)}. Give another run.dir.")
    return dict(read)


def _check_same(
    path: Path,
    facts: Mapping[str, Any],
    config_yaml: str,
    fingerprint: str,
    hashes: Mapping[str, str],
    free: tuple[str, ...],
) -> None:
    """Refuse to go on with other settings or other loaded files, naming them."""
    old_files = facts["files"]
    changed = [
        f"content of {name}: sha256 {old_files.get(name, _ABSENT)[:12]} → {hashes.get(name, _ABSENT)[:12]}"
        for name in sorted({*old_files, *hashes})
        if old_files.get(name) != hashes.get(name)
    ]
    if fingerprint != facts["fingerprint"]:
        old = yaml.safe_load((path / CONFIG).read_text())
        changed = [*differences(old, yaml.safe_load(config_yaml), free), *changed]
        if not changed:
            changed = [f"no setting; fingerprint: {facts['fingerprint']} → {fingerprint} (another version of coterie?)"]
    if changed:
        listed = "".join(f"\n  {line}" for line in changed)
        raise RunDirectoryError(
            f"run.dir={path} belongs to another configuration. What differs (there → now):{listed}\n"
            "Give another run.dir, or undo these changes to go on with this run."
        )


def _find_checkpoint(path: Path, checkpoints: Checkpoints, resume: Resume) -> Checkpoint | None:
    with disk_errors("the checkpoints", path, lambda: "all that is there"):
        checkpoints.recover()
    found = checkpoints.latest()
    if found is None and resume == "must":
        whole = " whole" if checkpoints.steps() else ""
        raise RunDirectoryError(
            f"run.resume=must, but run.dir={path} has no{whole} checkpoint. "
            "Use run.resume=auto to start it over, or give the run.dir of a run that saved one."
        )
    return found
