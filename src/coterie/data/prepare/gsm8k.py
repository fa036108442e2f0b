"""GSM8K (K. Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021) as Parquet in verl's schema."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.data.external import read_hub
from coterie.data.filters import DataReport
from coterie.data.rows import Row, read_rows
from coterie.errors import ConfigError, DataError

SOURCE = "openai/gsm8k"
REMEDY = "GSM8K's own rows have 'question' and 'answer'"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def prepare(
    source: str | Path, out: str | Path, *, split: str = "train", instruction: str = INSTRUCTION, force: bool = False
) -> DataReport:
    """Turn GSM8K's rows (`question`, `answer` with `#### gold` at its end) into one Parquet file.

    Columns: `data_source, prompt[{role, content}], ability, reward_model{style, ground_truth}, extra_info{split, index,
    question, answer}`. The gold is the number after the last `####`, without thousands commas. Rows with the same
    question as an earlier one are left out and counted.

    Args:
        source: a .jsonl or .parquet file of the original rows, or `hub:openai/gsm8k:main`.
        out: the .parquet file to write; it appears whole or not at all.
        split: named in `extra_info`; the split to read from the hub.
        instruction: put after each question; empty for none.
        force: replace `out` when it exists.

    Raises:
        DataError: for a row without a number after `####`, a missing column, or an `out` that can't be written.
    """
    target = Path(out).expanduser()
    if target.suffix != ".parquet":
        raise ConfigError(f"--out {target}: the file to write ends in .parquet")
    if target.exists() and not force:
        raise DataError(f"{target} exists; choose another name or pass --force to replace it")
    kind, _, name = str(source).partition(":")
    rows = read_hub(name, split, {}) if kind == "hub" else read_rows(str(source))
    read, kept, seen = 0, [], set()
    for row in _converted(rows, split, instruction):
        read += 1
        question = " ".join(row["extra_info"]["question"].split())
        if question not in seen:
            seen.add(question)
            kept.append(row)
    if not kept:
        raise DataError(f"--source {source}: no rows")
    _write(kept, target)
    return DataReport(read, len(kept), {"duplicate_question": read - len(kept)})


def gold(answer: str) -> str | None:
    """The number after the last `####` without thousands commas; None when there is none."""
    found = re.search(r"####[ \t]*([-+]?\$?[\d,]*\.?\d+)[ \t]*$", answer.strip())
    if found is None:
        return None
    number = found.group(1).replace(",", "").replace("$", "")
    return number if Decimal(number).is_finite() else None


def _converted(rows: Iterator[Row], split: str, instruction: str) -> Iterator[dict[str, Any]]:
    for row in rows:
        question, answer = (row.get(column, REMEDY) for column in ("question", "answer"))
        for column, value in (("question", question), ("answer", answer)):
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{row.place}: column {column!r} is not a text")
        number = gold(answer)
        if number is None:
            raise DataError(f"{row.place}: column 'answer' does not end with '#### number': …{answer[-40:]!r}")
        yield {
            "data_source": SOURCE,
            "prompt": [{"role": "user", "content": f"{question} {instruction}".strip()}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": number},
            "extra_info": {"split": split, "index": row.number, "question": question, "answer": answer},
        }


def _write(rows: list[dict[str, Any]], target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), partial)
        partial.replace(target)
    except OSError as error:
        raise DataError(f"{target} can't be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
