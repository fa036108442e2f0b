import asyncio
import pickle
import textwrap

import numpy as np
import pytest

from coterie.core.protocols import Context
from coterie.errors import ConfigError
from coterie.rewards.functions import FunctionReward, as_score

SOURCE = """
import asyncio, math, os, time
from coterie.core.types import Score

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "sleep": time.sleep(600)
    if solution_str == "spin":
        while True: pass
    if solution_str == "raise": raise ValueError("bad thing")
    if solution_str == "nan": return float("nan")
    if solution_str == "none": return None
    if solution_str == "exit": os._exit(3)
    if solution_str == "list": return [1]
    if solution_str == "dict": return {"score": 0.5, "extra": 2, "note": "hi", "bad": float("nan"), "list": [1]}
    if solution_str == "no score": return {"reward": 1}
    if solution_str == "arguments": return {"score": 1, "said": f"{data_source} {ground_truth} {extra_info['index']}"}
    return solution_str == ground_truth

def scaled(solution_str, ground_truth, scale=1.0):
    return scale * (solution_str == ground_truth)

async def slow(solution_str, **rest):
    if solution_str == "raise": raise KeyError("gone")
    await asyncio.sleep(float(solution_str))
    return 1.0

async def for_group(group, context):
    if group.example.id == "sleep": await asyncio.sleep(600)
    if group.example.id == "nothing": return None
    return group.with_scores("reward", [Score(float(i)) for i in range(len(group))])

def plain_group(group, context): return group
def needs_more(solution_str, judge): return 1
class Scorer: pass
constant = 3
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "my_reward.py"
    file.write_text(textwrap.dedent(SOURCE))
    return str(file)


def score(reward, group, **resources):
    try:
        return [r.scores["reward"] for r in asyncio.run(reward(group, Context(resources=resources))).rollouts]
    finally:
        reward.close()


def test_verl_form(path, group_of):
    group = group_of(["yes", "no", "dict", "arguments"], "yes", source="gsm8k", meta={"index": 7})
    right, wrong, parts, arguments = score(FunctionReward(path), group)
    assert (right.value, wrong.value) == (1.0, 0.0)
    assert (parts.value, parts.info) == (0.5, {"extra": 2.0, "note": "hi"})
    assert arguments.info["said"] == "gsm8k yes 7"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sleep", "timeout: no score within"),
        ("spin", "timeout: no score within"),
        ("raise", "ValueError: bad thing (my_reward.py:9)"),
        ("nan", "not finite"),
        ("none", "none: the function returned None"),
        ("exit", "crash"),
        ("list", "no number: the function returned list"),
        ("no score", "no score: the function returned a dict without 'score' (keys: ['reward'])"),
    ],
)
def test_failures_are_missing_with_a_reason_and_do_not_harm_others(path, group_of, text, reason):
    deadline_s = 1.0 if reason.startswith("timeout") else 20.0
    bad, good = score(FunctionReward(path, deadline_s=deadline_s, workers=1), group_of([text, "yes"], "yes"))
    assert bad.value is None and bad.reason.startswith(reason)
    assert good.value == 1.0


def test_arguments_of_its_own(path, group_of):
    reward = FunctionReward(path, "scaled", kwargs={"scale": 3.0})
    assert [s.value for s in score(reward, group_of(["yes", "no"], "yes"))] == [3.0, 0.0]


def test_async_verl_form(path, group_of):
    fast, late, broken = score(FunctionReward(path, "slow", deadline_s=0.5), group_of(["0", "600", "raise"]))
    assert fast.value == 1.0
    assert late.reason == "timeout: no score within 0.5 s"
    assert broken.reason.startswith("KeyError: 'gone' (my_reward.py:")


def test_group_form(path, group_of):
    reward = FunctionReward(path, "for_group", deadline_s=0.2)
    assert [s.value for s in score(reward, group_of(["a", "b"]))] == [0.0, 1.0]
    assert all(s.reason.startswith("timeout") for s in score(reward, group_of(["a", "b"], id="sleep")))
    assert all(s.reason.startswith("no group") for s in score(reward, group_of(["a"], id="nothing")))


def test_debug_runs_inline(path, group_of):
    reward = FunctionReward(path, deadline_s=0.001)
    (inline,) = score(reward, group_of(["yes"], "yes"), debug=True)
    assert inline.value == 1.0 and reward.pool.pids == []
    (broken,) = score(FunctionReward(path), group_of(["raise"]), debug=True)
    assert broken.reason.startswith("ValueError: bad thing (my_reward.py:")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "has no 'missing'"),
        ("compute_scores", "nearest: compute_score"),
        ("plain_group", "async def plain_group"),
        ("needs_more", "requires judge"),
        ("Scorer", "a class"),
        ("constant", "no function"),
    ],
)
def test_what_is_no_reward_is_refused_at_once(path, name, message):
    with pytest.raises(ConfigError, match=message):
        FunctionReward(path, name)
    with pytest.raises(ConfigError, match="no such file"):
        FunctionReward(path + ".nothing.py")


def test_it_travels(path, group_of):
    reward = pickle.loads(pickle.dumps(FunctionReward(path, "scaled", kwargs={"scale": 2.0})))
    assert score(reward, group_of(["yes"], "yes"))[0].value == 2.0


def test_numbers_of_numpy_and_the_like():
    assert as_score(np.float32(0.5)).value == 0.5
    assert as_score(np.array(2)).value == 2.0
    assert as_score(True).value == 1.0
    assert as_score(float("inf")).value is None
    assert as_score("1.0").value is None
    assert as_score({"score": None}).value is None
