"""Attention of the embedded engine: packed prompts, and rows of different lengths over a slot cache.

transformers finds the function under `NAME` in its table of attention implementations, as it finds its own; the plan
of the step travels as a keyword argument of the model's forward. It takes the place of sdpa and computes the same:
softmax(q·kᵀ · scaling)·v over the tokens of one row up to the new one. Differences are in what is not done: no mask
over packed prompts, no key or value repeated for grouped queries (the queries of one key head are one small matrix).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from coterie.core.types import IntArray
from coterie.engines.kv_cache import NotPlainError, Segment, SlotCache

NAME = "coterie_rows"
_EXTRAS = ("position_bias", "softcap", "s_aux", "cache")  # arguments that change what attention computes
_CALL_COST = 65_536  # what one more attention call costs, as numbers read from the cache


class Plan(Protocol):
    """How one forward pass attends."""

    calls: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[B, heads, Q, dim] queries and new keys and values -> [B, Q, heads, dim]."""
        ...


def rows_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    coterie_plan: Plan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as the plan says; refuse what plain attention is not."""
    if coterie_plan is None:
        raise NotPlainError("the model does not hand keyword arguments on to its attention")
    for name in _EXTRAS:
        if kwargs.get(name) is not None:
            raise NotPlainError(f"the model's attention takes {name}")
    coterie_plan.calls += 1
    return coterie_plan.attend(query, key, value, scaling), None


def register() -> None:
    """Make the function known to transformers (once more does no harm)."""
    AttentionInterface.register(NAME, rows_attention)


@dataclass(eq=False)
class PromptAttention:
    """Causal attention inside each prompt of a packed row; prompts of equal length that adjoin go together."""

    segments: Sequence[Segment]
    calls: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[1, heads, N, dim] -> [1, N, heads, dim]."""
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        gqa = query.shape[1] != key.shape[1]
        for length, run in groupby(self.segments, key=lambda s: s.end - s.start):
            segments = list(run)
            part = slice(segments[0].start, segments[-1].end)
            q, k, v = (t[0, :, part].unflatten(1, (len(segments), length)).transpose(0, 1) for t in (query, key, value))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)
            out[0, part] = mixed.transpose(1, 2).flatten(0, 1)
        return out


@dataclass(frozen=True)
class Run:
    """Neighbouring rows that attend in one call: rows [start, end), the first `length` tokens of their slots."""

    start: int
    end: int
    length: int


