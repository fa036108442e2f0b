"""Stages of the loop with scripted parts; the loop itself is run by tests/learn and tests/e2e."""

import asyncio
import json

import numpy as np
import pytest

from coterie.config.compose import compose
from coterie.core.metrics import values
from coterie.core.types import Example, Group, Rollout, Score
from coterie.learners.tiny import build_tiny
from coterie.runtime.local import LocalRuntime
from coterie.runtime.parts import build_parts
from coterie.train.rl import advantage_metrics, apply_stages, group_metrics, needed_streams, train_step
from coterie.train.state import LoopState

REWARD = """
from coterie import Score


async def by_length(group, context):
    return group.with_scores("reward", [Score(float(r.num_actions)) for r in group.rollouts])
"""


def group(*rewards):
    rollouts = tuple(
        Rollout(np.array([1, 2]), np.array([1]), "", "stop", index=i, scores={"reward": s})
        for i, s in enumerate(Score.missing("down") if r is None else Score(r) for r in rewards)
    )
    return Group(Example("a", ({"role": "user", "content": "q"},)), rollouts)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("rl") / "tiny", hidden=32, layers=1, heads=2, context=64)


def composed(model, tmp_path, *more):
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i}="}) + "\n" for i in range(4)))
    settings = [f"model={model}", f"data.path={tmp_path / 'rows.jsonl'}", f"reward={tmp_path / 'reward.py'}:by_length"]
    sizes = ["train.prompts_per_step=4", "train.steps=4", "rollout.n=3", "rollout.max_tokens=5", "train.smoke_test=off"]
    return compose("train", [*settings, *sizes, *more]).run


def step(run):
    parts = build_parts(run, LocalRuntime())
    _, metrics, groups = asyncio.run(train_step(run, parts, LoopState.fresh(run)))
    return parts, values(metrics), groups


def test_what_a_stage_leaves_out_is_counted():
    def keep_first(groups):
        return [groups[0].with_rollouts(groups[0].rollouts[:1])]

    kept, metrics = apply_stages("filter", {"mine": keep_first}, [group(1.0, 0.0), group(1.0, 1.0)])
    assert len(kept) == 1
    assert values(metrics) == {"filter/mine_groups_dropped": 1, "filter/mine_rollouts_dropped": 3}


def test_zero_variance_looks_at_scores_that_are_there():
    found = values(group_metrics([group(1.0, None, 1.0), group(1.0, 0.0), group(None, None)]))
    assert found["group/zero_variance_frac"] == 0.5


def test_advantages_of_groups_without_any_have_no_moments():
    assert values(advantage_metrics([group(1.0)])) == {}


def test_old_logprobs_are_scored_only_off_policy(model, tmp_path):
    assert needed_streams(composed(model, tmp_path)) == set()
    assert needed_streams(composed(model, tmp_path, "train.minibatches=2")) == {"old_logprobs"}
    assert needed_streams(composed(model, tmp_path, "loss.kl=k3", "loss.kl_coef=0.1")) == {"ref_logprobs"}


def test_minibatches_are_optimizer_steps(model, tmp_path):
    parts, metrics, groups = step(composed(model, tmp_path, "train.minibatches=2", "train.epochs=2", "optim.lr=1e-3"))
    assert parts.learner.version == 4
    assert set(groups[0].rollouts[0].streams) == {"sampler_logprobs", "old_logprobs"}
    assert metrics["kl/policy_k3"] > 0
    assert metrics["policy/entropy"] > 0


def test_a_step_with_nothing_to_learn_from_changes_nothing(model, tmp_path):
    run = composed(model, tmp_path, "filters=[solve_rate]", "filters.solve_rate.low=100", "filters.solve_rate.high=200")
    parts, metrics, groups = step(run)
    assert parts.learner.version == 0
    assert metrics["filter/solve_rate_groups_dropped"] == 4
    assert len(groups) == 4 and "policy/loss" not in metrics


def test_sampler_and_learner_agree_on_the_first_update(model, tmp_path):
    _, metrics, _ = step(composed(model, tmp_path, "rollout.temperature=0.7"))
    assert metrics["kl/sampler_k3"] < 1e-9
    assert metrics["policy/ratio_mean"] == 1.0


def test_the_engine_samples_in_the_learner_s_dtype(model, tmp_path):
    _, metrics, _ = step(composed(model, tmp_path, "learner.dtype=bfloat16"))
    assert metrics["kl/sampler_k3"] < 1e-4
