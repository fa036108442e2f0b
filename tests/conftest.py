"""Shared by all tests: one compute thread, and batches made by hand."""

import pytest
import torch

from coterie.core.batch import Batch, Counts

torch.set_num_threads(1)


def make_flat_batch(lengths, groups=None, rewards=None, advantages=None, dtype=torch.float64, **streams):
    """A batch of sequences with these numbers of action tokens, each behind one prompt token."""
    total, count = sum(lengths), len(lengths)
    group = torch.tensor(list(range(count)) if groups is None else groups)
    starts = torch.tensor([0] + [n + 1 for n in lengths]).cumsum(0)
    tokens = torch.zeros(int(group.max()) + 1, dtype=torch.int64).index_add(0, group, torch.tensor(lengths))
    return Batch(
        tokens=torch.arange(total + count),
        cu_seqlens=starts,
        action_index=torch.cat([torch.arange(s + 1, s + 1 + n) for s, n in zip(starts[:-1], lengths, strict=True)]),
        sequence_id=torch.arange(count).repeat_interleave(torch.tensor(lengths)),
        advantages=torch.as_tensor([1.0] * total if advantages is None else advantages, dtype=dtype),
        streams={name: torch.as_tensor(values, dtype=dtype) for name, values in streams.items()},
        group_id=group,
        prefix_length=torch.ones(count, dtype=torch.int64),
        group_sequences=torch.bincount(group)[group],
        group_tokens=tokens[group],
        rewards=torch.as_tensor([0.0] * count if rewards is None else rewards, dtype=dtype),
        bootstrap_values=torch.zeros(count, dtype=dtype),
        counts=Counts(total, count, len(torch.unique(group))),
    )


@pytest.fixture(scope="session")
def flat_batch():
    """`make_flat_batch` as a fixture, because test files don't import each other."""
    return make_flat_batch
