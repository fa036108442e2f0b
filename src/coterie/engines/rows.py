"""Completions in the making: what the scheduling of the embedded engine moves about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.types import Completion, FinishReason, FloatArray, Request, Sampling
from coterie.engines.sampling import draws_of
from coterie.engines.stop import StopWatch, cut


@dataclass(eq=False)
class Row:
    """One sample of a prompt.

    Attributes:
        prompt: what it continues.
        seed: 64-bit seed of its draws.
        limit: tokens at most.
        tokens: sampled so far.
        logprobs: one a token.
        draws: float64[limit] uniform numbers, made when the row starts.
        watch: looks for stop strings, if there are any.
        finish: why it ended, or None while it runs.
    """

    prompt: Prompt
    seed: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    draws: FloatArray = field(default_factory=lambda: np.zeros(0))
    watch: StopWatch | None = None
    finish: FinishReason | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and sample whose keys and values are stored: all but the newest."""
        return len(self.prompt.tokens) + len(self.tokens) - 1

    def start(self, tokenizer: Any) -> None:
        """Get what sampling needs."""
        self.draws = draws_of(self.seed, self.limit)
        if self.prompt.sampling.stop:
            self.watch = StopWatch(tokenizer, self.prompt.sampling.stop)

    def push(self, token: int, logprob: float, eos: frozenset[int]) -> None:
        """Take the next token and see whether it is the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        ended = token in eos and not self.prompt.sampling.ignore_eos
        if ended or (self.watch is not None and self.watch.found(self.tokens)):
            self.finish = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish = "length"

    def completion(self, tokenizer: Any, version: int) -> Completion:
        """The finished sample; its text is decoded here, once."""
        assert self.finish is not None
        text, stopped = cut(tokenizer.decode(self.tokens, skip_special_tokens=True), self.prompt.sampling.stop)
        return Completion(
            tokens=np.array(self.tokens, dtype=np.int64),
            logprobs=np.array(self.logprobs),
            text=text,
            finish_reason="stop" if stopped else self.finish,
            weights_version=version,
        )


@dataclass(eq=False)
class Prompt:
    """One request in progress.

    Attributes:
        tokens: its ids.
        sampling: how its rows are drawn.
        rows: all of them, in the order of their seeds.
        started: how many of them have a slot or had one.
        alive: how many are running.
        slot: where its keys and values are while rows share them.
    """

    tokens: tuple[int, ...]
    sampling: Sampling
    rows: list[Row] = field(default_factory=list)
    started: int = 0
    alive: int = 0
    slot: int = -1

    @property
    def waiting(self) -> int:
        """Rows that have not started."""
        return len(self.rows) - self.started

    @property
    def longest(self) -> int:
        """Tokens of its longest possible row, prompt included."""
        return len(self.tokens) + max(row.limit for row in self.rows)


def prompts_of(requests: Sequence[Request]) -> list[Prompt]:
    """Requests as prompts with rows, none started."""
    found = []
    for request in requests:
        prompt = Prompt(tuple(request.prompt_tokens), request.sampling)
        limits = request.max_tokens or (request.sampling.max_tokens,) * len(request.seeds)
        prompt.rows = [Row(prompt, seed, limit) for seed, limit in zip(request.seeds, limits, strict=True)]
        found.append(prompt)
    return found
