import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.core.types import Example, Group, Rollout, Score
from coterie.errors import DataError, RunDirectoryError
from coterie.train import records
from coterie.train.records import SCHEMA, RolloutFiles, plain, read_rollouts


def rollout(index=0, actions=3, **changes):
    rng = np.random.default_rng(index)
    values = {
        "tokens": rng.integers(0, 1000, actions + 4),
        "action_index": np.arange(4, 4 + actions),
        "text": f"Antwort {index} ✓\n\\boxed{{1}}",
        "finish_reason": "stop",
        "index": index,
        "scores": {
            "reward": Score(0.1 + 0.2, "", {"format": 1, "parsed": "1/2"}),
            "judge": Score.missing("timeout after 10 s", seconds=10.5),
        },
        "streams": {
            "sampler_logprobs": -rng.random(actions),
            "old_logprobs": -rng.random(actions),
            "values": rng.random(actions),
        },
        "spans": {"cot": ((0, 1), (1, 2)), "answer": ((2, actions),)},
        "advantages": rng.standard_normal(actions),
        "bootstrap_value": 0.25,
        "weights_version": 7,
        "meta": {"turns": 2},
    }
    return Rollout(**{**values, **changes})


EXAMPLE = Example(
    "gsm8k/12",
    ({"role": "system", "content": "s"}, {"role": "user", "content": "What is ½?"}),
    reference={"answer": ["1/2"], "n": 3},
    source="gsm8k",
    meta={"level": 3},
)


def same(a, b):
    """Equality of every field, arrays bit for bit."""
    assert type(a) is type(b) or isinstance(b, type(a))
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    elif isinstance(a, Group | Rollout | Example | Score):
        for name in vars(a):
            same(getattr(a, name), getattr(b, name))
    elif isinstance(a, dict):
        assert set(a) == set(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def test_round_trip_is_exact(tmp_path):
    bare = rollout(1, streams={}, scores={}, spans={}, advantages=None, meta={}, finish_reason="length")
    groups = [Group(EXAMPLE, (rollout(0), bare)), Group(EXAMPLE, (rollout(2, 5),))]
    path = RolloutFiles(tmp_path / "rollouts").write(3, groups)
    assert path.name == "step_000003.parquet"
    back = read_rollouts(path)
    same(groups, back)
    assert back[0].scores("judge")[0] != back[0].scores("judge")[0], "a missing score stays missing"


def test_an_example_drawn_twice_stays_two_groups(tmp_path):
    groups = [Group(EXAMPLE, (rollout(0),)), Group(EXAMPLE, (rollout(0), rollout(1)))]
    back = read_rollouts(RolloutFiles(tmp_path).write(0, groups))
    assert [len(g) for g in back] == [1, 2]


def test_empty_rollouts_and_empty_files(tmp_path):
    nothing = rollout(0, 0, spans={}, streams={"sampler_logprobs": np.zeros(0)}, advantages=np.zeros(0))
    files = RolloutFiles(tmp_path)
    same([Group(EXAMPLE, (nothing,))], read_rollouts(files.write(0, [Group(EXAMPLE, (nothing,))])))
    assert read_rollouts(files.write(1, [])) == []


def test_nonfinite_streams_survive(tmp_path):
    odd = rollout(0, 2, streams={"sampler_logprobs": np.array([-np.inf, np.nan])}, spans={}, advantages=None)
    back = read_rollouts(RolloutFiles(tmp_path).write(0, [Group(EXAMPLE, (odd,))]))
    values = back[0].rollouts[0].streams["sampler_logprobs"]
    assert values[0] == -np.inf and np.isnan(values[1])


def test_the_documented_columns_are_the_columns(tmp_path):
    path = RolloutFiles(tmp_path).write(5, [Group(EXAMPLE, (rollout(),))], "eval")
    assert path.name == "eval_step_000005.parquet"
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    documented = [line.split()[0] for line in records.__doc__.splitlines() if line.startswith("    ")]
    assert documented == SCHEMA.names
    row = table.to_pylist()[0]
    assert (row["step"], row["split"], row["example_id"]) == (5, "eval", "gsm8k/12")
    assert json.loads(row["scores"])["judge"]["value"] is None
    assert json.loads(row["prompt"])[1]["content"] == "What is ½?"


def test_equal_groups_give_equal_bytes():
    groups = [Group(EXAMPLE, (rollout(0), rollout(1)))]
    assert records.encode(1, groups, "train") == records.encode(1, groups, "train")


def test_plain_makes_json_data_of_anything():
    odd = {
        1: np.float32(0.5),
        "a": np.int64(3),
        "b": (1, float("nan")),
        "c": {3, 1},
        "d": np.array([[1.0, np.inf]]),
        "e": ValueError("x"),
        "f": np.bool_(True),
    }
    text = json.dumps(plain(odd), allow_nan=False)
    assert json.loads(text) == {
        "1": 0.5,
        "a": 3,
        "b": [1, None],
        "c": [1, 3],
        "d": [[1.0, None]],
        "e": "x",
        "f": True,
    }


def test_steps_and_cut(tmp_path):
    files = RolloutFiles(tmp_path)
    assert files.steps() == [] and files.cut_after(0) == 0
    groups = [Group(EXAMPLE, (rollout(),))]
    for step in (1, 2, 1000000):
        files.write(step, groups)
    files.write(2, groups, "eval")
    assert files.steps() == [1, 2, 1000000] and files.steps("eval") == [2]
    assert files.cut_after(1) == 3
    assert files.steps() == [1] and files.steps("eval") == []


def test_errors_name_the_file(tmp_path):
    with pytest.raises(DataError, match=r"no rollout file .*gone\.parquet"):
        read_rollouts(tmp_path / "gone.parquet")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"broken\.parquet can't be read"):
        read_rollouts(broken)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"prompt": ["x"]}), other)
    with pytest.raises(DataError, match=r"other\.parquet is not a rollout file.*'tokens'"):
        read_rollouts(other)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "rollouts").write_text("a file in the way")
    with pytest.raises(RunDirectoryError, match="rollouts of step 4"):
        RolloutFiles(tmp_path / "rollouts").write(4, [Group(EXAMPLE, (rollout(),))])
