"""Attention over a packed row, registered with transformers under a name of its own.

A packed row holds many sequences end to end. `Blocks` say who attends to whom: in each block n rows of about equal
length, causal in themselves, each of which also sees all of one shared prefix. Linear layers then run over the row
without any padding; only the attention product itself is padded inside a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from coterie.errors import ModelError

PACKED = "coterie_packed"

Rows = tuple[int, int, Sequence[tuple[int, int]]]
"""One block: where its prefix starts, the prefix's tokens (0 for none), and (start, length) of each row."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a packed row of N positions, in the order of the row, covering all of it.

    Attributes:
        shapes: (n, R, P) of each block: n rows of up to R tokens after a prefix of P.
        masks: for each block, which key each query of a row sees; None for plain causal attention.
        queries: positions of all queries, block after block, short rows filled up to R by repeating their last token;
            None when that is the row itself.
        keys: positions of all keys, for each row prefix and own tokens; None when that is the row itself.
        valid: which of the queries are real, in the order of the packed row; None when all are.
    """

    shapes: tuple[tuple[int, int, int], ...]
    masks: tuple[Bool[Tensor, "R PR"] | None, ...]
    queries: Int[Tensor, "Q"] | None
    keys: Int[Tensor, "K"] | None
    valid: Int[Tensor, "N"] | None

    @classmethod
    def of(cls, blocks: Sequence[Rows]) -> Blocks:
        """From the rows of each block; together they fill the packed row in order."""
        shapes, masks, queries, keys, valid = [], [], [], [], []
        for prefix_start, prefix, rows in blocks:
            lengths = torch.tensor([length for _, length in rows])
            starts = torch.tensor([start for start, _ in rows])
            longest = int(lengths.max())
            steps = torch.arange(longest)
            own = starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)
            shared = torch.arange(prefix_start, prefix_start + prefix).expand(len(rows), -1)
            shapes.append((len(rows), longest, prefix))
            # Lower-right causal: own token i sees the prefix and own tokens up to i; what fills a row up comes later.
            masks.append(torch.ones(longest, prefix + longest, dtype=torch.bool).tril(prefix) if prefix else None)
            queries.append(own.flatten())
            keys.append(torch.cat([shared, own], 1).flatten())
            valid.append((steps < lengths[:, None]).flatten())
        real = torch.cat(valid)
        ragged = not bool(real.all())
        return cls(
            tuple(shapes),
            tuple(masks),
            torch.cat(queries) if ragged else None,
            torch.cat(keys) if ragged or any(mask is not None for mask in masks) else None,
            real.nonzero()[:, 0] if ragged else None,
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> Blocks:
        """The same blocks with `function` applied to every tensor (another device, another kind of tensor)."""

        def apply(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else function(tensor)

        return replace(
            self,
            masks=tuple(apply(mask) for mask in self.masks),
            queries=apply(self.queries),
            keys=apply(self.keys),
            valid=apply(self.valid),
        )


def register() -> None:
    """Make the function below known to transformers as `PACKED` (no mask is built for it)."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)


def packed_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "1 heads N D"],
    key: Float[Tensor, "1 kv_heads N D"],
    value: Float[Tensor, "1 kv_heads N E"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_blocks: Blocks | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 N heads E"], None]:
    """transformers' attention interface over `packed_blocks`.

    Raises:
        ModelError: when the architecture asks for something that blocks don't express (sinks, soft-capped scores,
            windows, biases) or doesn't pass its keyword arguments on to attention.
    """
    asked = [name for name in ("softcap", "s_aux", "position_bias", "sliding_window") if kwargs.get(name) is not None]
    if packed_blocks is None or attention_mask is not None or dropout or asked:
        raise ModelError(f"{type(module).__name__} can't attend over packed rows ({', '.join(asked) or 'no blocks'})")
    shapes = packed_blocks.shapes
    query_shapes = [(n, rows) for n, rows, _ in shapes]
    key_shapes = [(n, rows + prefix) for n, rows, prefix in shapes]
    pieces = zip(
        _pieces(query, packed_blocks.queries, query_shapes),
        _pieces(key, packed_blocks.keys, key_shapes),
        _pieces(value, packed_blocks.keys, key_shapes),
        packed_blocks.masks,
        strict=True,
    )
    outputs = [_attend(q, k, v, mask, scaling) for q, k, v, mask in pieces]
    out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return (out if packed_blocks.valid is None else out.index_select(0, packed_blocks.valid))[None], None


def _pieces(states: Tensor, index: Tensor | None, shapes: list[tuple[int, int]]) -> list[Tensor]:
    """[1, heads, N, D] gathered once and cut into [n, heads, length, D], one a block.

    One gather and one split: their backward passes touch each position once, however many blocks there are.
    """
    row = states.transpose(1, 2)[0]
    if index is not None:
        row = row.index_select(0, index)
    parts = row.split([n * length for n, length in shapes])
    return [part.unflatten(0, shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and mask is not None and q.device.type == "cuda":
        # CUDA's fused kernels take grouped heads or a mask, not both.
        k, v, groups = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), 1
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=groups > 1
    )
    return out.transpose(1, 2).flatten(0, 1)
