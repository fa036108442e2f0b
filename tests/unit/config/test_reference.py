import dataclasses
from dataclasses import dataclass

import pytest

from coterie.config import reference
from coterie.config.pieces import Piece
from coterie.config.primary import PRIMARIES
from coterie.config.slots import Slot
from coterie.errors import ConfigError


@dataclass
class Base:
    """A base.

    Attributes:
        low, high: ends of
            the interval: both count.
        kept: from the base.
    """

    low: float = 0.0
    high: float = 1.0
    kept: int = 0


@dataclass
class Derived(Base):
    """First line
    and second.

    Attributes:
        kept: said anew.

    Raises:
        nothing: at all.
    """


def test_docs_are_read_and_inherited():
    assert (
        reference.field_docs(Base)["low"] == reference.field_docs(Base)["high"] == "ends of the interval: both count."
    )
    assert reference.field_docs(Derived) == {**reference.field_docs(Base), "kept": "said anew."}
    assert reference.summary(Derived) == "First line and second."


@pytest.mark.parametrize(("name", "cls"), reference.sections().items())
def test_every_key_of_a_section_has_a_text(name, cls):
    documented = reference.field_docs(cls)
    names = {f.name for f in dataclasses.fields(cls)}
    assert {n for n in names if documented.get(n)} == names
    assert set(documented) == names, "a text without a key"


@pytest.mark.parametrize("verb", PRIMARIES)
def test_every_scalar_of_a_verb_has_a_text(verb):
    assert all(doc.text for doc in reference.scalar_keys(verb))


def test_explain_finds_sections_keys_slots_and_choices():
    assert [d.key for d in reference.explain("optim.lr")] == ["optim.lr"]
    assert {d.key for d in reference.explain("sft")} == {"sft.batch_size", "sft.max_tokens", "sft.epochs"}
    assert isinstance(reference.explain("advantage"), Slot)
    assert isinstance(reference.explain("advantage=grpo"), Piece)
    assert isinstance(reference.explain("advantage.grpo"), Piece)
    assert reference.explain("advantage.ddof")[0].default == "1"
    assert reference.explain("out")[0].kind == "text"
    with pytest.raises(ConfigError, match=r"did you mean optim.lr"):
        reference.explain("optim.rl")


def test_the_page_holds_every_key():
    page = reference.markdown()
    for name, cls in reference.sections().items():
        for f in dataclasses.fields(cls):
            assert f"`{name}.{f.name}`" in page
    assert "#### advantage=grpo" in page
    assert "`grpo@trl`" in page
    assert page.endswith("\n") and not page.endswith("\n\n")
    tables = [line for line in page.splitlines() if line.startswith("| `")]
    assert all(line.endswith("|") for line in tables)
