"""From the text of a choice to the piece it names: a short name, a convention, or a class or function in a file.

A file is loaded under a module name made of its content (`core.load_file`), so that every process that loads the same
text gets equal classes, and an edited file is another piece.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from coterie.config.hints import did_you_mean
from coterie.config.slots import Slot
from coterie.config.typed import UNSET, plain
from coterie.core.load_file import load_module
from coterie.errors import ConfigError

CHOICE = "_choice_"
"""Key of a slot's node that holds what was chosen."""

NONE = "none"
"""Choice of an optional slot that is off."""


@dataclass(frozen=True)
class Setting:
    """One key of a piece: its name, type and default (`MISSING` without)."""

    name: str
    hint: Any
    default: Any


@dataclass(frozen=True)
class Piece:
    """What a choice stands for.

    Attributes:
        slot: where it goes.
        choice: the text that names it everywhere, files as absolute paths.
        name: its key in a slot that takes several.
        target: class or function.
        settings: its keys, in order.
        preset: keys that a convention sets, and their values.
        open: whether it takes further keyword arguments.
        digest: hash of the file it comes from; empty for coterie's own.
        wrapped: whether it is a function of the form that the slot's wrapper understands.
    """

    slot: Slot
    choice: str
    name: str
    target: Any
    settings: tuple[Setting, ...]
    preset: Mapping[str, Any]
    open: bool = False
    digest: str = ""
    wrapped: bool = False

    def node(self) -> dict[str, Any]:
        """Its defaults as plain values, with `???` for keys that must be given."""
        values = {s.name: UNSET if s.default is MISSING else plain(s.default) for s in self.settings}
        return {CHOICE: self.choice, **values, **{k: plain(v) for k, v in self.preset.items()}}

    def build(self, values: Mapping[str, Any]) -> Any:
        """The object itself.

        Raises:
            ValueError, TypeError: by which the piece refuses its settings.
        """
        if self.wrapped:
            path, _, name = self.choice.rpartition(":")
            return _named(self.slot.wrapper)(path=path, name=name, kwargs=dict(values))
        if inspect.isclass(self.target):
            return self.target(**values)
        return FunctionPiece(self.target, dict(values))


