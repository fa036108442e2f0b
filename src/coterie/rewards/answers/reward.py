"""`MathReward`: graded answers as a reward."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.types import Example, Group, Rollout, Score
from coterie.errors import ConfigError
from coterie.rewards.answers.extract import box_spans
from coterie.rewards.answers.grader import Grader, gold_texts
from coterie.rewards.answers.policy import Kind, Policy, Verdict

if TYPE_CHECKING:
    from coterie.core.protocols import Context

Format = Literal["any", "boxed", "answer_tag", "hash", "r1_zero", "r1_zero_split"]

_TAGGED = re.compile(r"<answer>.*</answer>", re.DOTALL)


@dataclass(frozen=True)
class MathReward:
    """Reward for a right final answer to a problem with a known one.

    `reward = correct if the answer is right (and, with require_format, well formed) else wrong`, plus
    `format_weight` when the format holds. The answer is looked for, and graded, whatever the format, so that the four
    classes format × answer (`class_11`, `class_10`, `class_01`, `class_00`) add up to 1 in the metrics; they show
    whether a model lacks the answer or only the form. CS336's reward (format × answer) is
    `format="r1_zero", require_format=True`.

    Missing, never wrong: an example without a gold, a gold that can't be handled in time, a grader that is down, an
    aborted rollout. Wrong: no answer, a hedged answer, an answer that needs longer than the deadline.

    Attributes:
        correct: reward of a right answer.
        wrong: reward of a wrong answer, or none.
        format: what a well-formed response is: "any" way of marking an answer, a closed "boxed" answer, an
            "answer_tag" pair, a "hash" line (`#### 18`), "r1_zero" (`</think> <answer>` with one blank, and
            `</answer>`), "r1_zero_split" (a newline is as good as the blank).
        require_format: a right answer counts only in the right format.
        format_weight: added when the format holds, right or wrong.
        truncated: a response cut off by the length limit is "wrong", "missing", or graded like any other ("grade").
        kind: how to read the gold: "auto", "number", "math", "choice", "text".
        tolerance: "none", "abs" or "rel": numbers within tolerance_value of the gold.
        tolerance_value: the width for that.
        units: "conflict" denies another unit than the gold's, "strict" wants it stated, "ignore" looks at numbers only.
        sets_match_tuples: accept {1, 2} for (1, 2).
        ordered_lists: bare lists must keep the gold's order.
        last_number: take the last number of a response that marks no answer (it pays for rambling).
        unclosed_think: a response that never closes <think> is "wrong", or searched as a whole ("grade").
        max_boxes: more different boxed answers than this are hedging, and wrong.
        deadline_s: seconds of symbolic comparison for one answer.
        workers: processes for symbolic comparison, started when first needed.
        memory_gib: bound on the memory of each.
    """

    correct: float = 1.0
    wrong: float = 0.0
    format: Format = "any"
    require_format: bool = False
    format_weight: float = 0.0
    truncated: Literal["wrong", "missing", "grade"] = "wrong"
    kind: Kind = "auto"
    tolerance: Literal["none", "abs", "rel"] = "none"
    tolerance_value: float = 0.0
    units: Literal["conflict", "strict", "ignore"] = "conflict"
    sets_match_tuples: bool = False
    ordered_lists: bool = False
    last_number: bool = False
    unclosed_think: Literal["wrong", "grade"] = "wrong"
    max_boxes: int = 4
    deadline_s: float = 3.0
    workers: int = 2
    memory_gib: float = 2.0
    grader: Grader = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.deadline_s <= 0 or self.workers < 1:
            raise ConfigError(
                f"deadline_s={self.deadline_s} and workers={self.workers} must be positive (defaults: 3.0, 2)"
            )
        try:
            shared = {f.name for f in fields(Policy)} & {f.name for f in fields(self)}
            policy = Policy(**{name: getattr(self, name) for name in shared})
        except ValueError as error:
            raise ConfigError(str(error)) from error
        object.__setattr__(self, "grader", Grader(policy, self.workers, self.deadline_s, self.memory_gib))

    @property
    def writes(self) -> frozenset[str]:
        """Names of the scores it adds."""
        return frozenset({"reward"})

    async def __call__(self, group: Group, context: Context) -> Group:
        """Score every rollout of the group."""
        scores = await asyncio.gather(*(self._score(group.example, r, context) for r in group.rollouts))
        return group.with_scores("reward", scores)

    def close(self) -> None:
        """End the worker processes."""
        self.grader.close()

    def reference_response(self, example: Example, reference: Any) -> str:
        """A response that states this reference in the wanted format (for the smoke test)."""
        text = (gold_texts(reference) or [""])[0]
        if self.format == "answer_tag":
            return f"<answer>{text}</answer>"
        if self.format in ("r1_zero", "r1_zero_split"):
            return f"It is known.</think> <answer>{text}</answer>"
        return f"#### {text}" if self.format == "hash" else f"\\boxed{{{text}}}"

    async def _score(self, example: Example, rollout: Rollout, context: Context) -> Score:
        if rollout.finish_reason in ("abort", "error"):
            return Score.missing(f"rollout {rollout.finish_reason}: nothing to grade")
        if rollout.truncated and self.truncated == "missing":
            return Score.missing("truncated: the response hit the length limit")
        formed = well_formed(rollout, self.format, context)
        if rollout.truncated and self.truncated == "wrong":
            return self._valued(Verdict(False, "truncated", "extract"), formed)
        verdict = await self.grader.agrade(response=rollout.text, gold=example.reference, kind=self.kind)
        if verdict.correct is None:
            return Score.missing(verdict.reason, extracted=verdict.extracted)
        return self._valued(verdict, formed)

    def _valued(self, verdict: Verdict, formed: bool) -> Score:
        right = bool(verdict.correct)
        value = self.correct if right and (formed or not self.require_format) else self.wrong
        info: dict[str, Any] = {"format": float(formed), "answer": float(right)}
        info |= {f"class_{f}{a}": float((formed, right) == (bool(f), bool(a))) for f in (1, 0) for a in (1, 0)}
        info |= {
            "extracted_rate": float(verdict.extracted is not None),
            "timeout_rate": float(verdict.reason.startswith("timeout")),
            "symbolic_rate": float(verdict.stage == "symbolic"),
            "hedged_rate": float(verdict.reason.startswith("hedged")),
            "extracted": verdict.extracted,
            "stage": verdict.stage,
        }
        return Score(value + (self.format_weight if formed else 0.0), verdict.reason, info)


def well_formed(rollout: Rollout, format: Format, context: Context) -> bool:
    """Whether a response has the format; a stop string that was cut from the text counts if its tokens are there."""
    text = rollout.text
    if "<answer>" in text and rollout.finish_reason == "stop" and not text.rstrip().endswith("</answer>"):
        text += _stopped_at(rollout, "</answer>", context)
    if format == "boxed":
        return bool(box_spans(text))
    if format == "answer_tag":
        return _TAGGED.search(text) is not None
    if format == "hash":
        return "####" in text
    if format == "any":
        return bool(box_spans(text)) or _TAGGED.search(text) is not None or "####" in text or "answer" in text.lower()
    joints = ("</think> <answer>", "</think>\n<answer>") if format == "r1_zero_split" else ("</think> <answer>",)
    return any(j in text for j in joints) and "</answer>" in text


def _stopped_at(rollout: Rollout, stop: str, context: Context) -> str:
    tokenizer = context.resources.get("tokenizer")
    if tokenizer is None or not rollout.num_actions:
        return ""
    last = rollout.tokens[rollout.action_index[-16:]]
    return stop if stop in tokenizer.decode(last.tolist()) else ""
