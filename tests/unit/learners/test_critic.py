from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

from coterie.algos.critic import ValueLoss
from coterie.algos.gae import GAE
from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.metrics import mean, values
from coterie.core.protocols import Learner
from coterie.core.types import Example, Group, Rollout, Score
from coterie.errors import ConfigError, ModelError, RunDirectoryError
from coterie.learners.critic import (
    HEAD,
    LocalCritic,
    add_values,
    check_same_tokens,
    load_value_model,
    with_explained_variance,
)
from coterie.learners.tiny import build_tiny, tiny_tokenizer

LOSS = ValueLoss(clip=0.5)


def make(lab, kind="llama", optim=None, *, zero=False, tokenizer=None, **config):
    module = lab.build(kind).get_decoder()
    head = nn.Linear(32, 1)
    torch.manual_seed(3)
    for parameter in head.parameters():
        nn.init.zeros_(parameter) if zero else nn.init.normal_(parameter, std=0.3)
    learner, optim = LocalLearnerConfig(**config), optim or OptimConfig(lr=1e-2)
    return LocalCritic(module, head, tokenizer, learner, optim, device=torch.device("cpu"), total_steps=10)


def one_by_one(critic, batch):
    """V at the position before each action token, a sequence at a time."""
    out = []
    for s in range(batch.num_sequences):
        start, end = batch.cu_seqlens[s : s + 2].tolist()
        with torch.no_grad():
            hidden = critic.module(input_ids=batch.tokens[None, start:end], use_cache=False)[0][0]
        positions = batch.action_index[batch.sequence_id == s] - start
        out.append(critic.head(hidden[positions - 1])[:, 0].detach())
    return torch.cat(out)


def with_goals(batch, seed=0):
    """Old values and returns to learn."""
    draws = torch.Generator().manual_seed(seed)
    shape = (batch.num_actions,)
    old, goal = (torch.randn(shape, generator=draws) for _ in range(2))
    return batch.with_streams({"values": old, "returns": goal})


def states(critic):
    return [p.detach().clone() for p in critic._trained().parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def go(lab, critic, seeds):
    losses = []
    for seed in seeds:
        metrics = lab.run(critic.forward_backward(with_goals(lab.batch(seed=seed)), LOSS))
        lab.run(critic.step())
        losses.append(metrics["critic/loss"].value)
    return losses


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "mistral", "gpt2", "phi"])
@pytest.mark.parametrize("tokens", [0, 24])
def test_values_are_read_before_each_action_token(lab, kind, tokens):
    critic, batch = make(lab, kind, micro_batch_tokens=tokens), lab.batch()
    found = lab.run(critic.score(batch, ["values"]))
    assert list(found) == ["values"] and not found["values"].requires_grad
    torch.testing.assert_close(found["values"], one_by_one(critic, batch), rtol=1e-4, atol=1e-5)


def test_half_precision_leaves_the_head_whole(lab):
    critic, batch = make(lab, dtype="bfloat16"), lab.batch()
    found = lab.run(critic.score(batch, ["values"]))["values"]
    assert found.dtype == torch.float32 and critic.head.weight.dtype == torch.float32
    torch.testing.assert_close(found, one_by_one(critic, batch), rtol=0.1, atol=0.1)
    lab.run(critic.forward_backward(with_goals(batch), LOSS))
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in critic._trained().parameters())


def test_a_value_knows_nothing_of_its_token(lab):
    critic, batch = make(lab), lab.batch()
    before = lab.run(critic.score(batch, ["values"]))["values"]
    last = batch.action_index[batch.sequence_id == 0][-1]
    tokens = batch.tokens.clone()
    tokens[last] = 5 if tokens[last] != 5 else 6
    after = lab.run(critic.score(replace(batch, tokens=tokens), ["values"]))["values"]
    assert torch.equal(before, after)


