"""One optimizer step, many ways to compute it: micro-batches, row order, packing, a shared prompt, checkpointing."""

import asyncio
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch
from coterie.core.metrics import mean
from coterie.core.protocols import LossOutput
from coterie.core.types import Example, Group, Rollout
from coterie.learners.local import LocalLearner

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def build(kind="llama"):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
    else:
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0 if parameter.ndim == 2 else 1.0)
    return model


def rollouts(groups=4, n=4, seed=0):
    rng = np.random.default_rng(seed)
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
            old = {"old_logprobs": rng.normal(-3.5, 0.4, len(actions))}
            members.append(Rollout(tokens, actions, "", "stop", index=r, streams=old))
        group = Group(Example(str(g), ()), tuple(members))
        made.append(group.with_advantages([float(x) for x in rng.normal(size=n)]))
    return made


class SequenceRatio:
    """A toy GSPO: the clipped ratio of a sequence is the exponential of its mean log-ratio; segment sums inside."""

    needs = frozenset({"old_logprobs"})
    wants = frozenset({"entropy"})

    def __call__(self, outputs, batch):
        ratio = torch.exp(batch.segment_mean(outputs.logprobs - batch.streams["old_logprobs"]))
        advantage = batch.segment_mean(batch.advantages)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
        entropy = batch.segment_sum(outputs.entropy) / batch.group_tokens
        value = -(surrogate + 0.1 * entropy).sum() / batch.counts.sequences
        read = batch.action_lengths > 0
        total = float(ratio.detach()[read].double().sum())
        return LossOutput(value, {"policy/ratio": mean(total, int(read.sum()))})


class TopEntropy:
    """Only tokens in the top fifth of the whole batch's entropies are trained on; needs a pre-pass."""

    needs = frozenset()
    wants = frozenset({"entropy"})
    prepasses = 0

    def prepass(self, outputs, batch):
        type(self).prepasses += 1
        assert not outputs.logprobs.requires_grad and len(outputs.entropy) == batch.num_actions
        threshold = outputs.entropy.quantile(0.8)
        return {"top/chosen": (outputs.entropy >= threshold).float()}, {"top/threshold": float(threshold)}

    def __call__(self, outputs, batch):
        chosen = batch.streams["top/chosen"].nonzero()[:, 0]
        assert ((outputs.entropy[chosen] - batch.scalars["top/threshold"]) > -1e-4).all()
        value = -(outputs.logprobs * batch.advantages)[chosen].sum() / batch.counts.action_tokens
        return LossOutput(value, {"policy/chosen": mean(len(chosen), batch.num_actions)})


class Plain:
    """-sum(A logprob) / action tokens."""

    needs = frozenset()
    wants = frozenset()

    def __call__(self, outputs, batch):
        return LossOutput(-(outputs.logprobs * batch.advantages).sum() / batch.counts.action_tokens)


def step(batch, loss, kind="llama", **config):
    """Loss, gradients by parameter and metrics of one accumulation, and the learner."""
    model = build(kind)
    learner = LocalLearner(
        model, None, LocalLearnerConfig(**config), OptimConfig(), device=torch.device("cpu"), total_steps=1
    )
    metrics = asyncio.run(learner.forward_backward(batch, loss))
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {n: s.value for n, s in metrics.items() if n.startswith("policy/")}, gradients, learner


def assert_same(got, want):
    assert got[0] == pytest.approx(want[0], rel=1e-4, abs=1e-6)
    scale = max(float(g.abs().max()) for g in want[1].values())
    for name, gradient in want[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-4, atol=1e-5 * scale)


LOSSES = [Plain, SequenceRatio, TopEntropy]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tokens", [1, 20, 47])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_micro_batches_add_up(loss, tokens, kind):
    batch = Batch.from_groups(rollouts())
    want = step(batch, loss(), kind, micro_batch_tokens=100_000)
    got = step(batch, loss(), kind, micro_batch_tokens=tokens)
    assert len(want[2].forward.micro_batches(batch)) == 1 < len(got[2].forward.micro_batches(batch))
    assert got[2].forward.packed is (kind == "llama")
    assert_same(got, want)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("share", [True, False])
def test_row_order_does_not_matter(loss, share):
    groups = rollouts()
    want = step(Batch.from_groups(groups), loss(), share_prefix=share)
    rng = np.random.default_rng(0)
    shuffled = []
    for g in rng.permutation(len(groups)):
        members = groups[g].rollouts
        shuffled.append(groups[g].with_rollouts(members[i] for i in rng.permutation(len(members))))
    assert_same(step(Batch.from_groups(shuffled), loss(), share_prefix=share, micro_batch_tokens=60), want)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tokens", [25, 60, 100_000])
