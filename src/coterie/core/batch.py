"""The tensor border: a flat batch of whole sequences with one entry per action token.

No padding and no masks: `tokens` holds the sequences end to end, `action_index` says which positions are action tokens,
and every per-action array has length A. `counts` are those of the whole optimizer step and survive every split, so a
loss that divides by them is exact under micro-batching, packing and any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie.core.types import Group, Rollout


@dataclass(frozen=True)
class Counts:
    """Global denominators of one optimizer step, fixed before any split."""

    action_tokens: int
    sequences: int
    groups: int


@dataclass(frozen=True, eq=False)
class Batch:
    """Whole sequences, flat. N tokens, A action tokens, S sequences.

    Attributes:
        tokens: all token ids, sequence after sequence.
        cu_seqlens: sequence s occupies `tokens[cu_seqlens[s] : cu_seqlens[s + 1]]`.
        action_index: positions in `tokens` of the action tokens, increasing. Entry t of every per-action array
            describes the token itself (its logprob, its advantage), not the position that predicts it.
        sequence_id: sequence of each action token, non-decreasing.
        advantages: one number an action token.
        streams: named per-action-token arrays (`sampler_logprobs`, `old_logprobs`, `ref_logprobs`, `values`,
            `returns`, …) and what a loss's pre-pass computed.
        group_id: global number of the group of each sequence (equal ids: same prompt).
        prefix_length: leading tokens of each sequence that its group shares (the prompt); 0 where unknown.
        group_sequences, group_tokens: sequences and action tokens of the *whole* group of each sequence.
        rewards: reward of each sequence, NaN when missing.
        bootstrap_values: value after a truncated sequence, 0 otherwise.
        counts: global denominators.
        scalars: numbers over the whole batch computed by a loss's pre-pass or given by a controller.
    """

    tokens: Int[Tensor, "N"]
    cu_seqlens: Int[Tensor, "S+1"]
    action_index: Int[Tensor, "A"]
    sequence_id: Int[Tensor, "A"]
    advantages: Float[Tensor, "A"]
    streams: Mapping[str, Float[Tensor, "A"]]
    group_id: Int[Tensor, "S"]
    prefix_length: Int[Tensor, "S"]
    group_sequences: Int[Tensor, "S"]
    group_tokens: Int[Tensor, "S"]
    rewards: Float[Tensor, "S"]
    bootstrap_values: Float[Tensor, "S"]
    counts: Counts
    scalars: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_groups(cls, groups: Sequence[Group], reward: str = "reward") -> Self:
        """Flatten groups; streams that every rollout has are kept, absent advantages become 0.

        Raises:
            ValueError: when there is no action token in any rollout.
        """
        owned = [(number, rollout) for number, group in enumerate(groups) for rollout in group.rollouts]
        rollouts = [rollout for _, rollout in owned]
        if not any(r.num_actions for r in rollouts):
            raise ValueError("a batch needs at least one action token; every rollout is empty")
        lengths = np.array([len(r.tokens) for r in rollouts], dtype=np.int64)
        actions = np.array([r.num_actions for r in rollouts], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        group_id = np.array([number for number, _ in owned], dtype=np.int64)
        num_groups = len(groups)
        names = set(rollouts[0].streams).intersection(*(r.streams for r in rollouts))
        streams = {n: _float(np.concatenate([r.streams[n] for r in rollouts])) for n in sorted(names)}
        advantages = [np.zeros(r.num_actions) if r.advantages is None else r.advantages for r in rollouts]
        positions = [r.action_index + start for r, start in zip(rollouts, starts[:-1], strict=True)]
        prefixes = [_prefix_length(group.rollouts) for group in groups for _ in group.rollouts]
        return cls(
            tokens=torch.from_numpy(np.concatenate([r.tokens for r in rollouts]).astype(np.int64)),
            cu_seqlens=torch.from_numpy(starts.astype(np.int64)),
            action_index=torch.from_numpy(np.concatenate(positions).astype(np.int64)),
            sequence_id=torch.from_numpy(np.repeat(np.arange(len(rollouts)), actions)),
            advantages=_float(np.concatenate(advantages)),
            streams=streams,
            group_id=torch.from_numpy(group_id),
            prefix_length=torch.tensor(prefixes, dtype=torch.int64),
            group_sequences=torch.from_numpy(np.bincount(group_id, minlength=num_groups)[group_id]),
            group_tokens=torch.from_numpy(
                np.bincount(group_id, weights=actions, minlength=num_groups).astype(np.int64)[group_id]
            ),
            rewards=_float(np.array([_reward(r, reward) for r in rollouts])),
            bootstrap_values=_float(np.array([r.bootstrap_value for r in rollouts])),
            counts=Counts(int(actions.sum()), len(rollouts), num_groups),
        )

    @property
    def num_sequences(self) -> int:
        """S of this (micro-)batch."""
        return len(self.cu_seqlens) - 1

    @property
    def num_actions(self) -> int:
        """A of this (micro-)batch."""
        return len(self.action_index)

    @property
    def lengths(self) -> Int[Tensor, "S"]:
        """Tokens of each sequence."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def action_lengths(self) -> Int[Tensor, "S"]:
        """Action tokens of each sequence."""
        return torch.bincount(self.sequence_id, minlength=self.num_sequences)

    def segment_sum(self, values: Float[Tensor, "A"]) -> Float[Tensor, "S"]:
        """Sum per sequence; differentiable; 0 for a sequence without action tokens."""
        return values.new_zeros(self.num_sequences).index_add(0, self.sequence_id, values)

    def segment_mean(self, values: Float[Tensor, "A"]) -> Float[Tensor, "S"]:
        """Mean per sequence; differentiable; 0 for a sequence without action tokens."""
        return self.segment_sum(values) / self.action_lengths.clamp(min=1).to(values.dtype)

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        moved: dict[str, Any] = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, streams={n: s.to(device) for n, s in self.streams.items()}, **moved)

    def with_streams(
        self, streams: Mapping[str, Float[Tensor, "A"]], scalars: Mapping[str, float] | None = None
    ) -> Self:
        """A copy with more streams (each of length A) and scalars."""
        for name, values in streams.items():
            if values.shape != (self.num_actions,):
                raise ValueError(f"stream {name!r} has shape {tuple(values.shape)}, expected ({self.num_actions},)")
        return replace(self, streams={**self.streams, **streams}, scalars={**self.scalars, **(scalars or {})})

    def select(self, sequences: Sequence[int] | Int[Tensor, "M"]) -> Self:
        """The micro-batch of these whole sequences, in this order, with the same global counts."""
        chosen = torch.as_tensor(sequences, dtype=torch.int64, device=self.tokens.device)
        lengths, actions = self.lengths[chosen], self.action_lengths[chosen]
        action_starts = torch.cumsum(self.action_lengths, 0) - self.action_lengths
        token_at = _ranges(self.cu_seqlens[:-1][chosen], lengths)
        action_at = _ranges(action_starts[chosen], actions)
        starts = torch.cumsum(lengths, 0) - lengths
        shift = (starts - self.cu_seqlens[:-1][chosen]).repeat_interleave(actions)
        return replace(
            self,
            tokens=self.tokens[token_at],
            cu_seqlens=torch.cat([starts.new_zeros(1), torch.cumsum(lengths, 0)]),
            action_index=self.action_index[action_at] + shift,
            sequence_id=torch.arange(len(chosen), device=chosen.device).repeat_interleave(actions),
            advantages=self.advantages[action_at],
            streams={n: s[action_at] for n, s in self.streams.items()},
            group_id=self.group_id[chosen],
            prefix_length=self.prefix_length[chosen],
            group_sequences=self.group_sequences[chosen],
            group_tokens=self.group_tokens[chosen],
            rewards=self.rewards[chosen],
            bootstrap_values=self.bootstrap_values[chosen],
        )

    def with_own_counts(self) -> Self:
        """A copy whose denominators are those of the sequences it holds: one mini-batch is one optimizer step."""
        groups, inverse = torch.unique(self.group_id, return_inverse=True)
        tokens = torch.zeros(len(groups), dtype=torch.int64, device=inverse.device)
        tokens = tokens.index_add(0, inverse, self.action_lengths)
        return replace(
            self,
            group_sequences=torch.bincount(inverse, minlength=len(groups))[inverse],
            group_tokens=tokens[inverse],
            counts=Counts(self.num_actions, self.num_sequences, len(groups)),
        )


