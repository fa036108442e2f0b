"""Where a run stands in its data: an order that is a function of (seed, epoch), and a position that can be restored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from coterie.core.keys import generator
from coterie.core.types import IntArray
from coterie.errors import DataError


class Identified(Protocol):
    """What a cursor can walk over: examples, conversations, or what was made of them."""

    @property
    def id(self) -> str:
        """Unique in its data set."""
        ...


T = TypeVar("T", bound=Identified)


class Cursor(Generic[T]):
    """Endless passes over a list, each in its own order; never an item twice within a pass.

    Args:
        items: what has an id (examples, conversations); at least one.
        seed: root of the order.
        shuffle: another order each epoch; off keeps the order of the list.
    """

    def __init__(self, items: Sequence[T], *, seed: int, shuffle: bool = True) -> None:
        if not items:
            raise DataError("there are no rows to train on")
        self.items: tuple[T, ...] = tuple(items)
        self._seed = seed
        self._shuffle = shuffle
        self._taken = 0
        self._fingerprint = _fingerprint(self.items)
        self._order_of: tuple[int, IntArray] = (-1, np.zeros(0, dtype=np.int64))

    @property
    def epoch(self) -> int:
        """Whole passes done; that of the next item."""
        return self._taken // len(self.items)

    @property
    def taken(self) -> int:
        """Items handed out since the start."""
        return self._taken

    def take(self, count: int) -> list[T]:
        """The next `count` items; a pass that ends in between is followed by the next."""
        chosen = []
        for position in range(self._taken, self._taken + count):
            epoch, place = divmod(position, len(self.items))
            chosen.append(self.items[int(self._order(epoch)[place])])
        self._taken += count
        return chosen

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"taken": self._taken, "rows": len(self.items), "fingerprint": self._fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            DataError: when the data is not what it was.
        """
        if state["rows"] != len(self.items) or state["fingerprint"] != self._fingerprint:
            raise DataError(
                f"the data changed since the checkpoint: {state['rows']} rows then, {len(self.items)} now"
                f"{'' if state['rows'] != len(self.items) else ', with other ids or another order'}. Put the old data "
                "back, or start a new run from the checkpoint's model"
            )
        self._taken = int(state["taken"])

    def _order(self, epoch: int) -> IntArray:
        if self._order_of[0] != epoch:
            count = len(self.items)
            order = generator("order", self._seed, epoch).permutation(count) if self._shuffle else np.arange(count)
            self._order_of = (epoch, order)
        return self._order_of[1]


class Mixture(Generic[T]):
    """Several cursors drawn from by weight.

    After t draws, source i has given less than 1 item more or fewer than `w_i t`: the schedule is that of R. Tijdeman,
    "The chairman assignment problem" (1980), whose bound is 1 - 1 / (2k - 2) for k sources. It depends on the weights
    alone.

    Args:
        cursors: one a source, by name.
        weights: positive shares by the same names; they need not add up to 1.
    """

    def __init__(self, cursors: Mapping[str, Cursor[T]], weights: Mapping[str, float]) -> None:
        if not cursors or set(cursors) != set(weights):
            raise DataError(
                f"a mixture needs one weight a source: sources {sorted(cursors)}, weights {sorted(weights)}"
            )
        if wrong := {name: weight for name, weight in weights.items() if not 0 < weight < float("inf")}:
            raise DataError(f"weights of a mixture are positive numbers, not {wrong}")
        self.cursors: dict[str, Cursor[T]] = dict(cursors)
        exact = {name: Fraction(weights[name]) for name in cursors}
        self._shares = {name: weight / sum(exact.values()) for name, weight in exact.items()}
        self._taken = dict.fromkeys(cursors, 0)

    @property
    def epoch(self) -> int:
        """Passes done over the source that is furthest behind."""
        return min(cursor.epoch for cursor in self.cursors.values())

    @property
    def taken(self) -> int:
        """Items handed out since the start."""
        return sum(self._taken.values())

    def take(self, count: int) -> list[T]:
        """The next `count` items."""
        chosen: list[T] = []
        for _ in range(count):
            name = self._next()
            self._taken[name] += 1
            chosen += self.cursors[name].take(1)
        return chosen

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "taken": dict(self._taken),
            "shares": {name: [share.numerator, share.denominator] for name, share in self._shares.items()},
            "cursors": {name: cursor.state() for name, cursor in self.cursors.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            DataError: when sources, weights or data are not what they were.
        """
        shares = {name: [share.numerator, share.denominator] for name, share in self._shares.items()}
        if {name: list(pair) for name, pair in state["shares"].items()} != shares:
            raise DataError("the mixture's sources or weights changed since the checkpoint; put the old ones back")
        for name, cursor in self.cursors.items():
            cursor.restore(state["cursors"][name])
        self._taken = {name: int(state["taken"][name]) for name in self.cursors}

    def _next(self) -> str:
        """Of the sources that lag by 1 / (2k - 2) or more, the one whose turn is due first."""
        count = len(self._shares)
        if count == 1:
            return next(iter(self._shares))
        margin = Fraction(1, 2 * count - 2)
        turn = self.taken + 1
        lag = {name: share * turn - self._taken[name] for name, share in self._shares.items()}
        due = {name: (1 - margin - value) / self._shares[name] for name, value in lag.items() if value >= margin}
        return min(due, key=due.__getitem__)


def _fingerprint(items: Sequence[Identified]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for item in items:
        digest.update(item.id.encode() + b"\0")
    return digest.hexdigest()
