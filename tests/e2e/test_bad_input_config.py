"""Mistakes on the command line: exit code 2, our words, no traceback, nothing written (issue 2, "Bad input")."""

import pytest

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return 1.0
"""
BASE = ["model=nowhere", "data.path=rows.jsonl", "reward=function", "reward.path=score.py"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "score.py").write_text(REWARD)
    (tmp_path / "broken.py").write_text("import os\n\ndef compute_score(:\n")
    (tmp_path / "broken.yaml").write_text("rollout: {n: 4\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["train", *BASE, "rollout.temprature=1", "lr=1e-4"],
            ["did you mean rollout.temperature", "did you mean critic.lr or optim.lr"],
        ),
        (["train", *BASE, "advantage=dr_gpro"], ["advantage=dr_gpro", "did you mean dr_grpo"]),
        (["train", *BASE, "rollout.n=1"], ["rollout.n=1", "advantage=grpo", "rollout.n=2"]),
        (["train", *BASE, "train.minibatches=3"], ["train.minibatches=3", "train.prompts_per_step=8", "2, 4 or 8"]),
        (["train", *BASE, "reward.path=absent.py"], ["absent.py", "no such file"]),
        (["train", *BASE, "reward.path=broken.py"], ["broken.py:3", "SyntaxError"]),
        (["train", *BASE, "reward.name=compute_scores"], ["score.py", "compute_scores", "compute_score"]),
        (["train", *BASE, "rollout.n=two"], ["rollout.n=two", "whole number"]),
        (["train", *BASE, "data.template={prompt}, please"], ["two pairs of quotes"]),
        (["train", *BASE, "experiment=broken.yaml"], ["broken.yaml:", "not valid YAML"]),
        (["train"], ["model is not set", "data.path is not set"]),
        (["sft", "model=nowhere", "data.path=d", "rollout.n=4"], ["rollout.n: unknown key"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_one_clear_error(folder, coterie, arguments, told):
    before = {p.name for p in folder.iterdir()}
    result = coterie(*arguments)
    assert result.returncode == 2, result.stderr
    for text in told:
        assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert {p.name for p in folder.iterdir()} == before, "nothing half-written"


def test_check_shows_where_values_come_from(folder, coterie):
    result = coterie("check", "--no-estimate", "train", "experiment=tiny_rl", "rollout.n=4")
    assert result.returncode == 0, result.stderr
    lines = {
        line.split()[0]: line.split(maxsplit=2)[1:] for line in result.stdout.splitlines() if len(line.split()) > 2
    }
    assert [part.strip() for part in lines["rollout.n"]] == ["4", "command line"]
    assert lines["rollout.max_tokens"][1].strip() == "experiment tiny_rl"
    assert lines["run.seed"][1].strip() == "default"


def test_doctor_always_answers(coterie):
    result = coterie("doctor")
    assert result.returncode == 0
    assert "transformers" in result.stdout
