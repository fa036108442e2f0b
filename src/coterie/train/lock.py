"""One writer a run directory: a kernel lock that dies with its process, and a note of who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from coterie.errors import RunDirectoryError

LOCK_NAME = "run.lock"
_GRACE_S = 2.0


class RunLock:
    """Held from construction to `close` (or the end of the process, however it ends).

    The kernel's lock decides; on file systems without locks the noted process does: its id and start time, so that a
    reused process id is not taken for it. A killed holder gets two seconds to be gone.

    Raises:
        RunDirectoryError: when another process, or another part of this one, writes there.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.ExitStack() as failed:
            failed.callback(self._drop)
            if not _acquired(self._fd, folder):
                raise _taken(folder)
            note = {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(note).encode(), 0)
            failed.pop_all()
        # A forked child shares the lock; an orphan of a killed run must not keep it.
        os.register_at_fork(after_in_child=self._drop)

    def close(self) -> None:
        """Give the directory free."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            self._drop()

    def _drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_owner(folder: Path) -> dict[str, Any] | None:
    """Who wrote last or writes now: host, pid, started; None when nobody holds it or the note is torn."""
    try:
        owner = json.loads((folder / LOCK_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return owner if isinstance(owner, dict) and {"host", "pid", "started"} <= owner.keys() else None


def is_alive(owner: Mapping[str, Any]) -> bool:
    """Whether that process still runs; one on another host counts as alive, for nothing here can tell."""
    if owner["host"] != socket.gethostname():
        return True
    try:
        process = psutil.Process(owner["pid"])
        same = abs(process.create_time() - owner["started"]) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _acquired(fd: int, folder: Path) -> bool:
    deadline = time.monotonic() + _GRACE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            owner = read_owner(folder)
            if (owner is not None and is_alive(owner)) or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        except OSError:  # a file system without locks
            owner = read_owner(folder)
            return owner is None or not is_alive(owner)


def _taken(folder: Path) -> RunDirectoryError:
    owner = read_owner(folder)
    who = "another process" if owner is None else f"process {owner['pid']} on {owner['host']}"
    return RunDirectoryError(
        f"run.dir={folder} is being written by {who}; a run directory has one writer. Wait for it, stop it, or give "
        "another run.dir."
    )
