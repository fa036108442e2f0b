"""Batch after batch with the model's own cache: for models whose cache is not plain (sliding windows, hybrids).

Prompts are padded on the left and computed once; the cache is repeated for the samples of a prompt; rows that ended
leave by index. Rows do not join a running batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engines.continuous import Limits, Progress
from coterie.engines.rows import Prompt, Row
from coterie.engines.sampling import Drawer

_LEAVE = 8  # rows leave once one in so many has ended: each time the whole cache is copied


class Batches:
    """Runs prompts to the end of all their rows, in batches.

    Args:
        module: causal language model, already borrowed with its own attention.
        tokenizer: for stop strings.
        limits: rows and prompt tokens of a batch; `shared` and `prompt_length` mean nothing here.
        eos: ids that end a row.
        device: of the module.
    """

    def __init__(self, module: Any, tokenizer: Any, limits: Limits, eos: frozenset[int], device: torch.device) -> None:
        self._module, self._tokenizer, self._limits = module, tokenizer, limits
        self._eos, self._device = eos, device
        self._places = "position_ids" in inspect.signature(module.forward).parameters
        self._keeps = "logits_to_keep" in inspect.signature(module.forward).parameters
        self.steps = self.tokens = self.peak_rows = 0

    def run(self, prompts: Iterable[Prompt], progress: Progress | None = None) -> None:
        """Sample every row of `prompts`; those that may grow longest come first."""
        queue = sorted(prompts, key=lambda p: (-p.longest, -len(p.tokens)))
        total, done = sum(len(p.rows) for p in queue), 0
        for batch in self._split(queue):
            running = self._prefill(batch)
            while True:
                left = sum(row.finish is None for row in running.rows)
                if progress is not None:
                    progress(done + len(batch) - left, total, self.tokens)
                if not left:
                    break
                self._decode(running)
            done += len(batch)

    def _split(self, prompts: list[Prompt]) -> Iterator[list[Row]]:
        """Batches of rows: whole prompts, or parts of a prompt with more rows than a batch takes."""
        batch: list[Row] = []
        lengths: list[int] = []  # tokens of the batch's prompts
        for prompt in prompts:
            for start in range(0, len(prompt.rows), self._limits.rows):
                part = prompt.rows[start : start + self._limits.rows]
                wider = [*lengths, len(prompt.tokens)]
                crowded = len(batch) + len(part) > self._limits.rows
                if batch and (crowded or len(wider) * max(wider) > self._limits.prefill_tokens):
                    yield batch
                    batch, wider = [], [len(prompt.tokens)]
                batch, lengths = [*batch, *part], wider
        if batch:
            yield batch

    def _prefill(self, rows: list[Row]) -> _Running:
        """Compute each prompt once, repeat its cache for its rows and draw their first tokens."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        longest = max(len(p.tokens) for p in prompts)
        ids = torch.tensor([[p.tokens[0]] * (longest - len(p.tokens)) + list(p.tokens) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p.tokens)) + [1] * len(p.tokens) for p in prompts])
        ids, mask = ids.to(self._device), mask.to(self._device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits, cache = self._forward(ids, mask, positions, None)
        index = {id(p): i for i, p in enumerate(prompts)}
        owners = np.array([index[id(row.prompt)] for row in rows])
        for row in rows:
            row.start(self._tokenizer)
        drawer = Drawer.of([p.sampling for p in prompts], self._device)
        tokens, logprobs = drawer.draw(logits, np.array([row.draws[0] for row in rows]), owners)
        if len(rows) > len(prompts):
            cache.reorder_cache(torch.from_numpy(owners).to(self._device))
        running = _Running(rows, cache, mask[torch.from_numpy(owners).to(self._device)])
        self.peak_rows = max(self.peak_rows, len(rows))
        self._push(running, tokens.tolist(), logprobs.tolist())
        return running

    def _decode(self, running: _Running) -> None:
        """One more token for every row that runs; the others ride along until enough of them leave."""
        running.leave(self._device)
        rows = running.rows
        ids = torch.tensor([[row.tokens[-1]] for row in rows], device=self._device)
        running.mask = torch.nn.functional.pad(running.mask, (0, 1), value=1)
        positions = torch.tensor([[row.length] for row in rows], device=self._device)
        logits, running.cache = self._forward(ids, running.mask, positions, running.cache)
        drawer = Drawer.of([row.prompt.sampling for row in rows], self._device)
        uniforms = np.array([0.0 if row.finish else row.draws[len(row.tokens)] for row in rows])
        tokens, logprobs = drawer.draw(logits, uniforms)
        self.steps += 1
        self._push(running, tokens.tolist(), logprobs.tolist())

    def _push(self, running: _Running, tokens: list[int], logprobs: list[float]) -> None:
        for row, token, logprob in zip(running.rows, tokens, logprobs, strict=True):
            if row.finish is None:
                row.push(token, logprob, self._eos)
                self.tokens += 1

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """([B, V] logits after the last token, cache)."""
        extras: dict[str, Any] = {"position_ids": positions} if self._places else {}
        if self._keeps:
            extras["logits_to_keep"] = 1
        output = self._module(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **extras)
        return output.logits[:, -1], output.past_key_values


class _Running:
    """Rows of the batch under way, their cache and their padding mask [B, tokens so far]."""

    def __init__(self, rows: list[Row], cache: Any, mask: Tensor) -> None:
        self.rows, self.cache, self.mask = rows, cache, mask

    def leave(self, device: torch.device) -> None:
        """Let the rows that ended go, if there are enough of them."""
        left = [i for i, row in enumerate(self.rows) if row.finish is None]
        if len(self.rows) - len(left) >= max(1, len(self.rows) // _LEAVE):
            index = torch.tensor(left, device=device)
            self.cache.reorder_cache(index)
            self.mask = self.mask[index]
            self.rows = [self.rows[i] for i in left]
