import json

import pyarrow.parquet as pq
import pytest

from coterie.config.schema import DataConfig
from coterie.data.prepare.gsm8k import gold, prepare
from coterie.data.sources import load_examples
from coterie.errors import ConfigError, DataError

ROW = {"question": "How many?", "answer": "It is <<1000+234=1234>>1,234.\n#### 1,234"}


def source(tmp_path, *rows):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_rows_have_verls_schema(tmp_path):
    out = tmp_path / "deep" / "train.parquet"
    report = prepare(source(tmp_path, ROW), out, split="test")
    assert (report.read, report.kept) == (1, 1)
    assert pq.read_table(out).to_pylist() == [
        {
            "data_source": "openai/gsm8k",
            "prompt": [
                {
                    "role": "user",
                    "content": 'How many? Let\'s think step by step and output the final answer after "####".',
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "1234"},
            "extra_info": {"split": "test", "index": 0, "question": ROW["question"], "answer": ROW["answer"]},
        }
    ]
    (example,) = load_examples(DataConfig(path=str(out)), seed=0, need_reference=True)
    assert example.reference == "1234"


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("#### 18", "18"),
        ("#### 3 or\n#### -1,000.50", "-1000.50"),
        ("#### $5", "5"),
        ("####7 ", "7"),
        ("18", None),
        ("#### eighteen", None),
        ("#### 18 apples", None),
        ("#### ", None),
    ],
)
def test_gold(answer, number):
    assert gold(answer) == number


def test_repeated_questions_are_left_out_and_counted(tmp_path):
    report = prepare(source(tmp_path, ROW, ROW), tmp_path / "o.parquet", instruction="")
    assert report.dropped == {"duplicate_question": 1}
    assert pq.read_table(tmp_path / "o.parquet").to_pylist()[0]["prompt"][0]["content"] == "How many?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "a", "answer": "no number"},
            "line 2: column .answer. does not end with .#### number.: ….no number.",
        ),
        ({"question": "a"}, r"line 2: no column 'answer' \(columns: question\)"),
        ({"question": " ", "answer": "#### 1"}, "line 2: column 'question' is not a text"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(tmp_path, row, message):
    out = tmp_path / "o.parquet"
    with pytest.raises(DataError, match=message):
        prepare(source(tmp_path, ROW, row), out)
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.jsonl"]


def test_unfit_targets(tmp_path):
    path = source(tmp_path, ROW)
    with pytest.raises(ConfigError, match=r"ends in \.parquet"):
        prepare(path, tmp_path / "o.jsonl")
    (tmp_path / "o.parquet").write_text("old")
    with pytest.raises(DataError, match="exists"):
        prepare(path, tmp_path / "o.parquet")
    prepare(path, tmp_path / "o.parquet", force=True)
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 1
    with pytest.raises(DataError, match="can't be written"):
        prepare(path, path / "o.parquet")
    with pytest.raises(DataError, match="no rows"):
        prepare(source(tmp_path), tmp_path / "p.parquet")
