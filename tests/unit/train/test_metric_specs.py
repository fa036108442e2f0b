import ast
import re
import string
from pathlib import Path

import pytest

import coterie
from coterie.core.metrics import WALL_PREFIXES
from coterie.train.metric_specs import find, markdown, undeclared
from coterie.train.metric_table import SPECS, STAGES


def test_names_are_unique_and_grouped_by_stage():
    names = [s.name for s in SPECS]
    assert len(set(names)) == len(names)
    stages = [n.split("/")[0] for n in names]
    runs = [s for i, s in enumerate(stages) if i == 0 or stages[i - 1] != s]
    assert len(runs) == len(set(runs)), "rows of one stage stand together"
    assert set(runs) <= set(STAGES)


def test_every_bound_has_advice_and_every_advice_a_bound():
    for spec in SPECS:
        assert bool(spec.advice) == (spec.low is not None or spec.high is not None), spec.name
        assert spec.meaning.endswith("."), spec.name


def test_advice_can_be_filled_in():
    for spec in SPECS:
        fields = {field for _, field, _, _ in string.Formatter().parse(spec.advice) if field}
        assert fields <= {"value", "name"}, spec.name
        spec.advice.format(value=0.5, name=spec.name)


def test_an_exact_name_goes_before_a_pattern():
    assert find("time/step_s").name == "time/step_s"
    assert find("time/reward_s").name == "time/<phase>_s"
    assert find("eval/pass@8").name == "eval/pass@<k>"
    assert find("filter/constant_groups_dropped").name == "filter/<name>_groups_dropped"
    assert find("nothing/of_this") is None


def test_undeclared():
    assert undeclared(["step", "policy/loss", "polcy/loss", "nonfinite", "a/b"]) == ["a/b", "polcy/loss"]


@pytest.mark.parametrize("stage", ["policy", "kl", "optim", "mismatch", "advantage", "group", "rollout"])
def test_a_misspelt_name_of_a_closed_stage_is_undeclared(stage):
    assert undeclared([f"{stage}/xyz"]) == [f"{stage}/xyz"]


def test_the_page_names_every_metric_and_every_wall_prefix():
    page = markdown()
    for spec in SPECS:
        assert f"| `{spec.name}` |" in page
    for prefix in WALL_PREFIXES:
        assert f"`{prefix}`" in page
    assert "{value" not in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)


def literals(tree):
    """String constants and f-strings, with "*" for what is filled in."""
    inner = {id(c) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for c in ast.walk(n) if c is not n}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "*" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def test_every_metric_name_in_the_source_is_declared():
    """Any string of the form stage/name is a metric's name; f-strings must fit at least one declaration."""
    shape = re.compile(rf"({'|'.join(STAGES)})/[a-z0-9_@*]+")
    sources = Path(coterie.__file__).parent.rglob("*.py")
    names = {text for path in sources for text in literals(ast.parse(path.read_text())) if shape.fullmatch(text)}
    assert "policy/loss" in names and "kl/ref_*" in names
    plain = {name for name in names if "*" not in name}
    assert undeclared(plain) == []
    for name in names - plain:
        pattern = re.compile(re.escape(name).replace(r"\*", ".+"))
        assert any(pattern.fullmatch(spec.name) for spec in SPECS), name