@dataclass(frozen=True, eq=False)
class Outputs:
    """What the model says about a (micro-)batch, with gradient. A action tokens.

    Attributes:
        logprobs: of each action token under the current policy, at the sampling temperature.
        entropy: of the distribution that each action token was drawn from (nats); present when the loss asks for it.
        values: critic's value before each action token; present with a critic.
        extra: further per-action-token outputs a loss asked for by name (e.g. "sum_probs_squared").
    """

    logprobs: Float[Tensor, "A"]
    entropy: Float[Tensor, "A"] | None = None
    values: Float[Tensor, "A"] | None = None
    extra: Mapping[str, Float[Tensor, "A"]] = field(default_factory=dict)


def _float(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenation of arange(start, start + length)."""
    ends = torch.cumsum(lengths, 0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total, device=starts.device) + (starts - (ends - lengths)).repeat_interleave(lengths)


def _prefix_length(rollouts: Sequence[Rollout]) -> int:
    """Tokens before the first action in every rollout of a group, where they are the same tokens; 0 otherwise."""
    firsts = [int(r.action_index[0]) for r in rollouts if r.num_actions]
    if not firsts:
        return 0
    shortest = min(firsts)
    head = rollouts[0].tokens[:shortest]
    same = all(np.array_equal(r.tokens[:shortest], head) for r in rollouts)
    return shortest if same else 0


def _reward(rollout: Rollout, name: str) -> float:
    score = rollout.scores.get(name)
    return float("nan") if score is None or score.value is None else score.value
