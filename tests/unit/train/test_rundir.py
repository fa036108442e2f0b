import errno
import json
import os
import subprocess
import sys

import pytest

from coterie.errors import RunDirectoryError
from coterie.train import manifest
from coterie.train.atomic import write_atomic
from coterie.train.metrics_file import read_metrics
from coterie.train.rundir import RunDirectory, differences

CONFIG = "optim:\n  lr: 1.0e-06\nrun:\n  dir: runs/x\ntrain:\n  steps: 10\n"


def opened(path, **changes):
    settings = {
        "config_yaml": CONFIG,
        "origins": {"optim.lr": "experiment/x"},
        "fingerprint": "abc",
        "seed": 7,
        "resume": "never",
        "threads": 1,
        "device": "cpu",
    }
    return RunDirectory.open(path, **{**settings, **changes})


def save(run, step, best=False):
    def write(folder):
        (folder / "model").mkdir()
        (folder / "model" / "w").write_text(str(step))

    return run.checkpoints.save(step, write, {"step": step}, best=best)


def content(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_directory_holds_what_a_reader_needs(tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def f(): ...")
    path = tmp_path / "runs" / "a"
    with opened(path, files=[reward]) as run:
        assert not run.resuming and run.checkpoint is None and run.notes == [] and run.threads == 1
    assert (path / "config.yaml").read_text() == CONFIG
    facts = json.loads((path / "manifest.json").read_text())
    assert facts["seed"] == 7 and facts["threads"] == 1 and facts["fingerprint"] == "abc"
    assert facts["origins"] == {"optim.lr": "experiment/x"}
    assert facts["versions"]["torch"] and facts["versions"]["python"].startswith("3.")
    assert facts["files"] == manifest.hashes([reward])
    assert facts["host"]["cores"] >= 1 and facts["host"]["device"] == "cpu"
    assert [s["step"] for s in facts["starts"]] == [0]
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["a"], "no temporary folder is left"


def test_what_a_kill_left_while_making_it_is_removed(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (
        f".a.creating-{dead.pid}",
        f".a.creating-{os.getpid()}",
        f".a.creating-{os.getppid()}",
        ".b.creating-1",
    ):
        (tmp_path / name).mkdir()
    opened(tmp_path / "a").close()
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"a", f".a.creating-{os.getppid()}", ".b.creating-1"}, "a living process may still be at work"


def test_an_empty_folder_is_a_free_place(tmp_path):
    (tmp_path / "a").mkdir()
    opened(tmp_path / "a").close()
    assert (tmp_path / "a" / "manifest.json").exists()


def test_never_refuses_a_run_that_is_there(tmp_path):
    opened(tmp_path / "a").close()
    before = content(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"run\.dir=.* holds a run already.*run\.resume=auto"):
        opened(tmp_path / "a")
    assert content(tmp_path) == before


@pytest.mark.parametrize("resume", ["never", "auto", "must"])
def test_other_folders_and_files_are_left_alone(tmp_path, resume):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("…")
    with pytest.raises(RunDirectoryError, match="no run directory"):
        opened(tmp_path / "thesis", resume=resume)
    with pytest.raises(RunDirectoryError, match="is a file"):
        opened(tmp_path / "thesis" / "chapter.tex", resume=resume)


def test_auto_starts_and_then_goes_on(tmp_path):
    with opened(tmp_path / "a", resume="auto") as run:
        assert not run.resuming
        run.metrics.append(0, {"x": 1})
        save(run, 5)
    with opened(tmp_path / "a", resume="auto") as run:
        assert run.resuming and run.checkpoint.step == 5 and run.checkpoint.state == {"step": 5}
        assert run.notes == []
    facts = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert [s["step"] for s in facts["starts"]] == [0, 5]


def test_must_needs_a_checkpoint(tmp_path):
    with pytest.raises(RunDirectoryError, match="no run in run.dir"):
        opened(tmp_path / "a", resume="must")
    assert not (tmp_path / "a").exists()
    run = opened(tmp_path / "a")
    run.close()
    with pytest.raises(RunDirectoryError, match=r"has no checkpoint.*run\.resume=auto"):
        opened(tmp_path / "a", resume="must")
    with opened(tmp_path / "a", resume="auto") as run:
        save(run, 1)
    (tmp_path / "a" / "checkpoints" / "step_000001" / "model" / "w").write_text("?")
    with pytest.raises(RunDirectoryError, match="no whole checkpoint"):
        opened(tmp_path / "a", resume="must")
    with opened(tmp_path / "a", resume="auto") as run:
        assert run.checkpoint is None and "no checkpoint is whole" in run.notes[0]


def test_a_damaged_checkpoint_is_said(tmp_path):
    with opened(tmp_path / "a") as run:
        save(run, 1)
        save(run, 2)
    (tmp_path / "a" / "checkpoints" / "step_000002" / "model" / "w").write_text("?")
    with opened(tmp_path / "a", resume="auto") as run:
        assert run.checkpoint.step == 1
        assert "step_000002 is damaged" in run.notes[0] and "going on from step_000001" in run.notes[0]


def test_another_configuration_names_the_keys(tmp_path):
    opened(tmp_path / "a").close()
    before = content(tmp_path)
    other = CONFIG.replace("1.0e-06", "3.0e-06").replace("runs/x", "runs/y") + "data:\n  path: p\n"
    with pytest.raises(RunDirectoryError) as caught:
        opened(tmp_path / "a", resume="auto", config_yaml=other, fingerprint="xyz", free=["run"])
    text = str(caught.value)
    assert "optim.lr: 1e-06 → 3e-06" in text and "data.path: (absent) → p" in text
    assert "runs/y" not in text and "train.steps" not in text and "Give another run.dir" in text
    assert content(tmp_path) == before


def test_keys_outside_of_the_fingerprint_may_change(tmp_path):
    opened(tmp_path / "a").close()
    with opened(tmp_path / "a", resume="auto", config_yaml=CONFIG.replace("10", "20")):
        assert "steps: 20" in (tmp_path / "a" / "config.yaml").read_text()


def test_a_loaded_file_that_changed_is_named(tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("1")
    opened(tmp_path / "a", files=[reward]).close()
    reward.write_text("2")
    with pytest.raises(RunDirectoryError, match=r"content of .*reward\.py: sha256 6b86b273ff34 → d4735e3a265e"):
        opened(tmp_path / "a", files=[reward], resume="auto")


def test_threads_of_the_first_start_are_kept(tmp_path):
    assert RunDirectory.recorded_threads(tmp_path / "a") == 0
    opened(tmp_path / "a", threads=2).close()
    assert RunDirectory.recorded_threads(tmp_path / "a") == 2
    with opened(tmp_path / "a", threads=8, resume="auto") as run:
        assert run.threads == 2 and "2 compute threads" in run.notes[0]


def test_other_versions_are_said(tmp_path):
    opened(tmp_path / "a").close()
    path = tmp_path / "a" / "manifest.json"
    facts = json.loads(path.read_text())
    facts["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(facts))
    with opened(tmp_path / "a", resume="auto") as run:
        assert any(note.startswith("torch 1.0 → ") for note in run.notes)


def test_one_writer(tmp_path):
    with opened(tmp_path / "a"), pytest.raises(RunDirectoryError, match="is being written by process"):
        opened(tmp_path / "a", resume="auto")
    opened(tmp_path / "a", resume="auto").close()


def test_a_failed_open_gives_the_directory_free(tmp_path):
    opened(tmp_path / "a").close()
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match="another configuration"):
            opened(tmp_path / "a", resume="auto", fingerprint="other")
    opened(tmp_path / "a", resume="auto").close()


def test_a_broken_manifest(tmp_path):
    opened(tmp_path / "a").close()
    (tmp_path / "a" / "manifest.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"manifest\.json can't be read"):
        opened(tmp_path / "a", resume="auto")
    (tmp_path / "a" / "manifest.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="lacks"):
        opened(tmp_path / "a", resume="auto")


def test_cut_after_removes_every_later_record(tmp_path):
    with opened(tmp_path / "a") as run:
        for step in range(5):
            run.metrics.append(step, {"x": step})
            run.rollouts.write(step, [])
            run.rollouts.write(step, [], "eval")
        save(run, 2)
        save(run, 4, best=True)
        run.write_summary({"x": 1})
        run.cut_after(2)
        assert [r["step"] for r in read_metrics(tmp_path / "a" / "metrics.jsonl")] == [0, 1, 2]
        assert run.rollouts.steps() == run.rollouts.steps("eval") == [0, 1, 2]
        assert run.checkpoints.steps() == [2] and run.checkpoints.best is None
        assert not (tmp_path / "a" / "summary.json").exists()
        run.metrics.append(3, {})


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path, monkeypatch):
    def full(path, data):
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomic(path, data)

    monkeypatch.setattr("coterie.train.rundir.write_json", lambda path, value: full(path, b""))
    with pytest.raises(RunDirectoryError, match=r"can't write the run directory .*no space"):
        opened(tmp_path / "runs" / "a")
    assert [p.name for p in (tmp_path / "runs").iterdir()] == []


def test_a_full_disk_at_the_summary(tmp_path, monkeypatch):
    with opened(tmp_path / "a") as run:

        def full(fd):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunDirectoryError, match=r"summary\.json .*Kept: metrics, rollouts and checkpoints"):
            run.write_summary({"x": 1})
        assert not (tmp_path / "a" / "summary.json").exists()


def test_a_place_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"a part of the path is a file.*Choose another run\.dir"):
        opened(tmp_path / "file" / "run")


RACE = """
import sys
from coterie.errors import RunDirectoryError
from coterie.train.rundir import RunDirectory
sys.stdin.readline()
try:
    RunDirectory.open(sys.argv[1], config_yaml="a: 1", origins={}, fingerprint="x", seed=0, resume=sys.argv[2],
                      threads=1, device="cpu")
    print("got it", flush=True)
    sys.stdin.readline()
except RunDirectoryError as error:
    print(error, flush=True)
"""


def test_of_racing_processes_one_gets_it(tmp_path):
    command = [sys.executable, "-c", RACE, str(tmp_path / "a"), "auto"]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.stdout.readline() for racer in racers]
    for racer in racers:
        racer.communicate("\n")
    assert said.count("got it\n") == 1, said
    assert all("being written by" in s or "made by another process" in s for s in said if s != "got it\n"), said


def test_differences():
    old = {"a": {"b": 1, "c": [1, 2]}, "d": {}, "e": None}
    assert differences(old, old) == []
    new = {"a": {"b": 2, "c": [1]}, "d": {"x": 1}, "f": 0}
    assert differences(old, new) == [
        "a.b: 1 → 2",
        "a.c: [1, 2] → [1]",
        "d: {} → (absent)",
        "d.x: (absent) → 1",
        "e: None → (absent)",
        "f: (absent) → 0",
    ]
    assert differences(old, new, ("a", "d", "e")) == ["f: (absent) → 0"]
    assert differences({"ab": 1}, {"ab": 2}, ("a",)) == ["ab: 1 → 2"]
