"""Rollouts as Parquet: `rollouts/step_%06d.parquet` for training, `rollouts/<split>_step_%06d.parquet` for others.

One row a rollout, in order; rows of one group follow each other. Columns (`SCHEMA`):

    step               int64           training step
    split              string          "train" or "eval"
    group              int32           number of the group in the file, from 0
    example_id         string
    source             string          data set
    prompt             string          chat messages, JSON
    reference          string          gold answer, JSON
    example_meta       string          further fields of the example, JSON
    index              int32           sample number in the group
    text               string          the response
    finish_reason      string          stop, length, abort or error
    tokens             list<int32>     token ids, prompt included
    action_index       list<int32>     positions in tokens of the action tokens
    sampler_logprobs   list<double>    one an action token; null where there is none
    streams            map<string, list<double>>   the other per-action-token streams
    advantages         list<double>    one an action token; null before an estimator ran
    scores             string          {name: {"value": number or null, "reason": …, "info": {…}}}, JSON
    spans              string          {name: [[start, end], …]} over action tokens, JSON
    bootstrap_value    double
    weights_version    int64
    meta               string          further facts about the rollout, JSON

JSON columns hold plain data: tuples come back as lists, other objects as their text, NaN and infinities as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.core.types import Example, Group, Rollout, Score
from coterie.errors import DataError
from coterie.train.atomic import disk_errors, write_atomic

VERSION = b"1"
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("split", pa.string()),
        ("group", pa.int32()),
        ("example_id", pa.string()),
        ("source", pa.string()),
        ("prompt", pa.string()),
        ("reference", pa.string()),
        ("example_meta", pa.string()),
        ("index", pa.int32()),
        ("text", pa.string()),
        ("finish_reason", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("action_index", pa.list_(pa.int32())),
        ("sampler_logprobs", pa.list_(pa.float64())),
        ("streams", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("advantages", pa.list_(pa.float64())),
        ("scores", pa.string()),
        ("spans", pa.string()),
        ("bootstrap_value", pa.float64()),
        ("weights_version", pa.int64()),
        ("meta", pa.string()),
    ],
    metadata={b"coterie.rollouts": VERSION},
)


class RolloutFiles:
    """The `rollouts/` folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int, split: str = "train") -> Path:
        """Where the rollouts of a step are, or would be."""
        return self.folder / f"{'' if split == 'train' else split + '_'}step_{step:06d}.parquet"

    def write(self, step: int, groups: Sequence[Group], split: str = "train") -> Path:
        """Write the groups of one step, all or nothing; replaces a file of the same step.

        Raises:
            RunDirectoryError: when it can't be written (disk full).
        """
        path = self.path(step, split)
        with disk_errors(f"the rollouts of step {step}", path, lambda: "the rollout files of earlier steps"):
            self.folder.mkdir(exist_ok=True)
            write_atomic(path, encode(step, groups, split))
        return path

    def steps(self, split: str = "train") -> list[int]:
        """Steps that have a file, increasing."""
        head = self.path(0, split).name.removesuffix("000000.parquet")
        names = (p.name.removesuffix(".parquet") for p in self.folder.glob(f"{head}*.parquet"))
        return sorted(int(n.removeprefix(head)) for n in names if n.removeprefix(head).isdigit())

    def cut_after(self, step: int) -> int:
        """Remove the files of later steps, of every split; how many there were."""
        later = [p for p in self.folder.glob("*step_*.parquet") if _step_of(p) > step]
        for path in later:
            path.unlink()
        return len(later)


def encode(step: int, groups: Sequence[Group], split: str) -> bytes:
    """The Parquet file as bytes (zstd)."""
    rows = [_row(step, split, number, group.example, r) for number, group in enumerate(groups) for r in group.rollouts]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), buffer, compression="zstd")
    return buffer.getvalue().to_pybytes()


def read_rollouts(path: str | Path) -> list[Group]:
    """The groups of one file, as they were written (JSON columns as plain data).

    Raises:
        DataError: when the file is missing, is no Parquet file, or lacks a column, with its path.
    """
    path = Path(path)
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no rollout file {path}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} can't be read as Parquet: {error}") from error
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise DataError(f"{path} is not a rollout file of coterie: it lacks the columns {missing}")
    groups: dict[int, tuple[Example, list[Rollout]]] = {}
    for row in table.to_pylist():
        if row["group"] not in groups:
            groups[row["group"]] = (_example(row), [])
        groups[row["group"]][1].append(_rollout(row))
    return [Group(example, tuple(rollouts)) for example, rollouts in groups.values()]


def plain(value: Any) -> Any:
    """Data that JSON can hold: numpy numbers and arrays as Python's, NaN as None, unknown objects as their text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    return str(value)


def _row(step: int, split: str, number: int, example: Example, rollout: Rollout) -> dict[str, Any]:
    streams = dict(rollout.streams)
    sampler = streams.pop("sampler_logprobs", None)
    scores = {n: {"value": s.value, "reason": s.reason, "info": s.info} for n, s in rollout.scores.items()}
    return {
        "step": step,
        "split": split,
        "group": number,
        "example_id": example.id,
        "source": example.source,
        "prompt": _json(example.prompt),
        "reference": _json(example.reference),
        "example_meta": _json(example.meta),
        "index": rollout.index,
        "text": rollout.text,
        "finish_reason": rollout.finish_reason,
        "tokens": np.asarray(rollout.tokens, dtype=np.int32),
        "action_index": np.asarray(rollout.action_index, dtype=np.int32),
        "sampler_logprobs": sampler,
        "streams": sorted(streams.items()),
        "advantages": rollout.advantages,
        "scores": _json(scores),
        "spans": _json(rollout.spans),
        "bootstrap_value": rollout.bootstrap_value,
        "weights_version": rollout.weights_version,
        "meta": _json(rollout.meta),
    }


def _example(row: Mapping[str, Any]) -> Example:
    return Example(
        id=row["example_id"],
        prompt=tuple(json.loads(row["prompt"])),
        reference=json.loads(row["reference"]),
        source=row["source"],
        meta=json.loads(row["example_meta"]),
    )


def _rollout(row: Mapping[str, Any]) -> Rollout:
    streams = {name: np.array(values, dtype=np.float64) for name, values in row["streams"]}
    if row["sampler_logprobs"] is not None:
        streams["sampler_logprobs"] = np.array(row["sampler_logprobs"], dtype=np.float64)
    spans = json.loads(row["spans"])
    return Rollout(
        tokens=np.array(row["tokens"], dtype=np.int64),
        action_index=np.array(row["action_index"], dtype=np.int64),
        text=row["text"],
        finish_reason=row["finish_reason"],
        index=row["index"],
        scores={n: Score(s["value"], s["reason"], s["info"]) for n, s in json.loads(row["scores"]).items()},
        streams=streams,
        spans={name: tuple((start, end) for start, end in ranges) for name, ranges in spans.items()},
        advantages=None if row["advantages"] is None else np.array(row["advantages"], dtype=np.float64),
        bootstrap_value=row["bootstrap_value"],
        weights_version=row["weights_version"],
        meta=json.loads(row["meta"]),
    )


def _json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def _step_of(path: Path) -> int:
    digits = path.stem.rpartition("step_")[2]
    return int(digits) if digits.isdigit() else -1
