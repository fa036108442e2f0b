"""`coterie dpo` and `coterie rm` from the command line: runs, kills and bad rows (issue 3)."""

import json
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from coterie.train.metrics_file import strip_wall

ROWS = [
    {"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": str(i), "response": str(i), "label": bool(i % 2)}
    for i in range(12)
]


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS[:4]))
    return tmp_path


def settings(verb, model, *more):
    return [
        verb,
        f"model={model}",
        "data.path=rows.jsonl",
        f"{verb}.batch_size=4",
        "train.steps=6",
        "train.save_every=1",
        "optim.lr=1e-3",
        "eval.every=3",
        "eval.data.path=held_out.jsonl",
        "log.console=plain",
        *more,
    ]


def outcome(run):
    records = [strip_wall(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = load_file(run / "checkpoints" / "step_000006" / "model" / "model.safetensors")
    return records, {name: tensor.tolist() for name, tensor in weights.items()}


@pytest.mark.parametrize("verb", ["dpo", "rm"])
def test_a_killed_run_goes_on_bit_for_bit(rows, coterie, environment, tiny_model, verb):
    whole = coterie(*settings(verb, tiny_model, "run.dir=whole"))
    assert whole.returncode == 0, whole.stderr
    assert "eval after" in whole.stdout
    arguments = settings(verb, tiny_model, "run.dir=cut", "run.resume=auto")
    process = subprocess.Popen([sys.executable, "-m", "coterie.cli", *arguments], cwd=rows, env=environment)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (rows / "cut" / "metrics.jsonl").exists() and (rows / "cut" / "metrics.jsonl").read_text().count("\n") > 2:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    last = coterie(*arguments)
    assert last.returncode == 0, last.stderr
    assert outcome(rows / "cut") == outcome(rows / "whole")


@pytest.mark.parametrize(
    ("verb", "row", "more", "told"),
    [
        (
            "dpo",
            {"prompt": "1", "chosen": "2"},
            [],
            ["rows.jsonl, line 3", "no column 'rejected'", "data.rejected_key"],
        ),
        ("rm", {"prompt": "1", "chosen": "2", "rejected": None}, [], ["rows.jsonl, line 3", "'rejected' is empty"]),
        ("dpo", {"prompt": "1", "response": "2"}, ["loss=kto"], ["rows.jsonl, line 3", "no column 'label'"]),
    ],
)
def test_bad_rows(rows, coterie, tiny_model, verb, row, more, told):
    with (rows / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(r) + "\n" for r in [*ROWS[:2], row])
    before = {p.name for p in rows.iterdir()}
    result = coterie(*settings(verb, tiny_model, *more))
    assert result.returncode == 2
    assert all(text in result.stderr for text in told), result.stderr
    assert "Traceback" not in result.stderr
    assert {p.name for p in rows.iterdir()} == before, "nothing half-written"


@pytest.mark.parametrize("verb", ["dpo", "rm"])
def test_check_estimates(rows, coterie, tiny_model, verb):
    result = coterie("check", *settings(verb, tiny_model))
    assert result.returncode == 0, result.stderr
    assert "peak memory of a step" in result.stdout and f"coterie {verb}: this configuration is valid" in result.stdout
