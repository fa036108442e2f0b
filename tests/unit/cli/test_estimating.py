import pytest
import torch

from coterie.cli.checking import run_check
from coterie.cli.estimating import estimate_lines, matmul_gflops
from coterie.config.compose import compose
from coterie.errors import DataError, ModelError
from coterie.learners.tiny import build_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, heads=2, context=128)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text("async def score(group, context):\n    return group\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+2=", "reference": "3"}\n' * 3)
    return ["data.path=rows.jsonl", "reward=score.py:score", "run.dir=r", "run.device=cpu", "run.threads=1"]


def test_memory_and_time_of_a_step(model, rows):
    few, many = (
        list(estimate_lines(compose("train", [f"model={model}", *rows, f"train.prompts_per_step={count}"])))
        for count in (1, 8)
    )
    assert "GiB on cpu" in few[0] and "time of a step" in few[2]

    def tera(lines):
        return float(lines[3].split("(")[1].split()[0])

    assert tera(many) >= tera(few)


def test_a_critic_is_told_of(model, rows):
    plain, ppo = (
        list(estimate_lines(compose("train", [f"model={model}", *rows, *m]))) for m in ([], ["advantage=gae"])
    )
    assert not [line for line in plain if "critic" in line]
    assert [line for line in ppo if "without the critic" in line]


def test_the_check_prints_it(model, rows, capsys):
    run_check(["train", f"model={model}", *rows], only_set=True, with_estimate=True)
    out = capsys.readouterr().out
    assert "peak memory" in out and "is valid" in out


def test_sft_and_generate(model, rows):
    lines = list(estimate_lines(compose("sft", [f"model={model}", "data.path=rows.jsonl", "sft.max_tokens=64"])))
    assert "GiB on cpu" in lines[0] and "sft.max_tokens=64" in lines[2]
    assert not list(estimate_lines(compose("generate", [f"model={model}", "data.path=rows.jsonl", "out=o.jsonl"])))


def test_what_a_run_would_stumble_over(model, rows):
    with pytest.raises(ModelError, match="does not exist"):
        list(estimate_lines(compose("train", ["model=./absent", *rows])))
    with pytest.raises(DataError):
        list(estimate_lines(compose("train", [f"model={model}", *rows, "data.path=absent.jsonl"])))
    assert "not a folder here" in next(estimate_lines(compose("train", ["model=some/where", *rows])))


def test_the_speed_is_a_number():
    assert matmul_gflops(torch.device("cpu"), size=64, seconds=0.01) > 0
