"""Scheduling, seen through the engine: who runs when, what is computed how often, and what must not depend on it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from coterie.config.schema import TransformersEngineConfig
from coterie.core.types import Request, Sampling
from coterie.engines import embedded
from coterie.engines.embedded import TransformersEngine


def make_requests(counts, *, size=259, max_tokens=20, sampling=None, ragged=False, seed=0):
    rng = np.random.default_rng(seed)
    sampling = sampling or Sampling(max_tokens=max_tokens)
    return [
        Request(
            tuple(rng.integers(3, size, int(rng.integers(2, 30))).tolist()),
            tuple(int(s) for s in rng.integers(0, 2**63, n)),
            sampling,
            tuple(int(t) for t in rng.integers(1, max_tokens + 1, n)) if ragged else None,
        )
        for n in counts
    ]


def engine_for(module, tokenizer, **config):
    return TransformersEngine(module, tokenizer, TransformersEngineConfig(**config), device="cpu")


def samples(completions):
    return [[(c.tokens.tolist(), c.finish_reason, c.text) for c in group] for group in completions]


@pytest.fixture(params=["private", "shared"])
def layout(request, monkeypatch):
    """Prompts copied to every row, or shared by the rows of a request."""
    monkeypatch.setattr(embedded, "_SHARED_FROM", 0 if request.param == "shared" else 10**9)
    return request.param


@pytest.fixture
def counted(monkeypatch):
    """Shapes of the ids of every forward pass."""

    def watch(module):
        seen = []
        module.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        return seen

    return watch


@pytest.mark.parametrize("max_rows", [1, 3, 64])
def test_samples_do_not_depend_on_what_runs_beside_them(make_model, tokenizer, layout, max_rows):
    module = make_model("qwen3")
    requests = make_requests([3, 1, 4, 2, 5], ragged=True)
    got = engine_for(module, tokenizer, max_rows=max_rows).generate_sync(requests)
    alone = engine_for(module, tokenizer)
    for request, group in zip(requests, got, strict=True):
        for seed, limit, completion in zip(request.seeds, request.max_tokens, group, strict=True):
            one = replace(request, seeds=(seed,), max_tokens=(limit,))
            (only,) = alone.generate_sync([one])[0]
            assert completion.tokens.tolist() == only.tokens.tolist()
            np.testing.assert_allclose(completion.logprobs, only.logprobs, atol=1e-4)
            assert completion.finish_reason == only.finish_reason


def test_the_same_call_gives_the_same_bits(make_model, tokenizer, layout):
    module = make_model("llama")
    requests = make_requests([4, 2, 7], ragged=True)
    engine = engine_for(module, tokenizer, max_rows=5)
    first, second = engine.generate_sync(requests), engine.generate_sync(requests)
    assert samples(first) == samples(second)
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(x.logprobs, y.logprobs) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("max_rows", [2, 5, 64])
def test_every_prompt_is_computed_once(make_model, tokenizer, layout, counted, max_rows):
    module = make_model("qwen3")
    engine = engine_for(module, tokenizer, max_rows=max_rows)
    engine.generate_sync(make_requests([1]))  # looks the model over
    shapes = counted(module)
    requests = make_requests([7, 1, 6, 3])
    engine.generate_sync(requests)
    prefills = [n for rows, n in shapes if n > 1]
    assert sum(prefills) == sum(len(r.prompt_tokens) for r in requests)
    decoded = sum(rows for rows, n in shapes if n == 1)
    assert decoded == engine.last["tokens"] - 17  # the first token of each row comes from its prompt
    assert engine.last["peak_rows"] == min(max_rows, 17)
    assert engine.last["steps"] == sum(n == 1 for _, n in shapes)


def test_rows_that_end_leave_the_batch(make_model, tokenizer, layout, counted):
    module = make_model("qwen3")
    engine = engine_for(module, tokenizer)
    request = Request((5, 6, 7), (1, 2, 3, 4), Sampling(ignore_eos=True), (2, 5, 3, 9))
    engine.generate_sync([request])
    shapes = counted(module)
    engine.generate_sync([request])
    assert [rows for rows, n in shapes if n == 1] == [4, 3, 2, 2, 1, 1, 1, 1]


def test_waiting_requests_join_and_long_ones_start_first(make_model, tokenizer, layout, counted):
    module = make_model("qwen3")
    engine = engine_for(module, tokenizer, max_rows=2)
    sampling = Sampling(ignore_eos=True)
    requests = [Request((5, 6, 7), (i,), sampling, (limit,)) for i, limit in enumerate((2, 12, 3, 4))]
    engine.generate_sync(requests)
    shapes = counted(module)
    got = engine.generate_sync(requests)
    assert [len(group[0].tokens) for group in got] == [2, 12, 3, 4]
    # 12 and 4 start; 4 leaves after 3 steps, 3 joins, and so on: never more than two rows, 11 steps in all
    assert [rows for rows, n in shapes if n == 1] == [2] * 3 + [2] * 2 + [2] + [1] * 5


def test_prompts_are_packed_up_to_the_prefill_bound(make_model, tokenizer, layout, counted):
    module = make_model("qwen3")
    engine = engine_for(module, tokenizer, prefill_tokens=10)
    requests = [Request((5,) * n, (n,), Sampling(max_tokens=2, ignore_eos=True)) for n in (4, 4, 4, 25, 3, 3, 3)]
    engine.generate_sync(requests)
    shapes = counted(module)
    engine.generate_sync(requests)
    assert sorted(n for rows, n in shapes if n > 1) == [3, 8, 10, 25]
    assert all(rows == 1 for rows, n in shapes if n > 1)


def test_only_last_positions_get_logits(make_model, tokenizer, counted):
    module = make_model("qwen3")
    engine = engine_for(module, tokenizer)
    requests = make_requests([2, 2, 2])
    engine.generate_sync(requests)
    sizes = []
    module.lm_head.register_forward_hook(lambda _, args, out: sizes.append(out.shape[:2].numel()))
    engine.generate_sync(requests)
    assert max(sizes) <= 6


@pytest.mark.parametrize("name", ["qwen3", "mistral_window"])
def test_the_cache_bound_holds(make_model, tokenizer, layout, name):
    module = make_model(name)
    per_token = 2 * 2 * 2 * 8 * 4  # keys and values, 2 layers, 2 heads of 8 numbers in float32
    requests = make_requests([3, 3], max_tokens=30)
    row = 128 if layout == "shared" and name == "qwen3" else 64
    assert max(len(r.prompt_tokens) for r in requests) + 30 <= 64
    spare = 64 if layout == "private" or name != "qwen3" else 0
    budget = (row * 2 + spare) * per_token / 2**30
    engine = engine_for(module, tokenizer, kv_cache_gib=budget)
    got = engine.generate_sync(requests)
    assert engine.last["peak_rows"] == 2
    roomy = engine_for(module, tokenizer).generate_sync(requests)
    assert [[c.tokens.tolist() for c in g] for g in got] == [[c.tokens.tolist() for c in g] for g in roomy]


def test_storage_stays_within_the_bound(make_model, tokenizer, layout, monkeypatch):
    module = make_model("qwen3")
    caches = []
    make = embedded.SlotCache
    monkeypatch.setattr(embedded, "SlotCache", lambda: caches.append(make()) or caches[-1])
    gib = 300_000 / 2**30
    engine = engine_for(module, tokenizer, kv_cache_gib=gib)
    engine.generate_sync(make_requests([9, 9, 9], max_tokens=100))
    (cache,) = caches
    tensors = [t for s in (cache.rows, cache.prompts) for t in (*s.keys, *s.values)]
    assert 0 < sum(t.numel() * 4 for t in tensors) <= 300_000
    assert engine.last["peak_rows"] > 1


def test_progress_counts_up_to_everything(make_model, tokenizer, layout):
    module = make_model("qwen3")
    seen = []
    engine = engine_for(module, tokenizer, max_rows=3)
    engine.on_progress = lambda *now: seen.append(now)
    requests = make_requests([3, 2, 4], ragged=True)
    got = engine.generate_sync(requests)
    assert seen[-1] == (9, 9, sum(len(c.tokens) for g in got for c in g))
    assert all(a <= b for a, b in pairwise(seen))


def test_rows_of_very_different_lengths_attend_apart(make_model, tokenizer, reference_logprobs, monkeypatch):
    module = make_model("qwen3")
    monkeypatch.setattr("coterie.engines.attention._CALL_COST", 1)
    rng = np.random.default_rng(0)
    requests = [
        Request(tuple(rng.integers(3, 259, n).tolist()), (n,), Sampling(max_tokens=40, ignore_eos=True))
        for n in (100, 3, 50, 90, 7)
    ]
    got = engine_for(module, tokenizer).generate_sync(requests)
    for request, (completion,) in zip(requests, got, strict=True):
        logits = reference_logprobs(module, request.prompt_tokens, completion.tokens)
        want = torch.log_softmax(torch.from_numpy(logits), -1).numpy()
        np.testing.assert_allclose(completion.logprobs, want[np.arange(40), completion.tokens], atol=1e-4)