@dataclass(frozen=True)
class FunctionPiece:
    """A function in a slot, with its settings; what it needs and writes are attributes of the function."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **self.settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("function", "settings"):
            raise AttributeError(name)
        return getattr(self.function, name)


def find_piece(slot: Slot, choice: str) -> Piece:
    """The piece of `choice` in `slot`.

    Raises:
        ConfigError: for an unknown name or convention, and for a file that can't be loaded or lacks the name.
    """
    if is_file_choice(choice):
        return _file_piece(slot, choice)
    name, _, convention = choice.partition("@")
    if name not in slot.choices:
        known = [*slot.choices, *([NONE] if slot.optional else [])]
        raise ConfigError(
            f"{slot.name}={choice}: unknown choice; {did_you_mean(name, known)} "
            f"(there are: {', '.join(sorted(known))}; your own is path/to/file.py:Name)"
        )
    target = _named(slot.choices[name])
    preset: Mapping[str, Any] = {}
    if "@" in choice:
        preset = _convention(slot, name, target, convention)
    settings, is_open = _settings(target, 0)
    return Piece(slot, choice, name, target, settings, preset, is_open)


def is_file_choice(choice: str) -> bool:
    """Whether it has the form `path/to/file.py:Name`."""
    path, colon, name = choice.rpartition(":")
    return bool(colon) and path.endswith(".py") and name.isidentifier()


def absolute_choice(choice: str, folder: Path) -> str:
    """`choice` with the path of its file made absolute, relative to `folder`."""
    if not is_file_choice(choice):
        return choice
    path, _, name = choice.rpartition(":")
    return f"{(folder / Path(path).expanduser()).resolve()}:{name}"


def _file_piece(slot: Slot, choice: str) -> Piece:
    text, _, name = choice.rpartition(":")
    if slot.kind == "settings":
        raise ConfigError(f"{slot.name}={choice}: takes one of {', '.join(slot.choices)}, not a file")
    path = Path(text)
    module = load_module(path)
    target = getattr(module, name, None)
    if target is None:
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise ConfigError(f"{slot.name}={choice}: {path} has no {name!r}; {did_you_mean(name, own)}".rstrip("; "))
    if not callable(target):
        raise ConfigError(f"{slot.name}={choice}: {name} is a {type(target).__name__}, not a class or function")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if slot.wrapper and inspect.isfunction(target) and not _leads_with(target, slot.arguments):
        settings, is_open = _settings(target, 0)
        own_keys = tuple(s for s in settings if s.name not in slot.wrapped_arguments and s.default is not MISSING)
        return Piece(slot, choice, name, target, own_keys, {}, is_open, digest, wrapped=True)
    _check_contract(slot, choice, target)
    _fill_attributes(slot, target)
    settings, is_open = _settings(target, 0 if inspect.isclass(target) else len(slot.arguments))
    return Piece(slot, choice, name, target, settings, {}, is_open, digest)


def _named(place: str) -> Any:
    """The object at `module:Name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _leads_with(function: Any, names: tuple[str, ...]) -> bool:
    return tuple(inspect.signature(function).parameters)[: len(names)] == names


def _check_contract(slot: Slot, choice: str, target: Any) -> None:
    """Check that the piece can be called the way its slot calls it."""
    shape = f"({', '.join(slot.arguments)})"
    if slot.kind == "controller":
        missing = [m for m in ("init", "update", "value") if not callable(getattr(target, m, None))]
        if not inspect.isclass(target) or missing:
            what = f"lacks {', '.join(missing)}" if inspect.isclass(target) else "is a function"
            raise ConfigError(f"{slot.name}={choice}: {what}; a controller is a class with init, update and value")
        return
    called, skip = target, 0
    if inspect.isclass(target):
        if "__call__" not in dir(target):
            raise ConfigError(f"{slot.name}={choice}: the class has no __call__; it is called with {shape}")
        called, skip = target.__call__, 1
    positional, variable = 0, False
    for parameter in list(inspect.signature(called).parameters.values())[skip:]:
        positional += parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        variable |= parameter.kind is parameter.VAR_POSITIONAL
    if positional < len(slot.arguments) and not variable:
        raise ConfigError(f"{slot.name}={choice}: is called with {shape}, but takes {positional} positional arguments")


def _fill_attributes(slot: Slot, target: Any) -> None:
    """Give a class or function of a user's file the attributes it need not declare."""
    for name, value in slot.attributes.items():
        if not hasattr(target, name):
            setattr(target, name, value)


def _convention(slot: Slot, name: str, target: Any, convention: str) -> Mapping[str, Any]:
    conventions: Mapping[str, Mapping[str, Any]] = getattr(target, "conventions", {})
    if not conventions:
        raise ConfigError(f"{slot.name}={name}@{convention}: {name} has no conventions; use {slot.name}={name}")
    if convention not in conventions:
        raise ConfigError(
            f"{slot.name}={name}@{convention}: unknown convention; {did_you_mean(convention, conventions)} "
            f"({name} has: {', '.join(sorted(conventions))})"
        )
    return conventions[convention]


def _settings(target: Any, skip: int) -> tuple[tuple[Setting, ...], bool]:
    """Keys of a class or function, and whether it takes others; `skip` positional arguments are not settings."""
    if dataclasses.is_dataclass(target):
        hints, found = _hints(target), []
        for f in dataclasses.fields(target):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if f.init and _is_plain(default):
                found.append(Setting(f.name, hints.get(f.name, Any), default))
        return tuple(found), False
    if inspect.isclass(target):
        if target.__init__ is object.__init__:
            return (), False
        hints, parameters = _hints(target.__init__), list(inspect.signature(target).parameters.values())
    else:
        hints, parameters = _hints(target), list(inspect.signature(target).parameters.values())[skip:]
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    settings = [
        Setting(p.name, hints.get(p.name, Any), MISSING if p.default is inspect.Parameter.empty else p.default)
        for p in named
        if p.default is inspect.Parameter.empty or _is_plain(p.default)
    ]
    return tuple(settings), any(p.kind is p.VAR_KEYWORD for p in parameters)


def _is_plain(default: Any) -> bool:
    """Whether a default can stand in a configuration; a key whose default can't is none."""
    if default is MISSING:
        return True
    try:
        plain(default)
    except TypeError:
        return False
    return True


def _hints(target: Any) -> dict[str, Any]:
    """Annotations; those that can't be evaluated count as any value."""
    try:
        return typing.get_type_hints(target)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return {}
