import json

import pytest

from coterie.config.compose import compose
from coterie.config.schema import DataConfig
from coterie.errors import ConfigError
from coterie.learners.tiny import build_tiny
from coterie.runtime.local import LocalRuntime
from coterie.runtime.parts import build_parts, eval_data


def test_evaluation_data_must_differ_from_training_data():
    with pytest.raises(ConfigError, match=r"eval\.data\.path"):
        eval_data(DataConfig(path="a.jsonl"), {"seed": 3})
    assert eval_data(DataConfig(path="gym:chain_sum"), {"seed": 3}).seed == 3
    assert eval_data(DataConfig(path="a.jsonl", system="s"), {"path": "b.jsonl"}).system == "s"
    with pytest.raises(ConfigError, match=r"eval\.data\.pth"):
        eval_data(DataConfig(path="a.jsonl"), {"pth": "b.jsonl"})


def test_held_out_problems_are_left_out_of_procedural_training_data(tmp_path):
    model = build_tiny(tmp_path / "tiny", hidden=32, layers=1, heads=2, context=256)
    options = "data.options={min_terms:2,max_terms:2,min_digits:1,max_digits:1}"
    settings = [f"model={model}", "experiment=tiny_rl", options, "data.size=200", "eval.data.size=50"]
    parts = build_parts(compose("train", settings).run, LocalRuntime())
    training = {e.prompt[-1]["content"] for e in parts.cursor.items}
    assert not training & {e.prompt[-1]["content"] for e in parts.eval_examples}
    assert parts.report.dropped["also_held_out"] == 200 - len(parts.cursor.items) > 0


def test_prompts_that_are_too_long_are_counted(tmp_path):
    model = build_tiny(tmp_path / "tiny", hidden=32, layers=1, heads=2, context=256)
    rows = [{"prompt": "1+1=", "reference": "2"}, {"prompt": "1+" * 40 + "1=", "reference": "41"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    settings = [f"model={model}", f"data.path={tmp_path / 'rows.jsonl'}", "data.max_prompt_tokens=20", "reward=math"]
    parts = build_parts(compose("train", settings).run, LocalRuntime())
    assert (parts.report.read, parts.report.kept) == (2, 1)
    assert parts.threads == 1
