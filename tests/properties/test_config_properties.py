"""Properties of the configuration: it reads back as it was written, and a slip of the finger finds its key."""

import functools
import tempfile
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.types import Quote, QuotedString
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coterie.config.compose import compose, load_resolved
from coterie.config.hints import nearest
from coterie.config.typed import convert, plain
from coterie.errors import ConfigError

BASE = ["model=m", "data.path=d", "reward=gym", "run.dir=r"]
COMPOSED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="$\\\x85\u2028\u2029"), max_size=12)
name = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
scalar = st.one_of(st.integers(-(10**6), 10**6), st.booleans(), text, st.floats(-1e6, 1e6), st.none())
tree = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(name, inner, max_size=2), max_leaves=5
)
share = st.floats(0.001, 1.0)
overrides = st.fixed_dictionaries(
    {},
    optional={
        "data.system": text,
        "rollout.stop": st.lists(text, max_size=3),
        "rollout.top_p": share,
        "rollout.n": st.integers(2, 64),
        "optim.lr": st.floats(0, 1),
        "optim.weight_decay": st.floats(0, 10),
        "run.debug": st.booleans(),
        "run.resume": st.sampled_from(["never", "auto", "must"]),
        "advantage.eps": st.floats(1e-12, 1.0),
        "model_kwargs": st.dictionaries(name, tree, max_size=3),
        "advantage": st.sampled_from(["grpo", "grpo@trl", "grpo@verl"]),
        "filters": st.permutations(["constant", "missing", "truncated"]).flatmap(
            lambda names: st.integers(0, 3).map(lambda count: names[:count])
        ),
        "transforms": st.sampled_from([[], ["whiten", "clip"], ["clip", "whiten"]]),
        "entropy_control": st.sampled_from(["none", "skywork"]),
    },
)


def written(value):
    """A value in the grammar of overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)


def read_back(resolved):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(resolved.yaml, encoding="utf-8")
        return load_resolved(path)


@COMPOSED
@given(overrides)
def test_what_is_composed_reads_back_equal(chosen):
    resolved = compose("train", [*BASE, *(f"{key}={written(value)}" for key, value in chosen.items())])
    run = resolved.run
    assert list(run.filters) == chosen.get("filters", [])
    assert run.model_kwargs == chosen.get("model_kwargs", {})
    assert run.data.system == chosen.get("data.system", "")
    assert run.rollout.stop == tuple(chosen.get("rollout.stop", ()))
    again = read_back(resolved)
    assert again.run == run
    assert (again.yaml, again.fingerprint) == (resolved.yaml, resolved.fingerprint)
    for key in chosen:
        assert resolved.origins[key].startswith("command line") if key in resolved.origins else key == "model_kwargs"


@functools.cache
def record():
    return compose("generate", ["model=m", "data.path=d", "out=o.jsonl"]).yaml


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@example("${now:%Y}")
@example("a: 'b' #c\\n\x00\x85")
@example("1e-6")
@example("null")
def test_any_text_survives_the_record(value):
    tree = yaml.safe_load(record())
    tree["data"]["system"] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        found = load_resolved(path)
    assert found.run.data.system == value
    assert read_back(found).run == found.run


@functools.cache
def keys():
    return sorted(compose("train", BASE).origins)


@st.composite
def slips(draw):
    """A known key with one letter left out, doubled or exchanged with its neighbour in its last part."""
    key = draw(st.sampled_from([k for k in keys() if "." in k and len(k.rpartition(".")[2]) > 3]))
    head, _, last = key.rpartition(".")
    at = draw(st.integers(0, len(last) - 2))
    kind = draw(st.sampled_from(["left out", "doubled", "exchanged"]))
    typed = {
        "left out": last[:at] + last[at + 1 :],
        "doubled": last[: at + 1] + last[at:],
        "exchanged": last[:at] + last[at + 1] + last[at] + last[at + 2 :],
    }[kind]
    return key, f"{head}.{typed}"


@settings(max_examples=300, deadline=None)
@given(slips())
def test_a_slip_finds_its_key(slip):
    meant, typed = slip
    if typed not in keys():
        assert meant in nearest(typed, keys())


@COMPOSED
@given(slips(), st.sampled_from(["", "+", "++"]))
def test_a_slip_on_the_command_line_is_told_with_the_nearest_name(slip, sign):
    meant, typed = slip
    if typed in keys():
        return
    with pytest.raises(ConfigError, match="unknown key") as caught:
        compose("train", [*BASE, f"{sign}{typed}=1"])
    assert meant in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.one_of(tree, st.dictionaries(name, tree)))
def test_plain_values_are_their_own_plain_form(value):
    assert plain(value) == value
    assert plain(convert(value, object)) == value
