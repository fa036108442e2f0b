"""Rows of files: plain dicts, each with the place it came from for error messages."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.errors import DataError

SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Row:
    """One row before it is understood.

    Attributes:
        values: the columns.
        place: where a person finds it: "train.jsonl, line 7".
        label: default name of its source (file stem, hub id, task).
        number: place in its file, counted from 0.
        in_folder: whether it was read as one of a folder's files.
    """

    values: Mapping[str, Any]
    place: str
    label: str
    number: int
    in_folder: bool = False

    def get(self, column: str, remedy: str) -> Any:
        """The value of a column.

        Raises:
            DataError: when there is none, with the columns that exist, the nearest name and the remedy.
        """
        if column not in self.values:
            raise DataError(f"{self.place}: no column {column!r}{nearest(column, self.values)}. {remedy}")
        return self.values[column]


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """The part of a message that lists the columns and guesses: ` (columns: a, b; did you mean 'a'?)`."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f" (columns: {', '.join(known) or 'none'}{guess})"


def read_rows(path: str) -> Iterator[Row]:
    """Rows of a .jsonl or .parquet file, or of every such file of a folder by name.

    Raises:
        DataError: when there is no such file, for another kind of file, and for a row that is not a JSON object.
    """
    root = Path(path).expanduser()
    if root.is_dir():
        files = sorted(file for file in root.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))
        if not files:
            held = ", ".join(sorted(entry.name for entry in root.iterdir())[:8]) or "nothing"
            raise DataError(f"data.path={path}: the folder holds no .jsonl or .parquet file (it holds: {held})")
        for file in files:
            yield from (replace(row, in_folder=True) for row in _read_file(file, file.name))
        return
    if not root.exists():
        raise DataError(f"data.path={path}: there is no such file or folder{_beside(root)}")
    yield from _read_file(root, root.stem)


def _read_file(path: Path, label: str) -> Iterator[Row]:
    if path.suffix == ".jsonl":
        yield from _read_jsonl(path, label)
    elif path.suffix == ".parquet":
        yield from _read_parquet(path, label)
    else:
        raise DataError(f"data.path={path}: files of rows end in .jsonl or .parquet, not {path.suffix or 'without'!r}")


def _read_jsonl(path: Path, label: str) -> Iterator[Row]:
    number = 0
    with path.open("rb") as stream:
        for line_number, line in enumerate(stream, start=1):
            place = f"{path}, line {line_number}"
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: not UTF-8 text: {error}") from error
            except json.JSONDecodeError as error:
                raise DataError(f"{place}: not valid JSON: {error.msg} at column {error.colno}") from error
            except RecursionError as error:
                raise DataError(f"{place}: JSON nested too deeply") from error
            if not isinstance(values, dict):
                raise DataError(f"{place}: a row is a JSON object, not a {type(values).__name__}")
            yield Row(values, place, label, number)
            number += 1


def _read_parquet(path: Path, label: str) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    yield Row(values, f"{path}, row {number}", label, number)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data.path={path}: can't be read as Parquet: {error}") from error


def _beside(path: Path) -> str:
    """What lies beside a path that does not exist, when a name there is close."""
    if not path.parent.is_dir():
        return ""
    close = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""
