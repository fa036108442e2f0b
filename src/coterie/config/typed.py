"""Plain values (from YAML or the command line) to typed ones, and back."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal, Union

from coterie.config.hints import any_of, did_you_mean

UNSET = "???"
"""Stands for a key without default that nobody has set (OmegaConf's word for it)."""


class WrongValue(ValueError):
    """A value doesn't fit its type; the message is the rule, and `path` the key below the one converted."""

    def __init__(self, rule: str, path: str = "", value: Any = None) -> None:
        super().__init__(rule)
        self.path = path
        self.value = value


def convert(value: Any, hint: Any, *, strict: bool = False) -> Any:
    """`value` as the annotated type `hint`; nothing is guessed, 3.0 is taken for an int and 3 for a float.

    Args:
        value: plain value.
        hint: annotation.
        strict: take no number of the other kind (a union's members are tried this way first).

    Raises:
        WrongValue: which says what is expected.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, args)
    if origin is Literal:
        for choice in args:
            if value == choice and type(value) is type(choice):
                return value
        hint_text = f"; {did_you_mean(value, map(str, args))}" if isinstance(value, str) else ""
        raise WrongValue(f"must be {any_of([str(a) for a in args])}{hint_text}", value=value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _convert_dataclass(value, hint)
    kind = origin or hint
    if kind in _SCALARS:
        return _SCALARS[kind](value, strict)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _convert_mapping(value, args)
    if isinstance(kind, type) and issubclass(kind, Collection):
        return _convert_sequence(value, kind, args)
    return value


def describe(hint: Any) -> str:
    """The type in words: "whole number", "text", "a or b", "list of text"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any_of([describe(a) for a in args])
    if origin is Literal:
        return any_of([str(a) for a in args])
    kind = origin or hint
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "keys and values"
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return "section"
    if isinstance(kind, type) and issubclass(kind, Collection):
        inner = [a for a in args if a is not ...]
        return f"list of {any_of([describe(a) for a in inner])}" if inner else "list"
    return "any value"


def plain(value: Any) -> Any:
    """The value as YAML has it: mappings, lists and scalars.

    Raises:
        TypeError: for an object that has no such form.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Set):
        return sorted(plain(v) for v in value)
    if isinstance(value, Sequence):
        return [plain(v) for v in value]
    raise TypeError(f"{value!r} has no plain form; a setting is a number, text, list or mapping of these")


def _integer(value: Any, strict: bool) -> int:
    if isinstance(value, float) and value.is_integer() and not strict:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise WrongValue("must be a whole number", value=value)


def _number(value: Any, strict: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, float if strict else int | float):
        raise WrongValue("must be a number", value=value)
    if math.isnan(value):
        raise WrongValue("must be a number, not nan", value=value)
    return float(value)


def _truth(value: Any, strict: bool) -> bool:
    if not isinstance(value, bool):
        raise WrongValue("must be true or false", value=value)
    return value


def _text(value: Any, strict: bool) -> str:
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        raise WrongValue("must be text", value=value)
    if not isinstance(value, str):
        raise WrongValue(f"must be text; to mean the text {value!r}, quote it twice: \"'{value}'\"", value=value)
    return value


def _path(value: Any, strict: bool) -> Path:
    return Path(_text(value, strict))


def _nothing(value: Any, strict: bool) -> None:
    if value is not None:
        raise WrongValue("must be null", value=value)


_SCALARS = types.MappingProxyType(
    {int: _integer, float: _number, bool: _truth, str: _text, Path: _path, types.NoneType: _nothing}
)
_WORDS = types.MappingProxyType(
    {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", types.NoneType: "null"}
)


def _convert_union(value: Any, members: Sequence[Any]) -> Any:
    rules = []
    for strict in (True, False):
        for member in members:
            try:
                return convert(value, member, strict=strict)
            except WrongValue as error:
                rules.append(str(error))
    raise WrongValue(f"must be {any_of([describe(m) for m in members])}", value=value)


def _convert_mapping(value: Any, args: Sequence[Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise WrongValue("must be keys and values, like {a: 1}", value=value)
    item = args[1] if len(args) == 2 else Any
    return {str(key): _below(str(key), entry, item) for key, entry in value.items()}


def _convert_sequence(value: Any, kind: type, args: Sequence[Any]) -> Any:
    if isinstance(value, str | Mapping) or not isinstance(value, Collection):
        raise WrongValue(
            f"must be a list, like [{value if isinstance(value, str | int | float) else 'a, b'}]", value=value
        )
    items = list(value)
    build: Any = tuple if issubclass(kind, tuple) or kind in (Sequence, Collection) else kind
    if build not in (tuple, list, set, frozenset):
        build = frozenset if issubclass(kind, Set) else tuple
    if build is tuple and args and args[-1] is not ...:
        if len(items) != len(args) and issubclass(kind, tuple):
            raise WrongValue(f"must have {len(args)} entries", value=value)
        hints = list(args) if issubclass(kind, tuple) else [args[0]] * len(items)
    else:
        hints = [args[0] if args else Any] * len(items)
    return build(_below(str(i), item, hint) for i, (item, hint) in enumerate(zip(items, hints, strict=True)))


def _convert_dataclass(value: Any, cls: type) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise WrongValue("must be a section of keys", value=value)
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls) if f.init]
    for key in value:
        if key not in names:
            raise WrongValue(f"is unknown; {did_you_mean(str(key), names)}", path=str(key), value=value[key])
    converted = {key: _below(key, entry, hints[key]) for key, entry in value.items()}
    try:
        return cls(**converted)
    except (ValueError, TypeError) as error:
        raise WrongValue(str(error), value=value) from error


def _below(key: str, value: Any, hint: Any) -> Any:
    try:
        return convert(value, hint)
    except WrongValue as error:
        raise WrongValue(str(error), f"{key}.{error.path}".rstrip("."), error.value) from None
