import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.engines.attention import (
    Grouping,
    PromptAttention,
    RowAttention,
    SharedAttention,
    length_mask,
    rows_attention,
    runs_of,
)
from coterie.engines.kv_cache import NotPlainError, Segment, SlotCache, Step

HEADS, KEY_HEADS, DIM = 6, 2, 8


def states(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def naive(q, k, v, scale):
    """[heads, Q, dim] over [key heads, T, dim]; the last query sees all, earlier ones one token less each."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * scale
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("lengths", [(3,), (4, 4, 2), (5, 1, 1, 7)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_packed_prompts_see_themselves_only(lengths, scale):
    total = sum(lengths)
    q, k, v = (states(1, h, total, DIM, seed=s) for s, h in enumerate((HEADS, KEY_HEADS, KEY_HEADS)))
    ends = np.cumsum(lengths)
    segments = [Segment(int(e - n), int(e), ()) for e, n in zip(ends, lengths, strict=True)]
    out = PromptAttention(segments).attend(q, k, v, scale)
    for s in segments:
        part = slice(s.start, s.end)
        want = naive(q[0, :, part], k[0, :, part], v[0, :, part], DIM**-0.5 if scale is None else scale)
        torch.testing.assert_close(out[0, part].transpose(0, 1), want, atol=1e-5, rtol=1e-5)


def filled_cache(rows, row_length, prompts=0, prompt_length=0):
    """A cache with one layer of random numbers, also after the ends of rows (they must not matter)."""
    cache = SlotCache()
    cache.rows.reserve(rows, row_length, row_length)
    cache.prompts.reserve(prompts, prompt_length, prompt_length)
    for seed, slots in ((10, cache.rows), (20, cache.prompts)):
        if slots.count:
            slots.layer(0, states(1, KEY_HEADS, 1, DIM), states(1, KEY_HEADS, 1, DIM))
            slots.keys[0].copy_(states(*slots.keys[0].shape, seed=seed))
            slots.values[0].copy_(states(*slots.values[0].shape, seed=seed + 1))
    return cache


@pytest.mark.parametrize("lengths", [(5,), (6, 6, 6), (9, 2, 4, 30)])
def test_rows_see_their_own_tokens(lengths):
    cache = filled_cache(len(lengths), 40)
    q = states(len(lengths), HEADS, 1, DIM)
    runs = runs_of(np.array(lengths), KEY_HEADS * DIM)
    mask = length_mask(torch.tensor(lengths), max(lengths), torch.float32)
    masks = [mask[r.start : r.end, ..., : r.length] for r in runs]
    out = RowAttention(cache, runs, masks).attend(q, q, q, None)
    for row, n in enumerate(lengths):
        want = naive(q[row], cache.rows.keys[0][row, :, :n], cache.rows.values[0][row, :, :n], DIM**-0.5)
        torch.testing.assert_close(out[row].transpose(0, 1), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(
    ("owners", "prompt_lengths", "lengths"),
    [
        ((0, 0, 0), (5,), (1, 2, 3)),
        ((0, 0, 1, 1), (5, 3), (4, 4, 4, 4)),
        ((1, 0, 2, 1, 1), (7, 1, 4), (1, 6, 3, 2, 9)),
    ],
)
def test_rows_see_the_shared_prompt_and_their_own_tokens(owners, prompt_lengths, lengths, scale):
    cache = filled_cache(len(owners), 10, len(prompt_lengths), 10)
    q = states(len(owners), HEADS, 1, DIM)
    grouping = Grouping.of(np.array(owners), np.array(prompt_lengths), torch.float32, torch.device("cpu"))
    mask = length_mask(torch.tensor(lengths), max(lengths), torch.float32)
    out = SharedAttention(cache, grouping, max(lengths), mask).attend(q, q, q, scale)
    for row, (owner, n) in enumerate(zip(owners, lengths, strict=True)):
        p = prompt_lengths[owner]
        k, v = (
            torch.cat((prompt[0][owner, :, :p], own[0][row, :, :n]), dim=1)
            for prompt, own in ((cache.prompts.keys, cache.rows.keys), (cache.prompts.values, cache.rows.values))
        )
        want = naive(q[row], k, v, DIM**-0.5 if scale is None else scale)
        torch.testing.assert_close(out[row].transpose(0, 1), want, atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=100), st.sampled_from([16, 192, 1024]))
def test_runs_cover_all_rows_and_cost_no_more_than_the_obvious_splits(lengths, width):
    runs = runs_of(np.array(lengths), width)
    assert runs[0].start == 0 and runs[-1].end == len(lengths)
    assert all(a.end == b.start for a, b in pairwise(runs))
    assert all(r.length == max(lengths[r.start : r.end]) for r in runs)

    def cost(parts):
        return sum(max(1, 65_536 // width) + (b - a) * max(lengths[a:b]) for a, b in parts)

    found = cost([(r.start, r.end) for r in runs])
    assert found <= cost([(i, i + 1) for i in range(len(lengths))])
    if len(lengths) <= 64:
        assert found <= cost([(0, len(lengths))])


def test_a_model_that_is_not_plain_is_refused():
    q = states(1, HEADS, 1, DIM)
    with pytest.raises(NotPlainError, match="keyword"):
        rows_attention(torch.nn.Identity(), q, q, q, None)
    plan = PromptAttention([Segment(0, 1, ())])
    with pytest.raises(NotPlainError, match="softcap"):
        rows_attention(torch.nn.Identity(), q, q, q, None, coterie_plan=plan, softcap=50.0)
    assert plan.calls == 0
    rows_attention(torch.nn.Identity(), q, q, q, None, coterie_plan=plan, softcap=None, sliding_window=None)
    assert plan.calls == 1


def test_a_step_computes_its_targets_once():
    cache = filled_cache(2, 8)
    cache.begin(Step(positions=torch.tensor([1, 2])))
    for _ in range(2):
        cache.update(states(2, KEY_HEADS, 1, DIM), states(2, KEY_HEADS, 1, DIM), 0)
    assert len(cache.step.targets) == 1
