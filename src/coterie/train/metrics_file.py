"""`metrics.jsonl`: one JSON object a line, `{"step": n, name: value, …}` with sorted names.

Two runs of one configuration write the same lines apart from names under `core.metrics.WALL_PREFIXES`. A value that is
NaN or infinite is written as null, and what it was stands under "nonfinite": `{"loss": null, "nonfinite": {"loss":
"nan"}}`, so that every JSON reader understands the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from coterie.core.metrics import WALL_PREFIXES
from coterie.errors import RunDirectoryError
from coterie.train.atomic import disk_errors, write_all

Record = dict[str, Any]
NONFINITE = "nonfinite"


def encode(step: int, values: Mapping[str, SupportsFloat]) -> bytes:
    """One line: "step" first, then the names in order; integers stay integers, floats keep every bit (shortest repr).

    Raises:
        TypeError: for a value that is not a number.
    """
    numbers: dict[str, int | float] = {name: _number(name, values[name]) for name in sorted(values)}
    bad = {name: str(n) for name, n in numbers.items() if not math.isfinite(n)}
    record: Record = {"step": step, **{name: None if name in bad else n for name, n in numbers.items()}}
    if bad:
        record[NONFINITE] = bad
    return json.dumps(record, allow_nan=False, separators=(", ", ": ")).encode() + b"\n"


def decode(line: bytes) -> Record:
    """The record of one line.

    Raises:
        ValueError: when the line is no JSON object with an integer "step".
    """
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise ValueError('not a JSON object with an integer "step"')
    return record


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a record as plain numbers, NaN and infinities put back; without "step"."""
    odd = record.get(NONFINITE, {})
    return {n: float(odd.get(n, v)) for n, v in record.items() if n not in ("step", NONFINITE)}


def strip_wall(record: Mapping[str, Any]) -> Record:
    """The part of a record that is the same in every run of one configuration."""
    kept = {name: value for name, value in record.items() if not name.startswith(WALL_PREFIXES)}
    if NONFINITE in kept:
        kept[NONFINITE] = {n: v for n, v in kept[NONFINITE].items() if not n.startswith(WALL_PREFIXES)}
        if not kept[NONFINITE]:
            del kept[NONFINITE]
    return kept


def read_metrics(path: Path) -> list[Record]:
    """All whole records; a torn last line (a writer that was killed) is left out; a missing file has none.

    Raises:
        RunDirectoryError: for a broken line before the last one, with its number.
    """
    return [record for record, _ in _scan(path)]


class MetricsWriter:
    """Appends records; each is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        records = _scan(path)
        self.last_step: int | None = records[-1][0]["step"] if records else None
        with disk_errors(path.name, path, self._kept):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = records[-1][1] if records else 0
            os.ftruncate(self._fd, self._size)

    def append(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Append the record of one step; all or nothing.

        Raises:
            ValueError: when `step` is not after the last one written.
            RunDirectoryError: when it can't be written (disk full); earlier records stay.
        """
        if self.last_step is not None and step <= self.last_step:
            raise ValueError(
                f"metrics of step {step} after those of step {self.last_step}: one record a step, in order"
            )
        line = encode(step, values)
        with disk_errors(f"{self.path.name} (step {step})", self.path, self._kept):
            try:
                write_all(self._fd, line)
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)
        self.last_step = step

    def cut_after(self, step: int) -> int:
        """Remove the records of later steps; how many there were."""
        records = _scan(self.path)
        kept = [(record, end) for record, end in records if record["step"] <= step]
        with disk_errors(self.path.name, self.path, self._kept):
            self._size = kept[-1][1] if kept else 0
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
        self.last_step = kept[-1][0]["step"] if kept else None
        return len(records) - len(kept)

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _kept(self) -> str:
        return "no record" if self.last_step is None else f"every record up to step {self.last_step}"


def _scan(path: Path) -> list[tuple[Record, int]]:
    """Whole records with the byte offset after each."""
    if not path.exists():
        return []
    out: list[tuple[Record, int]] = []
    end = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        end += len(line)
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line is cut off")
            record = decode(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise RunDirectoryError(
                f"{path} line {number} is not a metrics record ({error}); the file was changed or the disk damaged it. "
                "Remove that line, or start in a new run.dir."
            ) from error
        if out and record["step"] <= out[-1][0]["step"]:
            raise RunDirectoryError(
                f"{path} line {number}: step {record['step']} after step {out[-1][0]['step']}; steps must increase. "
                "Two runs may have written into it; start in a new run.dir."
            )
        out.append((record, end))
    return out


def _number(name: str, value: SupportsFloat) -> int | float:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"metric {name!r} is a number, not {type(value).__name__}: {value!r}")
    return float(value)
