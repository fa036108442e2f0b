"""`coterie config`: the reference in the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from coterie.cli.verbs import console
from coterie.config import reference
from coterie.config.overrides import presets
from coterie.config.pieces import Piece
from coterie.config.primary import PRIMARIES
from coterie.config.reference import KeyDoc
from coterie.config.slots import SLOTS, Slot


def explain(key: str) -> None:
    """Print what is to be known about a key; the overview for an empty one."""
    found = reference.explain(key) if key else None
    if found is None:
        _overview()
    elif isinstance(found, Slot):
        _slot(found)
    elif isinstance(found, Piece):
        _piece(found)
    else:
        _keys(found)


def _overview() -> None:
    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("[bold]sections[/]")
    for name, cls in reference.sections().items():
        verbs = ", ".join(verb for verb, primary in PRIMARIES.items() if name in primary.sections)
        table.add_row(f"  {name}", escape(reference.summary(cls)), verbs)
    table.add_row("[bold]slots[/]")
    for slot in SLOTS.values():
        table.add_row(f"  {slot.name}", escape(slot.doc), escape(", ".join(slot.choices)))
    table.add_row("[bold]presets[/]")
    table.add_row("  experiment", "a run to start from", ", ".join(presets()))
    out.print(table)
    out.print("coterie config NAME explains a section, a key, a slot, or a choice (advantage=grpo)")


def _slot(slot: Slot) -> None:
    out = console()
    form = f"{slot.name}=[a,b]" if slot.many else f"{slot.name}=a"
    out.print(
        escape(f"{slot.doc}; {form}, a@convention, or path/to/file.py:Name{' (none: off)' if slot.optional else ''}")
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for piece in reference.pieces(slot):
        conventions = ", ".join(sorted(getattr(piece.target, "conventions", {})))
        table.add_row(
            f"  {piece.name}", escape(reference.summary(piece.target)), f"@ {conventions}" if conventions else ""
        )
    out.print(table)


def _piece(piece: Piece) -> None:
    out = console()
    out.print(f"{piece.slot.name}={piece.choice}", style="bold")
    out.print(escape(reference.summary(piece.target)))
    _keys(reference.piece_keys(piece))
    for name, settings in sorted(getattr(piece.target, "conventions", {}).items()):
        text = ", ".join(f"{k}={v}" for k, v in settings.items()) or "as it is"
        out.print(escape(f"  {piece.name}@{name}: {text}"))


def _keys(docs: list[KeyDoc]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("key", "default", "kind", "text"):
        table.add_column(column, overflow="fold")
    for doc in docs:
        default = "must be given" if doc.default is None else f"= {doc.default}"
        table.add_row(f"[bold]{doc.key}[/]", escape(default), escape(doc.kind), escape(doc.text))
    console().print(table)
