from dataclasses import replace

import pytest
import torch

from coterie.config.schema import LocalLearnerConfig
from coterie.errors import ConfigError
from coterie.learners.logprobs import plan_of
from coterie.learners.prefix import check_sharing, packing_obstacle


def test_groups_share_their_prompt(lab):
    batch = lab.batch(groups=2, n=3, prompt=5)
    plan = plan_of(batch, True)
    assert plan.prefix == (5,) * 6
    assert plan.shared[:3] == plan.shared[:1] * 3 and plan.shared[0] != plan.shared[3]


def test_tokens_decide_and_not_the_declared_length(lab):
    batch = lab.batch(groups=1, n=3, prompt=5)
    tokens = batch.tokens.clone()
    tokens[batch.cu_seqlens[1] + 2] += 1  # the second sequence has another prompt
    plan = plan_of(replace(batch, tokens=tokens), True)
    assert plan.prefix == (5, 0, 5)
    assert plan.shared[0] == plan.shared[2] != plan.shared[1]


def test_a_prompt_of_one_sequence_is_not_split_off(lab):
    assert plan_of(lab.batch(groups=3, n=1), True).prefix == (0, 0, 0)


def test_two_groups_with_one_prompt_are_not_joined(lab):
    batch = lab.batch(groups=2, n=2, prompt=4)
    tokens = batch.tokens.clone()
    for s in range(4):
        tokens[batch.cu_seqlens[s] : batch.cu_seqlens[s] + 4] = torch.arange(4) + 5
    plan = plan_of(replace(batch, tokens=tokens), True)
    assert len(set(plan.shared)) == 2


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("mistral", {}, "window|another kind"),
        ("gemma2", {}, "another kind|softcap"),
        ("gpt2", {"attention": "eager"}, "eager"),
        ("llama", {"compile": True}, "torch.compile"),
    ],
)
def test_models_that_can_t_share_say_why(lab, kind, options, reason):
    config = LocalLearnerConfig(share_prefix=True, **options)
    obstacle = packing_obstacle(lab.build(kind), config)
    with pytest.raises(ConfigError, match=reason):
        check_sharing(obstacle, config)


def test_checkpointing_and_sharing_are_refused_together(lab):
    with pytest.raises(ConfigError, match=r"share_prefix.*gradient_checkpointing"):
        lab.learner(lab.build(), share_prefix=True, gradient_checkpointing=True)
