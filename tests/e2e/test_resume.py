"""A killed run goes on bit for bit (issue 2, item 5)."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from coterie.train.metrics_file import strip_wall
from coterie.train.records import read_rollouts

STEPS = 6
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": solution_str.count("7") / (1 + len(solution_str)), "length": len(solution_str)}
"""


@pytest.fixture
def overrides(tiny_model, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"{i}+{i + 1}=", "reference": str(2 * i + 1)} for i in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[::3]))
    return [
        f"model={tiny_model}",
        "data.path=rows.jsonl",
        "reward=function",
        "reward.path=reward.py",
        "advantage=grpo",
        "loss=ppo_clip",
        "filters=[constant]",
        "rollout.n=4",
        "rollout.max_tokens=12",
        "train.prompts_per_step=4",
        "train.minibatches=2",
        f"train.steps={STEPS}",
        "train.save_every=1",
        "train.keep=0",
        "train.smoke_test=off",
        "eval.every=3",
        "eval.data.path=held_out.jsonl",
        "optim.lr=1e-2",
        "optim.schedule=cosine",
        "optim.warmup_steps=2",
        "entropy_control=skywork",
        "log.console=plain",
    ]


def whole_run(folder):
    """Everything that must be equal: metrics, sampled texts and logprobs, weights, optimizer, loop state."""
    metrics = [strip_wall(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rollouts = {}
    for path in sorted((folder / "rollouts").glob("*.parquet")):
        rollouts[path.name] = [
            (
                r.text,
                r.tokens.tolist(),
                r.streams["sampler_logprobs"].tolist(),
                r.advantages if r.advantages is None else r.advantages.tolist(),
            )
            for g in read_rollouts(path)
            for r in g.rollouts
        ]
    last = folder / "checkpoints" / f"step_{STEPS:06d}"
    weights = {n: t.tolist() for n, t in load_file(last / "model" / "model.safetensors").items()}
    state = {}
    for path in sorted((last / "state").rglob("*")):
        if path.suffix == ".json":
            state[path.name] = json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            state[path.name] = {n: t.tolist() for n, t in load_file(path).items()}
        elif path.is_file():
            state[path.name] = plain(torch.load(path, weights_only=True))
    return {"metrics": metrics, "rollouts": rollouts, "weights": weights, "state": state}


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def start(arguments, folder, environment):
    command = [sys.executable, "-m", "coterie.cli", "train", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def steps_done(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def interrupt(arguments, folder, run, environment, *, after, number, pause):
    """Start, wait for `after` records, then send a signal a little later, in the middle of whatever happens then."""
    process = start(arguments, folder, environment)
    deadline = time.monotonic() + 120
    while process.poll() is None and steps_done(run) < after and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(pause)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_at_random_moments_equals_the_uninterrupted_one(overrides, coterie, tmp_path, environment, seed):
    done = coterie("train", *overrides, "run.dir=whole")
    assert done.returncode == 0, done.stdout + done.stderr
    dice = random.Random(seed)
    arguments = [*overrides, "run.dir=cut", "run.resume=auto"]
    for after in sorted(dice.sample(range(1, STEPS), 2)):
        interrupt(
            arguments,
            tmp_path,
            tmp_path / "cut",
            environment,
            after=after,
            number=signal.SIGKILL,
            pause=dice.random() * 0.3,
        )
    last = coterie("train", *arguments)
    assert last.returncode == 0, last.stdout + last.stderr
    assert whole_run(tmp_path / "cut") == whole_run(tmp_path / "whole")


def test_ctrl_c_ends_after_the_step_with_a_checkpoint_and_goes_on(overrides, coterie, tmp_path, environment):
    arguments = [*overrides, "run.dir=cut", "run.resume=auto", "train.save_every=0"]
    code, output = interrupt(
        arguments, tmp_path, tmp_path / "cut", environment, after=3, number=signal.SIGINT, pause=0.0
    )
    assert "stopping after this step" in output
    assert code == 130, output
    summary = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert summary["ended"] == "stop requested" and 0 < summary["steps"] < STEPS
    assert coterie("train", *arguments).returncode == 0
    assert coterie("train", *overrides, "run.dir=whole", "train.save_every=0").returncode == 0
    assert whole_run(tmp_path / "cut") == whole_run(tmp_path / "whole")


def test_a_damaged_checkpoint_is_passed_over_and_said(overrides, coterie, tmp_path):
    assert coterie("train", *overrides, "run.dir=a").returncode == 0
    before = whole_run(tmp_path / "a")
    damaged = tmp_path / "a" / "checkpoints" / f"step_{STEPS:06d}" / "model" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    again = coterie("train", *overrides, "run.dir=a", "run.resume=auto")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"step_{STEPS:06d}" in again.stdout + again.stderr and "damaged" in again.stdout + again.stderr
    assert whole_run(tmp_path / "a") == before


def test_a_directory_of_another_configuration_is_refused(overrides, coterie, tmp_path):
    assert coterie("train", *overrides, "run.dir=a").returncode == 0
    other = coterie("train", *overrides, "run.dir=a", "run.resume=auto", "rollout.temperature=0.9")
    assert other.returncode == 2
    assert "rollout.temperature" in other.stderr and "Traceback" not in other.stderr
    fresh = coterie("train", *overrides, "run.dir=a")
    assert fresh.returncode == 2 and "run.resume=auto" in fresh.stderr
