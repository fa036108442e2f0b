import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from coterie.config.schema import LocalLearnerConfig
from coterie.learners.packing import Plan, Shape, choose_shape, lay_out, split


def plan(needed, prefix=None, group=None):
    starts = [sum(needed[:i]) + 2 * i for i in range(len(needed))]  # two unread tokens after each sequence
    tokens = torch.arange(sum(needed) + 2 * len(needed)) + 100
    for i, (size, family) in enumerate(zip(prefix or [], group or [], strict=True)):
        tokens[starts[i] : starts[i] + size] = torch.arange(size) + 10 * family
    return Plan(
        tokens,
        tuple(starts),
        tuple(needed),
        tuple(group or range(len(needed))),
        tuple(prefix or [0] * len(needed)),
    )


def seen(layout, s, needed):
    """The tokens that sequence `s` of the layout consists of, wherever they are."""
    sequence = torch.full((needed,), s)
    return layout.input_ids.flatten()[layout.flat(sequence, torch.arange(needed))].tolist()


@pytest.mark.parametrize("packed", [True, False])
def test_every_token_that_is_read_is_found(packed):
    p = plan([5, 0, 3, 9])
    layout = lay_out(p, [3, 1, 0], packed)
    for row, s in enumerate([3, 1, 0]):
        expected = p.tokens[p.starts[s] : p.starts[s] + p.needed[s]].tolist()
        assert seen(layout, row, p.needed[s]) == expected
    assert layout.real == 14
    assert layout.input_ids.shape == ((1, 14) if packed else (2, 9))


def test_packed_rows_count_positions_within_each_sequence():
    p = plan([3, 5], prefix=[2, 2], group=[0, 0])
    layout = lay_out(p, [0, 1], True)
    assert layout.position_ids.tolist() == [[0, 1, 2, 3, 4, 2]]
    assert layout.input_ids.shape == (1, 6)
    assert [seen(layout, s, n) for s, n in enumerate(p.needed)] == [[0, 1, 102], [0, 1, 107, 108, 109]]


def test_a_sequence_that_ends_with_the_prefix_takes_no_place():
    p = plan([2, 4], prefix=[2, 2], group=[0, 0])
    layout = lay_out(p, [0, 1], True)
    assert layout.input_ids.shape == (1, 4)
    assert seen(layout, 0, 2) == [0, 1]


def test_the_padded_layout_needs_no_position_ids_and_no_blocks():
    layout = lay_out(plan([2, 4]), [0, 1], False)
    assert layout.position_ids is None and layout.blocks is None
    assert layout.input_ids[0, 2:].tolist() == [0, 0]


def test_families_that_fit_are_not_torn_apart():
    p = plan([10] * 8, prefix=[6] * 8, group=[0] * 4 + [1] * 4)  # 22 positions a family
    assert split(p, 30, True) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert split(p, 44, True) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_family_larger_than_the_budget_is_cut_evenly():
    p = plan([10] * 6, prefix=[6] * 6, group=[0] * 6)
    assert split(p, 24, True) == [[0, 1, 2], [3, 4, 5]]


def test_micro_batches_are_of_about_one_size():
    parts = split(plan([10] * 9), 40, True)
    assert [len(part) for part in parts] == [3, 3, 3]  # not 4, 4, 1


def test_a_sequence_longer_than_the_budget_stands_alone():
    assert split(plan([50, 3, 4]), 10, True) == [[0], [2, 1]]


def test_padded_rows_cost_their_width():
    assert split(plan([10, 2, 2, 2, 2]), 20, False) == [[0], [1, 2, 3, 4]]


needs = st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(any)


@given(needs, st.integers(1, 80), st.booleans(), st.booleans())
@settings(deadline=None)
def test_splits_hold_every_sequence_once_within_the_budget(needed, budget, packed, share):
    group = [i // 3 for i in range(len(needed))]
    prefix = None
    if share and packed:
        prefix = [
            min(needed[i] for i in range(len(needed)) if group[i] == g and needed[i]) if needed[k] else 0
            for k, g in enumerate(group)
        ]
    p = plan(needed, prefix, group if prefix else None)
    parts = split(p, budget, packed)
    assert sorted(s for part in parts for s in part) == list(range(len(needed)))
    assert parts == split(p, budget, packed)
    for part in parts:
        layout = lay_out(p, part, packed)
        readers = [s for s in part if p.needed[s]]
        assert layout.input_ids.numel() <= max(budget, max(p.needed[s] for s in readers))
        for row, s in enumerate(part):
            expected = p.tokens[p.starts[s] : p.starts[s] + p.needed[s]].tolist()
            assert seen(layout, row, p.needed[s]) == expected


def test_sizes_are_chosen_from_the_model_and_can_be_set():
    small = choose_shape(LlamaConfig(hidden_size=64, num_hidden_layers=2), LocalLearnerConfig(), None)
    large = choose_shape(LlamaConfig(hidden_size=2048, num_hidden_layers=24), LocalLearnerConfig(), None)
    assert small.micro_batch_tokens > large.micro_batch_tokens >= 512
    chosen = choose_shape(LlamaConfig(), LocalLearnerConfig(micro_batch_tokens=77, head_chunk=5), None)
    assert chosen == Shape(77, 5)
    careful = LocalLearnerConfig(gradient_checkpointing=True)
    big = LlamaConfig(hidden_size=2048, num_hidden_layers=24)
    assert choose_shape(big, careful, None).micro_batch_tokens > large.micro_batch_tokens
