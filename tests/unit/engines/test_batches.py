"""The path of models whose cache is not plain."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from coterie.config.schema import TransformersEngineConfig
from coterie.core.types import Request, Sampling
from coterie.engines import embedded
from coterie.engines.batches import Batches
from coterie.engines.embedded import TransformersEngine

NAMES = ["mistral_window", "gemma2", "lfm2"]


def make_requests(counts, max_tokens=24, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Request(
            tuple(rng.integers(3, 259, int(rng.integers(2, 30))).tolist()),
            tuple(int(s) for s in rng.integers(0, 2**63, n)),
            Sampling(max_tokens=max_tokens),
            tuple(int(t) for t in rng.integers(1, max_tokens + 1, n)),
        )
        for n in counts
    ]


@pytest.fixture
def counted(monkeypatch):
    """Shapes of the ids of every forward pass of the path."""
    seen = []
    inner = Batches._forward

    def forward(self, ids, *rest):
        seen.append(tuple(ids.shape))
        return inner(self, ids, *rest)

    monkeypatch.setattr(Batches, "_forward", forward)
    return seen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_rows", [1, 4, 64])
def test_samples_do_not_depend_on_what_runs_beside_them(make_model, tokenizer, name, max_rows, counted):
    module = make_model(name)
    requests = make_requests([3, 1, 6])
    engine = TransformersEngine(module, tokenizer, TransformersEngineConfig(max_rows=max_rows), device="cpu")
    got = engine.generate_sync(requests)
    assert counted
    assert engine.last["peak_rows"] == min(max_rows, 10)
    for request, group in zip(requests, got, strict=True):
        for seed, limit, completion in zip(request.seeds, request.max_tokens, group, strict=True):
            (alone,) = engine.generate_sync([replace(request, seeds=(seed,), max_tokens=(limit,))])[0]
            assert completion.tokens.tolist() == alone.tokens.tolist()
            np.testing.assert_allclose(completion.logprobs, alone.logprobs, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_is_computed_once_and_rows_leave(make_model, tokenizer, name, counted):
    engine = TransformersEngine(make_model(name), tokenizer, TransformersEngineConfig(), device="cpu")
    request = Request((5,) * 12, (1, 2, 3, 4), Sampling(ignore_eos=True), (2, 5, 3, 9))
    engine.generate_sync([request])
    assert counted[0] == (1, 12)
    assert [rows for rows, _ in counted[1:]] == [4, 3, 2, 2, 1, 1, 1, 1]


def test_prefill_is_bounded_in_padded_tokens(make_model, tokenizer, counted):
    config = TransformersEngineConfig(prefill_tokens=20)
    engine = TransformersEngine(make_model("gemma2"), tokenizer, config, device="cpu")
    requests = [Request((5,) * n, (n,), Sampling(max_tokens=1)) for n in (9, 8, 3, 30, 9)]
    engine.generate_sync(requests)
    assert sorted(counted) == [(1, 30), (2, 8), (2, 9)]


def test_the_cache_bound_counts_the_padding(make_model, tokenizer):
    per_token = 2 * 2 * 2 * 8 * 4  # keys and values, 2 layers, 2 heads of 8 numbers in float32
    long_prompt = Request((5,) * 120, (1,), Sampling(ignore_eos=True), (8,))
    long_answer = Request((5,) * 8, (2,), Sampling(ignore_eos=True), (120,))
    for rows, blocks in ((1, 4), (2, 8)):
        config = TransformersEngineConfig(kv_cache_gib=blocks * 64 * per_token / 2**30)
        engine = TransformersEngine(make_model("gemma2"), tokenizer, config, device="cpu")
        engine.generate_sync([long_prompt, long_answer])
        assert engine.last["peak_rows"] == rows


def test_a_row_within_the_window_takes_the_plain_path(make_model, tokenizer, counted, monkeypatch):
    engine = TransformersEngine(make_model("mistral_window"), tokenizer, TransformersEngineConfig(), device="cpu")
    engine.generate_sync([Request((5, 6, 7), (1,), Sampling(max_tokens=5))])
    assert not counted
    engine.generate_sync([Request((5, 6, 7), (1,), Sampling(max_tokens=6, ignore_eos=True))])
    assert counted


def test_progress_counts_up_to_everything(make_model, tokenizer):
    seen = []
    engine = embedded.TransformersEngine(
        make_model("gemma2"),
        tokenizer,
        TransformersEngineConfig(max_rows=3),
        device="cpu",
        on_progress=lambda *now: seen.append(now),
    )
    got = engine.generate_sync(make_requests([3, 2, 4]))
    assert seen[-1] == (9, 9, sum(len(c.tokens) for g in got for c in g))
    assert all(a <= b for a, b in pairwise(seen))
