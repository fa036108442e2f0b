"""Rewards by reasoning-gym's own verifiers, which run in worker processes: some of them evaluate the answer as code."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.types import Example, Group, Rollout, Score
from coterie.errors import ConfigError
from coterie.rewards.answers.extract import extract
from coterie.rewards.answers.policy import Policy
from coterie.rewards.workers import Reply, Workers, WorkerSpec

if TYPE_CHECKING:
    from coterie.core.protocols import Context
    from coterie.rewards.worker_main import Handler, Mark

Extract = Literal["auto", "tag", "hash", "last_line", "whole"]

_REMEDY = "the reasoning-gym package is not installed: pip install 'coterie[gym]'"


@dataclass(frozen=True)
class GymReward:
    """The score that a reasoning-gym task's verifier gives to the answer of a response.

    An example names its task and holds its entry: `meta["gym"] = {"task": "chain_sum", "entry": {...}}`, as
    `data.path=gym:chain_sum` makes it. Verifiers that give small credit for near misses or for mere form count as wrong
    unless `partial_credit` is on.

    The answer of a response (`extract`): "tag" is the last `<answer>…</answer>`; "hash" what follows the last `####`;
    "last_line" the last line that is not blank, after its last `=`; "whole" the response; "auto" takes the first that
    is there of tag, box, `####` and "answer is", else the last line. Text behind `####` is cut to one line where the
    reference has one line.

    Attributes:
        extract: where the answer stands.
        threshold: verifier's score from which an answer counts as right.
        partial_credit: reward the verifier's score itself, not 1 or 0.
        truncated: a response cut off by the length limit is "wrong", "missing", or graded like any other ("grade").
        unsafe_verifiers: let verifiers evaluate the answer as Python in the worker; without it, a task whose verifier
            needs that (countdown, n_queens and others) gives missing scores.
        deadline_s: seconds one verification may take; past it the answer is wrong.
        workers: processes for verification.
    """

    extract: Extract = "auto"
    threshold: float = 1.0
    partial_credit: bool = False
    truncated: Literal["wrong", "missing", "grade"] = "wrong"
    unsafe_verifiers: bool = False
    deadline_s: float = 5.0
    workers: int = 2
    pool: Workers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ConfigError(_REMEDY)
        if self.deadline_s <= 0 or self.workers < 1:
            raise ConfigError(
                f"deadline_s={self.deadline_s} and workers={self.workers} must be positive (defaults: 5.0, 2)"
            )
        spec = WorkerSpec("coterie.rewards.gym:serve", private=not self.unsafe_verifiers, strict=True, memory_gib=4.0)
        object.__setattr__(self, "pool", Workers(spec, self.workers, self.deadline_s))

    @property
    def writes(self) -> frozenset[str]:
        """Names of the scores it adds."""
        return frozenset({"reward"})

    async def __call__(self, group: Group, context: Context) -> Group:
        """Score every rollout of the group.

        Raises:
            ConfigError: for an example that is not a reasoning-gym problem.
        """
        problem = group.example.meta.get("gym")
        if not isinstance(problem, Mapping) or not {"task", "entry"} <= set(problem):
            raise ConfigError(
                f"reward=gym: example {group.example.id!r} has no meta['gym'] with task and entry; it needs "
                "data.path=gym:TASK"
            )
        scores = await asyncio.gather(*(self._score(problem, r) for r in group.rollouts))
        return group.with_scores("reward", scores)

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def reference_response(self, example: Example, reference: Any) -> str:
        """A response that states this reference (for the smoke test)."""
        return {"tag": f"<answer>{reference}</answer>", "hash": f"#### {reference}"}.get(self.extract, str(reference))

    async def _score(self, problem: Mapping[str, Any], rollout: Rollout) -> Score:
        if rollout.finish_reason in ("abort", "error"):
            return Score.missing(f"rollout {rollout.finish_reason}: nothing to grade")
        if rollout.truncated and self.truncated == "missing":
            return Score.missing("truncated: the response hit the length limit")
        reference = problem["entry"].get("answer")
        answer = find_answer(rollout.text, self.extract, lines="\n" in str(reference or ""))
        if answer is None or (rollout.truncated and self.truncated == "wrong"):
            return self._valued(0.0, "no answer" if answer is None else "truncated", answer)
        request = {
            "task": problem["task"],
            "config": problem.get("config"),
            "entry": problem["entry"],
            "answer": answer,
        }
        return self._from_reply(await self.pool.call(request), answer)

    def _from_reply(self, reply: Reply, answer: str) -> Score:
        if reply.status == "ok":
            return self._valued(float(reply.value["score"]), reply.value["reason"], answer)
        if reply.status == "timeout" and reply.mark == "score":
            return self._valued(0.0, "timeout: the verifier took too long over this answer", answer)
        if reply.status == "error" and reply.value["type"] == "RefusedError":
            return Score.missing(
                "unsafe verifier: it evaluates the answer as Python; set reward.unsafe_verifiers=true to allow that in "
                "its worker process, which is no sandbox",
                extracted=answer,
            )
        if reply.status == "error":
            return Score.missing("verifier {type}: {message} ({where})".format(**reply.value), extracted=answer)
        return Score.missing(f"verifier {reply.status}: {reply.value}", extracted=answer)

    def _valued(self, score: float, reason: str, answer: str | None) -> Score:
        right = score >= self.threshold
        info = {
            "verifier": score,
            "answer": float(right),
            "extracted_rate": float(answer is not None),
            "extracted": answer,
        }
        return Score(score if self.partial_credit else float(right), reason, info)


def find_answer(response: str, how: Extract, lines: bool = False) -> str | None:
    """The answer of a response, or None; `lines` says that answers of this task have several lines."""
    if how == "whole":
        return response.strip() or None
    if how == "last_line":
        return _last_line(response)
    if how == "hash":
        return _after_hash(response, lines)
    found = extract(response, Policy(unclosed_think="grade"))
    if how == "tag":
        return found.text if found.how == "answer_tag" else None
    if found.how in ("answer_tag", "boxed"):
        return found.text
    if "####" in response:
        return _after_hash(response, lines)
    return found.text if found.how == "phrase" else _last_line(response)


def _after_hash(response: str, lines: bool) -> str | None:
    _, mark, rest = response.rpartition("####")
    rest = rest.strip()
    if not mark or not rest:
        return None
    return rest if lines else rest.split("\n", 1)[0].strip()


def _last_line(response: str) -> str | None:
    filled = [line.strip() for line in response.splitlines() if line.strip()]
    return filled[-1].rsplit("=", 1)[-1].strip() or None if filled else None


def serve() -> Handler:
    """Factory for `coterie.rewards.workers`: `{task, config, entry, answer}` to `{score, reason}`.

    A verifier that raises on an answer but accepts the reference has met a wrong answer; one that raises on the
    reference too is broken, and the error goes to the parent.
    """
    import reasoning_gym.factory

    @functools.lru_cache(maxsize=64)
    def plain(task: str) -> Callable[..., float]:
        scorer: Callable[..., float] = reasoning_gym.get_score_answer_fn(task)
        return scorer

    def scorer_of(task: str, config: Mapping[str, Any] | None) -> Callable[..., float]:
        if not config:
            return plain(task)
        dataset, settings = reasoning_gym.factory.DATASETS[task]
        scorer: Callable[..., float] = dataset(config=settings(**config)).score_answer
        return scorer

    def handle(request: Any, mark: Mark) -> Any:
        mark("prepare")
        scorer = scorer_of(request["task"], request["config"])
        mark("score")
        entry, answer = request["entry"], request["answer"]
        try:
            return {"score": float(scorer(answer=answer, entry=entry)), "reason": ""}
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            AssertionError,
            SyntaxError,
        ) as error:
            mark("reference")
            scorer(answer=entry["answer"], entry=entry)
            return {"score": 0.0, "reason": f"verifier raised {type(error).__name__}"}

    return handle
