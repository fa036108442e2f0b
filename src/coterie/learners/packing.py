"""Whole sequences into micro-batches, and micro-batches into what a model is fed.

Two layouts. *Packed*: one row without any padding, attention restricted to each sequence by `attention.Blocks`.
*Padded*: one sequence a row, padded on the right, for architectures that can't be packed; causality alone keeps the
padding out of all mathematics, so no attention mask is needed. Both drop what nobody reads: sequences without action
tokens and the tokens after the last position that predicts one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from coterie.config.schema import LocalLearnerConfig
from coterie.learners.attention import Blocks, Rows

_PAD = 0  # any valid id: nothing reads what a padded position computes
_BUCKET_SLACK = 0.8  # sequences attend together when the shortest has at least this share of the longest's tokens


@dataclass(frozen=True)
class Shape:
    """How a batch is cut.

    Attributes:
        micro_batch_tokens: positions of one forward pass.
        head_chunk: action positions whose logits exist at one time.
    """

    micro_batch_tokens: int
    head_chunk: int


@dataclass(frozen=True)
class Plan:
    """What has to be computed for a batch, on the host.

    Attributes:
        tokens: the batch's token ids.
        starts: where each sequence starts in `tokens`.
        needed: leading tokens of each sequence that the model must see (0: nothing is read from it).
        shared: for each sequence a number that is equal where the first `prefix` tokens may be computed once.
        prefix: how many leading tokens of each sequence may be shared; at most `needed`; 0 without sharing.
    """

    tokens: Int[Tensor, "N"]
    starts: tuple[int, ...]
    needed: tuple[int, ...]
    shared: tuple[int, ...]
    prefix: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """What the model's body is fed. N positions in all.

    Attributes:
        input_ids: token ids.
        position_ids: position of each token in its own sequence; None where they count from 0 in each row.
        place: for each sequence of the micro-batch, the flat index of its token j: `place[s] + j` for j >= prefix,
            `shared_place[s] + j` below.
        shared_place: see `place`.
        prefix: leading tokens of each sequence that are found at `shared_place`.
        blocks: which positions attend to which; None for the padded layout (causal within each row).
        real: positions that are not padding.
    """

    input_ids: Int[Tensor, "rows length"]
    position_ids: Int[Tensor, "rows length"] | None
    place: Int[Tensor, "S"]
    shared_place: Int[Tensor, "S"]
    prefix: Int[Tensor, "S"]
    blocks: Blocks | None
    real: int

    def map(self, function: Callable[[Tensor], Tensor]) -> Layout:
        """The same layout with `function` applied to what the model reads; `place`… stay on the host."""
        return replace(
            self,
            input_ids=function(self.input_ids),
            position_ids=None if self.position_ids is None else function(self.position_ids),
            blocks=None if self.blocks is None else self.blocks.map(function),
        )

    def flat(self, sequence: Int[Tensor, "A"], position: Int[Tensor, "A"]) -> Int[Tensor, "A"]:
        """Flat index, in the body's output, of token `position` of sequence `sequence`."""
        own = position >= self.prefix[sequence]
        return torch.where(own, self.place[sequence], self.shared_place[sequence]) + position


def split(plan: Plan, budget: int, packed: bool) -> list[list[int]]:
    """Sequences of each micro-batch: at most `budget` positions each (one sequence may exceed it alone).

    Deterministic. Sequences that share a prefix stay together where they fit into one micro-batch; otherwise the
    longest come first, so that a micro-batch holds sequences of like length. Sizes are evened out. Sequences that need
    no forward pass ride along with the first micro-batch.
    """
    parts: list[list[int]] = []
    room = 0
    for family, shared in _families(plan, range(len(plan.needed))):
        lengths = [plan.needed[s] - shared for s in family]
        pieces = _even_runs(lengths, budget - shared, packed)
        for first, last in pieces:
            cost = shared + sum(lengths[first:last])
            if not shared or not parts or cost > room:
                parts.append([])
                room = budget
            parts[-1].extend(family[first:last])
            room -= cost
    unread = [s for s, needed in enumerate(plan.needed) if not needed]
    return [[*parts[0], *unread], *parts[1:]]


