"""The key-value cache of the embedded engine: preallocated slots, one a row, and shared prompts.

A slot holds one row's keys and values left-aligned: token t of the row at position t. Rows in flight occupy slots
0 … B-1, so a step reads plain views of the storage; a row that leaves is replaced by the last one. Nothing is
concatenated: a new token is written in place, and the storage grows in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

_BLOCK = 64  # tokens by which slots grow
_ALIGNMENT = 64  # bytes


class NotPlainError(Exception):
    """A model keeps more than keys and values per token, or keeps them another way than plain slots allow."""


def whole_blocks(length: int) -> int:
    """`length` tokens rounded up to whole blocks of the cache."""
    return -(-length // _BLOCK) * _BLOCK


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros in the dtype and on the device of `like`; on CPU their pages take no memory until they are written.

    CPU memory starts at a multiple of 64 bytes, as torch's own does: the order in which a BLAS adds may depend on it.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.element_size()
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(like.dtype).view(shape)


class Slots:
    """Keys and values of every layer, `[slots, heads, length, head_dim]` each, zero where nothing was written."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.count = 0
        self.length = 0

    def reserve(self, count: int, length: int, ceiling: int) -> None:
        """Make room for `count` slots of `length` tokens, or of up to `ceiling` for later; what is written stays."""
        if length > self.length:
            length = whole_blocks(max(length, min(self.length * 2, ceiling)))
        count, length = max(count, self.count), max(length, self.length)
        if (count, length) == (self.count, self.length):
            return
        for tensors in (self.keys, self.values):
            for i, old in enumerate(tensors):
                new = _zeros((count, old.shape[1], length, old.shape[3]), old)
                new[: self.count, :, : self.length] = old
                tensors[i] = new
        self.count, self.length = count, length

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the keys, once there are any."""
        return self.keys[0].dtype

    @property
    def width(self) -> int:
        """Numbers a token has in one layer's keys."""
        return self.keys[0].shape[1] * self.keys[0].shape[3]

    def layer(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Storage of one layer, made on first use in the shape and dtype of `keys` and `values` [·, heads, ·, dim]."""
        if index == len(self.keys):
            self.keys.append(_zeros((self.count, keys.shape[1], self.length, keys.shape[3]), keys))
            self.values.append(_zeros((self.count, values.shape[1], self.length, values.shape[3]), values))
        return self.keys[index], self.values[index]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over another."""
        for tensors in (self.keys, self.values):
            for t in tensors:
                t[target, :, :length] = t[source, :, :length]


@dataclass(frozen=True)
class Segment:
    """Where a prompt lies in a packed prefill, and which slots take its keys and values.

    Attributes:
        start: first token.
        end: one past the last.
        slots: slots of the rows that start with this prompt now (of prompts, when prompts are shared).
        park: keep a copy, because samples of it are still waiting for a slot.
    """

    start: int
    end: int
    slots: tuple[int, ...]
    park: bool = False


@dataclass(eq=False)
class Step:
    """What the cache does in the forward pass under way: takes in prompts, or one token a row.

    Attributes:
        segments: the packed prompts; empty in a decoding step.
        positions: [B] where each row's new token goes in its slot (decoding).
        updates: layers that came by.
    """

    segments: Sequence[Segment] = ()
    positions: Tensor | None = None
    updates: int = 0
    targets: dict[tuple[int, int], Tensor] = field(default_factory=dict)


class SlotCache(Cache):
    """A transformers cache over `Slots`.

    `update` stores and returns what it was given: attention over stored keys is `attention.RowAttention`'s.

    Attributes:
        rows: one slot a row: its whole sequence, or what follows the prompt when prompts are shared.
        prompts: one slot a prompt that rows share.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.rows = Slots()
        self.prompts = Slots()
        self.shared = False
        self.step = Step()
        self.current = 0
        self._parked: list[tuple[Tensor, Tensor]] = []

    def begin(self, step: Step) -> None:
        """Say what the next forward pass is."""
        self.step = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values of one layer."""
        self.step.updates += 1
        self.current = layer_idx
        if self.step.positions is None:
            self._take_prompts(key_states, value_states, layer_idx)
        else:
            keys, values = self.rows.layer(layer_idx, key_states, value_states)
            where = self._targets(keys.shape[1], keys.shape[2])
            keys.view(-1, keys.shape[3]).index_copy_(0, where, key_states.reshape(-1, keys.shape[3]))
            values.view(-1, values.shape[3]).index_copy_(0, where, value_states.reshape(-1, values.shape[3]))
        return key_states, value_states

    def _take_prompts(self, keys: Tensor, values: Tensor, layer: int) -> None:
        stored_keys, stored_values = self.rows.layer(layer, keys, values)
        if self.shared:
            stored_keys, stored_values = self.prompts.layer(layer, keys, values)
        for segment in self.step.segments:
            k, v = keys[0, :, segment.start : segment.end], values[0, :, segment.start : segment.end]
            for slot in segment.slots:
                stored_keys[slot, :, : k.shape[1]] = k
                stored_values[slot, :, : v.shape[1]] = v
            if segment.park:
                del self._parked[layer:]
                self._parked.append((k.clone(), v.clone()))

    def unpark(self, slot: int) -> None:
        """Start a row in `slot` with the parked prompt."""
        for layer, (k, v) in enumerate(self._parked):
            self.rows.keys[layer][slot, :, : k.shape[1]] = k
            self.rows.values[layer][slot, :, : v.shape[1]] = v

    def clear_parked(self) -> None:
        """Drop the parked prompt."""
        self._parked = []

    def _targets(self, heads: int, length: int) -> Tensor:
        """[B * heads] flat index of each row's new token, one computation a step."""
        found = self.step.targets.get((heads, length))
        if found is None:
            positions = self.step.positions
            assert positions is not None
            slots = torch.arange(len(positions), device=positions.device)[:, None] * heads
            every = (slots + torch.arange(heads, device=positions.device)) * length
            found = self.step.targets[heads, length] = (every + positions[:, None]).flatten()
        return found

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions and masks are given by the engine, never derived from the cache."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Sizes as of an empty cache; the engine's attention takes no mask."""
        return query_length, 0

    def update_conv_state(self, *args: object, **kwargs: object) -> Tensor:
        """Refused: a state that is not one entry a token."""
        raise NotPlainError("the model keeps a convolution state")

    def update_recurrent_state(self, *args: object, **kwargs: object) -> Tensor:
        """Refused: a state that is not one entry a token."""
        raise NotPlainError("the model keeps a recurrent state")

    def update_indexer(self, *args: object, **kwargs: object) -> Tensor:
        """Refused: a state that is not one entry a token."""
        raise NotPlainError("the model keeps an indexer state")
