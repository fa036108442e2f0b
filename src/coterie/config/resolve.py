"""From a composed tree of plain values to the frozen run, with every problem found on the way."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.config.hints import did_you_mean
from coterie.config.origins import Origins, flatten
from coterie.config.pieces import CHOICE, NONE, Piece, find_piece
from coterie.config.primary import Primary
from coterie.config.schema import DataConfig
from coterie.config.slots import Slot
from coterie.config.typed import UNSET, WrongValue, convert, plain
from coterie.errors import ConfigError


@dataclass
class Resolution:
    """What became of a tree.

    Attributes:
        primary: of the verb.
        origins: who set what.
        fields: top-level name to the typed object.
        tree: the same as plain values, complete and in order.
        pieces: slot (or `filters.name`) to the piece chosen.
        problems: one text each, in the order found.
        notes: what was left out and why.
    """

    primary: Primary
    origins: Origins
    fields: dict[str, Any] = field(default_factory=dict)
    tree: dict[str, Any] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def known_keys(self) -> list[str]:
        """Every dotted key there is with the pieces chosen."""
        keys = [*self.primary.scalars, *self.primary.slots, "experiment"]
        for name, cls in self.primary.sections.items():
            keys += [f"{name}.{f.name}" for f in dataclasses.fields(cls)]
        for prefix, piece in self.pieces.items():
            keys += [f"{prefix}.{s.name}" for s in piece.settings]
        return keys

    def complain(self, key: str, value: Any, rule: str) -> None:
        """Note a problem of a key."""
        self.problems.append(f"{key}={show(value)}: {rule}{self.origins.note(key)}")

    def unknown(self, key: str, value: Any, why: str = "") -> None:
        """Note an unknown key and every leaf below it."""
        leaves = flatten({key: value}) if isinstance(value, Mapping) and value else [(key, value)]
        for leaf, _ in leaves:
            meant = did_you_mean(leaf, self.known_keys())
            self.problems.append(f"{leaf}: unknown key; {why}{meant}{self.origins.note(leaf)}")


def resolve_tree(tree: Mapping[str, Any], primary: Primary, origins: Origins) -> Resolution:
    """Build every section and slot of a verb; problems are collected, not raised."""
    found = Resolution(primary, origins)
    objects: dict[str, Any] = {}
    plains: dict[str, Any] = {}
    for name, slot in primary.slots.items():
        build = _build_slots if slot.many else _build_slot
        objects[name], plains[name] = build(found, slot, tree.get(name))
    for name, cls in primary.sections.items():
        objects[name], plains[name] = _build_section(found, name, cls, tree.get(name, {}))
    _tell_controlled(found, objects, plains)
    _tell_sequences(found, objects, plains)
    for name, (hint, _) in primary.scalars.items():
        objects[name] = plains[name] = _converted(found, name, tree.get(name), hint)
    for name, value in tree.items():
        if name not in primary.order:
            found.unknown(name, value)
    found.fields = {name: objects[name] for name in primary.order}
    found.tree = {name: plains[name] for name in primary.order}
    return found


def _tell_controlled(found: Resolution, objects: dict[str, Any], plains: dict[str, Any]) -> None:
    """Tell a loss which of its coefficients a controller sets, so that what they need is computed while they are 0."""
    loss = objects.get("loss")
    if not (dataclasses.is_dataclass(loss) and hasattr(loss, "controlled")):
        return
    names = set(loss.controlled)
    if objects.get("entropy_control") is not None:
        names.add("entropy_coef")
    if objects.get("kl_control") is not None and getattr(loss, "kl", "none") != "none":
        names.add("kl_coef")
    if names > set(loss.controlled):
        objects["loss"] = dataclasses.replace(loss, controlled=tuple(sorted(names)))  # type: ignore[type-var]
        plains["loss"]["controlled"] = sorted(names)
        found.origins.of["loss.controlled"] = "entropy_control, kl_control"


def _tell_sequences(found: Resolution, objects: dict[str, Any], plains: dict[str, Any]) -> None:
    """Tell a KL controller how many sequences a step has, where nobody did."""
    control, train, rollout = (objects.get(name) for name in ("kl_control", "train", "rollout"))
    key = "kl_control.sequences"
    if train is None or rollout is None or not hasattr(control, "sequences") or key in found.origins.of:
        return
    if dataclasses.is_dataclass(control) and not isinstance(control, type):
        count = train.prompts_per_step * rollout.n
        objects["kl_control"] = dataclasses.replace(control, sequences=count)
        plains["kl_control"]["sequences"] = count
        found.origins.of[key] = "train.prompts_per_step * rollout.n"


def show(value: Any) -> str:
    """A value the way an override has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    return str(value)


def _converted(found: Resolution, key: str, value: Any, hint: Any) -> Any:
    try:
        return convert(value, hint)
    except WrongValue as error:
        where = f"{key}.{error.path}".rstrip(".")
        found.complain(where, error.value, str(error))
        return None


def _build_section(found: Resolution, name: str, cls: type, values: Any) -> tuple[Any, dict[str, Any]]:
    if not isinstance(values, Mapping):
        first = next(iter(dataclasses.fields(cls))).name
        found.complain(name, values, f"{name} is a section; set its keys, like {name}.{first}=…")
        return None, {}
    hints, before = typing.get_type_hints(cls), len(found.problems)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            found.unknown(f"{name}.{key}", values[key])
    typed = {key: _converted(found, f"{name}.{key}", values[key], hints[key]) for key in names if key in values}
    if name == "eval":
        typed["data"] = _eval_data(found, typed.get("data"))
    if len(found.problems) > before:
        return None, {}
    built = cls(**typed)
    return built, plain(built)


