"""What every key means, read from the `Attributes:` sections of the docstrings; makes docs/config.md."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, get_args

from coterie.config.compose import MAY_CHANGE
from coterie.config.hints import did_you_mean
from coterie.config.overrides import presets
from coterie.config.pieces import Piece, find_piece
from coterie.config.primary import PRIMARIES, Verb
from coterie.config.resolve import show
from coterie.config.slots import SLOTS, Slot
from coterie.config.typed import describe, plain
from coterie.errors import ConfigError

COMMON = 4
"""Choices of a slot that have a key alike, from which on it is told once."""

_ENTRY = re.compile(r"([A-Za-z_]\w*(?:, *[A-Za-z_]\w*)*): *(.*)")


@dataclass(frozen=True)
class KeyDoc:
    """What is to be known about one key.

    Attributes:
        key: dotted name.
        kind: its type in words.
        default: as an override has it; None when it must be given.
        text: its meaning.
    """

    key: str
    kind: str
    default: str | None
    text: str


def field_docs(cls: type) -> dict[str, str]:
    """Field name to its text in the `Attributes:` section of the class or of a class it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _attributes(base.__doc__ or "")
    return found


def summary(target: Any) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join(inspect.cleandoc(target.__doc__ or "").split("\n\n")[0].split())


def section_keys(name: str, cls: type) -> list[KeyDoc]:
    """Every key of a section."""
    docs, hints = field_docs(cls), typing.get_type_hints(cls)
    out = []
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        out.append(KeyDoc(f"{name}.{f.name}", describe(hints[f.name]), show(plain(default)), docs.get(f.name, "")))
    return out


def piece_keys(piece: Piece) -> list[KeyDoc]:
    """Every key of a piece, below its slot."""
    docs = field_docs(piece.target) if inspect.isclass(piece.target) else {}
    prefix = f"{piece.slot.name}.{piece.name}" if piece.slot.many else piece.slot.name
    defaults = {s.name: None if s.default is MISSING else show(plain(s.default)) for s in piece.settings}
    return [
        KeyDoc(f"{prefix}.{s.name}", describe(s.hint), defaults[s.name], docs.get(s.name, "")) for s in piece.settings
    ]


def scalar_keys(verb: Verb) -> list[KeyDoc]:
    """Keys of the top level that are neither sections nor slots."""
    primary = PRIMARIES[verb]
    docs = field_docs(primary.cls)
    return [KeyDoc(k, describe(hint), show(default), docs.get(k, "")) for k, (hint, default) in primary.scalars.items()]


def sections() -> dict[str, type]:
    """Every section of every verb."""
    return {name: cls for primary in PRIMARIES.values() for name, cls in primary.sections.items()}


def explain(key: str) -> list[KeyDoc] | Slot | Piece:
    """What `coterie config KEY` shows: the keys of a section, one key, a slot, or a choice (`advantage=grpo`).

    Raises:
        ConfigError: for an unknown name, with the nearest.
    """
    slot, equal, choice = key.partition("=")
    if slot in SLOTS:
        return find_piece(SLOTS[slot], choice) if equal else SLOTS[slot]
    scalars = [doc for verb in get_args(Verb) for doc in scalar_keys(verb)]
    every = [*scalars, *(doc for name, cls in sections().items() for doc in section_keys(name, cls))]
    found = [doc for doc in every if doc.key == key or doc.key.startswith(f"{key}.")]
    if found:
        return found[:1] if found[0].key == key else found
    name, _, rest = key.partition(".")
    if name in SLOTS:
        matches = [doc for c in SLOTS[name].choices for doc in piece_keys(find_piece(SLOTS[name], c)) if doc.key == key]
        if matches:
            return matches[:1]
        if rest in SLOTS[name].choices:
            return find_piece(SLOTS[name], rest)
    known = [*(doc.key for doc in every), *sections(), *SLOTS]
    raise ConfigError(f"{key}: unknown key; {did_you_mean(key, known)}")


