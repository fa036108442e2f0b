import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from coterie.core.types import Example, Group, Rollout
from coterie.errors import RunDirectoryError
from coterie.train.follow import Follower, follow
from coterie.train.rundir import RunDirectory

GROUP = Group(
    Example("a", ({"role": "user", "content": "How much is 6 × 7?"},)),
    (Rollout(np.arange(3), np.arange(1, 3), "It is 42.", "stop"),),
)


@pytest.fixture
def run(tmp_path):
    with RunDirectory.open(
        tmp_path / "demo",
        config_yaml="train:\n  steps: 20\n",
        origins={},
        fingerprint="x",
        seed=0,
        resume="auto",
        threads=1,
        device="cpu",
    ) as opened:
        yield opened


def drawn(path):
    console = Console(file=io.StringIO(), width=150, color_system=None)
    follow(path, console, once=True)
    return console.file.getvalue()


def test_the_board_comes_from_the_directory_alone(run):
    for step in range(4):
        run.metrics.append(step, {"reward/reward": step / 4, "group/zero_variance_frac": 0.9})
    run.rollouts.write(3, [GROUP])
    text = drawn(run.path)
    for part in ("demo", "running", "step 3/20", "reward/reward", "0.75", "How much is 6 × 7?", "It is 42.", "left"):
        assert part in text, part
    assert text.count("zero variance") == 1


def test_it_reads_only_what_is_new_and_waits_for_whole_lines(run):
    follower = Follower(run.path)
    assert follower.look().step == -1
    run.metrics.append(1, {"reward/reward": 0.5})
    assert follower.look().step == 1
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "rew')
        file.flush()
        assert follower.look().step == 1
        file.write(b'ard/reward": 0.25}\n')
    assert follower.look().latest["reward/reward"] == 0.25 and follower.board.step == 2


def test_a_resumed_run_that_cut_its_records(run):
    follower = Follower(run.path)
    for step in range(6):
        run.metrics.append(step, {"reward/reward": float(step)})
    assert follower.look().step == 5
    run.cut_after(1)
    run.metrics.append(2, {"reward/reward": 9.0})
    assert follower.look().step == 2 and follower.board.latest["reward/reward"] == 9.0


def test_status(run):
    follower = Follower(run.path)
    follower.look()
    assert follower.board.status == "running" and not follower.ended
    run.write_summary({})
    run.close()
    assert follower.look().status == "finished" and follower.ended


def test_a_killed_run_is_stopped(run):
    run.close()
    assert Follower(run.path).look().status == "stopped"
    owner = {"host": os.uname().nodename, "pid": os.getpid(), "started": 1.0}
    (run.path / "run.lock").write_text(json.dumps(owner))
    assert Follower(run.path).look().status == "stopped"


def test_follow_ends_with_the_run(run):
    run.metrics.append(1, {"reward/reward": 0.5})
    run.write_summary({})
    run.close()
    console = Console(file=io.StringIO(), width=100, color_system=None)
    follow(run.path, console, poll_s=0.01)
    assert "finished" in console.file.getvalue()


def test_a_broken_rollout_file_does_not_stop_it(run):
    run.metrics.append(1, {"reward/reward": 0.5})
    (run.path / "rollouts" / "step_000001.parquet").write_bytes(b"half")
    assert Follower(run.path).look().step == 1


def test_no_run_directory(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"no run directory: it has no manifest\.json"):
        follow(tmp_path, Console(file=io.StringIO()))


def test_it_needs_no_torch(tmp_path):
    code = "import sys; import coterie.train.follow; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
