"""What `engine.py` runs: model shapes, workloads, and the multiplications that a workload needs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SHAPES = {
    "smollm2": {
        "kind": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "small": {
        "kind": "qwen3",
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "tiny": {
        "kind": "qwen3",
        "vocab_size": 1024,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}


@dataclass(frozen=True)
class Case:
    """One workload: `groups` prompts with `n` samples each, and how many tokens each sample has."""

    name: str
    prompts: list[list[int]]
    n: int
    lengths: list[int]  # one a sample, in the order of prompts

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def cases(args: argparse.Namespace, vocabulary: int) -> Iterator[Case]:
    """The workloads, the same in every process: made with Python's own generator from fixed seeds."""
    import random

    rng = random.Random(0)
    for kind in args.kinds:
        for batch in args.batches:
            n = 8 if kind == "groups" else 1
            if batch % n or (kind == "ragged" and batch == 1):
                continue
            prompts = [[rng.randrange(3, vocabulary) for _ in range(args.prompt)] for _ in range(batch // n)]
            lengths = [args.tokens] * batch
            if kind == "ragged":  # mostly short with a long tail, as answers are
                lengths = [8 + int((args.longest - 8) * rng.random() ** 2) for _ in range(batch - 1)] + [args.longest]
            yield Case(f"{kind} {batch}", prompts, n, lengths)


def load_model(args: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    if args.model:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    else:
        shape = dict(SHAPES[args.shape])
        config, make = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[
            shape.pop("kind")
        ]
        common = {"max_position_embeddings": 2048, "tie_word_embeddings": True, "eos_token_id": 2, "pad_token_id": 2}
        model = make(config(**shape, **common)).to(getattr(torch, args.dtype))
    return model.to(args.device).eval()


def needed_gflop(model: Any, case: Case) -> float:
    """Multiplications and additions for every prompt once and every new token, logits only where tokens are drawn."""
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    head = c.vocab_size * c.hidden_size
    embeddings = head if c.tie_word_embeddings else 2 * head
    body = sum(p.numel() for p in model.parameters()) - embeddings
    pair = 4 * c.num_hidden_layers * c.num_attention_heads * head_dim  # attention of one token to one other
    flop = 0.0
    for prompt in case.prompts:
        flop += 2 * body * len(prompt) + pair * len(prompt) ** 2 / 2
    for i, length in enumerate(case.lengths):
        start = len(case.prompts[i // case.n])
        flop += 2 * body * (length - 1) + 2 * head * length + pair * (length * start + length**2 / 2)
    return flop / 1e9
