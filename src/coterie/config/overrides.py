"""Overrides of the command line: parsed with Hydra's grammar, then rewritten so that its composer takes them all.

Values become `++key=value` (whether the key exists is checked after composing, with better words); choices of slots get
absolute file names; what Hydra would do but we don't (deleting a section, `group@package`) is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from coterie.config.hints import did_you_mean, quoting_hint
from coterie.config.pieces import CHOICE, NONE, absolute_choice, find_piece
from coterie.config.primary import Primary
from coterie.config.slots import SLOTS, Slot
from coterie.config.source import CONF, EXPERIMENT, SCHEMA
from coterie.errors import ConfigError


@dataclass(frozen=True)
class Request:
    """One override as it was written, and as Hydra gets it.

    Attributes:
        text: as written.
        key: dotted key, or the slot's name.
        value: parsed value; None for a sweep.
        hydra: what Hydra's composer or sweeper gets.
        chooses: whether it picks a slot's choice or a preset.
        added: whether it was written with a + in front.
        sweep: whether it stands for several values.
    """

    text: str
    key: str
    value: Any
    hydra: str
    chooses: bool = False
    added: bool = False
    sweep: bool = False


def parse_overrides(texts: Iterable[str], primary: Primary, *, sweep: bool = False) -> list[Request]:
    """Overrides of one command line.

    Args:
        texts: as written.
        primary: of the verb.
        sweep: take several values (`n=2,4`) and Hydra's own settings (`hydra.…`), which only `-m` knows.

    Raises:
        ConfigError: for text the grammar refuses, an unknown choice, and operations that are not offered.
    """
    return [_request(text, primary, sweep) for text in texts]


def presets() -> list[str]:
    """Names that `experiment=` takes."""
    return sorted(
        p.relative_to(CONF / EXPERIMENT).with_suffix("").as_posix() for p in CONF.glob("experiment/**/*.yaml")
    )


def _request(text: str, primary: Primary, sweep: bool) -> Request:
    parsed = _parse(text)
    key = parsed.key_or_group
    several = parsed.is_sweep_override()
    if parsed.is_hydra_override():
        if not sweep:
            raise ConfigError(f"{text}: settings of Hydra apply to sweeps only; add -m, or leave it out")
        return Request(text, key, None, text, sweep=several)
    if CHOICE in key:
        raise ConfigError(f"{text}: write {key.partition('.')[0]}=… to choose")
    if parsed.package is not None:
        raise ConfigError(f"{text}: {key}@{parsed.package} is not offered; a slot is set by its name: {key}=…")
    if several and not sweep:
        value = parsed.get_value_string()
        raise ConfigError(
            f"{text}: several values make a sweep; add -m to run them all, write {key}=[{value}] for a list, "
            f"or quote a text with commas: \"{key}='{value}'\""
        )
    if key in (SCHEMA, *SLOTS) and key not in primary.slots:
        known = [*primary.order, EXPERIMENT]
        raise ConfigError(f"{key}: unknown key here; {did_you_mean(key, known)} (there are: {', '.join(known)})")
    chooses = key == EXPERIMENT or (key in primary.slots and not isinstance(_value(parsed), dict))
    if chooses:
        return _choice_request(parsed, text, primary, several)
    if parsed.is_delete():
        if not _below(key, primary.open_nodes):
            raise ConfigError(
                f"{text}: a key can't be taken away; set another value (a slot is emptied with =none or =[])"
            )
        return Request(text, key, None, text)
    added = parsed.is_add() or parsed.is_force_add()
    value_text = text.partition("=")[2]
    return Request(text, key, _value(parsed), f"++{key}={value_text}", added=added, sweep=several)


def _choice_request(parsed: Override, text: str, primary: Primary, several: bool) -> Request:
    key = parsed.key_or_group
    if parsed.is_delete() or parsed.is_add() or parsed.is_force_add():
        raise ConfigError(f"{text}: {key} is always there; write {key}=… without the sign in front")
    slot = primary.slots.get(key)
    if not several:
        value = _canonical(key, parsed.value(), slot)
        return Request(text, key, value, f"{key}={_grammar(value)}", chooses=True)
    if parsed.value_type not in (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP):
        raise ConfigError(f"{text}: choices are swept as a list: {key}=a,b")
    options = [_canonical(key, _unquoted(v), slot) for v in parsed.sweep_iterator()]
    return Request(text, key, None, f"{key}={','.join(map(_grammar, options))}", chooses=True, sweep=True)


def _canonical(key: str, value: Any, slot: Slot | None) -> Any:
    """The choice as Hydra gets it: checked, files absolute, a list where the slot takes several."""
    if slot is None:
        if value is None:
            return []
        return [_preset(v) for v in value] if isinstance(value, list) else _preset(value)
    if isinstance(value, list) and not slot.many:
        raise ConfigError(f"{key}={_grammar(value)}: takes one choice, not a list")
    if slot.many:
        many = value if isinstance(value, list) else [] if value in (None, NONE, "") else [value]
        found = [_checked(slot, v) for v in many]
        names = [find_piece(slot, choice).name for choice in found]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"{key}={_grammar(value)}: {name} is there twice; each takes its keys below {key}.{name}"
                )
        return found
    return _checked(slot, NONE if value is None else value)


def _checked(slot: Slot, choice: Any) -> str:
    if not isinstance(choice, str) or not choice:
        raise ConfigError(
            f"{slot.name}={_grammar(choice)}: a choice is a name; there are {', '.join(sorted(slot.choices))}"
        )
    if choice == NONE and slot.optional:
        return NONE
    located = absolute_choice(choice, Path.cwd())
    find_piece(slot, located)
    return located


def _preset(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"experiment={_grammar(name)}: a preset is a name or a path; there are {', '.join(presets())}"
        )
    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"experiment={name}: no such file (current folder: {Path.cwd()})")
        return str(path)
    if name not in presets():
        meant = did_you_mean(name, presets())
        raise ConfigError(f"experiment={name}: no such preset; {meant} (your own is experiment=path/to/file.yaml)")
    return name


def _parse(text: str) -> Override:
    if text == "" or text.isspace():
        raise ConfigError("an empty override; write key=value")
    try:
        parsed = OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        raise ConfigError(f"{text}: can't be read as key=value; {quoting_hint(text)}{_caret(text, error)}") from error
    if not parsed.key_or_group:
        raise ConfigError(f"{text}: {quoting_hint(text)}")
    return parsed


def _caret(text: str, error: HydraException) -> str:
    """Two lines that point at the character, where the lexer names one."""
    lines = str(error).splitlines()
    if len(lines) < 2 or lines[1].strip() != "^":
        return ""
    column = lines[1].index("^") - len("LexerNoViableAltException: ")
    return f"\n  {text}\n  {' ' * max(column, 0)}^"


def _value(parsed: Override) -> Any:
    return None if parsed.is_sweep_override() else parsed.value()


def _unquoted(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    return [_unquoted(v) for v in value] if isinstance(value, list) else value


def _grammar(value: Any) -> str:
    """A choice or a list of choices in Hydra's grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(_grammar, value))}]"
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    plain_text = value and all(c.isalnum() or c in "_-/.@:" for c in value) and value.isascii()
    return value if plain_text else QuotedString(value, Quote.single).with_quotes()


def _below(key: str, nodes: Sequence[str]) -> bool:
    return any(key.startswith(f"{node}.") for node in nodes)