def markdown() -> str:
    """The whole of docs/config.md."""
    lines = [
        "# Configuration",
        "",
        "Made from the docstrings by `python -m coterie.docs`; don't edit.",
        "`coterie config KEY` shows the same in a terminal.",
        "",
        *_grammar(),
        "## Sections",
        "",
    ]
    verbs = {name: [v for v, p in PRIMARIES.items() if name in p.sections] for name in sections()}
    for name, cls in sections().items():
        lines += [f"### {name}", "", f"{summary(cls)} ({', '.join(verbs[name])})", "", *_table(section_keys(name, cls))]
    lines += ["## Top level", ""]
    for verb in get_args(Verb):
        lines += [f"### coterie {verb}", "", *_table(scalar_keys(verb))]
    lines += ["## Slots", "", "A slot takes a short name, `name@convention`, or `path/to/file.py:Name`.", ""]
    for slot in SLOTS.values():
        lines += [f"### {slot.name}", "", f"{_sentence(slot.doc)}{_taking(slot)}", ""]
        lines += _slot_tables(slot)
    lines += ["## Keys that a resumed run may set anew", ""]
    lines += [*_rows(("key", "why"), [(f"`{key}`", why) for key, why in MAY_CHANGE.items()]), ""]
    lines += ["`train.steps` too, while `optim.schedule=constant`. Any other change is refused by `run.resume`.", ""]
    return "\n".join(lines)


def _slot_tables(slot: Slot) -> list[str]:
    """A table for each choice; keys that several share with the same meaning and default stand in one of their own."""
    every = {piece.name: piece_keys(piece) for piece in pieces(slot)}
    told = [doc for docs in every.values() for doc in docs]
    shared = {doc: None for doc in told if not slot.many and told.count(doc) >= COMMON}
    lines: list[str] = []
    if shared:
        lines += ["Keys of several choices:", "", *_table(list(shared))]
    for piece in pieces(slot):
        docs = every[piece.name]
        common = [doc.key.rpartition(".")[2] for doc in docs if doc in shared]
        lines += [f"#### {slot.name}={piece.name}", "", summary(piece.target), ""]
        if common:
            absent = [doc.key.rpartition(".")[2] for doc in shared if doc not in docs]
            names = f"all but {_names(absent)}" if len(absent) < len(common) else _names(common)
            lines += [f"Of the keys above: {names if absent else 'all'}.", ""]
        own = [doc for doc in docs if doc not in shared]
        lines += _table(own) if own or not common else []
        conventions = sorted(getattr(piece.target, "conventions", {}))
        if conventions:
            lines += [f"Conventions: {', '.join(f'`{piece.name}@{c}`' for c in conventions)}.", ""]
    return lines


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def pieces(slot: Slot) -> Iterator[Piece]:
    """Every choice of a slot."""
    for choice, place in slot.choices.items():
        importlib.import_module(place.partition(":")[0])
        yield find_piece(slot, choice)


def _attributes(doc: str) -> dict[str, str]:
    lines = inspect.cleandoc(doc).splitlines()
    if "Attributes:" not in lines:
        return {}
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index("Attributes:") + 1 :]:
        if line and not line.startswith("    "):
            break
        entry = _ENTRY.fullmatch(line.strip()) if line[4:5].strip() else None
        if entry:
            names = [n.strip() for n in entry.group(1).split(",")]
            found |= dict.fromkeys(names, entry.group(2))
        elif line.strip():
            found |= {n: f"{found[n]} {line.strip()}".strip() for n in names}
    return found


def _grammar() -> list[str]:
    names = ", ".join(f"`{p}`" for p in presets())
    return [
        "| you write | it means |",
        "|---|---|",
        "| `rollout.n=4` | set a key |",
        f"| `experiment=NAME` | start from a preset: {names}; or `path/to/file.yaml` |",
        "| `advantage=rloo` | put a piece into a slot; its keys are `advantage.…` |",
        "| `advantage=grpo@trl` | with the settings that another framework uses under this name |",
        "| `advantage=path/to/file.py:Name` | your own class or function; its keyword parameters are the keys |",
        "| `filters=[constant,truncated]` | several pieces in order; keys are `filters.constant.…`; `[]` for none |",
        "| `+model_kwargs.x=1` | a new key below an open node |",
        "| `\"data.system='a b, c'\"` | text with spaces, commas or braces: quoted for the shell and for the grammar |",
        "| `-m rollout.n=4,8` | a sweep: every combination is a run of its own |",
        "",
        f"Open nodes: {', '.join(f'`{node}`' for node in PRIMARIES['train'].open_nodes)}.",
        "",
    ]


def _taking(slot: Slot) -> str:
    if slot.many:
        return " Takes a list."
    return " `none` for none." if slot.optional else ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _table(docs: list[KeyDoc]) -> list[str]:
    if not docs:
        return ["No keys.", ""]
    defaults = ["must be given" if d.default is None else f"`{d.default}`" if d.default else "empty" for d in docs]
    rows = [(f"`{d.key}`", d.kind, default, d.text) for d, default in zip(docs, defaults, strict=True)]
    return [*_rows(("key", "type", "default", "meaning"), rows), ""]


def _rows(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
