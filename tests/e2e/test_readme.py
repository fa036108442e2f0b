"""Commands of the README and the guides work as written: composed, and the short ones run on a tiny model."""

import json
import re
import shlex
from pathlib import Path

import pytest

from coterie.config.compose import compose

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "write_a_reward.md", ROOT / "docs" / "step_through.md"]
SMALL = [
    "train.steps=1",
    "train.prompts_per_step=2",
    "rollout.n=2",
    "rollout.max_tokens=4",
    "data.size=40",
    "eval.data.size=2",
    "optim.warmup_steps=0",
    "log.console=plain",
]


def commands():
    """Every `$ …coterie …` line, without its comment."""
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            found = re.match(r"\$ (?:\.venv/bin/)?coterie (.*)", line)
            if found:
                yield page.name, shlex.split(found.group(1), comments=True)


ALL = list(commands())


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        for block in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            (tmp_path / block[1]).write_text(block[0])
    (tmp_path / "my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n\n\n"
        "score = compute_score\n"
    )
    return tmp_path


@pytest.mark.parametrize(("page", "words"), ALL, ids=[f"{p}-{' '.join(w)[:60]}" for p, w in ALL])
def test_every_command_composes(page, words, workplace):
    verb, *rest = words
    if verb == "check":
        verb, *rest = rest
    if verb in ("train", "sft", "generate"):
        resolved = compose(verb, rest)
        assert resolved.verb == verb
    else:
        assert verb in ("watch", "doctor", "config", "model", "data", "algo")


TRAIN = [w for _, w in ALL if w[0] == "train" and "experiment=tiny_rl" in w and "run.debug=true" not in w]


@pytest.mark.parametrize("words", TRAIN, ids=[" ".join(w)[:70] for w in TRAIN])
def test_the_tiny_ones_run(words, workplace, coterie, tiny_model):
    done = coterie(*words, f"model={tiny_model}", "run.dir=run", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((workplace / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["step"] == 1 and "reward/reward" in record


def test_watch_doctor_config_and_generate_run(workplace, coterie, tiny_model):
    trained = coterie("train", "experiment=tiny_rl", f"model={tiny_model}", "run.dir=run", *SMALL)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "step 1/1" in coterie("watch", "run", "--once").stdout
    assert "transformers" in coterie("doctor").stdout
    assert "ppo_clip" in coterie("config", "loss").stdout
    settings = ["data.path=gym:chain_sum", "data.size=3", "rollout.max_tokens=4", "out=out.jsonl"]
    made = coterie("generate", "model=run/checkpoints/step_000001/model", *settings)
    assert made.returncode == 0, made.stdout + made.stderr
    rows = [json.loads(line) for line in (workplace / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and len(rows[0]["logprobs"]) == len(rows[0]["tokens"])
