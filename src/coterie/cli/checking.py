"""`coterie check`: what a command line means, who set what, and what it will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coterie.cli.border import show_notes
from coterie.cli.verbs import console
from coterie.config.compose import Resolved, compose
from coterie.config.origins import COMMAND_LINE, DEFAULT, flatten
from coterie.config.pieces import CHOICE
from coterie.config.primary import PRIMARIES, Verb
from coterie.config.resolve import show
from coterie.config.verl_names import from_verl


def run_check(words: Sequence[str], *, only_set: bool, with_estimate: bool) -> None:
    """Print the resolved configuration with origins, what its pieces need, and the estimate."""
    verb: Verb = "train"
    for name in PRIMARIES:
        if words and words[0] == name:
            verb, words = name, words[1:]
    resolved: Resolved[Any] = compose(verb, words)
    out = console()
    out.print(_settings(resolved, only_set))
    show_notes(resolved.notes)
    if with_estimate:
        from coterie.cli.estimating import estimate_lines

        for line in estimate_lines(resolved):
            out.print(escape(line), soft_wrap=True)
    out.print(f"coterie {verb}: this configuration is valid (fingerprint {resolved.fingerprint})")


def run_from_verl(command: str) -> None:
    """Print a verl command line in coterie's words."""
    found = from_verl(command)
    out = console()
    texts = [text if "[" not in text else f"'{text}'" for text in found.texts()]
    out.print(
        escape("coterie train \\\n  " + " \\\n  ".join(texts) if texts else "nothing to translate"), soft_wrap=True
    )
    for key, why in found.notes.items():
        out.print(Text(f"{key}: {why}", style="dim"), soft_wrap=True)
    for key, why in found.unknown.items():
        out.print(Text(f"{key}: {why}", style="yellow"), soft_wrap=True)


def _settings(resolved: Resolved[Any], only_set: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("key", "value", "origin"):
        table.add_column(head, overflow="fold")
    primary = PRIMARIES[resolved.verb]
    for name, node in resolved.tree.items():
        if name in primary.slots and primary.slots[name].many:
            _row(table, resolved, name, f"[{', '.join(node)}]", only_set)
        for key, value in flatten({name: node}):
            if key.endswith(f".{CHOICE}"):
                owner = key.removesuffix(f".{CHOICE}")
                if "." not in owner:
                    _row(table, resolved, owner, str(value), only_set)
            elif value != {} or name not in primary.slots:
                _row(table, resolved, key, show(value), only_set)
    return table


def _row(table: Table, resolved: Resolved[Any], key: str, value: str, only_set: bool) -> None:
    origin = resolved.origins.get(key, DEFAULT)
    if only_set and origin == DEFAULT:
        return
    style = "bold" if origin.startswith(COMMAND_LINE) else "dim" if origin == DEFAULT else ""
    shown = "command line" if origin.startswith(COMMAND_LINE) else origin
    table.add_row(Text(key, style), Text(value, style), Text(shown, style))
