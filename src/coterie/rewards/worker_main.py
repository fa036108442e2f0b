"""The child's side of `coterie.rewards.workers`: set-up of the process and its request loop.

Replies are JSON, never pickle: nothing that a worker says can run code in its parent.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

Mark = Callable[[str], None]
Handler = Callable[[Any, Mark], Any]

_PR_SET_PDEATHSIG = 1
_GRACE_S = 1.0
_PARSED_ONLY = "<unknown>"
_REFUSED = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.kill",
    "os.killpg",
    "os.chmod",
    "os.chown",
    "os.putenv",
    "pty.spawn",
    "shutil.rmtree",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "ctypes.dlopen",
)


class RefusedError(Exception):
    """Something that no grading needs was tried: code evaluation, a new process, a socket, writing a file."""


def main(
    fd: int,
    parent: int,
    target: str,
    settings: Mapping[str, Any],
    preload: bool,
    memory_gib: float,
    private: bool,
    strict: bool,
) -> None:
    """The nursery: fork a worker for every connection that the parent sends, until its end closes."""
    control = socket.socket(fileno=fd)
    hello = Connection(os.dup(fd))
    os.dup2(2, 1)
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    logging.disable(logging.WARNING)
    handle: Handler | None = None
    if preload:
        try:
            handle = _make(target, settings)
        except Exception as error:  # noqa: BLE001 - the request border of this server: a failed start becomes a status
            _send(hello, "error", describe(error))
            return
        gc.freeze()
    _send(hello, "ok", os.getpid())
    hello.close()
    nursery = os.getpid()
    while True:
        message, connections, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            os.setsid()
            die_with(nursery)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _limit(memory_gib)
            work(Connection(connections[0]), handle, partial(_make, target, settings), private, strict)
            os._exit(0)
        os.close(connections[0])


def work(
    connection: Connection, handle: Handler | None, make: Callable[[], Handler], private: bool, strict: bool
) -> None:
    """A worker: serve requests until the parent's end closes."""
    try:
        serve = handle or make()
    except Exception as error:  # noqa: BLE001 - the request border of this server: a failed start becomes a status
        _send(connection, "error", describe(error))
        return
    wall = Wall()
    if private:
        sys.dont_write_bytecode = True
        sys.addaudithook(wall)
    _send(connection, "ok", os.getpid())
    while True:
        try:
            header, _, request = connection.recv_bytes().partition(b"\n")
        except (EOFError, OSError):
            return
        _alarm(float(json.loads(header)) + _GRACE_S)
        wall.tried = ""
        try:
            kind, value = "ok", serve(pickle.loads(request), lambda text: _send(connection, "mark", text))
        except Exception as error:  # noqa: BLE001 - the request border of this server: a failed request becomes a status
            kind, value = "error", describe(error)
        _alarm(0)
        if strict and wall.tried:
            kind, value = "error", describe(RefusedError(wall.tried))
        _send(connection, kind, value)


def _make(target: str, settings: Mapping[str, Any]) -> Handler:
    """The handler that the factory `module:name` makes."""
    module, _, name = target.partition(":")
    handle: Handler = getattr(importlib.import_module(module), name)(**settings)
    return handle


def _send(connection: Connection, kind: str, value: Any) -> None:
    connection.send_bytes(json.dumps([kind, value]).encode())


def describe(error: BaseException) -> dict[str, str]:
    """Type, message and the innermost line of the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""  # noqa: PTH119
    return {"type": type(error).__name__, "message": str(error)[:500], "where": where}


def die_with(parent: int) -> None:
    """Ask Linux for a kill when the parent ends; a parent that is gone already ends us now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _limit(memory_gib: float) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_gib:
        size = int(memory_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _alarm(seconds: float) -> None:
    """A second line behind the parent's deadline: SIGALRM ends a busy worker whose parent is gone."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


class Wall:
    """Audit hook of private workers. Not a sandbox against native code; a wall between model text and `eval`.

    Attributes:
        tried: what was refused last, since a library may swallow the exception; "" when nothing was.
    """

    def __init__(self) -> None:
        self.tried = ""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _REFUSED:
            self._refuse(f"a grading worker may not do {event}")
        if event == "open":
            mode, flags = args[1], args[2]
            if flags & (os.O_WRONLY | os.O_RDWR) or (isinstance(mode, str) and any(c in mode for c in "wax+")):
                self._refuse(f"a grading worker may not write {args[0]!r}")
        if event == "compile" and _is_text(str(args[1])) and not _sympy_template(args[0]):
            self._refuse("a grading worker may not evaluate text as code")
        if event == "exec" and getattr(args[0], "co_filename", "") == _PARSED_ONLY:
            self._refuse("a grading worker may not evaluate text as code")

    def _refuse(self, what: str) -> None:
        self.tried = what
        raise RefusedError(what)


def _is_text(filename: str) -> bool:
    """Whether code with this file name comes from text. `ast.parse` alone runs nothing."""
    return filename.startswith("<") and filename != _PARSED_ONLY


def _sympy_template(source: Any) -> bool:
    """Arithmetic of monomials that sympy generates from the number of variables alone."""
    text = source.decode(errors="replace") if isinstance(source, bytes) else source
    return isinstance(text, str) and text.startswith("def monomial_")
