"""User functions as rewards: verl's `compute_score`, or a coterie reward, from a file."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.load_file import load_object
from coterie.core.types import Group, Rollout, Score
from coterie.errors import ConfigError
from coterie.rewards.border import attempt
from coterie.rewards.workers import Reply, Workers, WorkerSpec

if TYPE_CHECKING:
    from coterie.core.protocols import Context
    from coterie.rewards.worker_main import Handler, Mark

Style = Literal["verl", "verl_async", "group"]

_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")


@dataclass(frozen=True)
class FunctionReward:
    """A function of the user's own file as the reward.

    Three forms are understood:

    * verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`, which returns a number or a dict with
      `score` (its other numbers become metrics). It is called by keyword with those of the four that it takes, in a
      worker process, and killed at the deadline.
    * the same as `async def`: runs in the trainer's event loop, many at a time, and is cancelled at the deadline.
    * `async def reward(group, context)`, which returns the group with scores.

    A function that raises, takes too long, or returns NaN, None or anything else gives *missing with a reason*. In
    debug mode it runs inline and without a deadline, so that `breakpoint()` works in it.

    Attributes:
        path: the Python file.
        name: the function in it.
        deadline_s: seconds that one call may take.
        workers: processes that run a function that is not `async`.
        kwargs: further keyword arguments of the function.
    """

    path: str
    name: str = "compute_score"
    deadline_s: float = 30.0
    workers: int = 2
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] = field(init=False, repr=False, compare=False)
    style: Style = field(init=False, repr=False, compare=False)
    pool: Workers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.deadline_s <= 0 or self.workers < 1:
            raise ConfigError(
                f"deadline_s={self.deadline_s} and workers={self.workers} must be positive (defaults: 30.0, 2)"
            )
        function = load_object(self._spec)
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "style", style_of(function, self._spec, frozenset(self.kwargs)))
        settings = {"spec": self._spec, "kwargs": dict(self.kwargs)}
        spec = WorkerSpec("coterie.rewards.functions:serve", settings, preload=False, memory_gib=0.0, private=False)
        object.__setattr__(self, "pool", Workers(spec, self.workers, self.deadline_s))

    def __reduce__(self) -> tuple[Any, ...]:
        """It travels as its settings; the function is loaded again from its file."""
        return FunctionReward, (self.path, self.name, self.deadline_s, self.workers, dict(self.kwargs))

    @property
    def writes(self) -> frozenset[str]:
        """Names of the scores it surely adds."""
        return frozenset({"reward"})

    async def __call__(self, group: Group, context: Context) -> Group:
        """Score every rollout of the group."""
        debug = bool(context.resources.get("debug"))
        if self.style == "group":
            work = self.function(group, context, **self.kwargs)
            result, reason = await attempt(work, None if debug else self.deadline_s)
            if not reason and not isinstance(result, Group):
                reason = f"no group: the reward returned {type(result).__name__}, not the group with scores"
            if reason or not isinstance(result, Group):
                return group.with_scores("reward", [Score.missing(reason)] * len(group))
            return result
        if debug:
            return group.with_scores("reward", [await self._inline(group, r) for r in group.rollouts])
        scores = await asyncio.gather(*(self._score(group, r) for r in group.rollouts))
        return group.with_scores("reward", scores)

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    @property
    def _spec(self) -> str:
        return f"{Path(self.path).expanduser().absolute()}:{self.name}"

    async def _score(self, group: Group, rollout: Rollout) -> Score:
        arguments = verl_arguments(self.function, group, rollout)
        if self.style == "verl_async":
            result, reason = await attempt(self.function(**arguments, **self.kwargs), self.deadline_s)
            return Score.missing(reason) if reason else as_score(result)
        return from_reply(await self.pool.call(arguments), self.deadline_s)

    async def _inline(self, group: Group, rollout: Rollout) -> Score:
        async def call() -> Any:
            result = self.function(**verl_arguments(self.function, group, rollout), **self.kwargs)
            return await result if inspect.isawaitable(result) else result

        result, reason = await attempt(call())
        return Score.missing(reason) if reason else as_score(result)


def style_of(function: Any, spec: str, given: frozenset[str] = frozenset()) -> Style:
    """Which of the three forms a function has.

    Raises:
        ConfigError: when it is no function, or wants arguments that it would not get.
    """
    if inspect.isclass(function) or not callable(function):
        what = "a class; choose it as the reward itself: reward=" + spec if inspect.isclass(function) else "no function"
        raise ConfigError(f"{spec} is {what}")
    parameters = list(inspect.signature(function).parameters.values())
    names = [p.name for p in parameters]
    is_async = inspect.iscoroutinefunction(function)
    if names[:2] == ["group", "context"]:
        if not is_async:
            raise ConfigError(f"{spec} takes (group, context) but is not async: write `async def {function.__name__}`")
        return "group"
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    unknown = sorted(required - set(_VERL) - given)
    if unknown:
        raise ConfigError(
            f"{spec} requires {', '.join(unknown)}, which it would not get; a reward takes (group, context), "
            f"or some of {', '.join(_VERL)}; others need a default or an entry in reward.kwargs"
        )
    return "verl_async" if is_async else "verl"


def verl_arguments(function: Callable[..., Any], group: Group, rollout: Rollout) -> dict[str, Any]:
    """The keyword arguments of `compute_score` that the function takes."""
    example = group.example
    values = {
        "data_source": example.source,
        "solution_str": rollout.text,
        "ground_truth": example.reference,
        "extra_info": dict(example.meta),
    }
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return values
    return {name: value for name, value in values.items() if name in parameters}


def as_score(result: Any) -> Score:
    """A function's result as a score: a finite number, or a dict with `score`; anything else is missing."""
    if isinstance(result, Score):
        return result
    if isinstance(result, Mapping):
        if "score" not in result:
            return Score.missing(
                f"no score: the function returned a dict without 'score' (keys: {sorted(map(str, result))})"
            )
        info = {str(k): _plain(v) for k, v in result.items() if k != "score" and _plain(v) is not None}
        value = as_score(result["score"]) if not isinstance(result["score"], Mapping) else as_score(None)
        return Score(value.value, value.reason, info)
    if result is None:
        return Score.missing("none: the function returned None")
    number = _plain(result)
    if not isinstance(number, float):
        return Score.missing(f"no number: the function returned {type(result).__name__} {repr(result)[:80]}")
    return Score(number) if np.isfinite(number) else Score.missing(f"not finite: the function returned {number}")


def from_reply(reply: Reply, deadline_s: float) -> Score:
    """A worker's reply as a score."""
    if reply.status == "ok":
        return Score(reply.value["value"], reply.value["reason"], reply.value["info"])
    if reply.status == "error":
        return Score.missing("{type}: {message} ({where})".format(**reply.value))
    if reply.status == "timeout":
        return Score.missing(f"timeout: no score within {deadline_s:g} s")
    return Score.missing(f"{reply.status}: {reply.value}")


def serve(spec: str, kwargs: Mapping[str, Any]) -> Handler:
    """Factory for `coterie.rewards.workers`: calls the function with the keyword arguments of each request."""
    function = load_object(spec)

    def handle(request: Any, mark: Mark) -> Any:
        score = as_score(function(**request, **kwargs))
        info = {k: v for k, v in score.info.items() if isinstance(v, str) or np.isfinite(v)}
        return {"value": score.value, "reason": score.reason, "info": info}

    return handle


def _plain(value: Any) -> float | str | None:
    """A number as float (also of numpy and torch), short text as it is, anything else None."""
    if isinstance(value, str):
        return value if len(value) <= 2000 else value[:2000]
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return float(value)
    if hasattr(value, "item") and getattr(value, "shape", None) in ((), (1,)):
        return float(value.item())
    return None
