"""The local runtime: everything in this process, so that `breakpoint()` works everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LocalRuntime:
    """`spawn` constructs the object."""

    def spawn(self, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The object itself; its coroutine methods run to their end in the caller's event loop."""
        return make(*args, **kwargs)
