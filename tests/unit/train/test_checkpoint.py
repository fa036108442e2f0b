import errno
import json
import subprocess
import sys

import pytest
import torch

from coterie.errors import RunDirectoryError
from coterie.train.checkpoint import Checkpoints, damage_of, load_path


def writer(step, size=32):
    def write(folder):
        (folder / "model").mkdir()
        (folder / "state").mkdir()
        (folder / "model" / "weights.bin").write_bytes(bytes([step]) * size)
        torch.save({"step": step}, folder / "state" / "optimizer.pt")

    return write


def filled(folder, steps, keep=0, best=()):
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, writer(step), {"step": step, "lr": 0.1}, best=step in best)
    return checkpoints


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path):
    saved = filled(tmp_path / "c", [10]).latest()
    assert (saved.step, saved.path, saved.note) == (10, tmp_path / "c" / "step_000010", "")
    assert saved.state == {"step": 10, "lr": 0.1}
    assert (saved.model / "weights.bin").read_bytes() == b"\n" * 32
    listed = json.loads((saved.path / "complete.json").read_text())
    assert set(listed["files"]) == {"model/weights.bin", "state/optimizer.pt", "state/loop.json"}
    assert load_path(saved.path) == saved


def test_nothing_there(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.latest() is None and checkpoints.best is None and checkpoints.steps() == []


def test_loop_state_keeps_its_order_and_every_bit(tmp_path):
    state = {"b": 1e-17 + 1 / 3, "a": {"z": None, "c": [1, 2]}}
    Checkpoints(tmp_path).save(1, writer(1), state)
    back = Checkpoints(tmp_path).latest().state
    assert back == state and list(back) == ["b", "a"]


@pytest.mark.parametrize("state", [{"x": float("nan")}, {"x": object()}])
def test_state_that_is_no_plain_data_is_refused_and_nothing_left(tmp_path, state):
    checkpoints = filled(tmp_path, [1])
    with pytest.raises((TypeError, ValueError)):
        checkpoints.save(2, writer(2), state)
    assert names(tmp_path) == ["step_000001"]


def damage_by_size(path):
    (path / "model" / "weights.bin").write_bytes(b"short")


def damage_by_bit(path):
    data = bytearray((path / "model" / "weights.bin").read_bytes())
    data[5] ^= 1
    (path / "model" / "weights.bin").write_bytes(data)


def damage_by_absence(path):
    (path / "state" / "optimizer.pt").unlink()


def damage_of_list(path):
    (path / "complete.json").write_text('{"step": 2, "fi')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_by_size, "5 bytes instead of 32"),
        (damage_by_bit, "sha256 of model/weights.bin differs"),
        (damage_by_absence, "state/optimizer.pt is missing"),
        (damage_of_list, "complete.json is missing or broken"),
    ],
)
def test_a_damaged_one_is_reported_and_passed_over(tmp_path, caplog, damage, words):
    checkpoints = filled(tmp_path, [1, 2])
    damage(tmp_path / "step_000002")
    found = checkpoints.latest()
    assert found.step == 1
    assert "step_000002 is damaged" in found.note and words in found.note
    assert words in caplog.text and "going on from step_000001" in caplog.text
    with pytest.raises(RunDirectoryError, match="not a whole checkpoint"):
        load_path(tmp_path / "step_000002")


def test_none_whole(tmp_path, caplog):
    checkpoints = filled(tmp_path, [1])
    damage_by_bit(tmp_path / "step_000001")
    assert checkpoints.latest() is None
    assert "no checkpoint is whole" in caplog.text


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    checkpoints = filled(tmp_path, [1, 2, 3, 4, 5], keep=2, best=[1, 2])
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best.step == 2
    assert names(tmp_path) == ["best.json", "step_000002", "step_000004", "step_000005"]


def test_keep_zero_keeps_all(tmp_path):
    assert filled(tmp_path, [1, 2, 3]).steps() == [1, 2, 3]


def test_the_best_is_also_the_latest(tmp_path):
    checkpoints = filled(tmp_path, [1, 2], keep=1, best=[2])
    assert checkpoints.steps() == [2] and checkpoints.best == checkpoints.latest()


def test_a_damaged_best_is_none(tmp_path, caplog):
    checkpoints = filled(tmp_path, [1, 2], best=[1])
    damage_by_bit(tmp_path / "step_000001")
    assert checkpoints.best is None and "best checkpoint" in caplog.text


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoints = filled(tmp_path, [1, 2])
    checkpoints.save(2, writer(9), {"again": True}, best=True)
    assert checkpoints.latest().state == {"again": True} and checkpoints.best.step == 2
    assert names(tmp_path) == ["best.json", "step_000001", "step_000002"]


