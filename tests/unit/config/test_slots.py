import dataclasses
import inspect

import pytest

from coterie.config.pieces import find_piece
from coterie.config.reference import field_docs, summary
from coterie.config.slots import SLOTS
from coterie.config.typed import convert

CHOICES = [(slot, choice) for slot in SLOTS.values() for choice in slot.choices]


@pytest.mark.parametrize(("slot", "choice"), CHOICES, ids=[f"{s.name}={c}" for s, c in CHOICES])
def test_every_choice_keeps_the_contract_of_its_slot(slot, choice):
    piece = find_piece(slot, choice)
    assert dataclasses.is_dataclass(piece.target) and piece.target.__dataclass_params__.frozen
    assert summary(piece.target), "one sentence for `coterie config`"
    for name in slot.attributes:
        assert hasattr(piece.target, name), f"{name} is read by the loop"
    if slot.kind == "call":
        parameters = [p for p in inspect.signature(piece.target.__call__).parameters if p != "self"]
        assert len(parameters) == len(slot.arguments)
    if slot.kind == "controller":
        assert all(callable(getattr(piece.target, m)) for m in ("init", "update", "value"))


@pytest.mark.parametrize(("slot", "choice"), CHOICES, ids=[f"{s.name}={c}" for s, c in CHOICES])
def test_every_key_of_a_choice_is_documented_and_plain(slot, choice):
    piece = find_piece(slot, choice)
    docs = field_docs(piece.target)
    fields = {f.name for f in dataclasses.fields(piece.target) if f.init}
    assert {s.name for s in piece.settings} == fields, "a default without plain form can't be configured"
    assert not [name for name in fields if not docs.get(name)]
    for setting in piece.settings:
        if setting.default is not dataclasses.MISSING:
            assert convert(setting.default, setting.hint) == setting.default


@pytest.mark.parametrize(("slot", "choice"), CHOICES, ids=[f"{s.name}={c}" for s, c in CHOICES])
def test_every_convention_is_one_that_its_piece_accepts(slot, choice):
    for convention in getattr(find_piece(slot, choice).target, "conventions", {}):
        piece = find_piece(slot, f"{choice}@{convention}")
        node = piece.node()
        values = {s.name: convert(node[s.name], s.hint) for s in piece.settings if node[s.name] != "???"}
        assert set(piece.preset) <= set(values)
        if len(values) == len(piece.settings):
            piece.build(values)
