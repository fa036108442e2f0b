"""`grade`: from a response (or an answer) and a gold to a verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie.rewards.answers.decide import Elsewhere, Judge
from coterie.rewards.answers.extract import Extraction, box_spans, extract, has_marker
from coterie.rewards.answers.policy import Kind, Policy, Verdict
from coterie.rewards.answers.units import Units
from coterie.rewards.workers import Reply, Workers, WorkerSpec

TARGET = "coterie.rewards.answers.symbolic:serve"


class Grader:
    """Grades answers; owns the worker processes of the symbolic stage, which start when first needed.

    Args:
        policy: the switches.
        workers: processes for the symbolic stage.
        deadline_s: bound on the symbolic stage for one gold; past it the worker is killed and the answer is wrong.
        memory_gib: bound on the memory of a worker.
    """

    def __init__(
        self, policy: Policy | None = None, workers: int = 2, deadline_s: float = 3.0, memory_gib: float = 2.0
    ) -> None:
        self.policy = policy or Policy()
        self.workers = Workers(WorkerSpec(TARGET, memory_gib=memory_gib), workers, deadline_s)
        self._units = Units()

    def grade(
        self, *, response: str | None = None, answer: str | None = None, gold: Any, kind: Kind = "auto"
    ) -> Verdict:
        """A verdict on one response or answer; see `coterie.rewards.answers.grade`."""
        started = time.perf_counter()
        found, verdict, open_golds = self._cheap(response, answer, gold, kind)
        futures = [self.workers.submit((text, found.text, kind, self.policy)) for text in open_golds]
        for future in futures if verdict is None else ():
            verdict = _better(verdict, _from_reply(future.result()))
        return _finish(verdict, found, started)

    async def agrade(
        self, *, response: str | None = None, answer: str | None = None, gold: Any, kind: Kind = "auto"
    ) -> Verdict:
        """`grade` for coroutines: the event loop runs on while a worker thinks."""
        started = time.perf_counter()
        found, verdict, open_golds = self._cheap(response, answer, gold, kind)
        if verdict is None:
            replies = await asyncio.gather(
                *(self.workers.call((text, found.text, kind, self.policy)) for text in open_golds)
            )
            for reply in replies:
                verdict = _better(verdict, _from_reply(reply))
        return _finish(verdict, found, started)

    def close(self) -> None:
        """End the worker processes."""
        self.workers.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cheap(
        self, response: str | None, answer: str | None, gold: Any, kind: Kind
    ) -> tuple[Extraction, Verdict | None, list[str]]:
        """Extraction and what needs no worker: (found, verdict or None, golds left to the symbolic stage)."""
        found = find(response, answer, self.policy)
        if found.text is None:
            return found, Verdict(False, found.reason, "extract"), []
        golds = gold_texts(gold)
        if not golds:
            return found, Verdict(None, "no gold: the example has no reference answer", "grader"), []
        undecided = []
        verdict = None
        for text in golds:
            judge = Judge(self.policy, Elsewhere(), self._units)
            try:
                correct = judge.decide(text, found.text, kind)
            except RecursionError:
                correct = judge.give_up()
            if correct:
                return found, Verdict(True, judge.reason, judge.stage), []
            if correct is None:
                undecided.append(text)
            verdict = Verdict(False, judge.reason, judge.stage)
        return found, None if undecided else verdict, undecided


def find(response: str | None, answer: str | None, policy: Policy) -> Extraction:
    """The answer to grade: extracted from a response, or given (and unwrapped if it marks an answer itself)."""
    if (response is None) == (answer is None):
        raise TypeError("grade() takes either response= (the whole text) or answer= (what was extracted from it)")
    if response is not None:
        return extract(response, policy)
    assert answer is not None
    if has_marker(answer):
        found = extract(answer, policy)
        if found.text is not None or found.reason == "hedged":
            return replace(found, how="given")
    text = answer.strip()
    return Extraction(text, "given") if text else Extraction(None, "given", "empty")


def gold_texts(gold: Any) -> list[str]:
    """The answers a reference holds: of a worked solution what follows its last `####` or stands in its last box."""
    items = gold if isinstance(gold, Sequence) and not isinstance(gold, str) else [gold]
    if hasattr(gold, "tolist") and not isinstance(gold, str):
        plain = gold.tolist()
        items = plain if isinstance(plain, list) else [plain]
    texts = [gold_text(item) for item in items if item is not None]
    return [t for t in texts if t]


def gold_text(gold: Any) -> str:
    """One reference as text."""
    text = str(gold).strip()
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    if "boxed" in text or "fbox" in text:
        spans = box_spans(text)
        if spans:
            return text[spans[-1][1] : spans[-1][2]].strip()
    return text


def grade(
    *,
    response: str | None = None,
    answer: str | None = None,
    gold: Any,
    kind: Kind = "auto",
    policy: Policy | None = None,
    deadline_s: float = 3.0,
) -> Verdict:
    """Grade one answer. For many, keep a `Grader`: this call starts a worker of its own when algebra is needed.

    Args:
        response: a model's whole text, of which the final answer is extracted; or
        answer: the answer itself.
        gold: the reference: text or number, a worked solution (`#### 18`, `\\boxed{18}`), or a list of which any may
            match.
        kind: "auto" looks at the gold; "choice" compares letters; "text" compares words; "number" and "math" skip the
            choice rule, so that a gold "A" is a letter of algebra.
        policy: where reasonable graders differ.
        deadline_s: bound on the symbolic stage.

    Returns:
        A verdict whose `correct` is None only when the grader is at fault. Never raises for what a model wrote.

    Raises:
        TypeError: when both or neither of response and answer are given.
    """
    with Grader(policy, workers=1, deadline_s=deadline_s) as grader:
        return grader.grade(response=response, answer=answer, gold=gold, kind=kind)


def _from_reply(reply: Reply) -> Verdict:
    """What a worker's reply means: the answer's fault is a wrong answer, the grader's or gold's fault is none."""
    if reply.status == "ok":
        correct, stage, reason = reply.value
        return Verdict(correct, reason, stage)
    if reply.status == "error":
        if reply.value["type"] == "MemoryError":
            return _blame(reply, "memory: the comparison needed too much")
        if reply.mark in ("gold", "answer"):
            return Verdict(False, f"unreadable: the {reply.mark} is not understood as mathematics", "symbolic")
        return Verdict(None, "grader error: {type}: {message} ({where})".format(**reply.value), "grader")
    if reply.status == "timeout":
        return _blame(reply, "timeout: no verdict within the deadline")
    if reply.status == "crash":
        return Verdict(None, f"grader crashed: {reply.value}", "grader")
    return Verdict(None, f"grader unavailable: {reply.value}", "grader")


def _blame(reply: Reply, reason: str) -> Verdict:
    """A gold that can't be read in time is no fault of the answer; anything after that is."""
    if reply.mark == "gold":
        return Verdict(None, f"gold {reason}", "grader")
    return Verdict(False, reason, "symbolic")


def _better(old: Verdict | None, new: Verdict) -> Verdict:
    """Of verdicts on several golds: right beats not known beats wrong."""
    if old is None or new.correct or (new.correct is None and not old.correct):
        return new
    return old


def _finish(verdict: Verdict | None, found: Extraction, started: float) -> Verdict:
    assert verdict is not None
    ms = (time.perf_counter() - started) * 1e3
    return replace(verdict, extracted=found.text, ms=ms, how=found.how, boxes=found.boxes)
