"""The critic's step is the same however the batch is cut: micro-batches, row order, a shared prompt, padded rows."""

import asyncio

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, MistralConfig, MistralModel

from coterie.algos.critic import ValueLoss
from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch
from coterie.core.types import Example, Group, Rollout
from coterie.learners.critic import LocalCritic

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
LOSSES = [ValueLoss(clip=0.3), ValueLoss(clip=0.3, huber=0.5), ValueLoss(clip=0.0, aggregate="sequence_mean")]


def batch(groups=4, n=4):
    rng = np.random.default_rng(0)
    made = []
    for g in range(groups):
        prompt = rng.integers(3, 61, rng.integers(2, 9))
        members = []
        for r in range(n):
            length = int(rng.integers(1, 13))
            tokens = np.concatenate([prompt, rng.integers(3, 61, length)])
            actions = np.arange(len(prompt), len(tokens))
            if r % 2 and length > 4:
                actions = np.delete(actions, [2, 3])
            streams = {"values": rng.normal(size=len(actions)), "returns": rng.normal(size=len(actions))}
            members.append(Rollout(tokens, actions, "", "stop", index=r, streams=streams))
        made.append(Group(Example(str(g), ()), tuple(members)))
    return Batch.from_groups(made)


def step(flat, loss, kind="llama", parts=None, **config):
    """Loss, gradients and metrics of one step, given in `parts` calls."""
    torch.manual_seed(1)
    model = LlamaModel(LlamaConfig(**SIZES)) if kind == "llama" else MistralModel(MistralConfig(**SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0 if parameter.ndim == 2 else 1.0)
    head = nn.Linear(24, 1)
    nn.init.normal_(head.weight, std=0.5)
    learner = LocalLearnerConfig(**config)
    critic = LocalCritic(model, head, None, learner, OptimConfig(), device=torch.device("cpu"), total_steps=1)
    found = [asyncio.run(critic.forward_backward(part, loss)) for part in parts or [flat]]
    gradients = [p.grad for p in critic._trained().parameters()]
    return sum(m["critic/loss"].total for m in found), gradients, found[0]


@pytest.mark.parametrize("loss", LOSSES, ids=["clipped", "huber", "sequences"])
@pytest.mark.parametrize(
    "config",
    [
        {"micro_batch_tokens": 20},
        {"micro_batch_tokens": 1},
        {"share_prefix": True},
        {"gradient_checkpointing": True, "micro_batch_tokens": 50},
        {"attention": "eager", "micro_batch_tokens": 40},
    ],
    ids=["micro", "single", "shared", "checkpointing", "padded"],
)
def test_the_layout_changes_nothing(loss, config):
    flat = batch()
    value, gradients, metrics = step(flat, loss)
    other, again, measured = step(flat, loss, **config)
    assert other == pytest.approx(value, rel=1e-5)
    for a, b in zip(again, gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for name in ("critic/value_mean", "critic/error_square_mean", "critic/clip_frac"):
        assert measured[name].value == pytest.approx(metrics[name].value, rel=1e-5)


def test_row_order_and_calls_change_nothing():
    flat, loss = batch(), LOSSES[0]
    value, gradients, _ = step(flat, loss)
    order = torch.randperm(flat.num_sequences, generator=torch.Generator().manual_seed(0))
    for parts in ([flat.select(order)], [flat.select(range(5)), flat.select(range(5, flat.num_sequences))]):
        other, again, _ = step(flat, loss, parts=parts)
        assert other == pytest.approx(value, rel=1e-5)
        for a, b in zip(again, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_plain_autograd():
    """Each sequence by itself through the model, the loss written out."""
    flat, kind = batch(), "mistral"
    _, gradients, _ = step(flat, ValueLoss(clip=0.3), kind, micro_batch_tokens=30)
    torch.manual_seed(1)
    model = MistralModel(MistralConfig(**SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0 if parameter.ndim == 2 else 1.0)
    head = nn.Linear(24, 1)
    nn.init.normal_(head.weight, std=0.5)
    loss = torch.zeros(())
    for s in range(flat.num_sequences):
        start, end = flat.cu_seqlens[s : s + 2].tolist()
        mine = flat.sequence_id == s
        hidden = model(input_ids=flat.tokens[None, start:end], use_cache=False)[0][0]
        v = head(hidden)[flat.action_index[mine] - start - 1, 0]
        old, goal = flat.streams["values"][mine], flat.streams["returns"][mine]
        clipped = old + (v - old).clamp(-0.3, 0.3)
        loss = loss + torch.maximum((v - goal) ** 2, (clipped - goal) ** 2).sum() / 2 / flat.num_actions
    loss.backward()
    for a, b in zip(gradients, [*model.parameters(), *head.parameters()], strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-4, atol=1e-6)