def test_it_starts_at_zero_and_learns(lab):
    critic, batch = make(lab, zero=True), with_goals(lab.batch())
    assert not lab.run(critic.score(batch, ["values"]))["values"].any()
    batch = batch.with_streams({"values": torch.zeros(batch.num_actions)})
    loss = ValueLoss(clip=0.0)
    losses = []
    for _ in range(8):
        metrics = lab.run(critic.forward_backward(batch, loss))
        losses.append(metrics["critic/loss"].value)
        lab.run(critic.step())
    assert losses[0] == pytest.approx(float(batch.streams["returns"].square().mean() / 2), rel=1e-5)
    assert losses[-1] < 0.7 * losses[0]


def test_body_and_head_are_trained(lab):
    critic = make(lab)
    before = states(critic)
    go(lab, critic, [0])
    moved = [not torch.equal(a, b) for a, b in zip(before, states(critic), strict=True)]
    assert all(moved)


def test_it_is_a_learner_with_metrics_of_its_own(lab):
    critic = make(lab)
    verbs = [name for name in vars(Learner) if not name.startswith("_")]
    assert all(callable(getattr(critic, verb)) for verb in verbs)
    update = lab.run(critic.forward_backward(with_goals(lab.batch()), LOSS))
    step = lab.run(critic.step())
    assert {"critic/loss", "critic/clip_frac", "critic/value_mean", "critic/return_mean"} <= set(update)
    assert {"critic/lr", "critic/grad_norm", "critic/skipped_steps"} <= set(step)
    assert not [name for name in {**update, **step} if name.startswith(("policy/", "optim/"))]


def test_what_it_does_not_know_is_refused(lab):
    critic = make(lab)
    with pytest.raises(ConfigError, match="can't score old_logprobs; it knows values"):
        lab.run(critic.score(lab.batch(), ["values", "old_logprobs"]))
    with pytest.raises(ConfigError, match="ValueLoss needs the stream returns, values"):
        lab.run(critic.forward_backward(lab.batch(), LOSS))
    with pytest.raises(ConfigError, match="wants entropy"):
        lab.run(critic.forward_backward(lab.batch(), lab.Weighted({"entropy"})))


def test_a_loaded_critic_goes_on_bit_for_bit(lab, tmp_path):
    optim = OptimConfig(lr=1e-2, schedule="cosine", warmup_steps=2, weight_decay=0.1)
    critic = make(lab, optim=optim)
    go(lab, critic, [0, 1])
    critic.save(tmp_path)
    losses, want = go(lab, critic, [2, 3]), states(critic)
    other = make(lab, optim=optim)
    go(lab, other, [7])
    other.load(tmp_path)
    assert go(lab, other, [2, 3]) == losses
    assert same(states(other), want)


def test_a_saved_critic_is_a_plain_folder_that_a_run_can_start_from(lab, tmp_path):
    critic = make(lab, tokenizer=tiny_tokenizer())
    critic.save(tmp_path)
    body = AutoModel.from_pretrained(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(body.parameters(), critic.module.parameters(), strict=True))
    module, head = load_value_model(str(tmp_path / "model"))
    assert same([*module.parameters(), *head.parameters()], states(critic))
    check_same_tokens(str(tmp_path / "model"), tiny_tokenizer())
    with pytest.raises(ModelError, match="another vocabulary"):
        check_same_tokens(str(tmp_path / "model"), tiny_tokenizer("abc"))


def test_a_policy_s_folder_gives_its_body_and_a_zero_head(tmp_path):
    folder = build_tiny(tmp_path / "tiny", hidden=32, layers=1, heads=2, context=64)
    module, head = load_value_model(str(folder))
    assert module.get_output_embeddings() is None
    assert head.weight.shape == (1, 32) and not head.weight.any() and not head.bias.any()


