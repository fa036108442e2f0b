import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.learners.packing import Plan, split_groups


def plan(needed, prefix=None, group=None):
    starts = [sum(needed[:i]) for i in range(len(needed))]
    shared = tuple(group or range(len(needed)))
    return Plan(torch.arange(sum(needed)), tuple(starts), tuple(needed), shared, tuple(prefix or [0] * len(needed)))


def test_a_pair_stays_together_whatever_the_budget():
    p = plan([9, 2, 3, 8, 5, 5])
    groups = [0, 0, 1, 1, 2, 2]
    assert split_groups(p, groups, 1, True) == [[0, 1], [2, 3], [4, 5]]
    assert split_groups(p, groups, 22, True) == [[0, 1], [2, 3, 4, 5]]
    assert split_groups(p, groups, 99, True) == [[0, 1, 2, 3, 4, 5]]


def test_padded_groups_cost_rows_times_width():
    p = plan([9, 2, 3, 8])
    assert split_groups(p, [0, 0, 1, 1], 36, False) == [[0, 1, 2, 3]]
    assert split_groups(p, [0, 0, 1, 1], 35, False) == [[0, 1], [2, 3]]


def test_a_shared_prompt_costs_once():
    p = plan([8, 8, 8, 8], prefix=[6, 6, 6, 6], group=[0, 0, 1, 1])
    assert split_groups(p, [0, 0, 1, 1], 20, True) == [[0, 1, 2, 3]]
    assert split_groups(p, [0, 0, 1, 1], 19, True) == [[0, 1], [2, 3]]


def test_sequences_that_nobody_reads_stay_with_their_group():
    assert split_groups(plan([0, 4, 0, 0, 6, 5]), [0, 0, 1, 1, 2, 2], 11, True) == [[4, 5, 2, 3], [0, 1]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=24), st.integers(1, 60), st.booleans(), st.data())
def test_groups_are_whole_and_every_sequence_is_there_once(needed, budget, packed, data):
    needed[0] = max(needed[0], 1)
    groups = [data.draw(st.integers(0, 5)) for _ in needed]
    parts = split_groups(plan(needed), groups, budget, packed)
    assert sorted(s for part in parts for s in part) == list(range(len(needed)))
    for group in set(groups):
        assert sum(any(groups[s] == group for s in part) for part in parts) == 1
    assert all(any(needed[s] for s in part) for part in parts)
