"""Attention over a packed row, registered with transformers under a name of its own.

A packed row holds many sequences end to end. `Block`s say who attends to whom: n rows of about equal length, causal in
themselves, each of which also sees all of one shared prefix. Linear layers then run over the row without any padding;
only the attention product itself is padded inside a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from coterie.errors import ModelError

PACKED = "coterie_packed"


@dataclass(frozen=True, eq=False)
class Block:
    """n rows of up to R tokens that share a prefix of P tokens (P may be 0), contiguous in the packed row.

    Attributes:
        start, stop: range of the packed row that the block's rows fill.
        shape: (n, R, P).
        queries: positions of the queries, short rows filled up by repeating their last token; None when all rows have
            R tokens (they are the range itself).
        keys: positions of the keys: prefix, then own tokens; None when they are the range itself.
        valid: which of the n * R queries are real; None when all are.
        mask: which key each query of a row sees; None for plain causal attention.
    """

    start: int
    stop: int
    shape: tuple[int, int, int]
    queries: Int[Tensor, "nR"] | None
    keys: Int[Tensor, "nPR"] | None
    valid: Int[Tensor, "V"] | None
    mask: Bool[Tensor, "R PR"] | None

    @classmethod
    def of(cls, prefix_start: int, prefix: int, rows: Sequence[tuple[int, int]]) -> Block:
        """From the (start, length) of each row, end to end, and of the prefix."""
        lengths = torch.tensor([length for _, length in rows])
        starts = torch.tensor([start for start, _ in rows])
        longest = int(lengths.max())
        steps = torch.arange(longest)
        queries = starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)
        keys, mask = queries, None
        if prefix:
            shared = torch.arange(prefix_start, prefix_start + prefix).expand(len(rows), -1)
            keys = torch.cat([shared, queries], 1)
            mask = torch.ones(longest, prefix + longest, dtype=torch.bool).tril(prefix)
        ragged = bool((lengths < longest).any())
        valid = (steps < lengths[:, None]).flatten().nonzero()[:, 0] if ragged else None
        return cls(
            rows[0][0],
            rows[-1][0] + rows[-1][1],
            (len(rows), longest, prefix),
            queries.flatten() if ragged else None,
            keys.flatten() if ragged or prefix else None,
            valid,
            mask,
        )

    def to(self, device: torch.device) -> Block:
        """The same block on another device."""
        moved = [t if t is None else t.to(device) for t in (self.queries, self.keys, self.valid, self.mask)]
        return Block(self.start, self.stop, self.shape, *moved)


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
    packed_blocks: Sequence[Block] | None = None,
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
    q, k, v = (t.transpose(1, 2)[0] for t in (query, key, value))
    outputs = [_attend(block, q, k, v, scaling) for block in packed_blocks]
    return torch.cat(outputs)[None], None


def _attend(block: Block, q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> Tensor:
    count, longest, prefix = block.shape
    rows = slice(block.start, block.stop)

    def heads_first(t: Tensor, index: Tensor | None, length: int) -> Tensor:
        chosen = t[rows] if index is None else t.index_select(0, index)
        return chosen.unflatten(0, (count, length)).transpose(1, 2)

    out = scaled_dot_product_attention(
        heads_first(q, block.queries, longest),
        heads_first(k, block.keys, prefix + longest),
        heads_first(v, block.keys, prefix + longest),
        attn_mask=block.mask,
        is_causal=block.mask is None,
        scale=scaling,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    out = out.transpose(1, 2).flatten(0, 1)
    return out if block.valid is None else out.index_select(0, block.valid)