def test_a_reward_model_s_folder_gives_its_body(tmp_path):
    folder = build_tiny(tmp_path / "tiny", hidden=32, layers=1, heads=2, context=64)
    judge = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    judge.save_pretrained(tmp_path / "judge")
    module, head = load_value_model(str(tmp_path / "judge"))
    assert same(module.parameters(), judge.model.parameters()) and not head.weight.any()


def test_a_head_of_another_model_is_refused(lab, tmp_path):
    critic = make(lab)
    critic.save(tmp_path)
    save_file({"weight": torch.zeros(1, 7), "bias": torch.zeros(1)}, tmp_path / "model" / HEAD)
    with pytest.raises(RunDirectoryError, match=r"value_head\.safetensors is no value head"):
        critic.load(tmp_path)
    (tmp_path / "model" / HEAD).write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="no value head"):
        load_value_model(str(tmp_path / "model"))


def cut_and_whole():
    """A group of a finished rollout, one cut off, and an empty one."""
    tokens = [np.array([5, 6, 7, 8, 9]), np.array([5, 6, 11, 12]), np.array([5, 6])]
    ends = ["stop", "length", "length"]
    rollouts = [
        Rollout(t, np.arange(2, len(t)), "", end, i, scores={"reward": Score(1.0)}, spans={"cot": ((0, len(t) - 2),)})
        for i, (t, end) in enumerate(zip(tokens, ends, strict=True))
    ]
    return Group(Example("a", ()), tuple(rollouts))


@pytest.mark.parametrize("share", [False, True])
def test_a_rollout_that_was_cut_off_gets_the_value_of_its_last_state(lab, share):
    critic, group = make(lab, share_prefix=share), cut_and_whole()
    [found] = lab.run(add_values(critic, [group], bootstrap=True))
    with torch.no_grad():
        states = [critic.head(critic.module(torch.tensor(r.tokens)[None])[0][0])[:, 0].numpy() for r in group.rollouts]
    finished, cut, empty = found.rollouts
    assert finished.streams["values"] == pytest.approx(states[0][1:4], abs=1e-5) and finished.bootstrap_value == 0.0
    assert cut.streams["values"] == pytest.approx(states[1][1:3], abs=1e-5)
    assert cut.bootstrap_value == pytest.approx(states[1][3], abs=1e-5)
    assert empty.num_actions == 0 and empty.bootstrap_value == 0.0
    for before, after in zip(group.rollouts, found.rollouts, strict=True):
        assert np.array_equal(before.tokens, after.tokens) and before.spans == after.spans
    [estimated] = GAE(whiten=False, lam=1.0)([found])
    assert estimated.rollouts[1].streams["returns"] == pytest.approx([1 + cut.bootstrap_value] * 2, abs=1e-6)


def test_without_bootstrap_a_rollout_ends_where_it_was_cut(lab):
    critic = make(lab)
    [found] = lab.run(add_values(critic, [cut_and_whole()], bootstrap=False))
    [with_value] = lab.run(add_values(critic, [cut_and_whole()], bootstrap=True))
    assert [r.bootstrap_value for r in found.rollouts] == [0.0, 0.0, 0.0]
    for a, b in zip(found.rollouts, with_value.rollouts, strict=True):
        assert a.streams["values"] == pytest.approx(b.streams["values"], abs=1e-6)


def test_explained_variance_joins_the_metrics_where_it_has_a_value():
    shown = {
        "critic/return_mean": mean(4.0, 4),
        "critic/return_square_mean": mean(8.0, 4),
        "critic/error_mean": mean(0.0, 4),
        "critic/error_square_mean": mean(1.0, 4),
    }
    assert values(with_explained_variance(shown))["critic/explained_variance"] == pytest.approx(0.75)
    constant = shown | {"critic/return_square_mean": mean(4.0, 4)}
    assert "critic/explained_variance" not in with_explained_variance(constant)
    assert with_explained_variance({"policy/loss": mean(1.0, 1)}) == {"policy/loss": mean(1.0, 1)}
