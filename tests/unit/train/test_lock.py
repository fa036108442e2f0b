import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from coterie.errors import RunDirectoryError
from coterie.train.lock import LOCK_NAME, RunLock, is_alive, read_owner

HOLD = """
import sys, time
from pathlib import Path
from coterie.train.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_refused_and_named(tmp_path, holder):
    with pytest.raises(RunDirectoryError, match=f"process {holder.pid} .*another run.dir"):
        RunLock(tmp_path)
    owner = read_owner(tmp_path)
    assert owner["pid"] == holder.pid and is_alive(owner)


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not is_alive(read_owner(tmp_path))
    lock = RunLock(tmp_path)
    assert read_owner(tmp_path)["pid"] == os.getpid()
    lock.close()


def test_the_same_process_is_refused_too_until_it_closes(tmp_path):
    lock = RunLock(tmp_path)
    with pytest.raises(RunDirectoryError, match=str(os.getpid())):
        RunLock(tmp_path)
    lock.close()
    lock.close()
    assert read_owner(tmp_path) is None
    RunLock(tmp_path).close()


ORPHAN = """
import os, sys, time
from pathlib import Path
from coterie.train.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
pid = os.fork()
if pid == 0:
    os.close(1)
    time.sleep(60)
print(pid, flush=True)
time.sleep(600)
"""


def test_a_forked_child_of_a_killed_run_does_not_keep_the_lock(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        RunLock(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_without_kernel_locks_the_noted_process_decides(tmp_path, monkeypatch, holder):
    def unsupported(fd, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(RunDirectoryError, match=str(holder.pid)):
        RunLock(tmp_path)
    note = json.loads((tmp_path / LOCK_NAME).read_text())
    # The same process id at another start time is another process.
    (tmp_path / LOCK_NAME).write_text(json.dumps({**note, "started": note["started"] - 1000}))
    RunLock(tmp_path).close()


def test_a_process_on_another_host_counts_as_alive():
    assert is_alive({"host": "some-other-host", "pid": 1, "started": 0.0})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_torn_note_names_nobody(tmp_path, text):
    (tmp_path / LOCK_NAME).write_text(text)
    assert read_owner(tmp_path) is None
