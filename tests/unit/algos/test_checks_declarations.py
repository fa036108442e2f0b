"""What every piece of the host side declares: fields with choices, needs, conventions, documentation."""

import dataclasses
import inspect
import re
from importlib import import_module
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

MODULES = (
    "advantages advantages_dense advantages_group advantages_multi advantages_tokens advantages_turns coefs filters "
    "gae replay sampling shaping transforms"
)
PIECES = [
    c
    for m in MODULES.split()
    for c in vars(import_module(f"coterie.algos.{m}")).values()
    if inspect.isclass(c) and c.__module__ == f"coterie.algos.{m}" and hasattr(c, "conventions")
]
CHOICES = [
    (c, f.name) for c in PIECES for f in dataclasses.fields(c) if get_origin(get_type_hints(c)[f.name]) is Literal
]


def default(cls, **fields):
    return cls(**fields)


@pytest.mark.parametrize(("cls", "name"), CHOICES, ids=lambda v: getattr(v, "__name__", v))
def test_a_choice_that_is_none_is_refused(cls, name):
    choices = get_args(get_type_hints(cls)[name])
    with pytest.raises(ValueError, match=re.escape(f"{cls.__name__}.{name}='junk': must be one of {choices[0]!r}")):
        default(cls, **{name: "junk"})


@pytest.mark.parametrize("cls", PIECES, ids=lambda c: c.__name__)
def test_conventions_are_overrides_that_construct(cls):
    names = {f.name for f in dataclasses.fields(cls)}
    for overrides in cls.conventions.values():
        assert set(overrides) <= names
        default(cls, **overrides)


@pytest.mark.parametrize("cls", PIECES, ids=lambda c: c.__name__)
def test_needs_name_the_kind(cls):
    for need in getattr(default(cls), "needs", ()):
        assert need.split(":")[0] in {"score", "stream", "span"} and need.split(":")[1]


@pytest.mark.parametrize("cls", [c for c in PIECES if "score" in c.__dataclass_fields__], ids=lambda c: c.__name__)
def test_the_score_read_can_be_named(cls):
    assert "score:other" in default(cls, score="other").needs


@pytest.mark.parametrize("cls", PIECES, ids=lambda c: c.__name__)
def test_pieces_are_frozen_and_documented(cls):
    assert cls.__dataclass_params__.frozen
    text = inspect.getdoc(cls)
    for f in dataclasses.fields(cls):
        assert re.search(rf"^    {f.name}: ", text, re.MULTILINE), f"{f.name} has no line under Attributes"
    if cls.__name__ != "Fixed":
        assert re.search(r"^(Equation|Rule): ", text, re.MULTILINE)
        assert re.search(r"^Paper: ", text, re.MULTILINE) and re.search(r"^Degenerate cases: ", text, re.MULTILINE)
