import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from coterie.rewards.worker_main import RefusedError, Wall
from coterie.rewards.workers import Workers, WorkerSpec

HANDLER = """
import os, sys, time, subprocess

def make(fail=False):
    if fail:
        raise RuntimeError("no luck")
    def handle(request, mark):
        what, value = request
        if what == "echo":
            return value
        if what == "pid":
            return os.getpid()
        if what == "mark":
            mark("one"); mark("two"); time.sleep(60)
        if what == "sleep":
            time.sleep(value)
        if what == "spin":
            while True: pass
        if what == "lock":
            return 10 ** 10 ** 9
        if what == "raise":
            raise ValueError(value)
        if what == "exit":
            os._exit(value)
        if what == "memory":
            return len(b"x" * value)
        if what == "eval":
            return eval(value)
        if what == "swallowed":
            try: eval(value)
            except Exception: return "swallowed"
        if what == "write":
            open(value, "w")
        if what == "child":
            subprocess.Popen(["true"])
        if what == "print":
            print(value)
            return "printed"
        if what == "environment":
            return dict(os.environ)
    return handle
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handlers")
    (folder / "worker_test_handler.py").write_text(HANDLER)
    sys.path.insert(0, str(folder))
    yield "worker_test_handler:make"
    sys.path.remove(str(folder))


def pool(target, deadline_s=20.0, count=1, **spec):
    return Workers(WorkerSpec(target, **spec), count, deadline_s)


def ask(workers, what, value=None, deadline_s=None):
    return workers.submit((what, value), deadline_s).result(timeout=60)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def gone(pids, limit_s=20.0):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if not any(alive(p) for p in pids):
            return True
        time.sleep(0.02)
    return False


def test_nothing_starts_before_the_first_request(target):
    with pool(target) as workers:
        assert workers.pids == []
        assert ask(workers, "echo", {"a": [1, 2]}).value == {"a": [1, 2]}
        assert len(workers.pids) == 2


def test_a_worker_is_kept(target):
    with pool(target) as workers:
        assert ask(workers, "pid").value == ask(workers, "pid").value


def test_workers_are_recycled(target):
    with pool(target, recycle_after=2) as workers:
        pids = [ask(workers, "pid").value for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_an_exception_is_described(target):
    with pool(target) as workers:
        reply = ask(workers, "raise", "bad")
    assert reply.status == "error"
    assert reply.value["type"] == "ValueError" and reply.value["message"] == "bad"
    assert reply.value["where"].startswith("worker_test_handler.py:")


@pytest.mark.parametrize("what", ["spin", "lock", "sleep"])
def test_past_the_deadline_the_worker_is_killed_and_replaced(target, what):
    with pool(target) as workers:
        before = ask(workers, "pid").value
        assert ask(workers, what, 600, deadline_s=0.3).status == "timeout"
        assert ask(workers, "pid").value != before
        assert gone([before])


def test_the_mark_tells_what_it_was_doing(target):
    with pool(target) as workers:
        assert ask(workers, "mark", deadline_s=1.0).mark == "two"


def test_a_crash_is_told_from_a_timeout(target):
    with pool(target) as workers:
        assert ask(workers, "exit", 3).status == "crash"
        assert ask(workers, "echo", 1).value == 1


def test_memory_is_bounded(target):
    with pool(target, memory_gib=0.5) as workers:
        reply = ask(workers, "memory", 2**30)
        assert (reply.status, reply.value["type"]) == ("error", "MemoryError")
        assert ask(workers, "echo", 1).value == 1


def test_a_factory_that_fails_is_unavailable(target):
    for preload in (True, False):
        with Workers(WorkerSpec(target, {"fail": True}, preload=preload)) as workers:
            reply = ask(workers, "echo", 1)
        assert reply.status == "unavailable" and "no luck" in reply.value
    with Workers(WorkerSpec("no_such_module_anywhere:make")) as workers:
        assert "no_such_module_anywhere" in ask(workers, "echo", 1).value


def test_a_private_worker_evaluates_and_writes_nothing(target, tmp_path):
    with pool(target) as workers:
        for what, value in (("eval", "1+1"), ("write", str(tmp_path / "x")), ("child", None)):
            assert ask(workers, what, value).value["type"] == "RefusedError", what
        assert ask(workers, "swallowed", "1+1").value == "swallowed"
    assert not (tmp_path / "x").exists()


def test_a_strict_worker_reports_a_swallowed_refusal(target):
    with pool(target, strict=True) as workers:
        assert ask(workers, "swallowed", "1+1").value["type"] == "RefusedError"
        assert ask(workers, "echo", 1).value == 1


def test_an_open_worker_may_do_as_it_likes(target, tmp_path):
    with pool(target, private=False) as workers:
        assert ask(workers, "eval", "1+1").value == 2
        assert ask(workers, "write", str(tmp_path / "x")).status == "ok"
    assert (tmp_path / "x").exists()


def test_a_private_worker_sees_no_secrets(target, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    with pool(target) as workers:
        assert "SOME_API_KEY" not in ask(workers, "environment").value
    with pool(target, private=False) as workers:
        assert ask(workers, "environment").value["SOME_API_KEY"] == "secret"


def test_prints_do_not_disturb_the_replies(target):
    with pool(target) as workers:
        assert ask(workers, "print", "x" * 10000).value == "printed"


def test_requests_run_side_by_side(target):
    with pool(target, count=2) as workers:
        first, second = workers.submit(("pid", None)), workers.submit(("pid", None))
        assert {first.result().status, second.result().status} == {"ok"}
        slow = workers.submit(("sleep", 600), 5.0)
        assert ask(workers, "echo", 1).value == 1
        assert not slow.done()


def test_from_coroutines_of_several_loops(target):
    async def both():
        return [r.value for r in await asyncio.gather(*(workers.call(("echo", i)) for i in range(5)))]

    with pool(target, count=2) as workers:
        assert asyncio.run(both()) == list(range(5))
        assert asyncio.run(both()) == list(range(5))


def test_close_ends_all_processes_even_busy_ones(target):
    workers = pool(target, count=2)
    ask(workers, "echo", 1)
    busy = workers.submit(("spin", None), 600.0)
    while len(workers.pids) < 2:
        time.sleep(0.01)
    pids = workers.pids
    workers.close()
    assert gone(pids)
    assert busy.cancelled() or busy.result(timeout=20).status in ("crash", "unavailable")


def test_a_forgotten_pool_ends_its_processes(target):
    workers = pool(target)
    assert ask(workers, "echo", 1).value == 1
    pids = workers.pids
    del workers
    gc.collect()
    assert gone(pids)


def test_a_closed_pool_takes_no_requests(target):
    workers = pool(target)
    workers.close()
    with pytest.raises(RuntimeError):
        workers.submit(("echo", 1))


def test_a_copy_has_its_own_processes(target):
    import pickle

    with pool(target) as workers:
        ask(workers, "echo", 1)
        with pickle.loads(pickle.dumps(workers)) as copy:
            assert copy.pids == []
            assert ask(copy, "echo", 2).value == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux")
def test_no_orphans_when_the_parent_is_killed(target):
    script = textwrap.dedent(f"""
        import sys
        sys.path[:] = {sys.path!r}
        from coterie.rewards.workers import Workers, WorkerSpec
        workers = Workers(WorkerSpec({target!r}), 2, 600.0)
        first = workers.submit(("pid", None)).result()
        busy = [workers.submit(("spin", None)) for _ in range(2)]
        import time
        while len(workers.pids) < 3:
            time.sleep(0.01)
        print(*workers.pids, flush=True)
        time.sleep(600)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(p) for p in parent.stdout.readline().split()]
    assert len(pids) == 3 and all(alive(p) for p in pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(pids)


def test_the_wall_remembers_what_it_refused():
    wall = Wall()
    wall("open", ("a", "r", os.O_RDONLY))
    assert wall.tried == ""
    with pytest.raises(RefusedError):
        wall("compile", (b"1+1", "<string>"))
    assert "evaluate" in wall.tried
    Wall()("compile", (b"def monomial_mul(A, B): pass", "<string>"))
    Wall()("compile", (b"[1, 2]", "<unknown>"))
