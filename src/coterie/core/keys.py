"""Randomness as a function of coordinates, never of process history (DESIGN §1, principle 6).

A draw is named by what it is for: `uniforms("sample", seed, step, example_id, sample, turn, count=...)`. The same
coordinates give the same numbers in any process, batch composition or resumed run.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Coordinate = str | int


def seed_of(*coordinates: Coordinate) -> int:
    """A 64-bit seed from coordinates; strings and integers never collide with each other.

    Raises:
        TypeError: for a coordinate that is neither a string nor an integer (a float would round).
    """
    digest = hashlib.blake2b(digest_size=8)
    for c in coordinates:
        if isinstance(c, bool) or not isinstance(c, str | int):
            raise TypeError(f"a coordinate is a str or an int, not {type(c).__name__}: {c!r}")
        text = f"{'s' if isinstance(c, str) else 'i'}{c}".encode()
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return int.from_bytes(digest.digest(), "little")


def generator(*coordinates: Coordinate) -> np.random.Generator:
    """A counter-based generator (Philox) that belongs to these coordinates alone."""
    return np.random.Generator(np.random.Philox(key=seed_of(*coordinates)))


def uniforms(*coordinates: Coordinate, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1): the first n of them are the same for every `count` ≥ n."""
    return generator(*coordinates).random(count)