def split_groups(plan: Plan, groups: Sequence[int], budget: int, packed: bool) -> list[list[int]]:
    """As `split`, but the sequences of a group stay together (a group may exceed the budget alone).

    Args:
        plan: what has to be computed.
        groups: group of each sequence.
        budget: positions of a micro-batch.
        packed: whether a micro-batch is one row without padding.
    """
    members: dict[int, list[int]] = {}
    for s, group in enumerate(groups):
        members.setdefault(group, []).append(s)
    longest = {g: max(plan.needed[s] for s in owned) for g, owned in members.items()}
    if packed:
        cost = {g: _positions(plan, owned) for g, owned in members.items()}
    else:  # a group has as many rows as the largest one, each as wide as the widest of the micro-batch
        budget //= max(len(owned) for owned in members.values())
        cost = longest
    order = sorted((g for g in members if longest[g]), key=lambda g: -cost[g])
    runs = _even_runs([cost[g] for g in order], budget, packed)
    parts = [[s for g in order[first:last] for s in members[g]] for first, last in runs]
    unread = [s for g, owned in members.items() if not longest[g] for s in owned]
    return [[*parts[0], *unread], *parts[1:]]


def _positions(plan: Plan, sequences: Sequence[int]) -> int:
    """Positions of these sequences in a packed row."""
    families = _families(plan, sequences)
    return sum(shared + sum(plan.needed[sequences[i]] - shared for i in family) for family, shared in families)


def _even_runs(lengths: Sequence[int], budget: int, packed: bool) -> list[tuple[int, int]]:
    """Ranges of falling `lengths` that cost at most `budget` each and about the same; padded rows cost their width."""

    def cost(first: int, last: int) -> int:
        return sum(lengths[first:last]) if packed else lengths[first] * (last - first)

    def runs(limit: float) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        first = 0
        for last in range(1, len(lengths) + 1):
            if last == len(lengths) or cost(first, last + 1) > limit:
                found.append((first, last))
                first = last
        return found

    greedy = runs(budget)
    low, high = sum(lengths) / len(greedy), float(budget)
    while high - low > 1:  # the smallest limit that needs no more micro-batches
        middle = (low + high) / 2
        low, high = (low, middle) if len(runs(middle)) <= len(greedy) else (middle, high)
    return runs(high)


def lay_out(plan: Plan, sequences: Sequence[int], packed: bool) -> Layout:
    """The layout of one micro-batch: row `i` of `place` belongs to `sequences[i]`."""
    return _packed(plan, sequences) if packed else _padded(plan, sequences)


def _padded(plan: Plan, sequences: Sequence[int]) -> Layout:
    read = [(i, s) for i, s in enumerate(sequences) if plan.needed[s]]
    width = max(plan.needed[s] for _, s in read)
    input_ids = plan.tokens.new_full((len(read), width), _PAD)
    place = torch.zeros(len(sequences), dtype=torch.int64)
    for row, (i, s) in enumerate(read):
        input_ids[row, : plan.needed[s]] = plan.tokens[plan.starts[s] : plan.starts[s] + plan.needed[s]]
        place[i] = row * width
    zero = torch.zeros_like(place)
    return Layout(input_ids, None, place, zero, zero, None, sum(plan.needed[s] for _, s in read))


