"""Tiny random models and a byte-level tokenizer for the engine tests."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIALS = ("<pad>", "<eos>", "<turn>")
SIZE = 256 + len(SPECIALS)
SHAPE = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "bos_token_id": None,
}


def _multi_head():
    return {k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}


MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_multi_head())),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=256, eos_token_id=1, bos_token_id=None)
    ),
    "mistral_window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, sliding_window=8)),
    "lfm2": lambda: Lfm2ForCausalLM(
        Lfm2Config(**{**SHAPE, "num_hidden_layers": 3}, layer_types=["conv", "full_attention", "conv"])
    ),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<eos>",
        eos_token="<eos>",
        extra_special_tokens=["<turn>"],
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def make_model():
    """`make_model(name)`: a random model with sharp enough distributions, in training mode."""

    def make(name, seed=0):
        torch.manual_seed(seed)
        module = MODELS[name]()
        with torch.no_grad():
            for p in module.parameters():
                if p.ndim > 1:
                    p.normal_(0, 0.12)
        return module.train()

    return make


@pytest.fixture(scope="session")
def reference_logprobs():
    """`reference_logprobs(module, prompt, tokens)`: float64[A, V] of a plain forward pass over the whole sequence."""

    def compute(module, prompt, tokens):
        was_training = module.training
        module.eval()
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *tokens]])
            logits = module(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
        module.train(was_training)
        return logits.numpy()

    return compute
