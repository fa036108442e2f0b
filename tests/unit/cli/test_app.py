import subprocess
import sys

import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.config import sweep
from coterie.errors import DataError, EngineError, RewardError

REWARD = "async def score(group, context):\n    return group\n"
RUNNER = """
from coterie import errors

seen = []

def run(resolved):
    seen.append(resolved)
    failure = resolved.run.data.system
    if failure == "KeyboardInterrupt":
        raise KeyboardInterrupt
    if failure:
        raise getattr(errors, failure)("this went wrong")
    return {"steps": 3, "eval_after": 0.123456, "run_dir": resolved.run.run.dir, "evaluations": {"1": 2}}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command line in this process, with a runner that notes what it is given."""
    (tmp_path / "cli_runner.py").write_text(RUNNER)
    (tmp_path / "score.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "RUNNERS", dict.fromkeys(("train", "sft", "dpo", "rm", "generate"), "cli_runner:run"))
    yield lambda *arguments: CliRunner().invoke(app, list(arguments))
    sys.modules.pop("cli_runner", None)


TRAIN = ["train", "model=m", "data.path=d", "reward=score.py:score", "run.dir=here"]


def test_a_run_shows_its_numbers(run):
    result = run(*TRAIN)
    assert result.exit_code == 0
    assert "eval after" in result.stdout and "0.1235" in result.stdout and "here" in result.stdout
    assert "evaluations" not in result.stdout


@pytest.mark.parametrize(
    ("failure", "code"),
    [("DataError", 2), ("ConfigError", 2), ("RewardError", 1), ("EngineError", 1), ("KeyboardInterrupt", 130)],
)
def test_exit_codes(run, failure, code):
    result = run(*TRAIN, f"data.system={failure}")
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert ("stopped" if code == 130 else "error: this went wrong") in result.stderr


def test_a_bug_keeps_its_traceback(run, tmp_path):
    (tmp_path / "cli_runner.py").write_text("def run(resolved):\n    raise KeyError('a bug')\n")
    assert isinstance(run(*TRAIN).exception, KeyError)
    assert not any(issubclass(KeyError, e) for e in (DataError, EngineError, RewardError))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "rollout.temprature=1"], "did you mean rollout.temperature"),
        (["train", "rollout.n"], "key=value"),
        (["sft", "advantage=grpo"], "unknown key here"),
        (["generate"], "out is not set"),
        (["check", "train", "experiment=nowhere"], "no such preset"),
        (["config", "optim.rl"], "did you mean optim.lr"),
        (["data", "prepare", "gsm9k", "--source", "x", "--out", "y.parquet"], "did you mean gsm8k"),
        (["train", "--frobnicate"], "No such option"),
        (["dance"], "No such command"),
        (["train", *TRAIN[1:], "rollout.n=2,4"], "add -m"),
        (["train", *TRAIN[1:], "-m"], "every key has one"),
    ],
)
def test_mistakes_exit_with_2_and_no_traceback(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_sweep_runs_every_combination(run):
    result = run(*TRAIN, "-m", "rollout.n=2,4")
    assert result.exit_code == 0, result.output
    assert [r.run.run.dir.rpartition("/")[2] for r in sys.modules["cli_runner"].seen] == ["0", "1"]


@pytest.mark.parametrize("verb", ["train", "sft", "dpo", "rm", "generate", "quickstart", "check", "config", "doctor"])
def test_help_shows_examples(run, verb):
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert f"coterie {verb}" in result.stdout.replace(f"Usage: coterie {verb}", "")


@pytest.mark.parametrize("verb", [["model", "import"], ["data", "prepare"], ["algo", "show"]])
def test_help_of_verbs_with_two_words(run, verb):
    result = run(*verb, "-h")
    assert result.exit_code == 0
    assert f"coterie {' '.join(verb)}" in result.stdout.split("Usage:")[1].split("\n", 1)[1]


def test_version(run):
    assert run("--version").stdout.startswith("coterie 0.")


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom coterie.cli.app import app\n"
        "assert CliRunner().invoke(app, ['train', '--help']).exit_code == 0\n"
        "print([m for m in ('torch', 'hydra', 'transformers', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
