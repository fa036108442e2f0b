"""PPO's actor improves and its critic explains what is left to explain; three seeds."""

import json

import pytest
import torch

from coterie.config.compose import compose
from coterie.learners.tiny import build_tiny
from coterie.train.rl import run_rl

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return (1.0 if ground_truth == "7" else 0.4) * (solution_str[:1] == ground_truth)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return build_tiny(tmp_path_factory.mktemp("learn") / "tiny", hidden=32, layers=2, heads=2, context=64)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_solves_a_contextual_bandit_and_its_critic_knows_what_a_prompt_is_worth(model, tmp_path, seed):
    """Right answers earn 1 or 0.4, as the prompt has it: when all are right, only the prompts differ."""
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": "1+1" if i % 2 else "9-2", "reference": "3" if i % 2 else "7"} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    run_rl(
        compose(
            "train",
            [
                f"model={model}",
                f"data.path={tmp_path / 'rows.jsonl'}",
                "reward=function",
                f"reward.path={tmp_path / 'reward.py'}",
                "advantage=gae",
                "loss=ppo_clip",
                "critic.lr=5e-3",
                "critic.warmup_steps=5",
                "rollout.n=16",
                "rollout.max_tokens=2",
                "train.prompts_per_step=8",
                "train.steps=40",
                "train.save_every=0",
                "train.smoke_test=off",
                "optim.lr=5e-3",
                f"run.seed={seed}",
                f"run.dir={tmp_path / 'run'}",
                "log.console=off",
                "log.rollouts_every=0",
            ],
        )
    )
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [r["reward/reward"] for r in records]
    explained = [r["critic/explained_variance"] for r in records]
    assert sum(rewards[:5]) / 5 < 0.1
    assert sum(rewards[-3:]) / 3 > 0.6, rewards
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert sum(explained[-3:]) / 3 > 0.3, explained
