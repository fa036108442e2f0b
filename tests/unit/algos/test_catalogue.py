import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest

import coterie.algos
from coterie.algos import catalogue
from coterie.algos.catalogue import attribute_docs, entry_of, parse_docstring
from coterie.errors import ConfigError

ENTRIES = catalogue.entries()
IDS = [f"{e.slot}/{e.name}" for e in ENTRIES]


@dataclass(frozen=True)
class Base:
    """A base.

    Attributes:
        inherited: of the base.
    """

    inherited: float = 1.0


@dataclass(frozen=True)
class Sample(Base):
    """One sentence
    on two lines.

    Equation:

        a = b | c
        d = e

    more words.

    Paper: Someone, arXiv 1707.06347, eq. 7.

    Differences: none known,
    as far as we see.

    Attributes:
        alpha, beta: two at once,
            on two lines; arXiv 2503.14476.
        none: a | b.
    """

    paper: ClassVar[str] = "1707.06347"
    conventions: ClassVar[dict] = {"verl": {"alpha": 2.0}, "trl": {}}

    alpha: float = 0.5
    beta: float = dataclasses.field(default_factory=float)
    none: str = dataclasses.field(kw_only=True)


def test_docstring_sections():
    summary, sections = parse_docstring("A\nsentence.\n\nRule: x\n  y\n\nPaper: none.\n\nAttributes:\n    a: b\n")
    assert summary == "A sentence."
    assert sections == {"Rule": "x\n  y", "Paper": "none.", "Attributes": "    a: b"}
    assert parse_docstring("Only a sentence.") == ("Only a sentence.", {})


def test_attributes_may_share_a_line_and_continue():
    found = attribute_docs("    alpha, beta: two,\n        on lines.\n    gamma: one: with a colon.\n")
    assert found == {"alpha": "two, on lines.", "beta": "two, on lines.", "gamma": "one: with a colon."}


def test_entry_of_a_class():
    e = entry_of("loss", "sample", Sample)
    assert e.summary == "One sentence on two lines."
    assert [(f.name, f.default, f.inherited) for f in e.fields] == [
        ("alpha", "0.5", False),
        ("beta", "0.0", False),
        ("none", "required", False),
        ("inherited", "1.0", True),
    ]
    assert e.fields[0].doc == "two at once, on two lines; arXiv 2503.14476."
    assert e.fields[3].doc == "of the base."
    assert e.paper == "1707.06347"


def test_markdown_of_an_entry(monkeypatch):
    monkeypatch.setattr(catalogue, "entries", lambda: [entry_of("loss", "sample", Sample)])
    text = catalogue.markdown()
    assert "### sample (loss)" in text
    assert "(#sample-loss)" in text
    assert "**Equation:**\n\n```text\na = b | c\nd = e\n```\n\nmore words." in text
    assert "[arXiv 1707.06347](https://arxiv.org/abs/1707.06347), eq. 7." in text
    assert "| `none` | `required` | a \\| b. |" in text
    assert "* `sample@verl`: `alpha=2.0`" in text
    assert "* `sample@trl`: as the defaults" in text


def test_plain_text_of_an_entry(monkeypatch):
    monkeypatch.setattr(catalogue, "entries", lambda: [entry_of("loss", "sample", Sample)])
    text = catalogue.show("sample")
    assert "Equation:\n  a = b | c\n  d = e\n\n  more words." in text
    assert "Differences:\n  none known, as far as we see." in text
    assert "  sample@verl: alpha=2.0" in text
    assert catalogue.show("loss/sample") == catalogue.show("Sample") == catalogue.show("sample@verl") == text
    assert catalogue.listing() == "loss\n  sample  One sentence on two lines.\n"


def test_a_name_in_two_slots_shows_both():
    both = catalogue.show("gpg")
    assert "advantage=gpg" in both
    assert "loss=gpg" in both
    assert not catalogue.show("loss/gpg").startswith("advantage=gpg")
    assert catalogue.show("loss/gpg") in both


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="ppo_clip"):
        catalogue.show("ppo_clp")
    with pytest.raises(ConfigError, match="coterie algo list"):
        catalogue.show("zzzzzz")


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_every_algorithm_is_documented(entry):
    """One sentence, what it computes, its source, how others differ, what happens at the edges, every field."""
    assert entry.summary.endswith(".")
    assert "Equation" in entry.sections or "Rule" in entry.sections or not entry.paper
    undocumented = [f.name for f in entry.fields if not f.doc]
    assert not undocumented
    if entry.paper and entry.slot in ("loss", "advantage", catalogue.UNSLOTTED):
        assert {"Paper", "Differences", "Degenerate cases"} <= set(entry.sections)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_conventions_name_real_fields_and_build(entry):
    names = {f.name for f in entry.fields}
    for overrides in entry.conventions.values():
        assert set(overrides) <= names
        required = [f for f in entry.fields if f.default == "required"]
        if not required:
            assert entry.target(**overrides) is not None


def test_every_public_algorithm_is_in_the_catalogue():
    listed = {e.target for e in ENTRIES}
    for name in coterie.algos.__all__:
        target = getattr(coterie.algos, name)
        if catalogue._is_algorithm(target):
            assert target in listed, name


def test_the_page_holds_every_entry_once_and_no_machine_path():
    text = catalogue.markdown()
    for entry in ENTRIES:
        assert text.count(f"### {entry.name} ({entry.slot})\n") == 1
    assert "/root" not in text
    assert "/work" not in text


def test_shared_formulas_are_on_the_page():
    text = catalogue.markdown()
    for words in ("token_mean", "icepop", "sequence_max", "k3+", "prompt_mean (ScaleRL)"):
        assert words in text
