"""Checks that every piece of the host side shares: field rules at construction, streams and scores at use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from coterie.core.types import FloatArray, Rollout

Overrides = Mapping[str, Mapping[str, Any]]
"""Conventions of a piece: name of a framework -> fields that differ from our defaults."""


def require(owner: object, name: str, ok: bool, rule: str) -> None:
    """Raise ValueError with class, field, value and rule unless `ok`."""
    if not ok:
        raise ValueError(f"{type(owner).__name__}.{name}={getattr(owner, name)!r}: {rule}")


def require_positive(owner: object, *names: str) -> None:
    """Each field is a finite number above 0."""
    for name in names:
        value = getattr(owner, name)
        require(owner, name, math.isfinite(value) and value > 0, "must be a finite number > 0")


def require_between(owner: object, low: float, high: float, *names: str) -> None:
    """Each field lies in [low, high]; NaN never does."""
    for name in names:
        require(owner, name, low <= getattr(owner, name) <= high, f"must lie in [{low:g}, {high:g}]")


def require_choices(owner: Any) -> None:
    """Every field annotated with `Literal[...]` holds one of its choices."""
    for name, choices in _choices(type(owner)):
        require(owner, name, getattr(owner, name) in choices, f"must be one of {', '.join(map(repr, choices))}")


def _choices(cls: type) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    hints = get_type_hints(cls)
    return tuple((f.name, get_args(hints[f.name])) for f in fields(cls) if get_origin(hints[f.name]) is Literal)


def stream_of(rollout: Rollout, name: str) -> FloatArray:
    """Stream `name` of a rollout, every entry finite.

    Raises:
        KeyError: when the rollout has no such stream, with those it has.
        ValueError: when an entry is NaN or infinite (an engine that returned no logprob is an error, never 0).
    """
    if name not in rollout.streams:
        raise KeyError(f"rollout {rollout.index} has no stream {name!r}; streams there: {sorted(rollout.streams)}")
    values = rollout.streams[name]
    if not np.all(np.isfinite(values)):
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"stream {name!r} of rollout {rollout.index} is {values[where]} at action token {where}")
    return values
