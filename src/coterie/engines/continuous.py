"""Continuous batching over slots: rows leave when they finish, waiting prompts join, every prompt is computed once.

What runs when depends on token counts and settings alone, never on time or free memory, so a repeated call gives the
same tokens bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import FloatArray, IntArray
from coterie.engines.attention import (
    Grouping,
    Plan,
    PromptAttention,
    RowAttention,
    Run,
    SharedAttention,
    length_mask,
    runs_of,
)
from coterie.engines.kv_cache import NotPlainError, Segment, SlotCache, Step
from coterie.engines.rows import Prompt, Row
from coterie.engines.sampling import Drawer

_REPLAN = 16  # steps after which the split of rows into runs is looked at again
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Limits:
    """What bounds a batch.

    Attributes:
        rows: slots.
        length: tokens of a slot at most.
        prompt_length: tokens of a shared prompt's slot at most.
        prefill_tokens: prompt tokens of one forward pass.
        shared: rows of a prompt share its keys and values.
    """

    rows: int
    length: int
    prompt_length: int
    prefill_tokens: int
    shared: bool


class Continuous:
    """Runs prompts to the end of all their rows.

    Args:
        module: causal language model, already borrowed (evaluation mode, `attention.NAME`).
        tokenizer: for stop strings.
        cache: a fresh one.
        limits: see there.
        eos: ids that end a row.
        device: of the module.
    """

    def __init__(
        self, module: Any, tokenizer: Any, cache: SlotCache, limits: Limits, eos: frozenset[int], device: torch.device
    ) -> None:
        self._module, self._tokenizer, self._cache = module, tokenizer, cache
        self._limits, self._eos, self._device = limits, eos, device
        self._queue: deque[Prompt] = deque()
        self._rows: list[Row] = []
        self._prompts: list[Prompt] = []  # by slot, when shared
        self._partial: Tensor | None = None  # [1, V] logits of the queue's first prompt when some of its rows wait
        self._changed = True
        self._drawer: Drawer | None = None
        self._grouping: Grouping | None = None
        self._runs: list[Run] = []
        self._planned = 0  # step at which runs were planned
        self._positions: IntArray = np.zeros(0, dtype=np.int64)
        self.steps = 0
        self.tokens = 0
        self.peak_rows = 0
        cache.shared = limits.shared

    def run(self, prompts: Iterable[Prompt], progress: Progress | None = None) -> None:
        """Sample every row of `prompts`; those that may grow longest start first."""
        self._queue = deque(sorted(prompts, key=lambda p: (-p.longest, -len(p.tokens))))
        total = sum(len(p.rows) for p in self._queue)
        waiting = total
        while waiting or self._rows:
            room = self._limits.rows - len(self._rows)
            if waiting and (not self._rows or room >= min(waiting, max(1, self._limits.rows // 8))):
                while self._admit():
                    pass
                waiting = sum(p.waiting for p in self._queue)
            else:
                self._decode()
            if progress is not None:
                progress(total - waiting - len(self._rows), total, self.tokens)

    def _admit(self) -> bool:
        """Start as many waiting rows as fit, with one forward pass over prompts not computed yet; False if none."""
        room = self._limits.rows - len(self._rows)
        if not room or not self._queue:
            return False
        if self._partial is not None:
            self._start_partial(room)
            return True
        fresh: list[Prompt] = []
        tokens = 0
        while self._queue and room > 0:
            prompt = self._queue[0]
            if fresh and tokens + len(prompt.tokens) > self._limits.prefill_tokens:
                break
            fresh.append(prompt)
            tokens += len(prompt.tokens)
            prompt.started = min(room, len(prompt.rows))
            room -= prompt.started
            if prompt.waiting:
                break
            self._queue.popleft()
        logits = self._prefill(fresh)
        if fresh[-1].waiting:
            self._partial = logits[-1:].clone()
        started = [row for prompt in fresh for row in prompt.rows[: prompt.started]]
        owners = np.repeat(np.arange(len(fresh)), [prompt.started for prompt in fresh])
        self._begin(started, logits, owners)
        return True

    def _start_partial(self, room: int) -> None:
        """Start more rows of the prompt that is computed but had no room for all its rows."""
        prompt, logits = self._queue[0], self._partial
        assert logits is not None
        first, prompt.started = prompt.started, min(prompt.started + room, len(prompt.rows))
        started = prompt.rows[first : prompt.started]
        if not self._limits.shared:
            for slot in range(len(self._rows), len(self._rows) + len(started)):
                self._cache.unpark(slot)
        if not prompt.waiting:
            self._queue.popleft()
            self._partial = None
            self._cache.clear_parked()
        self._begin(started, logits.clone(), np.zeros(len(started), dtype=np.int64))

    def _prefill(self, prompts: list[Prompt]) -> Tensor:
        """[R, V] logits after the last token of each prompt, from one packed row of all of them."""
        limits, cache = self._limits, self._cache
        longest = max(len(p.tokens) for p in prompts)
        if limits.shared:
            for prompt in prompts:
                prompt.slot = len(self._prompts)
                self._prompts.append(prompt)
            cache.prompts.reserve(len(self._prompts), longest, limits.prompt_length)
            cache.rows.reserve(limits.rows, 1, limits.length)
        else:
            cache.rows.reserve(limits.rows, longest + 1, limits.length)
        segments, start, slot = [], 0, len(self._rows)
        for prompt in prompts:
            slots = (prompt.slot,) if limits.shared else tuple(range(slot, slot + prompt.started))
            end = start + len(prompt.tokens)
            segments.append(Segment(start, end, slots, park=bool(prompt.waiting) and not limits.shared))
            start, slot = end, slot + prompt.started
        cache.begin(Step(segments=segments))
        ids = torch.tensor([t for p in prompts for t in p.tokens], device=self._device)
        positions = torch.cat([torch.arange(len(p.tokens), device=self._device) for p in prompts])
        last = torch.tensor([s.end - 1 for s in segments], device=self._device)
        return forward(self._module, cache, ids[None], positions[None], PromptAttention(segments), last)[0]

    def _begin(self, rows: list[Row], logits: Tensor, owners: IntArray) -> None:
        """Give rows the next slots and their first tokens."""
        for row in rows:
            row.start(self._tokenizer)
            row.prompt.alive += 1
        prompts = [row.prompt for row, new in zip(rows, np.diff(owners, prepend=-1), strict=True) if new]
        drawer = Drawer.of([p.sampling for p in prompts], self._device)
        tokens, logprobs = drawer.draw(logits, np.array([row.draws[0] for row in rows]), owners)
        self._rows.extend(rows)
        self.peak_rows = max(self.peak_rows, len(self._rows))
        self._changed = True
        self._push(rows, tokens, logprobs)

    def _decode(self) -> None:
        """One more token for every row."""
        rows = self._rows
        if self._changed:
            offset = 0 if self._limits.shared else 1
            self._positions = np.array([len(r.tokens) - 1 + offset * len(r.prompt.tokens) for r in rows])
            self._drawer = Drawer.of([row.prompt.sampling for row in rows], self._device)
        else:
            self._positions += 1
        plan = self._plan()
        ids = torch.tensor([[row.tokens[-1]] for row in rows], device=self._device)
        positions = torch.tensor([[row.length] for row in rows], device=self._device)
        logits = forward(self._module, self._cache, ids, positions, plan, 1)[:, 0]
        assert self._drawer is not None
        uniforms = np.array([row.draws[len(row.tokens)] for row in rows])
        tokens, logprobs = self._drawer.draw(logits, uniforms)
        self.steps += 1
        self._changed = False
        self._push(rows, tokens, logprobs)

    def _plan(self) -> Plan:
        """Make room for one token a row and say who attends to what."""
        longest = int(self._positions.max()) + 1
        cache, dtype = self._cache, self._cache.rows.dtype
        cache.rows.reserve(self._limits.rows, longest, self._limits.length)
        positions = torch.from_numpy(self._positions).to(self._device)
        cache.begin(Step(positions=positions))
        lengths = self._positions + 1
        if self._limits.shared:
            if self._changed or self._grouping is None:
                owners = np.array([row.prompt.slot for row in self._rows])
                sizes = np.array([len(p.tokens) for p in self._prompts])
                self._grouping = Grouping.of(owners, sizes, dtype, self._device)
            return SharedAttention(cache, self._grouping, longest, length_mask(positions + 1, longest, dtype))
        if self._changed or self.steps - self._planned >= _REPLAN:
            whole = [Run(0, len(lengths), longest)]
            self._runs = runs_of(lengths, cache.rows.width) if self._device.type == "cpu" else whole
            self._planned = self.steps
        runs = [Run(r.start, r.end, int(lengths[r.start : r.end].max())) for r in self._runs]
        even = [bool((lengths[r.start : r.end] == r.length).all()) for r in runs]
        mask = None if all(even) else length_mask(positions + 1, longest, dtype)
        masks = [
            None if same or mask is None else mask[r.start : r.end, ..., : r.length]
            for r, same in zip(runs, even, strict=True)
        ]
        return RowAttention(cache, runs, masks)

    def _push(self, rows: list[Row], tokens: IntArray, logprobs: FloatArray) -> None:
        """Hand each row its token, then close the gaps of those that ended."""
        self.tokens += len(rows)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.push(token, logprob, self._eos)
        if all(row.finish is None for row in rows):
            return
        self._changed = True
        kept, cache = self._rows, self._cache
        for slot in reversed(range(len(kept))):
            if kept[slot].finish is None:
                continue
            ended, last = kept[slot], kept.pop()
            if last is not ended:
                length = len(last.tokens) - 1 if self._limits.shared else last.length
                cache.rows.move(len(kept), slot, length)
                kept[slot] = last
            ended.prompt.alive -= 1
            if self._limits.shared and not ended.prompt.alive and not ended.prompt.waiting:
                self._drop_prompt(ended.prompt)

    def _drop_prompt(self, prompt: Prompt) -> None:
        """Free a shared prompt's slot for the last prompt."""
        last = self._prompts.pop()
        if last is not prompt:
            self._cache.prompts.move(last.slot, prompt.slot, len(last.tokens))
            last.slot = prompt.slot
            self._prompts[last.slot] = last


def forward(module: Any, cache: SlotCache, ids: Tensor, positions: Tensor, plan: Plan, keep: int | Tensor) -> Tensor:
    """One pass through the model as `cache.step` and `plan` say.

    Args:
        module: borrowed causal language model.
        cache: told by `begin` what the pass is.
        ids: int64[B, Q].
        positions: int64[B, Q], place of each token in its own sequence.
        plan: how to attend.
        keep: the last so many positions, or int64[K] positions, whose logits are computed.

    Returns:
        [B, K, V] logits.

    Raises:
        NotPlainError: when the model did not do as planned.
    """
    output = module(
        input_ids=ids,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep,
        coterie_plan=plan,
    )
    layers = module.config.get_text_config().num_hidden_layers
    if plan.calls != layers or cache.step.updates != layers:
        raise NotPlainError(f"{plan.calls} of its {layers} layers attend over a plain cache")
    logits: Tensor = output.logits
    if logits.shape[1] != (keep if isinstance(keep, int) else len(keep)):
        raise NotPlainError("its forward has no argument logits_to_keep")
    return logits
