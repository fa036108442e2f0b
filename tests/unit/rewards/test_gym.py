import asyncio
import importlib.util

import pytest

from coterie.core.protocols import Context
from coterie.errors import ConfigError
from coterie.rewards.gym import GymReward, find_answer, serve

reasoning_gym = pytest.importorskip("reasoning_gym")


def problem(task, **config):
    return reasoning_gym.create_dataset(task, size=1, seed=5, **config)[0]


def score(reward, group_of, task, texts, entry=None, finish="stop"):
    entry = entry or problem(task)
    group = group_of(
        [t.format(answer=entry["answer"]) for t in texts],
        entry["answer"],
        finish,
        meta={"gym": {"task": task, "entry": entry}},
    )
    try:
        return [r.scores["reward"] for r in asyncio.run(reward(group, Context())).rollouts]
    finally:
        reward.close()


def test_right_and_wrong(group_of):
    scores = score(GymReward(), group_of, "chain_sum", ["#### {answer}", "1 + 2 = {answer}", "#### 123456789", ""])
    assert [s.value for s in scores] == [1.0, 1.0, 0.0, 0.0]
    assert scores[3].reason == "no answer" and scores[0].info["verifier"] == 1.0


def test_small_credit_is_wrong_unless_wanted(group_of):
    task = "letter_counting"
    entry = problem(task)
    near = f"<answer>it is {entry['answer']}, I think</answer>"
    (strict,) = score(GymReward(), group_of, task, [near], entry)
    (partial,) = score(GymReward(partial_credit=True), group_of, task, [near], entry)
    assert strict.value == 0.0 < partial.value < 1.0 and strict.info["verifier"] == partial.value


@pytest.mark.parametrize(("treatment", "value"), [("wrong", 0.0), ("missing", None), ("grade", 1.0)])
def test_truncated(group_of, treatment, value):
    (s,) = score(GymReward(truncated=treatment), group_of, "chain_sum", ["#### {answer}"], finish="length")
    assert s.value == value


def test_a_verifier_that_evaluates_the_answer_is_refused(group_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = problem("countdown")
    attack = "<answer>__import__('os').system('touch pwned')</answer>"
    (refused,) = score(GymReward(), group_of, "countdown", [attack], entry)
    assert (
        refused.value is None and refused.reason.startswith("unsafe verifier:") and "unsafe_verifiers" in refused.reason
    )
    assert not (tmp_path / "pwned").exists()
    solution = f"<answer>{entry['metadata']['expression']}</answer>"
    (allowed,) = score(GymReward(unsafe_verifiers=True), group_of, "countdown", [solution], entry)
    assert allowed.value == 1.0


def test_a_verifier_that_raises_on_the_answer_has_met_a_wrong_one():
    handle = serve()
    entry = problem("prime_factorization")
    request = {"task": "prime_factorization", "config": None, "entry": entry}
    assert handle({**request, "answer": entry["answer"]}, lambda mark: None)["score"] == 1.0
    wrong = handle({**request, "answer": "two × three"}, lambda mark: None)
    assert wrong["score"] == 0.0 and wrong["reason"].startswith("verifier raised")


def test_what_is_no_problem_is_a_user_mistake(group_of):
    with pytest.raises(ConfigError, match="data.path=gym"):
        asyncio.run(GymReward()(group_of(["1"]), Context()))


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[gym\]'"):
        GymReward()


@pytest.mark.parametrize(
    ("response", "how", "lines", "answer"),
    [
        ("think\n#### 4", "auto", False, "4"),
        ("#### a b\nc d", "auto", False, "a b"),
        ("#### a b\nc d", "auto", True, "a b\nc d"),
        ("<answer>7</answer> bye", "auto", False, "7"),
        (r"so \boxed{7}", "auto", False, "7"),
        ("The answer is seven.", "auto", False, "seven"),
        ("3 + 4 = 7\n", "auto", False, "7"),
        ("olleh", "auto", False, "olleh"),
        ("<answer>7</answer>", "tag", False, "7"),
        ("7", "tag", False, None),
        ("7", "hash", False, None),
        ("a\nb = c\n", "last_line", False, "c"),
        (" a\nb ", "whole", False, "a\nb"),
        ("", "whole", False, None),
        ("  ", "auto", False, None),
    ],
)
def test_where_the_answer_stands(response, how, lines, answer):
    assert find_answer(response, how, lines) == answer
