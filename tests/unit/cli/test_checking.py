import pytest

from coterie.cli.checking import run_check, run_from_verl
from coterie.errors import ConfigError


@pytest.fixture
def words(tmp_path, monkeypatch):
    (tmp_path / "score.py").write_text("async def score(group, context):\n    return group\n")
    monkeypatch.chdir(tmp_path)
    return [
        "train",
        "model=m",
        "data.path=d",
        "reward=score.py:score",
        "filters=[constant,missing]",
        "advantage=grpo@trl",
    ]


def rows(text):
    found = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) > 2:
            found[parts[0]] = " ".join(parts[1:])
    return found


def test_every_value_has_an_origin(words, capsys):
    run_check(words, only_set=False, with_estimate=False)
    out = capsys.readouterr().out
    found = rows(out)
    assert found["model"] == "m command line"
    assert found["rollout.n"] == "8 default"
    assert found["advantage"] == "grpo@trl command line"
    assert found["advantage.eps"] == "0.0001 convention grpo@trl"
    assert found["filters"] == "[constant, missing] command line"
    assert found["filters.constant.tolerance"] == "0.0 default"
    assert found["loss"] == "ppo_clip conf/train.yaml"
    assert "_choice_" not in out
    assert "is valid" in out


def test_only_what_was_set(words, capsys):
    run_check(words, only_set=True, with_estimate=False)
    found = rows(capsys.readouterr().out)
    assert "rollout.n" not in found
    assert found["advantage.eps"] == "0.0001 convention grpo@trl"


def test_the_verb_is_train_where_none_is_said(words, capsys):
    run_check(words[1:], only_set=True, with_estimate=False)
    assert "coterie train: this configuration is valid" in capsys.readouterr().out
    run_check(["sft", "model=m", "data.path=d"], only_set=True, with_estimate=False)
    assert "coterie sft: this configuration is valid" in capsys.readouterr().out
    with pytest.raises(ConfigError):
        run_check(["generate"], only_set=False, with_estimate=False)


def test_a_verl_command_line(capsys):
    run_from_verl("algorithm.adv_estimator=grpo data.train_batch_size=64 algorithm.use_kl_in_reward=True foo.bar=1")
    out = capsys.readouterr().out
    assert "advantage=grpo@verl" in out and "train.prompts_per_step=64" in out and "'shaping=[kl]'" in out
    assert "foo.bar: not understood" in out
    run_from_verl("nothing")
    assert "nothing to translate" in capsys.readouterr().out
