"""Checkpoints that are whole or absent: `checkpoints/step_%06d/{model,state,complete.json}`.

A save goes into a hidden folder beside; when every file is on the disk and listed with size and sha256 in
`complete.json`, one rename makes it a checkpoint. A process killed at any moment leaves the last whole one in place.
`checkpoints/best.json` names the best step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import RunDirectoryError
from coterie.train.atomic import disk_errors, sync_file, sync_folder, write_atomic, write_json

COMPLETE = "complete.json"
BEST = "best.json"
LOOP = "state/loop.json"
_SAVING, _REPLACED, _DAMAGED = ".saving-", ".replaced-", "damaged-"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        step: training steps done when it was saved.
        path: its folder; `path / "model"` is a plain Hugging Face folder, `path / "state"` the training state.
        note: what a reader should know about how it was chosen; empty when there is nothing to say.
    """

    step: int
    path: Path
    note: str = ""

    @property
    def model(self) -> Path:
        """The Hugging Face folder."""
        return self.path / "model"

    @property
    def state(self) -> dict[str, Any]:
        """The loop's plain data, as given to `Checkpoints.save`."""
        state: dict[str, Any] = json.loads((self.path / LOOP).read_bytes())
        return state


class Checkpoints:
    """The `checkpoints/` folder of a run. Reading changes nothing; only the run's writer saves, cuts and recovers.

    Args:
        folder: the folder; made by the first save.
        keep: newest checkpoints kept besides the best one; 0 keeps all.
    """

    def __init__(self, folder: Path, keep: int = 0) -> None:
        self.folder = folder
        self.keep = keep

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.folder / f"step_{step:06d}"

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, increasing; their files are not verified."""
        found = (p.parent.name.removeprefix("step_") for p in self.folder.glob(f"step_*/{COMPLETE}"))
        return sorted(int(digits) for digits in found if digits.isdigit())

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, every size and sha256 verified; None when there is none.

        A damaged one is reported (log, and `note` of the one returned) and passed over.
        """
        notes: list[str] = []
        for step in reversed(self.steps()):
            damage = damage_of(self.path(step))
            if damage is None:
                chosen = Checkpoint(step, self.path(step), "; ".join(notes))
                if notes:
                    log.warning("%s; going on from %s", chosen.note, chosen.path.name)
                return chosen
            notes.append(f"checkpoint {self.path(step)} is damaged ({damage})")
        if notes:
            log.warning("%s; no checkpoint is whole", "; ".join(notes))
        return None

    @property
    def best(self) -> Checkpoint | None:
        """The checkpoint that `best.json` names, verified; None when there is none or it is damaged."""
        step = self._best_step()
        if step is None or step not in self.steps():
            return None
        damage = damage_of(self.path(step))
        if damage is not None:
            log.warning("the best checkpoint %s is damaged (%s)", self.path(step), damage)
            return None
        return Checkpoint(step, self.path(step))

    def save(
        self, step: int, write: Callable[[Path], None], state: Mapping[str, Any], *, best: bool = False
    ) -> Checkpoint:
        """Save and prune.

        Args:
            step: training steps done.
            write: puts `model/` and `state/` into the empty folder it is given.
            state: plain data of the loop, to be read back as `Checkpoint.state`.
            best: whether this is the best one so far.

        Raises:
            RunDirectoryError: when it can't be written (disk full); earlier checkpoints stay.
            TypeError, ValueError: when `state` is not plain data (NaN is not).
        """
        final, temporary = self.path(step), self.folder / f"{_SAVING}{step:06d}"
        try:
            with disk_errors(f"checkpoint {final.name}", self.folder, self._kept):
                self.folder.mkdir(exist_ok=True)
                self.recover()
                temporary.mkdir()
                write(temporary)
                (temporary / "state").mkdir(exist_ok=True)
                write_atomic(temporary / LOOP, json.dumps(dict(state), allow_nan=False).encode())
                _complete(temporary, step, best)
                self._put(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if best:
            with disk_errors(BEST, self.folder, self._kept):
                write_json(self.folder / BEST, {"step": step})
        self._prune()
        return Checkpoint(step, final)

    def recover(self) -> None:
        """Finish or undo what a killed save left behind. Only the run's writer may call it."""
        for left in self.folder.glob(f"{_REPLACED}*"):
            original = self.folder / left.name.removeprefix(_REPLACED)
            if original.exists():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.rename(original)
        for left in self.folder.glob(f"{_SAVING}*"):
            shutil.rmtree(left, ignore_errors=True)
        flagged = [step for step in self.steps() if _read(self.path(step) / COMPLETE).get("best")]
        if flagged and self._best_step() != flagged[-1]:
            write_json(self.folder / BEST, {"step": flagged[-1]})

    def cut_after(self, step: int) -> int:
        """Put checkpoints of later steps out of the way (renamed to `damaged-step_…`); how many there were.

        They are replaced when the run reaches their steps again, and removed then.
        """
        later = [s for s in self.steps() if s > step]
        for s in later:
            aside = self.folder / f"{_DAMAGED}{self.path(s).name}"
            shutil.rmtree(aside, ignore_errors=True)
            self.path(s).rename(aside)
        best = self._best_step()
        if best is not None and best > step:
            (self.folder / BEST).unlink()
        if self.folder.is_dir():
            self.recover()
        return len(later)

    def _put(self, temporary: Path, final: Path) -> None:
        """Rename into place; an older checkpoint of that step survives a kill in between (see `recover`)."""
        replaced = self.folder / f"{_REPLACED}{final.name}"
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        shutil.rmtree(self.folder / f"{_DAMAGED}{final.name}", ignore_errors=True)

    def _prune(self) -> None:
        if not self.keep:
            return
        best = self._best_step()
        for step in self.steps()[: -self.keep]:
            if step != best:
                # Without its list it is no checkpoint any more, so a kill in the middle leaves no half one.
                (self.path(step) / COMPLETE).unlink()
                shutil.rmtree(self.path(step), ignore_errors=True)
        for folder in self.folder.glob("step_*"):
            if folder.name.removeprefix("step_").isdigit() and not (folder / COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def _best_step(self) -> int | None:
        return _read(self.folder / BEST).get("step")

    def _kept(self) -> str:
        steps = self.steps()
        return f"the checkpoints of steps {steps}" if steps else "no checkpoint was there yet"


def damage_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, compared with its `complete.json`; None when it is whole."""
    listed = _read(folder / COMPLETE).get("files")
    if not isinstance(listed, dict) or LOOP not in listed:
        return f"{COMPLETE} is missing or broken"
    for name, facts in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["size"]:
            return f"{name} has {path.stat().st_size} bytes instead of {facts['size']}"
        if _sha256(path) != facts["sha256"]:
            return f"the sha256 of {name} differs"
    return None


def load_path(path: Path) -> Checkpoint:
    """The checkpoint in this very folder.

    Raises:
        RunDirectoryError: when it is no checkpoint or is damaged.
    """
    damage = damage_of(path)
    if damage is not None:
        raise RunDirectoryError(f"{path} is not a whole checkpoint: {damage}. Choose another one beside it.")
    return Checkpoint(_read(path / COMPLETE)["step"], path)


def _complete(folder: Path, step: int, best: bool) -> None:
    """Force all files to the disk and list them."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        sync_file(path)
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    for inner in (p for p in folder.rglob("*") if p.is_dir()):
        sync_folder(inner)
    write_json(folder / COMPLETE, {"step": step, "best": best, "files": files})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty when it is missing or broken."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
