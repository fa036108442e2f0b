"""What the grader is told (`Policy`) and what it says (`Verdict`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["auto", "number", "math", "choice", "text"]
"""How to read the gold: "auto" looks at it; the others insist (see `grade`)."""


@dataclass(frozen=True)
class Policy:
    """Where reasonable graders differ. The defaults are meant for rewards: exact, and no credit for hedging.

    Attributes:
        tolerance: "none" compares exactly (0.333 is not 1/3, 3.14 is not π); "abs" and "rel" accept numbers within
            tolerance_value of the gold, absolutely or relative to it.
        tolerance_value: the width for tolerance "abs" or "rel".
        units: "conflict" denies different units (5 m for 5 cm) and accepts one that is left out; "strict" wants the
            gold's unit in the answer; "ignore" compares the numbers alone.
        unreduced: accept 2/4 for 1/2.
        percent: a percent sign on one side may be left out (12.5 for 12.5 %), and v % of a gold matches v/100.
        sets_match_tuples: accept {1, 2} for (1, 2).
        ordered_lists: bare lists ("3, 5") must come in the gold's order.
        log_base: base of \\log without one: "any" accepts whichever makes the answer right, "10" or "e" insists.
        last_number: take the last number of a response that marks no answer. Off for rewards: it pays for rambling.
        unclosed_think: what a response counts as that opens <think> and never closes it: "wrong", or "grade" to search
            all of it.
        max_boxes: more different boxed answers than this are hedging, and wrong.
        max_chars: longer answers are compared as text only.
        search_chars: only so many characters at the end of a response are searched for an answer.
    """

    tolerance: Literal["none", "abs", "rel"] = "none"
    tolerance_value: float = 0.0
    units: Literal["conflict", "strict", "ignore"] = "conflict"
    unreduced: bool = True
    percent: bool = True
    sets_match_tuples: bool = False
    ordered_lists: bool = False
    log_base: Literal["any", "10", "e"] = "any"
    last_number: bool = False
    unclosed_think: Literal["wrong", "grade"] = "wrong"
    max_boxes: int = 4
    max_chars: int = 2000
    search_chars: int = 65536

    def __post_init__(self) -> None:
        if self.tolerance != "none" and not self.tolerance_value > 0:
            raise ValueError(
                f"tolerance={self.tolerance!r} needs a positive tolerance_value, not {self.tolerance_value}"
            )
        if self.max_chars < 1 or self.search_chars < 1 or self.max_boxes < 1:
            raise ValueError("max_chars, search_chars and max_boxes must be positive")


@dataclass(frozen=True)
class Verdict:
    """A grade and how it came about.

    Attributes:
        correct: True or False; None when the grader, not the answer, is at fault (no worker could be started, the gold
            is missing or can't be handled in time).
        reason: one line, "kind: detail" or "kind".
        stage: what decided: "extract", "text", "exact", "symbolic", "guard" or "grader".
        extracted: the answer that was graded; None when none was found.
        ms: wall time in milliseconds.
        how: which rule found the answer ("answer_tag", "boxed", "hash", "phrase", "bare", "last_number", "given").
        boxes: number of boxed answers in the searched text.
    """

    correct: bool | None
    reason: str
    stage: str
    extracted: str | None = None
    ms: float = 0.0
    how: str = ""
    boxes: int = 0
