import errno
import os
import resource
import signal

import pytest
import torch
from safetensors.torch import save_file

from coterie.errors import RunDirectoryError
from coterie.train.atomic import disk_errors, write_all, write_atomic, write_json


@pytest.fixture
def small_files():
    """Files of at most 64 KiB; a longer write fails with EFBIG, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_replaces_whole_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"b": 1, "a": [1.5, None]})
    write_json(path, {"b": 2})
    assert path.read_text() == '{\n  "b": 2\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_refuses_nan(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


def test_write_all_survives_short_writes(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    write_all(fd, b"0123456789")
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"0123456789"


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failed_write_keeps_the_old_content(tmp_path, monkeypatch, call):
    path = tmp_path / "a.txt"
    write_atomic(path, b"old")
    real = os.write

    def full(fd, data=b""):
        real(fd, bytes(data)[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with (
        pytest.raises(RunDirectoryError, match=r"can't write it .*no space is left.*Kept: the old.*run\.resume=auto"),
        disk_errors("it", path, lambda: "the old"),
    ):
        write_atomic(path, b"new content")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_errors_that_have_nothing_to_do_with_the_disk_pass(tmp_path):
    with pytest.raises(RuntimeError, match="shape mismatch"), disk_errors("it", tmp_path, lambda: ""):
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize("save", [torch.save, save_file], ids=["torch", "safetensors"])
def test_a_library_that_runs_out_of_disk_is_explained(tmp_path, small_files, save):
    with (
        pytest.raises(RunDirectoryError, match=r"can't write the model .*(allowed (file )?size|disk is full)"),
        disk_errors("the model", tmp_path, lambda: "nothing"),
    ):
        save({"w": torch.zeros(1 << 16)}, str(tmp_path / "model"))