def runs_of(lengths: IntArray, width: int) -> list[Run]:
    """Split rows into runs so that padding to each run's longest row plus the calls themselves cost least.

    Args:
        lengths: int64[B] tokens a row.
        width: numbers a token has in one layer's keys.
    """
    call = max(1, _CALL_COST // width)
    best, split = [0], [0]
    for end in range(1, len(lengths) + 1):
        longest, cost, at = 0, -1, 0
        for start in range(end - 1, max(-1, end - 65), -1):
            longest = max(longest, int(lengths[start]))
            total = best[start] + call + longest * (end - start)
            if cost < 0 or total < cost:
                cost, at = total, start
        best.append(cost)
        split.append(at)
    found, end = [], len(lengths)
    while end:
        found.append(Run(split[end], end, int(lengths[split[end] : end].max())))
        end = split[end]
    return found[::-1]


@dataclass(eq=False)
class RowAttention:
    """One new token a row over the row's slot.

    Attributes:
        cache: where keys and values are.
        runs: rows that attend together.
        masks: one a run: [rows, 1, 1, length] of 0 and -inf, or None when its rows are equally long.
    """

    cache: SlotCache
    runs: Sequence[Run]
    masks: Sequence[Tensor | None]
    calls: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[B, heads, 1, dim] -> [B, 1, heads, dim]."""
        keys, values = self.cache.rows.keys[self.cache.current], self.cache.rows.values[self.cache.current]
        q = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[3])
        parts = []
        for run, mask in zip(self.runs, self.masks, strict=True):
            rows = slice(run.start, run.end)
            k, v = keys[rows, :, : run.length], values[rows, :, : run.length]
            parts.append(F.scaled_dot_product_attention(q[rows], k, v, attn_mask=mask, scale=scale))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(query.shape[0], 1, query.shape[1], -1)


def length_mask(lengths: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, 1, size]: 0 for the first `lengths[b]` places of row b, -inf after them."""
    inside = torch.arange(size, device=lengths.device) < lengths[:, None]
    mask = torch.zeros(inside.shape, dtype=dtype, device=lengths.device)
    return mask.masked_fill_(~inside, float("-inf"))[:, None, None, :]


@dataclass(eq=False)
class Grouping:
    """Which rows share which prompt, as index tensors; holds until a row leaves or joins.

    Attributes:
        prompts: R, prompts in use: slots 0 … R-1 of `cache.prompts`.
        width: rows of the prompt that has most.
        length: tokens of the longest prompt.
        gather: int64[R * width], the rows of each prompt in turn, filled up with row 0; None when that is 0 … B-1.
        scatter: int64[B], each row's place in `gather`.
        mask: [R, 1, 1, length], see `length_mask`.
    """

    prompts: int
    width: int
    length: int
    gather: Tensor | None
    scatter: Tensor
    mask: Tensor
    expanded: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, owners: IntArray, lengths: IntArray, dtype: torch.dtype, device: torch.device) -> Grouping:
        """From int64[B] prompt slot of each row and int64[R] tokens of each prompt."""
        counts = np.bincount(owners, minlength=len(lengths))
        width, order = int(counts.max()), np.argsort(owners, kind="stable")
        rank = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        scatter = np.empty(len(owners), dtype=np.int64)
        scatter[order] = owners[order] * width + rank
        gather = np.zeros(len(lengths) * width, dtype=np.int64)
        gather[scatter] = np.arange(len(owners))
        plain = len(gather) == len(owners) and bool((scatter == np.arange(len(owners))).all())
        longest = int(lengths.max())
        return cls(
            prompts=len(lengths),
            width=width,
            length=longest,
            gather=None if plain else torch.from_numpy(gather).to(device),
            scatter=torch.from_numpy(scatter).to(device),
            mask=length_mask(torch.from_numpy(lengths).to(device), longest, dtype),
        )

    def bias(self, heads: int) -> Tensor:
        """[R * heads, 1, length] the mask for every key head."""
        if heads not in self.expanded:
            self.expanded[heads] = self.mask.expand(-1, heads, 1, -1).reshape(-1, 1, self.length)
        return self.expanded[heads]

    def together(self, rows: Tensor) -> Tensor:
        """[B, heads, G, ·] by row -> [R * heads, width * G, ·] by prompt."""
        if self.gather is not None:
            rows = rows.index_select(0, self.gather)
        return rows.unflatten(0, (self.prompts, self.width)).transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def apart(self, prompts: Tensor, heads: int) -> Tensor:
        """[R * heads, width * G, ·] by prompt -> [B, heads, G, ·] by row."""
        rows = prompts.unflatten(0, (-1, heads)).unflatten(2, (self.width, -1)).transpose(1, 2).flatten(0, 1)
        return rows if self.gather is None else rows.index_select(0, self.scatter)


@dataclass(eq=False)
class SharedAttention:
    """One new token a row over the prompt it shares and its own slot: one softmax over both parts.

    The queries of all rows of a prompt meet its keys in one product, so a prompt is read once a group and step.

    Attributes:
        cache: where keys and values are.
        grouping: rows by prompt.
        length: tokens of the longest row's own part.
        mask: [B, 1, 1, length], see `length_mask`.
    """

    cache: SlotCache
    grouping: Grouping
    length: int
    mask: Tensor
    calls: int = 0
    expanded: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[B, heads, 1, dim] -> [B, 1, heads, dim]."""
        layer, groups, size = self.cache.current, self.grouping, self.grouping.length
        keys, values = self.cache.rows.keys[layer], self.cache.rows.values[layer]
        prompt_keys, prompt_values = self.cache.prompts.keys[layer], self.cache.prompts.values[layer]
        count, heads = query.shape[0], keys.shape[1]
        alpha = query.shape[3] ** -0.5 if scale is None else scale
        q = query.reshape(count, heads, -1, query.shape[3])
        if heads not in self.expanded:
            self.expanded[heads] = self.mask.expand(-1, heads, 1, -1).reshape(-1, 1, self.length)

        k = prompt_keys[: groups.prompts].flatten(0, 1)[:, :size]
        on_prompt = torch.baddbmm(groups.bias(heads), groups.together(q), k.transpose(1, 2), alpha=alpha)
        k = keys[:count].flatten(0, 1)[:, : self.length]
        on_own = torch.baddbmm(self.expanded[heads], q.flatten(0, 1), k.transpose(1, 2), alpha=alpha)
        scores = torch.cat((groups.apart(on_prompt, heads).flatten(0, 1), on_own), dim=-1)
        weights = torch.softmax(scores, dim=-1)

        v = prompt_values[: groups.prompts].flatten(0, 1)[:, :size]
        out = groups.apart(torch.bmm(groups.together(weights[..., :size].unflatten(0, (count, heads))), v), heads)
        v = values[:count].flatten(0, 1)[:, : self.length]
        out = torch.baddbmm(out.flatten(0, 1), weights[..., size:], v)
        return out.reshape(count, 1, query.shape[1], -1)
