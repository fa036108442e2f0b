import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.data.rows import read_rows
from coterie.errors import DataError


def write(path, lines):
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return str(path)


def test_jsonl_rows_know_their_place(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"x": 1}, b"", {"x": 2}])
    rows = list(read_rows(path))
    assert [(row.values, row.number, row.label) for row in rows] == [({"x": 1}, 0, "a"), ({"x": 2}, 1, "a")]
    assert rows[1].place == f"{path}, line 3"


def test_parquet_rows_across_batches(tmp_path):
    path = tmp_path / "b.parquet"
    pq.write_table(pa.table({"x": list(range(2500)), "m": [[{"role": "user"}]] * 2500}), path)
    rows = list(read_rows(str(path)))
    assert [row.values["x"] for row in rows] == list(range(2500))
    assert rows[2000].place == f"{path}, row 2000"
    assert rows[0].values["m"] == [{"role": "user"}]


def test_a_folder_is_read_by_name_and_hidden_files_are_not(tmp_path):
    write(tmp_path / "2.jsonl", [{"x": "second"}])
    pq.write_table(pa.table({"x": ["first"]}), tmp_path / "1.parquet")
    write(tmp_path / ".3.jsonl", [{"x": "hidden"}])
    (tmp_path / "notes.txt").write_text("no data")
    rows = list(read_rows(str(tmp_path)))
    assert [(row.values["x"], row.label) for row in rows] == [("first", "1.parquet"), ("second", "2.jsonl")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"x": 1', r"line 2: not valid JSON: Expecting ',' delimiter at column 8"),
        (b"[1]", "line 2: a row is a JSON object, not a list"),
        (b'{"x": "\xff"}', "line 2: not UTF-8 text"),
        (b"[" * 100_000, "line 2: "),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = write(tmp_path / "a.jsonl", [{"x": 1}, line])
    with pytest.raises(DataError, match=message) as caught:
        list(read_rows(path))
    assert path in str(caught.value)


def test_missing_and_unfit_paths(tmp_path):
    write(tmp_path / "train.jsonl", [{"x": 1}])
    with pytest.raises(DataError, match=r"no such file or folder; did you mean .*train\.jsonl"):
        list(read_rows(str(tmp_path / "trian.jsonl")))
    with pytest.raises(DataError, match="no such file or folder$"):
        list(read_rows(str(tmp_path / "nowhere" / "x.jsonl")))
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match=r"not '\.csv'|not \.csv"):
        list(read_rows(str(tmp_path / "a.csv")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds: nothing"):
        list(read_rows(str(tmp_path / "empty")))


def test_a_broken_parquet_file_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"a\.parquet: can't be read as Parquet"):
        list(read_rows(str(tmp_path / "a.parquet")))
