"""From one loss an action token to one number: which denominator, over what.

Every aggregation is linear, so each is a weight per action token (`sum(weight * loss)`), made from *global* counts that
no split changes. Sums over micro-batches, packed rows and ranks are therefore exact.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coterie.core.batch import Batch

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "fixed_length", "prompt_mean", "token_sum"]
AGGREGATIONS: tuple[str, ...] = (
    "token_mean",
    "sequence_mean",
    "sequence_sum",
    "fixed_length",
    "prompt_mean",
    "token_sum",
)


def check_aggregation(mode: str, fixed_length: int) -> None:
    """Refuse an unknown mode, a missing length and a length without effect.

    Raises:
        ValueError: with the rule and the remedy.
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"aggregate={mode!r} is not one of {', '.join(AGGREGATIONS)}")
    if mode == "fixed_length" and fixed_length <= 0:
        raise ValueError(
            f"aggregate='fixed_length' divides by a constant; fixed_length is {fixed_length}, set it to a positive "
            "number of tokens (rollout.max_tokens is Dr. GRPO's choice)"
        )
    if mode != "fixed_length" and fixed_length:
        raise ValueError(f"fixed_length={fixed_length} has no effect with aggregate={mode!r}; drop it")


def segment_sum(values: Float[Tensor, "A"], segment: Int[Tensor, "A"], num_segments: int) -> Float[Tensor, "S"]:
    """Sum per segment; differentiable; 0 for an empty one."""
    return values.new_zeros(num_segments).index_add(0, segment, values)


def segment_mean(values: Float[Tensor, "A"], segment: Int[Tensor, "A"], num_segments: int) -> Float[Tensor, "S"]:
    """Mean per segment; differentiable; 0 for an empty one."""
    lengths = torch.bincount(segment, minlength=num_segments).clamp(min=1)
    return segment_sum(values, segment, num_segments) / lengths.to(values.dtype)


def weights_of(
    mode: str,
    sequence_lengths: Int[Tensor, "A"] | None,
    group_tokens: Int[Tensor, "A"] | None,
    *,
    num_tokens: int,
    num_sequences: int,
    num_groups: int,
    fixed_length: int,
    like: Float[Tensor, "A"],
) -> Float[Tensor, "A"]:
    """Weight of each action token: the reciprocal of its denominator, counted over the whole batch.

        token_mean (DAPO)         1 / num_tokens
        sequence_mean (GRPO)      1 / (length of its sequence * num_sequences)
        sequence_sum              1 / num_sequences
        fixed_length (Dr. GRPO)   1 / (fixed_length * num_sequences)
        prompt_mean (ScaleRL)     1 / (action tokens of its group * num_groups)
        token_sum                 1

    `sequence_lengths` and `group_tokens` are those of the sequence and group that each token belongs to.
    """
    check_aggregation(mode, fixed_length)
    if mode == "sequence_mean":
        assert sequence_lengths is not None
        return 1.0 / (sequence_lengths.to(like.dtype) * num_sequences)
    if mode == "prompt_mean":
        assert group_tokens is not None
        return 1.0 / (group_tokens.to(like.dtype) * num_groups)
    denominator = {
        "token_mean": num_tokens,
        "sequence_sum": num_sequences,
        "fixed_length": fixed_length * num_sequences,
        "token_sum": 1,
    }[mode]
    return torch.full_like(like, 1.0 / max(denominator, 1))


def token_weights(
    batch: Batch, mode: Aggregation | str, fixed_length: int = 0, dtype: torch.dtype | None = None
) -> Float[Tensor, "A"]:
    """Weights of a (micro-)batch's action tokens under its global counts (see `weights_of`).

    Sequences without action tokens contribute nothing but stay in the number of sequences.
    """
    like = batch.advantages if dtype is None else batch.advantages.to(dtype)
    return weights_of(
        mode,
        batch.action_lengths[batch.sequence_id],
        batch.group_tokens[batch.sequence_id],
        num_tokens=batch.counts.action_tokens,
        num_sequences=batch.counts.sequences,
        num_groups=batch.counts.groups,
        fixed_length=fixed_length,
        like=like,
    )


def kept_token_weights(
    batch: Batch, keep: Bool[Tensor, "A"], mode: Aggregation | str, fixed_length: int = 0
) -> Float[Tensor, "A"]:
    """Weights whose denominators count kept tokens only; 0 for the others. For a *whole* batch, before any split.

    A sequence or group without kept tokens leaves the number of sequences or groups.
    """
    kept_id = batch.sequence_id[keep]
    lengths = torch.bincount(kept_id, minlength=batch.num_sequences)
    groups, group_of = torch.unique(batch.group_id, return_inverse=True)
    group_tokens = torch.zeros(len(groups), dtype=torch.int64, device=keep.device).index_add(0, group_of, lengths)
    weights = torch.zeros_like(batch.advantages)
    weights[keep] = weights_of(
        mode,
        lengths[kept_id],
        group_tokens[group_of][kept_id],
        num_tokens=int(keep.sum()),
        num_sequences=int((lengths > 0).sum()),
        num_groups=int((group_tokens > 0).sum()),
        fixed_length=fixed_length,
        like=batch.advantages[keep],
    )
    return weights


def aggregated(
    values: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    mode: Aggregation | str = "token_mean",
    *,
    group_id: Int[Tensor, "S"] | None = None,
    num_sequences: int | None = None,
    fixed_length: int = 0,
) -> Float[Tensor, ""]:
    """One number from one value an action token, for data that is all here (no split).

    Args:
        values: one loss an action token.
        sequence_id: which sequence each action token belongs to.
        mode: see `weights_of`.
        group_id: group of each sequence; needed by "prompt_mean" alone.
        num_sequences: how many there are when the last ones have no action tokens.
        fixed_length: Dr. GRPO's constant, with mode "fixed_length".

    Raises:
        ValueError: for an unknown mode, a missing `fixed_length`, or "prompt_mean" without `group_id`.
    """
    if num_sequences is None:
        num_sequences = int(sequence_id.max()) + 1 if len(sequence_id) else 0
    lengths = torch.bincount(sequence_id, minlength=num_sequences)
    group_tokens, num_groups = None, 0
    if group_id is not None:
        groups, group_of = torch.unique(group_id, return_inverse=True)
        totals = torch.zeros(len(groups), dtype=torch.int64, device=values.device).index_add(0, group_of, lengths)
        group_tokens, num_groups = totals[group_of][sequence_id], len(groups)
    elif mode == "prompt_mean":
        raise ValueError("aggregate='prompt_mean' needs group_id, the group of each sequence")
    weights = weights_of(
        mode,
        lengths[sequence_id],
        group_tokens,
        num_tokens=len(values),
        num_sequences=num_sequences,
        num_groups=num_groups,
        fixed_length=fixed_length,
        like=values.detach(),
    )
    return (values * weights).sum()
