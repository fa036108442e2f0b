import asyncio
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.config.schema import TransformersEngineConfig
from coterie.core.protocols import Engine, WeightsRef
from coterie.core.types import Request, Sampling
from coterie.engines.embedded import TransformersEngine
from coterie.errors import ConfigError, EngineError, UserError


@pytest.fixture
def module(make_model):
    return make_model("qwen3")


@pytest.fixture
def engine(module, tokenizer):
    return TransformersEngine(module, tokenizer, TransformersEngineConfig(), device="cpu")


def sample(engine, prompt=(5, 6, 7), seeds=(1,), **sampling):
    return engine.generate_sync([Request(tuple(prompt), tuple(seeds), Sampling(**sampling))])[0]


def test_it_is_an_engine_with_coroutines(engine):
    assert isinstance(engine, Engine)
    for name in ("generate", "load", "sleep", "wake"):
        assert inspect.iscoroutinefunction(getattr(engine, name))

    async def life():
        await engine.load(WeightsRef(3))
        await engine.sleep()
        await engine.wake()
        return await engine.generate([Request((5, 6), (1, 2), Sampling(max_tokens=3))])

    ((a, b),) = asyncio.run(life())
    assert a.weights_version == b.weights_version == 3
    assert a.tokens.dtype == np.int64 and a.logprobs.dtype == np.float64
    assert len(a.tokens) == len(a.logprobs) <= 3


def test_weights_in_a_folder_are_refused(engine, tmp_path):
    with pytest.raises(EngineError, match="learner"):
        asyncio.run(engine.load(WeightsRef(1, tmp_path)))


def test_it_samples_with_the_weights_of_the_moment(engine, module):
    (before,) = sample(engine, max_tokens=5, temperature=0.0, ignore_eos=True)
    with torch.no_grad():
        module.model.embed_tokens.weight.neg_()
    (after,) = sample(engine, max_tokens=5, temperature=0.0, ignore_eos=True)
    assert before.tokens.tolist() != after.tokens.tolist()


def test_a_module_in_training_mode_stays_there_and_drops_nothing(engine, module):
    module.config.attention_dropout = 0.5
    for layer in module.model.layers:
        layer.self_attn.attention_dropout = 0.5
    one, two = sample(engine, max_tokens=8), sample(engine, max_tokens=8)
    assert one[0].logprobs.tolist() == two[0].logprobs.tolist()
    assert all(m.training for m in module.modules())
    assert module.config._attn_implementation == "sdpa"


def test_gradient_checkpointing_does_not_disturb(engine, module):
    plain = sample(engine, max_tokens=8)[0].tokens.tolist()
    module.gradient_checkpointing_enable()
    assert sample(engine, max_tokens=8)[0].tokens.tolist() == plain


def test_order_of_requests_and_seeds_is_kept(engine):
    requests = [Request((5,) * n, tuple(range(n)), Sampling(max_tokens=4)) for n in (3, 1, 2)]
    got = engine.generate_sync(requests)
    assert [len(g) for g in got] == [3, 1, 2]
    for request, group in zip(requests, got, strict=True):
        for seed, completion in zip(request.seeds, group, strict=True):
            (alone,) = engine.generate_sync([replace(request, seeds=(seed,))])[0]
            assert alone.tokens.tolist() == completion.tokens.tolist()
    assert engine.generate_sync([]) == []
    assert engine.generate_sync([replace(requests[0], seeds=())]) == [[]]


def test_equal_seeds_give_equal_samples_and_others_others(engine):
    a, b, c = sample(engine, seeds=(4, 4, 5), max_tokens=12, ignore_eos=True)
    assert a.tokens.tolist() == b.tokens.tolist() != c.tokens.tolist()


def test_a_lower_bound_on_tokens_gives_the_beginning_of_the_same_sample(engine):
    (long,), (short,) = sample(engine, max_tokens=20, ignore_eos=True), sample(engine, max_tokens=6, ignore_eos=True)
    assert short.tokens.tolist() == long.tokens[:6].tolist()
    assert short.finish_reason == "length"


def test_ragged_bounds_are_kept(engine):
    request = Request((5, 6), (1, 2, 3), Sampling(max_tokens=50, ignore_eos=True), (1, 7, 3))
    (group,) = engine.generate_sync([request])
    assert [len(c.tokens) for c in group] == [1, 7, 3]
    assert {c.finish_reason for c in group} == {"length"}


@pytest.mark.parametrize("source", ["generation_config", "tokenizer", "config"])
def test_every_source_of_end_tokens_ends_a_row(module, tokenizer, source):
    engine = TransformersEngine(module, tokenizer, TransformersEngineConfig(), device="cpu")
    (free,) = sample(engine, max_tokens=30, ignore_eos=True)
    end = int(free.tokens[4])
    first = free.tokens.tolist().index(end)
    module.generation_config.eos_token_id = None
    module.config.eos_token_id = 1
    if source == "generation_config":
        module.generation_config.eos_token_id = [2, end]
    elif source == "config":
        module.config.eos_token_id = end
    else:
        tokenizer = _WithEnd(tokenizer, end)
    engine = TransformersEngine(module, tokenizer, TransformersEngineConfig(), device="cpu")
    (ended,) = sample(engine, max_tokens=30)
    assert ended.tokens.tolist() == free.tokens[: first + 1].tolist()
    assert ended.finish_reason == "stop"
    (ignored,) = sample(engine, max_tokens=30, ignore_eos=True)
    assert ignored.tokens.tolist() == free.tokens.tolist()
    assert ignored.finish_reason == "length"


