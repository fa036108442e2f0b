from types import SimpleNamespace

import pytest

from coterie.cli import verbs
from coterie.errors import ConfigError

QUICK = {
    "eval_before": 0.25,
    "eval_before_ci95": [0.2, 0.3],
    "eval_after": 0.75,
    "eval_after_ci95": [0.7, 0.8],
    "difference": 0.5,
    "difference_ci95": [0.45, 0.55],
    "problems": 256,
    "steps": 60,
    "seed": 3,
    "wall_s": 123.4,
    "warm_start": "runs/q/warm",
    "run_dir": "runs/q/rl",
    "model": "runs/q/rl/checkpoints/step_000060/model",
}


def test_quickstart_takes_folder_and_seed_from_the_overrides(monkeypatch, capsys):
    seen = []
    module = SimpleNamespace(quickstart=lambda *given: seen.append(given) or QUICK)
    monkeypatch.setitem(__import__("sys").modules, "coterie.quickstart", module)
    verbs.run_quickstart(["run.seed=3", "train.steps=5", "run.dir=runs/q"])
    verbs.run_quickstart([])
    assert [(str(f), s, o) for f, s, o in seen] == [("runs/q", 3, ["train.steps=5"]), ("runs/quickstart", 0, [])]
    out = capsys.readouterr().out
    for text in ("0.250", "0.700 … 0.800", "+0.450 … +0.550", "runs/q/rl", "256 held-out problems", "123 s"):
        assert text in out


def test_doctor_lists_every_area(capsys):
    verbs.run_doctor()
    out = capsys.readouterr().out
    for area in ("versions", "packages", "devices", "engines", "learners", "machine"):
        assert area in out
    assert "transformers" in out


def test_prepare_says_what_was_left_out(monkeypatch, capsys):
    report = SimpleNamespace(read=5, kept=3, dropped={"duplicate_question": 2, "other": 0})
    module = SimpleNamespace(prepare=lambda *a, **k: report)
    monkeypatch.setattr(verbs.importlib, "import_module", lambda name: module)
    verbs.run_data_prepare("gsm8k", "a.jsonl", "b.parquet", split="train", force=False)
    assert capsys.readouterr().out == "b.parquet: 3 of 5 rows; left out: 2 duplicate question\n"
    with pytest.raises(ConfigError, match="did you mean gsm8k"):
        verbs.run_data_prepare("gsm9k", "a", "b", split="train", force=False)
