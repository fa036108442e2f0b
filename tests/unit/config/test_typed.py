from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from coterie.config.typed import WrongValue, convert, describe, plain


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    by_name: Mapping[str, Inner] = field(default_factory=dict)

    def __post_init__(self):
        if self.inner.rate > 1:
            raise ValueError("inner.rate must be at most 1")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, int, 3),
        (3.0, int, 3),
        (3, float, 3.0),
        (True, bool, True),
        ("a", str, "a"),
        ("a", Path, Path("a")),
        (None, int | None, None),
        (2, int | None, 2),
        ("auto", float | Literal["auto"], "auto"),
        (3, str | int, 3),
        (2, float | int, 2),
        ("b", Literal["a", "b"], "b"),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, "a"], tuple[int, str], (1, "a")),
        (["a"], list[str], ["a"]),
        (["a", "a"], frozenset[str], frozenset({"a"})),
        (["a"], Sequence[str], ("a",)),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"a": [1]}, Any, {"a": [1]}),
        ({"rate": 1}, Inner, Inner(1.0)),
        ({"inner": {"names": ["x"]}, "by_name": {"k": {}}}, Outer, Outer(Inner(names=("x",)), {"k": Inner()})),
    ],
)
def test_values_that_fit(value, hint, expected):
    found = convert(value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "rule"),
    [
        (2.5, int, "whole number"),
        (True, int, "whole number"),
        ("3", int, "whole number"),
        (True, float, "a number"),
        (float("nan"), float, "not nan"),
        (1, bool, "true or false"),
        (3, str, "quote it"),
        (None, str, "text"),
        (["a"], str, "text"),
        (3, None | str, "null or text"),
        ("c", Literal["alpha", "beta"], "alpha or beta"),
        ("alpah", Literal["alpha", "beta"], "did you mean alpha"),
        (1, Literal[True, "a"], "True or a"),
        ("ab", tuple[str, ...], r"like \[ab\]"),
        ([1, 2, 3], tuple[int, int], "2 entries"),
        (3, dict[str, int], "keys and values"),
        (3, Inner, "section"),
        ({"rats": 1}, Inner, "did you mean rate"),
        ({"inner": {"rate": 2}}, Outer, "at most 1"),
    ],
)
def test_values_that_do_not(value, hint, rule):
    with pytest.raises(WrongValue, match=rule):
        convert(value, hint)


def test_the_error_knows_where_and_what():
    with pytest.raises(WrongValue) as caught:
        convert({"by_name": {"k": {"names": ["a", 7]}}}, Outer)
    assert (caught.value.path, caught.value.value) == ("by_name.k.names.1", 7)


@pytest.mark.parametrize("value", [Outer(Inner(0.25, ("a", "b")), {"k": Inner()}), Inner(), {"a": (1, 2)}, None, "x"])
def test_plain_and_back(value):
    hint = type(value) if isinstance(value, Inner | Outer) else Any
    text = plain(value)
    assert plain(convert(text, hint)) == text
    if hint is not Any:
        assert convert(text, hint) == value


def test_what_has_no_plain_form_is_refused():
    assert plain(frozenset({"b", "a"})) == ["a", "b"]
    assert plain(Path("a/b")) == "a/b"
    with pytest.raises(TypeError, match="no plain form"):
        plain(lambda: None)


def test_types_in_words():
    hints = [int, float | None, Literal["a", "b"], tuple[str, ...], dict[str, int], Inner, Any, list]
    words = [
        "whole number",
        "number or null",
        "a or b",
        "list of text",
        "keys and values",
        "section",
        "any value",
        "list",
    ]
    assert [describe(h) for h in hints] == words
