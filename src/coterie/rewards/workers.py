"""Killable worker processes: whatever may hang, eat memory or run wild happens there, under a deadline.

A worker serves one request at a time. The parent measures the deadline; when it passes, the worker's process group is
killed, so a hostile answer costs one deadline and never the interpreter (a thread can't be killed, and one C call can
hold the interpreter lock for minutes).

A pool has one *nursery*: a process with a single thread that has imported what the workers need and does nothing but
fork them. Replacing a worker takes milliseconds, the trainer itself (CUDA, threads) is never forked, and workers share
memory. The nursery starts with the first request. Everything ends when the pool is closed; if the trainer is killed,
the nursery and its workers are killed by the kernel (Linux), or end with their connection or alarm (elsewhere).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

Status = Literal["ok", "error", "timeout", "crash", "unavailable"]

_BOOT = (
    "import sys, json; setup = json.loads(sys.argv[1]); sys.path[:] = setup.pop('sys_path'); "
    "from coterie.rewards.worker_main import main; main(**setup)"
)
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")


@dataclass(frozen=True)
class Reply:
    """What came of one request.

    Attributes:
        status: "ok" (value holds the result), "error" (the handler raised; value holds type, message, where), "timeout"
            (killed at the deadline), "crash" (the process ended by itself), "unavailable" (no process could be started;
            value holds the reason).
        value: JSON value.
        mark: the last note the handler sent about what it was doing.
        ms: wall time in milliseconds from handing over to the reply; not the wait for a free worker.
    """

    status: Status
    value: Any = None
    mark: str = ""
    ms: float = 0.0


@dataclass(frozen=True)
class WorkerSpec:
    """How to make a worker.

    Attributes:
        target: "module:factory"; `factory(**settings)` runs in the worker and returns `handle(request, mark)`.
        settings: JSON arguments of the factory.
        preload: call the factory once in the nursery, before forking; not for code that may start threads.
        start_s: seconds that the nursery or a worker may take to get ready.
        memory_gib: bound on the address space of a worker; 0 for none.
        recycle_after: requests after which a worker is replaced.
        private: an almost empty environment; code evaluation, new processes, sockets and file writing are refused.
        strict: a request in which something was refused is an error, even if a library swallowed the refusal.
    """

    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preload: bool = True
    start_s: float = 60.0
    memory_gib: float = 2.0
    recycle_after: int = 5000
    private: bool = True
    strict: bool = False


class _StartError(Exception):
    """A nursery or worker could not be started; holds the reason."""


class _Nursery:
    """The process that forks workers."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.lock = threading.Lock()
        self.closed = False

    def worker(self) -> tuple[Connection, int]:
        """A new worker: connection and process id.

        Raises:
            _StartError: with the reason.
        """
        ours, theirs = socket.socketpair()
        connection = Connection(ours.detach())
        try:
            with self.lock:
                if self.closed:
                    raise _StartError("the pool is closed")
                if self.process is None or self.process.poll() is not None:
                    self.stop()
                    self._start()
                assert self.control is not None
                socket.send_fds(self.control, [b"w"], [theirs.fileno()])
            pid = _ready(connection, self.spec.start_s, "a worker")
        except (OSError, _StartError) as error:
            connection.close()
            raise _StartError(str(error)) from error
        finally:
            theirs.close()
        return connection, pid

    def close(self) -> None:
        """End the nursery for good."""
        with self.lock:
            self.closed = True
            self.stop()

    def stop(self) -> None:
        """End the nursery; its workers end with it."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = self.control = None

    def _start(self) -> None:
        spec = self.spec
        ours, theirs = socket.socketpair()
        setup = {
            "sys_path": sys.path,
            "fd": theirs.fileno(),
            "parent": os.getpid(),
            "target": spec.target,
            "settings": dict(spec.settings),
            "preload": spec.preload,
            "memory_gib": spec.memory_gib,
            "private": spec.private,
            "strict": spec.strict,
        }
        self.control = ours
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(spec.private),
            )
        finally:
            theirs.close()
        connection = Connection(os.dup(ours.fileno()))
        try:
            _ready(connection, spec.start_s, "the workers' nursery")
        except _StartError:
            self.stop()
            raise
        finally:
            connection.close()


class _Worker:
    """One worker, made when asked for."""

    def __init__(self, nursery: _Nursery) -> None:
        self.nursery = nursery
        self.connection: Connection | None = None
        self.pid = 0
        self.served = 0

    def call(self, request: bytes, deadline_s: float) -> Reply:
        try:
            if self.connection is None:
                self.connection, self.pid = self.nursery.worker()
                self.served = 0
        except _StartError as error:
            return Reply("unavailable", str(error))
        started = time.perf_counter()
        mark = ""
        try:
            self.connection.send_bytes(json.dumps(deadline_s).encode() + b"\n" + request)
            while True:
                left = started + deadline_s - time.perf_counter()
                if left <= 0 or not self.connection.poll(left):
                    self.kill()
                    return Reply("timeout", None, mark, _ms(started))
                kind, value = json.loads(self.connection.recv_bytes())
                if kind != "mark":
                    break
                mark = value
        except (EOFError, OSError):
            self.kill()
            return Reply("crash", "the worker process ended", mark, _ms(started))
        self.served += 1
        spent = kind == "error" and value["type"] == "MemoryError"
        if spent or self.served >= self.nursery.spec.recycle_after:
            self.kill()
        return Reply(kind, value, mark, _ms(started))

    def signal(self) -> None:
        """Kill the worker's process group."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End this worker; the next call makes another."""
        self.signal()
        if self.connection is not None:
            self.connection.close()
        self.connection, self.pid = None, 0


