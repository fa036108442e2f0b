import errno
import json
import os

import numpy as np
import pytest
import torch

from coterie.errors import RunDirectoryError
from coterie.train.metrics_file import MetricsWriter, decode, encode, numbers, read_metrics, strip_wall


def test_a_line_is_step_then_sorted_names():
    assert (
        encode(3, {"b/x": 1.5, "a/y": 2, "a/x": np.float32(0.5)}) == b'{"step": 3, "a/x": 0.5, "a/y": 2, "b/x": 1.5}\n'
    )


def test_every_bit_of_a_float_comes_back():
    values = {"x": 0.1 + 0.2, "y": 1e-300, "z": 5e-324, "t": torch.tensor(1 / 3).item()}
    assert numbers(decode(encode(0, values))) == values


def test_nan_and_infinity_are_null_with_a_note():
    line = encode(1, {"loss": float("nan"), "norm": float("-inf"), "x": 1.0})
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "norm": None,
        "x": 1.0,
        "nonfinite": {"loss": "nan", "norm": "-inf"},
    }
    back = numbers(decode(line))
    assert np.isnan(back["loss"]) and back["norm"] == -np.inf and back["x"] == 1.0


def test_a_metric_is_a_number():
    with pytest.raises(TypeError, match="'a/x'.*str"):
        encode(0, {"a/x": "1.0"})


def test_strip_wall_leaves_what_must_be_equal():
    record = decode(encode(2, {"time/step_s": 1.0, "memory/x": 2, "wall/a": float("nan"), "policy/loss": 0.5}))
    assert strip_wall(record) == {"step": 2, "policy/loss": 0.5}
    kept = strip_wall(decode(encode(2, {"wall/a": float("nan"), "policy/loss": float("nan")})))
    assert kept["nonfinite"] == {"policy/loss": "nan"}


def test_append_is_on_the_disk_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append(0, {"a": 1})
    writer.append(1, {"a": 2})
    assert read_metrics(path) == [{"step": 0, "a": 1}, {"step": 1, "a": 2}]
    with pytest.raises(ValueError, match="step 1 after those of step 1"):
        writer.append(1, {"a": 3})
    writer.close()


def test_a_torn_last_line_is_left_out_and_then_overwritten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode(0, {"a": 1}) + encode(1, {"a": 2})[:-4])
    assert [r["step"] for r in read_metrics(path)] == [0]
    writer = MetricsWriter(path)
    writer.append(1, {"a": 5})
    writer.close()
    assert read_metrics(path) == [{"step": 0, "a": 1}, {"step": 1, "a": 5}]


@pytest.mark.parametrize("tail", [b"{}\n", b"\0\0\0\0\n", b'{"step": 2, "a": 1}'])
def test_a_broken_last_line_counts_as_torn(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode(0, {"a": 1}) + tail)
    assert [r["step"] for r in read_metrics(path)] == [0]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode(0, {}) + b"oops\n" + encode(1, {}))
    with pytest.raises(RunDirectoryError, match="line 2"):
        read_metrics(path)


def test_two_writers_are_noticed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode(0, {}) + encode(1, {}) + encode(1, {}))
    with pytest.raises(RunDirectoryError, match="line 3: step 1 after step 1"):
        MetricsWriter(path)


@pytest.mark.parametrize(("step", "left"), [(-1, []), (0, [0]), (3, [0, 2]), (4, [0, 2, 4]), (9, [0, 2, 4])])
def test_cut_after(tmp_path, step, left):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for n in (0, 2, 4):
        writer.append(n, {"a": n})
    assert writer.cut_after(step) == 3 - len(left)
    writer.append(step + 10, {"a": 0})
    writer.close()
    assert [r["step"] for r in read_metrics(path)] == [*left, step + 10]


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append(0, {"a": 1})
    real = os.write

    def full(fd, data):
        real(fd, bytes(data)[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunDirectoryError, match=r"step 1.*no space.*every record up to step 0"):
        writer.append(1, {"a": 2})
    monkeypatch.undo()
    assert path.read_bytes() == encode(0, {"a": 1})
    writer.append(1, {"a": 2})
    writer.close()
    assert [r["a"] for r in read_metrics(path)] == [1, 2]


def test_cut_off_at_any_byte_the_whole_records_before_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [encode(n, {"a/b": n / 3, "c": float("nan")}) for n in range(3)]
    data, ends = b"".join(lines), np.cumsum([len(line) for line in lines])
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        assert len(read_metrics(path)) == int((ends <= size).sum())
