"""Process set-up: keep freed memory for the next micro-batch."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_freed_memory() -> bool:
    """Ask the C library not to hand large freed blocks back to the kernel; whether it agreed.

    A training step frees and takes gigabytes of activations for each micro-batch. glibc maps every block above 32 MiB
    anew and trims the top of its heap, so that each page is faulted in and zeroed again (a few percent of a step on a
    CPU). Peak memory stays the same; what was freed serves the next micro-batch and the engine's cache
    instead of other processes. Does nothing where the C library has no `mallopt`.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))
