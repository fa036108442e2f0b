import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch
from coterie.core.protocols import LossOutput
from coterie.core.types import Example, Group, Rollout
from coterie.learners.local import LocalLearner

VOCABULARY = 89
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SMALL, final_logit_softcapping=2.0, sliding_window=6, query_pre_attn_scalar=8)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=6)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.3)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=4.0)),
    "phi": lambda: PhiForCausalLM(PhiConfig(**SMALL)),  # a bias in the head
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128)),
}


def build(kind="llama"):
    torch.manual_seed(7)
    model = KINDS[kind]().eval()
    with torch.no_grad():  # the default initialisation is so small that mistakes would hide in it
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch(groups=3, n=4, longest=11, seed=0, prompt=None, streams=()):
    """Ragged groups with a common prompt, random advantages and some rollouts with gaps between actions."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        size = int(prompt or rng.integers(3, 9))
        head = rng.integers(3, VOCABULARY, size)
        rollouts = []
        for r in range(n):
            length = int(rng.integers(1, longest + 1))
            tokens = np.concatenate([head, rng.integers(3, VOCABULARY, length)])
            actions = np.arange(size, size + length)
            if r % 3 == 2 and length > 3:  # tool output in the middle: tokens, but no actions
                actions = np.delete(actions, [1, 2])
            extra = {name: rng.normal(-2, 0.5, len(actions)) for name in streams}
            rollouts.append(Rollout(tokens, actions, "", "stop", index=r, streams=extra))
        group = Group(Example(str(g), ()), tuple(rollouts))
        made.append(group.with_advantages([rng.normal(size=len(x.action_index)) for x in rollouts]))
    return Batch.from_groups(made)


class Weighted:
    """-sum(A * logprob) / tokens, with an entropy bonus and the sum of squares where wanted."""

    needs = frozenset()

    def __init__(self, wants=()):
        self.wants = frozenset(wants)

    def __call__(self, outputs, batch):
        value = -(outputs.logprobs * batch.advantages).sum()
        if outputs.entropy is not None:
            value = value - 0.3 * (outputs.entropy * batch.advantages.abs()).sum()
        for extra in outputs.extra.values():
            value = value + 0.7 * extra.sum()
        return LossOutput(value / batch.counts.action_tokens)


def learner(model, optim=None, load_reference=None, total_steps=10, temperature=1.0, tokenizer=None, **config):
    return LocalLearner(
        model,
        tokenizer,
        LocalLearnerConfig(**config),
        optim or OptimConfig(lr=1e-2),
        device=torch.device("cpu"),
        total_steps=total_steps,
        temperature=temperature,
        load_reference=load_reference,
    )


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def lab():
    """Builders shared by the learner tests."""
    return SimpleNamespace(
        build=build, batch=batch, learner=learner, Weighted=Weighted, kinds=sorted(KINDS), run=asyncio.run
    )
