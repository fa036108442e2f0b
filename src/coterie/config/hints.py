"""What to say about a name that doesn't exist, and about text that Hydra's grammar can't read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` names most like `name`, best first; at least one whenever there is any.

    Dotted keys are compared as a whole and by their last part, so `lr` finds `optim.lr`.
    """
    names = sorted(set(known))
    last = name.rsplit(".", 1)[-1]
    scored = [(max(_likeness(name, n), 0.95 * _likeness(last, n.rsplit(".", 1)[-1])), n) for n in names]
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    return [n for score, n in scored[:count] if score >= 0.6] or [n for _, n in scored[:1]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean a or b?`, or an empty string when nothing is known."""
    found = nearest(name, known)
    return f"did you mean {any_of(found)}?" if found else ""


def any_of(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def quoting_hint(override: str) -> str:
    """How to quote an override for the shell and for Hydra's grammar."""
    key, equal, value = override.partition("=")
    if not equal:
        return "an override is key=value, without spaces around the ="
    if not key.strip():
        return "the name before the = is missing"
    if not all(c.isalnum() or c in "._+~@/$-" for c in key):
        return "the name before the = has letters, digits, _ and dots alone"
    inner = value.strip("'\"").replace("'", "\\'")
    return f"a value with spaces, braces, commas or quotes goes in two pairs of quotes: \"{key}='{inner}'\""


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
