"""`coterie data prepare` and `coterie model import` from the command line."""

import json

import pyarrow.parquet as pq

from coterie.learners.models import load_model


def test_prepare_gsm8k(coterie, tmp_path):
    rows = [{"question": f"{n}?", "answer": f"so\n#### {n},000"} for n in range(1, 4)]
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = coterie("data", "prepare", "gsm8k", "--source", source, "--out", tmp_path / "out" / "train.parquet")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 rows" in done.stdout
    table = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in table] == ["1000", "2000", "3000"]

    source.write_text(json.dumps(rows[0]) + "\n{broken\n")
    failed = coterie("data", "prepare", "gsm8k", "--source", source, "--out", tmp_path / "other.parquet")
    assert failed.returncode == 2
    assert "line 2: not valid JSON" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "other.parquet").exists()


def test_import_a_folder(coterie, tiny_model, tmp_path):
    done = coterie("model", "import", tiny_model, "--out", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert "Qwen3ForCausalLM" in done.stdout
    assert load_model(str(tmp_path / "copy")).config.model_type == "qwen3"

    again = coterie("model", "import", tiny_model, "--out", tmp_path / "copy")
    assert again.returncode == 2
    assert "--force" in again.stderr

    offline = coterie("model", "import", "no-such-owner/no-such-model", "--out", tmp_path / "hub")
    assert offline.returncode == 2
    assert "hub can't be reached" in offline.stderr
    assert "Traceback" not in offline.stderr
    assert not (tmp_path / "hub").exists()