def _packed(plan: Plan, sequences: Sequence[int]) -> Layout:
    """One row: for each shared prefix its tokens, then the rest of each of its sequences."""
    place = torch.zeros(len(sequences), dtype=torch.int64)
    shared_place, prefix = torch.zeros_like(place), torch.zeros_like(place)
    pieces: list[Tensor] = []
    positions: list[Tensor] = []
    blocks: list[Rows] = []
    at = 0

    def put(sequence: int, first: int, last: int) -> None:
        nonlocal at
        start = plan.starts[sequence]
        pieces.append(plan.tokens[start + first : start + last])
        positions.append(torch.arange(first, last))
        at += last - first

    for members, shared in _families(plan, sequences):
        shared_at = at
        if shared:
            put(sequences[members[0]], 0, shared)
            blocks.append((shared_at, 0, [(shared_at, shared)]))
        for bucket in _buckets([(plan.needed[sequences[i]] - shared, i) for i in members]):
            rows: list[tuple[int, int]] = []
            for own, i in bucket:
                place[i], shared_place[i], prefix[i] = at - shared, shared_at, shared
                if own:
                    rows.append((at, own))
                    put(sequences[i], shared, shared + own)
            if rows:
                blocks.append((shared_at, shared, rows))
    return Layout(
        torch.cat(pieces)[None], torch.cat(positions)[None], place, shared_place, prefix, Blocks.of(blocks), at
    )


def _families(plan: Plan, sequences: Sequence[int]) -> list[tuple[list[int], int]]:
    """`(indices into sequences, longest first; prefix they share)`; all in one where nothing is shared."""
    families: dict[tuple[int, int], list[int]] = {}
    for i, s in enumerate(sequences):
        if plan.needed[s]:
            families.setdefault((plan.shared[s], plan.prefix[s]) if plan.prefix[s] else (-1, 0), []).append(i)
    return [
        (sorted(members, key=lambda i: -plan.needed[sequences[i]]), prefix) for (_, prefix), members in families.items()
    ]


def _buckets(lengths: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """(length, index) pairs, longest first, in runs of like length."""
    buckets: list[list[tuple[int, int]]] = []
    for length, index in sorted(lengths, key=lambda pair: -pair[0]):
        if not buckets or length < _BUCKET_SLACK * buckets[-1][0][0]:
            buckets.append([])
        buckets[-1].append((length, index))
    return buckets


def choose_shape(model_config: Any, config: LocalLearnerConfig, gpu_memory: int | None) -> Shape:
    """Micro-batch and chunk sizes: those set, or chosen from the model's dimensions and the device alone.

    Activations of a micro-batch take 1.5 GiB on a CPU, and on a GPU half of what its memory leaves after weights,
    gradients and optimizer state (16 bytes a parameter); the logits of a chunk take a quarter GiB on a CPU, one GiB on
    a GPU. A micro-batch has 512 to 4096 positions on a CPU (more was never faster), to 32768 on a GPU. Nothing depends
    on free memory or time, so a resumed run cuts the same.

    Args:
        model_config: transformers configuration.
        config: what is set there is taken as it is.
        gpu_memory: bytes that the GPU has in all; None on a CPU.
    """
    text = model_config.get_text_config()
    gib = 1 << 30
    if gpu_memory is not None:
        activations = max(gib, (gpu_memory - 16 * count_parameters(text)) // 2)
        logits = gib
    else:
        activations, logits = 3 * gib // 2, gib // 4
    per_token = activation_bytes(text, 4 if gpu_memory is None else 2, config.gradient_checkpointing)
    tokens = min(max(activations // per_token, 512), 1 << 12 if gpu_memory is None else 1 << 15)
    chunk = max(logits // (4 * text.vocab_size), 64)
    return Shape(config.micro_batch_tokens or tokens, config.head_chunk or chunk)


def activation_bytes(text: Any, width: int, checkpointing: bool = False) -> int:
    """Roughly what the body keeps for the backward pass, a position: 12 hidden and 4 intermediate vectors a layer."""
    hidden = text.hidden_size
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    layer = 12 * hidden + 4 * inner
    if checkpointing:
        return width * (text.num_hidden_layers * hidden + layer)
    return width * text.num_hidden_layers * layer


def count_parameters(text: Any) -> int:
    """Roughly the parameters of a decoder with these dimensions."""
    hidden = text.hidden_size
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    return text.num_hidden_layers * (4 * hidden * hidden + 3 * hidden * inner) + text.vocab_size * hidden
