import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

from coterie.algos import BradleyTerry
from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch
from coterie.core.types import Example, Group, Rollout, Score
from coterie.errors import ConfigError, ModelError
from coterie.learners.reward_model import LocalRewardModel, load_reward_model
from coterie.learners.tiny import build_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("rm") / "tiny", hidden=32, layers=2, heads=2, context=64)


def pairs(count=5, seed=0):
    dice = np.random.default_rng(seed)
    groups = []
    for number in range(count):
        prompt = dice.integers(6, 20, 4)
        rollouts = []
        for reward in (1.0, 0.0):
            tokens = np.concatenate([prompt, dice.integers(6, 20, dice.integers(1, 9))])
            last = np.array([len(tokens) - 1])
            rollouts.append(Rollout(tokens, last, "", "stop", scores={"reward": Score(reward)}))
        groups.append(Group(Example(str(number), ()), tuple(rollouts)))
    return Batch.from_groups(groups)


def learner(folder, seed=0, **config):
    torch.manual_seed(seed)
    return LocalRewardModel(
        load_reward_model(str(folder), pad_token_id=0),
        None,
        LocalLearnerConfig(**config),
        OptimConfig(lr=1e-2),
        device=torch.device("cpu"),
        total_steps=10,
    )


def transformers_scores(module, batch):
    """What the library itself says about padded rows."""
    rows = [batch.tokens[a:b] for a, b in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    with torch.no_grad():
        return module(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, 0]


@pytest.mark.parametrize(
    "config",
    [{}, {"share_prefix": True}, {"micro_batch_tokens": 20}, {"attention": "eager"}],
    ids=["packed", "shared_prompt", "small", "padded"],
)
def test_scores_are_those_of_transformers(folder, config):
    model, batch = learner(folder, **config), pairs()
    scores = asyncio.run(model.score(batch, ["score"]))["score"]
    torch.testing.assert_close(scores, transformers_scores(model.module, batch), atol=1e-5, rtol=1e-4)


def test_the_gradient_does_not_depend_on_the_split(folder):
    batch, found = pairs(), []
    for tokens in (0, 1, 30):
        model = learner(folder, micro_batch_tokens=tokens)
        metrics = asyncio.run(model.forward_backward(batch, BradleyTerry(margin=1.0, centre_coef=0.1)))
        found.append((metrics["reward_model/loss"].value, [p.grad.clone() for p in model.module.parameters()]))
    for value, gradients in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-5)
        for one, other in zip(found[0][1], gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_what_is_saved_loads_anywhere_and_goes_on_bit_for_bit(folder, tmp_path):
    model, batch = learner(folder), pairs()

    async def train(model, steps):
        for _ in range(steps):
            await model.forward_backward(batch, BradleyTerry())
            await model.step()
        return (await model.score(batch, ["score"]))["score"]

    asyncio.run(train(model, 2))
    model.save(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert plain.config.num_labels == 1 and plain.config.pad_token_id == 0
    scores = asyncio.run(model.score(batch, ["score"]))["score"]
    torch.testing.assert_close(transformers_scores(plain, batch), scores, atol=1e-5, rtol=1e-4)
    other = learner(folder, seed=1)
    other.load(tmp_path)
    assert torch.equal(asyncio.run(train(other, 2)), asyncio.run(train(model, 2)))
    again = load_reward_model(str(tmp_path / "model"), pad_token_id=0)
    assert torch.equal(again.score.weight, plain.score.weight), "a reward model's own head is kept"


def test_a_new_head_belongs_to_the_seed(folder):
    heads = [learner(folder, seed=s).module.score.weight for s in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_only_the_head_may_be_new(folder, tmp_path):
    BertForMaskedLM(
        BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="not in the weight files"):
        load_reward_model(str(tmp_path), pad_token_id=0)


def test_it_scores_nothing_else(folder):
    with pytest.raises(ConfigError, match="old_logprobs"):
        asyncio.run(learner(folder).score(pairs(), ["old_logprobs"]))
