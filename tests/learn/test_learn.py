"""Methods really improve a policy: small tasks, seconds each, three seeds."""

import json

import pytest
import torch

from coterie.config.compose import compose
from coterie.learners.tiny import build_tiny
from coterie.train.rl import run_rl
from coterie.train.sft import run_sft

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str[:1] == ground_truth)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("learn") / "tiny", hidden=32, layers=2, heads=2, context=64)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def curve(folder, name):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [r[name] for r in records if name in r]


def contextual_bandit(folder):
    """Answer "a" prompts with 7 and "b" prompts with 3: the first character decides."""
    (folder / "reward.py").write_text(REWARD)
    rows = [{"prompt": "1+1" if i % 2 else "9-2", "reference": "3" if i % 2 else "7"} for i in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "method",
    [
        ["advantage=grpo", "loss=ppo_clip"],
        ["advantage=dr_grpo", "loss=ppo_clip", "loss.aggregate=fixed_length", "loss.fixed_length=4"],
        ["advantage=grpo", "loss=ppo_clip", "train.minibatches=2", "train.epochs=2"],
    ],
    ids=["grpo", "dr_grpo", "grpo_off_policy"],
)
def test_rl_solves_a_contextual_bandit(model, tmp_path, seed, method):
    contextual_bandit(tmp_path)
    result = run_rl(
        compose(
            "train",
            [
                f"model={model}",
                f"data.path={tmp_path / 'rows.jsonl'}",
                "reward=function",
                f"reward.path={tmp_path / 'reward.py'}",
                "rollout.n=16",
                "rollout.max_tokens=4",
                "train.prompts_per_step=8",
                "train.steps=40",
                "train.save_every=0",
                "optim.lr=5e-3",
                f"run.seed={seed}",
                f"run.dir={tmp_path / 'run'}",
                "log.console=off",
                "log.rollouts_every=0",
                *method,
            ],
        )
    )
    rewards = curve(tmp_path / "run", "reward/reward")
    assert result["steps"] == 40
    assert sum(rewards[:2]) / 2 < 0.2
    assert sum(rewards[-3:]) / 3 > 0.8, rewards


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sft_learns_the_answers(model, tmp_path, seed):
    rows = [{"prompt": f"{a}+{b}=", "response": str(a + b)} for a in range(5) for b in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "same.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    run_sft(
        compose(
            "sft",
            [
                f"model={model}",
                f"data.path={tmp_path / 'rows.jsonl'}",
                f"eval.data.path={tmp_path / 'same.jsonl'}",
                "eval.every=40",
                "sft.batch_size=25",
                "train.steps=120",
                "train.save_every=0",
                "optim.lr=5e-3",
                f"run.seed={seed}",
                f"run.dir={tmp_path / 'run'}",
                "log.console=off",
            ],
        )
    )
    losses = curve(tmp_path / "run", "eval/loss")
    assert losses[0] > 2.0
    assert losses[-1] < 0.3, losses
