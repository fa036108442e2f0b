"""The embedded engine against plain forward passes and transformers' own `generate`."""

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from coterie.config.schema import TransformersEngineConfig
from coterie.core.types import Request, Sampling
from coterie.engines import embedded
from coterie.engines.embedded import TransformersEngine
from coterie.learners.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SIZE = len(TOKENIZER)
SHAPE = {
    "vocab_size": SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": TOKENIZER.pad_token_id,
    "bos_token_id": None,
}
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"})
    ),
    "mistral_window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=12)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=16, sliding_window=12)),
}


def make_module(name):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = MODELS[name]()
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.1)
    return module.eval()


def make_requests(counts, sampling, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Request(
            tuple(rng.integers(6, SIZE, int(rng.integers(2, 40))).tolist()),
            tuple(int(s) for s in rng.integers(0, 2**63, n)),
            sampling,
        )
        for n in counts
    ]


def naive_logprobs(module, prompt, tokens, s):
    """float64[A] from one forward pass over the whole sequence, truncated row by row with a full sort."""
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double().numpy()
    out = []
    for z, token in zip(logits / (s.temperature or 1.0), tokens, strict=True):
        p = np.exp(z - z.max())
        p /= p.sum()
        if s.temperature:
            order = np.argsort(-p)
            keep = order[: s.top_k] if s.top_k else order
            inside = np.cumsum(p[keep]) / p[keep].sum()
            keep = keep[: int((inside < s.top_p).sum()) + 1]
            keep = keep[p[keep] >= s.min_p * p.max()]
            assert token in keep
            p = p / p[keep].sum()
        out.append(np.log(p[token]))
    return np.array(out)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=24),
        Sampling(temperature=0.0, max_tokens=24),
        Sampling(temperature=0.6, max_tokens=24, ignore_eos=True),
        Sampling(temperature=1.4, top_k=12, top_p=0.9, min_p=0.05, max_tokens=24, ignore_eos=True),
    ],
    ids=["plain", "greedy", "cool", "truncated"],
)
def test_logprobs_are_those_of_a_full_forward_pass(monkeypatch, name, shared, sampling):
    monkeypatch.setattr(embedded, "_SHARED_FROM", 0 if shared else 10**9)
    module = make_module(name)
    engine = TransformersEngine(module, TOKENIZER, TransformersEngineConfig(max_rows=5), device="cpu")
    requests = make_requests([3, 1, 4], sampling)
    for request, group in zip(requests, engine.generate_sync(requests), strict=True):
        for completion in group:
            want = naive_logprobs(module, request.prompt_tokens, completion.tokens, sampling)
            np.testing.assert_allclose(completion.logprobs, want, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_equals_generate(name):
    module = make_module(name)
    engine = TransformersEngine(module, TOKENIZER, TransformersEngineConfig(max_rows=3), device="cpu")
    requests = make_requests([1] * 6, Sampling(temperature=0.0, max_tokens=30))
    for request, (completion,) in zip(requests, engine.generate_sync(requests), strict=True):
        prompt = torch.tensor([request.prompt_tokens])
        with torch.no_grad():
            full = module.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, do_sample=False)[
                0, prompt.shape[1] :
            ]
        assert completion.tokens.tolist() == full.tolist()
        assert completion.text == TOKENIZER.decode(full, skip_special_tokens=True)


def test_frequencies_of_samples_are_the_model_s_probabilities():
    module = make_module("qwen3")
    engine = TransformersEngine(module, TOKENIZER, TransformersEngineConfig(max_rows=512), device="cpu")
    count, prompt = 6000, (7, 8, 9)
    rng = np.random.default_rng(0)
    request = Request(prompt, tuple(int(s) for s in rng.integers(0, 2**63, count)), Sampling(max_tokens=1))
    tokens = np.array([c.tokens[0] for c in engine.generate_sync([request])[0]])
    with torch.no_grad():
        want = module(input_ids=torch.tensor([prompt])).logits[0, -1].double().softmax(-1).numpy() * count
    got = np.bincount(tokens, minlength=SIZE)
    often = want >= 5
    statistic = ((got - want)[often] ** 2 / want[often]).sum()
    freedom = often.sum() - 1
    assert freedom >= 5
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 6