class Workers:
    """A pool of worker processes with one spec; usable from threads and from any event loop.

    Args:
        spec: how a worker is made.
        count: processes at most.
        deadline_s: default deadline of a request.
    """

    def __init__(self, spec: WorkerSpec, count: int = 2, deadline_s: float = 3.0) -> None:
        if count < 1:
            raise ValueError(f"a pool needs at least one worker, not {count}")
        self.spec, self.count, self.deadline_s = spec, count, deadline_s
        nursery = _Nursery(spec)
        self._workers = [_Worker(nursery) for _ in range(count)]
        self._nursery = nursery
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="coterie-worker")
        self._finalizer = weakref.finalize(self, _end, nursery, self._workers, self._threads)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pool travels as its recipe: the copy starts its own processes."""
        return Workers, (self.spec, self.count, self.deadline_s)

    def submit(self, request: Any, deadline_s: float | None = None) -> Future[Reply]:
        """Queue a request (anything that can be pickled); the deadline runs from the moment a worker takes it."""
        data = pickle.dumps(request)
        return self._threads.submit(self._serve, data, self.deadline_s if deadline_s is None else deadline_s)

    async def call(self, request: Any, deadline_s: float | None = None) -> Reply:
        """`submit` for coroutines."""
        return await asyncio.wrap_future(self.submit(request, deadline_s))

    def close(self) -> None:
        """End every process; requests under way come back as "crash". A closed pool can't be used again."""
        self._finalizer()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.kill()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the nursery and the running workers."""
        nursery = self._nursery.process
        return [*([nursery.pid] if nursery else []), *(w.pid for w in self._workers if w.pid)]

    def _serve(self, data: bytes, deadline_s: float) -> Reply:
        worker = self._idle.get()
        try:
            return worker.call(data, deadline_s)
        finally:
            self._idle.put(worker)


def _end(nursery: _Nursery, workers: list[_Worker], threads: ThreadPoolExecutor) -> None:
    """Kill all processes, without waiting for threads: also called when the last reference to a pool goes away."""
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.signal()
    nursery.close()


def _ready(connection: Connection, limit_s: float, what: str) -> int:
    """Wait for the first message of a new process; returns its process id."""
    try:
        if not connection.poll(limit_s):
            raise _StartError(f"{what} was not ready after {limit_s:g} s")
        kind, value = json.loads(connection.recv_bytes())
    except (EOFError, OSError) as error:
        raise _StartError(f"{what} ended while it started") from error
    if kind != "ok":
        raise _StartError(f"{what} can't start: {value['type']}: {value['message']}")
    return int(value)


def _environment(private: bool) -> dict[str, str]:
    """Environment of the workers: fixed hashing for reproducible symbolic results, one compute thread."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} if private else dict(os.environ)
    return kept | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def _ms(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