def _eval_data(found: Resolution, values: Any) -> dict[str, Any]:
    """Keys of `eval.data` are those of the data section."""
    hints = typing.get_type_hints(DataConfig)
    typed = {}
    for key, value in (values or {}).items():
        if key in hints:
            typed[key] = _converted(found, f"eval.data.{key}", value, hints[key])
        else:
            meant = did_you_mean(key, hints)
            found.problems.append(f"eval.data.{key}: unknown key; {meant}{found.origins.note(f'eval.data.{key}')}")
    return typed


def _build_slot(found: Resolution, slot: Slot, node: Any) -> tuple[Any, dict[str, Any]]:
    if node is None:
        node = {CHOICE: NONE}
    if not isinstance(node, Mapping):
        found.complain(slot.name, node, f"takes a choice: {', '.join(slot.choices)}")
        return None, {}
    choice = node.get(CHOICE, NONE)
    if choice == NONE and slot.optional:
        for key in node:
            if key != CHOICE:
                _leftover(found, slot, f"{slot.name}.{key}", node[key], NONE)
        return None, {CHOICE: NONE}
    return _build_piece(found, slot, slot.name, str(choice), node)


def _build_slots(found: Resolution, slot: Slot, node: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    objects: dict[str, Any] = {}
    plains: dict[str, Any] = {}
    if not isinstance(node, Mapping):
        found.complain(slot.name, node, f"takes a list of choices: {', '.join(slot.choices)}")
        return objects, plains
    chosen = [name for name, below in node.items() if isinstance(below, Mapping) and CHOICE in below]
    for name, below in node.items():
        prefix = f"{slot.name}.{name}"
        if name in chosen:
            objects[name], plains[name] = _build_piece(found, slot, prefix, str(below[CHOICE]), below)
            continue
        for key, value in flatten({prefix: below}):
            if found.origins.from_command_line(slot.name) and not found.origins.from_command_line(key):
                found.notes.append(f"{key}={show(value)}{found.origins.note(key)} left out: {slot.name} has no {name}")
            else:
                have = f"[{','.join([*chosen, name])}]"
                hint = f"{slot.name}={have} puts it in" if name in slot.choices else did_you_mean(name, slot.choices)
                found.problems.append(f"{key}: {name} is not among {slot.name}={show(chosen)}; {hint}")
    return objects, plains


def _build_piece(
    found: Resolution, slot: Slot, prefix: str, choice: str, node: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    try:
        piece = find_piece(slot, choice)
    except ConfigError as error:
        found.problems.append(f"{error}{found.origins.note(slot.name)}")
        return None, {}
    found.pieces[prefix] = piece
    before, typed = len(found.problems), {}
    defaults, hints = piece.node(), {s.name: s.hint for s in piece.settings}
    for name, value in node.items():
        key = f"{prefix}.{name}"
        if name == CHOICE:
            continue
        if name not in hints and not piece.open:
            _leftover(found, slot, key, value, choice)
        elif _is_foreign(found, key, choice):
            _leftover(found, slot, key, value, choice)
            typed[name] = _converted(found, key, defaults[name], hints[name])
        elif value == UNSET:
            found.problems.append(f"{key} must be set: {choice} has no default for it")
        else:
            typed[name] = _converted(found, key, value, hints.get(name, Any))
    if len(found.problems) > before:
        return None, {}
    for name in slot.files.get(piece.name, ()):
        if typed.get(name):
            typed[name] = str(Path(typed[name]).expanduser().resolve())
    try:
        return piece.build(typed), {CHOICE: choice, **{k: plain(v) for k, v in typed.items()}}
    except (ValueError, TypeError, ConfigError) as error:
        found.problems.append(f"{_rule(error, prefix, piece)}{_who_set(found, prefix, typed)}")
        return None, {}


def _is_foreign(found: Resolution, key: str, choice: str) -> bool:
    """Whether a file set the key for another choice of the slot than the one in force."""
    meant = found.origins.meant_for.get(key)
    return meant is not None and meant.partition("@")[0] != choice.partition("@")[0]


def _leftover(found: Resolution, slot: Slot, key: str, value: Any, choice: str) -> None:
    """A key that the choice doesn't have: left out with a note where a file meant it for another choice."""
    if _is_foreign(found, key, choice):
        note = found.origins.note(key)
        found.notes.append(
            f"{key}={show(value)}{note} left out: meant for {found.origins.meant_for[key]}, not {choice}"
        )
        found.origins.of.pop(key, None)
    elif choice == NONE:
        found.problems.append(f"{key}: {slot.name} is off; choose one first: {slot.name}={next(iter(slot.choices))}")
    else:
        found.unknown(key, value, f"{slot.name} is {choice}; ")


def _rule(error: Exception, prefix: str, piece: Piece) -> str:
    """A piece's own words: `GRPO.eps=0: must be …` becomes `advantage.eps=0: must be …`."""
    text, own = str(error), f"{piece.target.__name__}."
    return f"{prefix}.{text.removeprefix(own)}" if text.startswith(own) else f"{prefix}: {text}"


def _who_set(found: Resolution, prefix: str, typed: Mapping[str, Any]) -> str:
    """Which files or conventions set the keys of a piece that refuses them."""
    notes = {found.origins.note(f"{prefix}.{name}") for name in typed} - {""}
    return "".join(sorted(notes))
