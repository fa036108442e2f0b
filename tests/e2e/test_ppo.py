"""Actor, critic and reference model in one run: warm-up, checkpoints, resuming bit for bit, starting from a critic."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from coterie.config.compose import compose
from coterie.errors import ModelError, RunDirectoryError
from coterie.learners.tiny import build_tiny
from coterie.train import rl
from coterie.train.metric_specs import undeclared
from coterie.train.metrics_file import strip_wall

STEPS = 6
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return solution_str.count("7") / (1 + len(solution_str))
"""


class Killed(BaseException):
    pass


@pytest.fixture
def settings(tiny_model, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"{i}+{i + 1}=", "reference": str(2 * i + 1)} for i in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return [
        f"model={tiny_model}",
        f"data.path={tmp_path / 'rows.jsonl'}",
        "reward=function",
        f"reward.path={tmp_path / 'reward.py'}",
        "advantage=gae",
        "shaping=[kl]",
        "kl_control=adaptive",
        "loss=ppo_clip",
        "rollout.n=2",
        "rollout.max_tokens=8",
        "train.prompts_per_step=4",
        "train.minibatches=2",
        "train.epochs=2",
        f"train.steps={STEPS}",
        "train.save_every=2",
        "train.keep=0",
        "train.smoke_test=off",
        "critic.lr=1e-2",
        "critic.warmup_steps=2",
        "critic.bootstrap=true",
        "optim.lr=1e-2",
        "optim.schedule=cosine",
        "log.console=off",
    ]


def train(settings, folder, *more):
    torch.manual_seed(0)
    return rl.run_rl(compose("train", [*settings, f"run.dir={folder}", *more]))


def records(folder):
    return [strip_wall(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def checkpoint(folder, step):
    """Every file of a checkpoint's `model`, `state` and `critic`, as plain values."""
    out = {}
    path = folder / "checkpoints" / f"step_{step:06d}"
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        if file.suffix == ".safetensors":
            out[name] = {n: t.tolist() for n, t in load_file(file).items()}
        elif file.suffix == ".pt":
            out[name] = plain(torch.load(file, weights_only=True))
        elif name == "state/loop.json":
            out[name] = json.loads(file.read_text())
    return out


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def kill_in(monkeypatch, step):
    """Let the process end inside this training step, after the checkpoint of an earlier one."""
    real = rl.train_step

    async def killed(run, parts, state):
        if state.step + 1 == step:
            raise Killed
        return await real(run, parts, state)

    monkeypatch.setattr(rl, "train_step", killed)


def test_a_killed_run_goes_on_bit_for_bit_with_its_critic(settings, tmp_path, monkeypatch):
    train(settings, tmp_path / "whole")
    for step in (4, 6):  # records of steps 3 and 5 lie behind the checkpoints and are made again
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_in(patch, step)
            train(settings, tmp_path / "cut", "run.resume=auto")
    train(settings, tmp_path / "cut", "run.resume=auto")
    assert records(tmp_path / "cut") == records(tmp_path / "whole")
    saved = checkpoint(tmp_path / "whole", STEPS)
    assert {"critic/model/model.safetensors", "critic/model/value_head.safetensors", "critic/state/learner.pt"} <= set(
        saved
    )
    assert checkpoint(tmp_path / "cut", STEPS) == saved


def test_in_the_warm_up_only_the_critic_learns(settings, tiny_model, tmp_path):
    """Eleven such steps: a controller that measures nothing must not give up either."""
    few = ["critic.warmup_steps=11", "train.steps=12", "train.save_every=11", "rollout.max_tokens=3"]
    train(settings, tmp_path / "run", *few)
    made = records(tmp_path / "run")
    assert all("policy/loss" not in r and "critic/loss" in r for r in made[:11])
    assert {"policy/loss", "critic/loss", "kl/ref_k1"} <= set(made[11])
    assert made[0]["critic/value_mean"] != 0.0  # four updates a step: those after the first see its effect
    assert {r["control/kl_coef"] for r in made} == {0.001}
    assert undeclared({name for r in made for name in r if name.startswith("critic/")}) == []
    start = load_file(tiny_model / "model.safetensors")
    kept, moved = (
        load_file(tmp_path / "run" / "checkpoints" / f"step_{step:06d}" / "model" / "model.safetensors")
        for step in (11, 12)
    )
    assert all(torch.equal(kept[name], start[name]) for name in start)
    assert not all(torch.equal(moved[name], start[name]) for name in start)


def test_a_checkpoint_without_its_critic_is_no_checkpoint(settings, tmp_path):
    few = ["train.steps=4", "optim.schedule=constant"]
    train(settings, tmp_path / "run", *few)
    before = records(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step_000004" / "critic" / "model" / "value_head.safetensors").unlink()
    train(settings, tmp_path / "run", *few, "run.resume=must")
    assert records(tmp_path / "run") == before
    with pytest.raises(RunDirectoryError, match="advantage"):
        train(settings, tmp_path / "run", *few, "run.resume=must", "advantage.lam=0.5")


def test_the_critic_may_be_another_model_or_go_on_from_a_saved_one(settings, tmp_path):
    other = build_tiny(tmp_path / "other", hidden=16, layers=1, heads=2, context=128, seed=5)
    once = [
        "optim.schedule=constant",
        "critic.warmup_steps=0",
        "train.steps=1",
        "train.epochs=1",
        "train.minibatches=1",
    ]
    train(settings, tmp_path / "first", f"critic.model={other}", *once)
    saved = tmp_path / "first" / "checkpoints" / "step_000001" / "critic" / "model"
    assert AutoModel.from_pretrained(saved).config.hidden_size == 16
    train(settings, tmp_path / "second", f"critic.model={saved}", *once)
    [first], [second] = records(tmp_path / "first"), records(tmp_path / "second")
    assert first["critic/value_mean"] == 0.0 and second["critic/value_mean"] != 0.0
    stranger = build_tiny(tmp_path / "stranger", characters="abc", hidden=16, layers=1, heads=2)
    with pytest.raises(ModelError, match="another vocabulary"):
        train(settings, tmp_path / "third", f"critic.model={stranger}")
