import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.batch import Batch
from coterie.core.types import Example, Group, Rollout, Score


def make_group(name, sizes, prompt=(9, 9)):
    rollouts = []
    for i, size in enumerate(sizes):
        tokens = np.array([*prompt, *range(1, size + 1)])
        actions = np.arange(len(prompt), len(tokens))
        streams = {"sampler_logprobs": -np.arange(1.0, size + 1)}
        scores = {"reward": Score(float(i)) if i else Score.missing("down")}
        rollouts.append(Rollout(tokens, actions, "", "stop", index=i, streams=streams, scores=scores))
    group = Group(Example(name, ({"role": "user", "content": "q"},)), tuple(rollouts))
    return group.with_advantages([float(i) for i in range(len(sizes))])


def test_flattening_keeps_every_token_and_counts_globally():
    batch = Batch.from_groups([make_group("a", [1, 3]), make_group("b", [2], prompt=(5,))])
    assert batch.cu_seqlens.tolist() == [0, 3, 8, 11]
    assert batch.tokens.tolist() == [9, 9, 1, 9, 9, 1, 2, 3, 5, 1, 2]
    assert batch.tokens[batch.action_index].tolist() == [1, 1, 2, 3, 1, 2]
    assert batch.sequence_id.tolist() == [0, 1, 1, 1, 2, 2]
    assert batch.group_id.tolist() == [0, 0, 1]
    assert batch.group_tokens.tolist() == [4, 4, 2]
    assert batch.group_sequences.tolist() == [2, 2, 1]
    assert batch.prefix_length.tolist() == [2, 2, 1]
    assert (batch.counts.action_tokens, batch.counts.sequences, batch.counts.groups) == (6, 3, 2)
    assert torch.isnan(batch.rewards[0]) and batch.rewards[1] == 1


def test_prompts_that_differ_share_no_prefix():
    a, b = make_group("a", [1]), make_group("a", [1], prompt=(9, 8))
    mixed = Group(a.example, a.rollouts + b.rollouts)
    assert Batch.from_groups([mixed]).prefix_length.tolist() == [0, 0]


def test_a_stream_that_one_rollout_lacks_is_left_out():
    group = make_group("a", [1, 2])
    half = group.with_rollouts([group.rollouts[0].with_streams(values=[1.0]), group.rollouts[1]])
    assert set(Batch.from_groups([half]).streams) == {"sampler_logprobs"}


def test_a_batch_without_action_tokens_is_refused():
    with pytest.raises(ValueError, match="action token"):
        Batch.from_groups([make_group("a", [0])])


sizes = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4)


@given(sizes, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_selecting_parts_loses_nothing(groups, random):
    if not any(n for g in groups for n in g):
        groups[0][0] = 1
    batch = Batch.from_groups([make_group(str(i), g) for i, g in enumerate(groups)])
    order = list(range(batch.num_sequences))
    random.shuffle(order)
    cut = random.randint(0, len(order))
    parts = [batch.select(order[:cut]), batch.select(order[cut:])]
    assert all(p.counts == batch.counts for p in parts)
    assert sum(p.num_actions for p in parts) == batch.num_actions
    for part, chosen in zip(parts, (order[:cut], order[cut:]), strict=True):
        for at, sequence in enumerate(chosen):
            start, end = batch.cu_seqlens[sequence], batch.cu_seqlens[sequence + 1]
            mine = part.tokens[part.cu_seqlens[at] : part.cu_seqlens[at + 1]]
            assert torch.equal(mine, batch.tokens[start:end])
            whole, own = batch.sequence_id == sequence, part.sequence_id == at
            assert torch.equal(part.advantages[own], batch.advantages[whole])
            assert torch.equal(part.tokens[part.action_index][own], batch.tokens[batch.action_index][whole])
    sums = torch.cat([p.segment_sum(p.streams["sampler_logprobs"]) for p in parts])
    assert torch.equal(sums, batch.segment_sum(batch.streams["sampler_logprobs"])[order])


def test_segment_sums_are_differentiable():
    batch = Batch.from_groups([make_group("a", [1, 3])])
    x = torch.ones(batch.num_actions, requires_grad=True)
    (batch.segment_mean(x) * torch.tensor([1.0, 3.0])).sum().backward()
    assert torch.allclose(x.grad, torch.ones(4))


def test_a_mini_batch_takes_its_own_counts():
    batch = Batch.from_groups([make_group("a", [1, 3]), make_group("b", [2])])
    mini = batch.select([2, 1]).with_own_counts()
    assert (mini.counts.action_tokens, mini.counts.sequences, mini.counts.groups) == (5, 2, 2)
    assert mini.group_tokens.tolist() == [2, 3]
    assert mini.group_sequences.tolist() == [1, 1]


def test_streams_must_fit():
    batch = Batch.from_groups([make_group("a", [1, 3])])
    assert batch.with_streams({"values": torch.zeros(4)}, {"entropy_coef": 0.1}).scalars == {"entropy_coef": 0.1}
    with pytest.raises(ValueError, match="values"):
        batch.with_streams({"values": torch.zeros(3)})