def test_cut_puts_later_ones_aside_and_the_new_one_replaces_them(tmp_path):
    checkpoints = filled(tmp_path, [1, 2, 3], best=[1, 3])
    assert checkpoints.cut_after(1) == 2
    assert names(tmp_path) == ["best.json", "damaged-step_000002", "damaged-step_000003", "step_000001"]
    assert checkpoints.latest().step == 1 and checkpoints.best.step == 1
    checkpoints.save(2, writer(2), {})
    assert names(tmp_path) == ["best.json", "damaged-step_000003", "step_000001", "step_000002"]


def test_a_full_disk_says_what_is_kept_and_leaves_nothing(tmp_path):
    checkpoints = filled(tmp_path, [1, 2])

    def full(folder):
        writer(3)(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunDirectoryError, match=r"step_000003.*no space.*checkpoints of steps \[1, 2\]"):
        checkpoints.save(3, full, {})
    assert names(tmp_path) == ["step_000001", "step_000002"]


def test_other_errors_of_the_writer_pass_and_leave_nothing(tmp_path):
    checkpoints = filled(tmp_path, [1])

    def broken(folder):
        (folder / "model").mkdir()
        raise KeyError("weight")

    with pytest.raises(KeyError):
        checkpoints.save(2, broken, {})
    assert names(tmp_path) == ["step_000001"]


CRASHES = """
import json, os, shutil, signal, sys
from pathlib import Path
from coterie.train.checkpoint import Checkpoints, damage_of

root = Path(sys.argv[1])
again = sys.argv[2] == "again"

def write(step):
    def inner(folder):
        (folder / "model").mkdir()
        (folder / "state").mkdir()
        (folder / "model" / "w").write_bytes(bytes([step]) * 100)
    return inner

base = root / "base"
made = Checkpoints(base, keep=1)
made.save(1, write(1), {"step": 1}, best=True)
made.save(2, write(2), {"step": 2})
target = 2 if again else 3

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
outcomes = []
for point in range(1, 1000):
    folder = root / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    child = os.fork()
    if child == 0:
        left = point
        def hook(event, arguments):
            global left
            if event in EVENTS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        Checkpoints(folder, keep=1).save(target, write(target), {"step": target, "new": True}, best=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    seen = Checkpoints(folder, keep=1)
    latest, best = seen.latest(), None
    listed = [damage_of(seen.path(step)) for step in seen.steps()]
    seen.recover()
    whole = seen.latest()
    best = seen.best
    outcomes.append({
        "point": point,
        "before_recovery": latest and latest.step,
        "listed": listed,
        "latest": whole and whole.step,
        "new": bool(whole and whole.state.get("new")),
        "agrees": bool(whole and whole.state["step"] == whole.step),
        "best": best and best.step,
    })
    seen.save(9, write(9), {"step": 9})
    outcomes[-1]["after"] = sorted(p.name for p in folder.iterdir())
    outcomes[-1]["whole"] = [damage_of(folder / n) for n in outcomes[-1]["after"] if n.startswith("step_")]
    if os.WIFEXITED(status):
        break
print(json.dumps(outcomes))
"""


@pytest.mark.parametrize("kind", ["next", "again"])
def test_a_kill_at_any_file_operation_leaves_a_whole_latest(tmp_path, kind):
    """The child is killed at its 1st, 2nd, … file operation of a save, until one save runs to its end."""
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, str(tmp_path), kind], capture_output=True, text=True, check=True
    )
    outcomes = json.loads(done.stdout)
    assert len(outcomes) > 15
    new = 2 if kind == "again" else 3
    for outcome in outcomes:
        assert outcome["latest"] in (2, new) and outcome["agrees"], outcome
        assert outcome["best"] == (new if outcome["new"] else 1), outcome
        assert set(outcome["after"]) <= {"best.json", "step_000009", f"step_{outcome['best']:06d}"}, outcome
        assert not any(outcome["whole"]) and not any(outcome["listed"]), outcome
        if kind == "next":
            assert outcome["before_recovery"] == outcome["latest"], outcome
    assert not outcomes[0]["new"] and outcomes[-1]["new"]
    # Once the new one is there it stays: no later crash point falls back.
    flags = [outcome["new"] for outcome in outcomes]
    assert flags == sorted(flags)


def test_reading_changes_nothing(tmp_path):
    checkpoints = filled(tmp_path, [1])
    (tmp_path / ".saving-000002").mkdir()
    (tmp_path / ".saving-000002" / "half").write_text("")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    assert checkpoints.latest().step == 1 and checkpoints.best is None and damage_of(tmp_path / "step_000001") is None
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    checkpoints.recover()
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]