def test_a_shared_prompt_gives_the_plain_gradient(loss, tokens):
    batch = Batch.from_groups(rollouts())
    want = step(batch, loss())
    got = step(batch, loss(), share_prefix=True, micro_batch_tokens=tokens)
    computed = sum(layout.input_ids.numel() for _, layout in got[2].forward.micro_batches(batch))
    plain = sum(layout.input_ids.numel() for _, layout in want[2].forward.micro_batches(batch))
    assert computed < plain
    assert_same(got, want)


@pytest.mark.parametrize(
    "config",
    [
        {"head_chunk": 3},
        {"gradient_checkpointing": True, "micro_batch_tokens": 40},
        {"attention": "eager", "micro_batch_tokens": 40},
    ],
)
def test_ways_to_save_memory_change_nothing(config):
    batch = Batch.from_groups(rollouts())
    assert_same(step(batch, SequenceRatio(), **config), step(batch, SequenceRatio()))


def test_two_calls_accumulate():
    batch = Batch.from_groups(rollouts())
    want = step(batch, SequenceRatio())[1]
    learner = step(batch.select(range(7)), SequenceRatio())[2]
    asyncio.run(learner.forward_backward(batch.select(range(7, batch.num_sequences)), SequenceRatio()))
    for name, parameter in learner.module.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name], rtol=1e-4, atol=1e-6)


def test_the_pre_pass_runs_once_over_everything():
    TopEntropy.prepasses = 0
    step(Batch.from_groups(rollouts()), TopEntropy(), micro_batch_tokens=20)
    assert TopEntropy.prepasses == 1


@pytest.mark.parametrize("share", [True, False])
def test_an_unread_tail_changes_nothing(share):
    """Tokens after the last action are nobody's context; sequences without actions have no outputs."""
    groups = rollouts()
    want = step(Batch.from_groups(groups), SequenceRatio(), share_prefix=share)
    longer = [
        group.with_rollouts(replace(r, tokens=np.concatenate([r.tokens, [5, 6, 7]])) for r in group.rollouts)
        for group in groups
    ]
    assert_same(step(Batch.from_groups(longer), SequenceRatio(), share_prefix=share), want)


@pytest.mark.parametrize("share", [True, False])
def test_a_rollout_without_actions_rides_along(share):
    groups = rollouts(groups=2)
    silent = Rollout(groups[0].rollouts[0].tokens, np.zeros(0, dtype=np.int64), "", "stop")
    silent = silent.with_streams(old_logprobs=[])
    more = [groups[0].with_rollouts([silent, *groups[0].rollouts]), groups[1]]
    batch = Batch.from_groups(more)
    want = step(Batch.from_groups(groups), Plain(), share_prefix=share)
    assert_same(step(batch, Plain(), share_prefix=share, micro_batch_tokens=30), want)


def test_nan_in_what_a_loss_does_not_read_changes_nothing():
    """NaN in unused streams, missing rewards and the model's unread positions never reach loss or gradient."""
    batch = Batch.from_groups(rollouts())
    want = step(batch, SequenceRatio())
    poisoned = batch.with_streams({"ref_logprobs": torch.full((batch.num_actions,), float("nan"))})
    poisoned = replace(poisoned, rewards=torch.full_like(batch.rewards, float("nan")))
    assert_same(step(poisoned, SequenceRatio(), micro_batch_tokens=40), want)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_nan_hidden_states_outside_the_read_positions_change_nothing(kind):
    """Prompt, tool output and padding: hidden states that predict no action may be anything."""
    batch = Batch.from_groups(rollouts())
    want = step(batch, Plain(), kind)
    model = build(kind)
    learner = LocalLearner(model, None, LocalLearnerConfig(), OptimConfig(), device=torch.device("cpu"), total_steps=1)
    [(part, layout)] = learner.forward.micro_batches(batch)
    position = part.action_index - part.cu_seqlens[part.sequence_id]
    read = torch.zeros(layout.input_ids.numel(), dtype=torch.bool)
    read[layout.flat(part.sequence_id, position - 1)] = True
    assert not read.all()

    def poison(module, args, hidden):
        return torch.where(read.view(*hidden.shape[:2], 1), hidden, torch.nan)

    model.model.norm.register_forward_hook(poison)
    metrics = asyncio.run(learner.forward_backward(batch, Plain()))
    got = {"policy/loss": metrics["policy/loss"].value}, {n: p.grad for n, p in model.named_parameters()}
    assert_same(got, want)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_a_compiled_body_gives_the_same_gradient():
    batch = Batch.from_groups(rollouts(groups=2, n=2))
    got = step(batch, Plain(), compile=True)
    assert not got[2].forward.packed
    assert_same(got, step(batch, Plain()))
