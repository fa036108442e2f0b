"""The values that pass from stage to stage before the tensor border: Example, Completion, Score, Rollout, Group.

All are frozen; a stage returns a new value. Host arrays are numpy; per-action-token arrays have length A, the number
of tokens that the policy sampled and is trained on. Index t describes token t.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Message = Mapping[str, Any]
FinishReason = Literal["stop", "length", "abort", "error"]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    """One row of a data set: what is asked, and what its reward needs to know.

    Attributes:
        id: unique in its data set; a coordinate of every random draw made for it.
        prompt: chat messages, or one message of role "raw" whose content is used without a chat template.
        reference: gold answer(s) for the verifier; None when the reward needs none.
        source: name of the data set (verl's `data_source`), by which rewards are routed.
        meta: everything else of the row (verl's `extra_info`, a dataset's own fields).
    """

    id: str
    prompt: tuple[Message, ...]
    reference: Any = None
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How an engine draws tokens.

    Attributes:
        temperature: divides the logits; 0 means greedy.
        top_p: nucleus mass kept, in (0, 1].
        top_k: number of most likely tokens kept; 0 keeps all.
        min_p: keep tokens whose probability is at least `min_p` times the largest.
        max_tokens: bound on sampled tokens of one completion.
        stop: strings that end a completion; the text is cut before the string, the tokens stay.
        ignore_eos: sample on past the end-of-sequence token (benchmarks).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Request:
    """One prompt and the completions wanted of it: `len(seeds)` samples that share the prompt.

    Attributes:
        prompt_tokens: token ids, never empty.
        seeds: one 64-bit seed a sample, made by `core.keys.seed_of` from its coordinates.
        sampling: how to draw.
        max_tokens: optional bound per sample that replaces `sampling.max_tokens` (ragged benchmarks).
    """

    prompt_tokens: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: Sampling = Sampling()
    max_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Completion:
    """What an engine returns for one sample.

    Attributes:
        tokens: int64[A] sampled ids; an end-of-sequence token that was sampled is the last one.
        logprobs: float64[A] of the distribution sampled from (after temperature and truncation).
        text: the decoded tokens without special tokens, cut before a stop string.
        finish_reason: "stop" (end of sequence or stop string), "length", "abort" or "error".
        weights_version: version of the weights that sampled it.
    """

    tokens: IntArray
    logprobs: FloatArray
    text: str
    finish_reason: FinishReason
    weights_version: int = 0


@dataclass(frozen=True)
class Score:
    """A reward value, or *missing with a reason*; an outage is never a wrong answer.

    Attributes:
        value: finite, or None when missing.
        reason: why it is missing, or a short note on how the value came about.
        info: what a reader or a metric wants to know; numbers in it become `reward/<name>/<key>` means.

    Raises:
        ValueError: for NaN or infinite values and for a missing score without a reason.
    """

    value: float | None
    reason: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.reason:
                raise ValueError("a missing score needs a reason")
        elif not math.isfinite(self.value):
            raise ValueError(f"a score is a finite number or None with a reason, not {self.value}")

    @classmethod
    def missing(cls, reason: str, **info: Any) -> Score:
        """A score that could not be had, and why."""
        return cls(None, reason, info)


@dataclass(frozen=True, eq=False)
class Rollout:
    """One trajectory: all its tokens, which of them are actions, and what is known about each action.

    Attributes:
        tokens: int64[N], prompt included.
        action_index: int64[A], increasing positions in `tokens` of the tokens the policy sampled.
        text: the response as text.
        finish_reason: of the last completion.
        index: position of this rollout in its group when it was sampled (a coordinate).
        scores: named scores; "reward" is the one that estimators read by default.
        streams: named float64[A] arrays: `sampler_logprobs`, `old_logprobs`, `ref_logprobs`, `values`, …
        spans: named half-open ranges over action tokens, e.g. {"cot": ((0, 17),)}.
        advantages: float64[A], or None before an estimator ran.
        bootstrap_value: value of the state after a truncated trajectory (GAE), 0 otherwise.
        weights_version: version of the weights that sampled its first token.
        meta: facts about this rollout for the records.
    """

    tokens: IntArray
    action_index: IntArray
    text: str
    finish_reason: FinishReason
    index: int = 0
    scores: Mapping[str, Score] = field(default_factory=dict)
    streams: Mapping[str, FloatArray] = field(default_factory=dict)
    spans: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    advantages: FloatArray | None = None
    bootstrap_value: float = 0.0
    weights_version: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = self.num_actions
        if count and (self.action_index[0] < 0 or self.action_index[-1] >= len(self.tokens)):
            raise ValueError(f"action_index runs outside the {len(self.tokens)} tokens")
        if np.any(np.diff(self.action_index) <= 0):
            raise ValueError("action_index must increase strictly")
        for name, values in self.streams.items():
            _check_length(f"stream {name!r}", values, count)
        if self.advantages is not None:
            _check_length("advantages", self.advantages, count)
        for name, ranges in self.spans.items():
            for start, end in ranges:
                if not 0 <= start <= end <= count:
                    raise ValueError(f"span {name!r} [{start}, {end}) runs outside the {count} action tokens")

    @property
    def num_actions(self) -> int:
        """A, the number of action tokens."""
        return len(self.action_index)

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut it off."""
        return self.finish_reason == "length"

    def with_streams(self, **streams: ArrayLike) -> Rollout:
        """A copy with these per-action-token streams set."""
        arrays = {name: np.asarray(values, dtype=np.float64) for name, values in streams.items()}
        return replace(self, streams={**self.streams, **arrays})

    def span_index(self, name: str) -> IntArray:
        """Indices of the action tokens inside span `name` (empty when the rollout has no such span)."""
        ranges = [np.arange(start, end) for start, end in self.spans.get(name, ())]
        return np.concatenate(ranges).astype(np.int64) if ranges else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Group:
    """One example and its rollouts, in the order sampled: the unit of reward and advantage."""

    example: Example
    rollouts: tuple[Rollout, ...]

    def __len__(self) -> int:
        return len(self.rollouts)

    def scores(self, name: str = "reward") -> FloatArray:
        """float64[G] values of score `name`, NaN where missing.

        Raises:
            KeyError: when no rollout has that score, with the names that exist.
        """
        known = sorted({n for r in self.rollouts for n in r.scores})
        if self.rollouts and name not in known:
            raise KeyError(f"no rollout of example {self.example.id!r} has a score {name!r}; scores there: {known}")
        values = [r.scores[name].value if name in r.scores else None for r in self.rollouts]
        return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

    def with_scores(self, name: str, scores: Iterable[Score]) -> Group:
        """A copy in which rollout i has `scores[i]` under `name`."""
        pairs = zip(self.rollouts, scores, strict=True)
        return replace(self, rollouts=tuple(replace(r, scores={**r.scores, name: s}) for r, s in pairs))

    def with_advantages(self, advantages: Sequence[ArrayLike] | FloatArray) -> Group:
        """A copy with advantages: one number a rollout (broadcast over its action tokens) or one array a rollout."""
        rollouts = []
        for rollout, advantage in zip(self.rollouts, advantages, strict=True):
            values = np.asarray(advantage, dtype=np.float64)
            if values.ndim == 0:
                values = np.full(rollout.num_actions, float(values))
            rollouts.append(replace(rollout, advantages=values))
        return replace(self, rollouts=tuple(rollouts))

    def with_rollouts(self, rollouts: Iterable[Rollout]) -> Group:
        """A copy with other rollouts of the same example."""
        return replace(self, rollouts=tuple(rollouts))


def _check_length(what: str, values: FloatArray, count: int) -> None:
    if np.shape(values) != (count,):
        raise ValueError(f"{what} has shape {np.shape(values)}, expected ({count},): one entry an action token")