class _WithEnd:
    def __init__(self, tokenizer, end):
        self._tokenizer, self.eos_token_id = tokenizer, end

    def decode(self, *args, **kwargs):
        return self._tokenizer.decode(*args, **kwargs)


def test_the_end_token_is_the_last_token_but_not_in_the_text(engine, module, tokenizer):
    module.generation_config.eos_token_id = list(range(3, 259, 3))
    (c,) = sample(engine, max_tokens=60, seeds=(3,))
    assert c.finish_reason == "stop"
    assert c.tokens[-1] % 3 == 0 and all(t % 3 for t in c.tokens[:-1])
    assert c.text == tokenizer.decode(c.tokens, skip_special_tokens=True)


def test_pad_tokens_in_the_prompt_are_tokens(engine):
    (with_pad,), (without,) = (sample(engine, prompt=p, max_tokens=1, temperature=0.0) for p in ((1, 1, 5, 6), (5, 6)))
    assert with_pad.logprobs[0] != without.logprobs[0]


def test_stop_strings_cut_the_text_and_keep_the_tokens(engine, tokenizer):
    (free,) = sample(engine, max_tokens=40, ignore_eos=True)
    text = free.text
    ascii_pairs = [text[i : i + 2] for i in range(8, len(text) - 1) if text[i : i + 2].isascii()]
    stop = ascii_pairs[0]
    (c,) = sample(engine, max_tokens=40, ignore_eos=True, stop=(stop, "not there"))
    assert c.finish_reason == "stop"
    assert c.text == text[: text.index(stop)]
    assert c.tokens.tolist() == free.tokens[: len(c.tokens)].tolist()
    assert tokenizer.decode(c.tokens, skip_special_tokens=True).endswith(stop)


def test_a_stop_string_completed_by_the_last_token_allowed_still_stops(engine):
    (free,) = sample(engine, max_tokens=40, ignore_eos=True)
    (cut,) = sample(engine, max_tokens=len(free.tokens), ignore_eos=True, stop=(free.text[-1],))
    assert cut.finish_reason == "stop"


def test_a_prompt_that_passes_the_context_is_refused_before_sampling(engine):
    with pytest.raises(ConfigError, match=r"max_tokens=250.*256"):
        sample(engine, prompt=(5,) * 7, max_tokens=250)
    assert len(sample(engine, prompt=(5,) * 6, max_tokens=250, ignore_eos=True)[0].tokens) == 250


def test_a_row_that_cannot_fit_the_cache_is_refused(module, tokenizer):
    engine = TransformersEngine(module, tokenizer, TransformersEngineConfig(kv_cache_gib=1e-5), device="cpu")
    with pytest.raises(UserError, match=r"engine\.kv_cache_gib=1e-05.*needs"):
        sample(engine, max_tokens=100)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((), (1,)), "empty"),
        (Request((5, 259), (1,)), "vocabulary of 259"),
        (Request((5, -1), (1,)), "vocabulary"),
        (Request((5,), (1, 2), Sampling(), (3,)), "1 values in max_tokens for 2 seeds"),
        (Request((5,), (1,), Sampling(), (0,)), "max_tokens=0"),
        (Request((5,), (1,), Sampling(top_p=0.0)), "top_p"),
    ],
)
def test_requests_that_make_no_sense_are_refused(engine, request_, message):
    with pytest.raises(EngineError, match=message):
        engine.generate_sync([request_])


@pytest.mark.parametrize(
    ("config", "key"), [({"max_rows": 0}, "max_rows"), ({"prefill_tokens": 0}, "prefill"), ({"kv_cache_gib": -1}, "kv")]
)
def test_settings_out_of_range_are_refused(module, tokenizer, config, key):
    with pytest.raises(ConfigError, match=f"engine.{key}"):
        TransformersEngine(module, tokenizer, TransformersEngineConfig(**config), device="cpu")


def test_a_second_caller_is_refused_while_the_first_waits(engine):
    def call_again(*_):
        engine.on_progress = None
        sample(engine)

    engine.on_progress = call_again
    with pytest.raises(EngineError, match="one caller"):
        sample(engine, max_tokens=5)
    assert len(sample(engine, max_tokens=5, ignore_eos=True)[0].tokens) == 5


def test_diverged_weights_are_an_error_and_leave_nothing_behind(engine, module):
    (before,) = sample(engine, max_tokens=5)
    weight = module.model.layers[0].mlp.down_proj.weight
    kept = weight.detach().clone()
    weight.data.fill_(float("nan"))
    with pytest.raises(EngineError, match="diverged"):
        sample(engine, max_tokens=5)
    weight.data.copy_(kept)
    assert sample(engine, max_tokens=5)[0].logprobs.tolist() == before.logprobs.tolist()


def test_bfloat16_by_autocast_is_near_float32(module, tokenizer):
    kwargs = {"max_tokens": 10, "ignore_eos": True}
    half = TransformersEngine(module, tokenizer, TransformersEngineConfig(), device="cpu", dtype=torch.bfloat16)
    full = TransformersEngine(module, tokenizer, TransformersEngineConfig(), device="cpu")
    (a,), (b,) = sample(half, **kwargs), sample(full, **kwargs)
    assert not half._nature.refusal
    np.testing.assert_allclose(a.logprobs[0], b.logprobs[0], atol=0.1)
    assert a.logprobs[0] != b.logprobs[0]
