"""Filters over examples; each counts what it drops (DESIGN §1, principle 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from coterie.config.schema import DataConfig
from coterie.core.metrics import Stat, total
from coterie.core.types import Example
from coterie.data.chat import encode_prompt
from coterie.errors import DataError


@dataclass(frozen=True)
class DataReport:
    """What became of the rows.

    Attributes:
        read: rows before the filter.
        kept: rows after it.
        dropped: rows left out, by reason.
    """

    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def then(self, later: DataReport) -> DataReport:
        """The report of this filter followed by another."""
        names = [*self.dropped, *(name for name in later.dropped if name not in self.dropped)]
        dropped = {name: self.dropped.get(name, 0) + later.dropped.get(name, 0) for name in names}
        return DataReport(self.read, later.kept, dropped)

    def metrics(self) -> dict[str, Stat]:
        """`data/rows_read`, `data/rows_kept`, `data/dropped_<reason>`."""
        counts = {"rows_read": self.read, "rows_kept": self.kept}
        counts |= {f"dropped_{reason}": count for reason, count in self.dropped.items()}
        return {f"data/{name}": total(count) for name, count in counts.items()}

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in self.dropped.items() if count)
        return f"{self.kept} of {self.read} rows" + (f" (left out: {reasons})" if reasons else "")


def filter_prompts(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, config: DataConfig
) -> tuple[list[Example], DataReport]:
    """Leave out prompts of more than `config.max_prompt_tokens` tokens (0: none).

    Raises:
        DataError: when nothing is left, with the shortest prompt's length.
    """
    limit = config.max_prompt_tokens
    if not limit:
        return list(examples), DataReport(len(examples), len(examples))
    lengths = [len(encode_prompt(tokenizer, example, config)) for example in examples]
    kept = [example for example, length in zip(examples, lengths, strict=True) if length <= limit]
    if not kept:
        raise DataError(
            f"data.path={config.path}: no row is left of {len(examples)}: every prompt is longer than "
            f"data.max_prompt_tokens={limit} (the shortest has {min(lengths, default=0)} tokens). Raise the limit"
        )
    return kept, DataReport(len(examples), len(kept), {"prompt_too_long": len(examples) - len(kept)})


def without_prompts(examples: Sequence[Example], held_out: Iterable[Example]) -> tuple[list[Example], DataReport]:
    """Leave out examples whose prompt is one of `held_out`'s, up to case and white space.

    Raises:
        DataError: when nothing is left.
    """
    known = {_normalised(example) for example in held_out}
    kept = [example for example in examples if _normalised(example) not in known]
    if not kept:
        raise DataError(f"no row is left of {len(examples)}: every prompt is also in the held-out data")
    return kept, DataReport(len(examples), len(kept), {"also_held_out": len(examples) - len(kept)})


def _normalised(example: Example) -> str:
    return "".join("".join(str(message["content"]) for message in example.prompt).casefold().split())
