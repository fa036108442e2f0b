import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from coterie.rewards.answers import Grader, Policy, grade
from coterie.rewards.answers.grader import gold_texts
from coterie.rewards.workers import Reply


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=2, deadline_s=20.0) as grader:
        yield grader


def verdict(gold, answer, **policy):
    """Without the symbolic stage: a pair that needs it fails the test."""
    _, decided, undecided = Grader(Policy(**policy))._cheap(None, answer, gold, "auto")
    assert not undecided, (gold, answer)
    return decided


def test_verdict_says_how(grader):
    result = grader.grade(response=r"<think>hm</think> So \boxed{\frac{2}{4}}", gold="0.5")
    assert (result.correct, result.stage, result.extracted, result.how, result.boxes) == (
        True,
        "exact",
        r"\frac{2}{4}",
        "boxed",
        1,
    )
    assert result.ms > 0


def test_stages(grader):
    assert grader.grade(answer="7", gold="7").stage == "text"
    assert grader.grade(answer="7", gold="8").stage == "exact"
    assert grader.grade(answer=r"\ln 4", gold=r"2\ln 2").stage == "symbolic"
    assert grader.grade(answer="9^{9^{9}}", gold="7").stage == "guard"
    assert grader.grade(response="no idea", gold="7").stage == "extract"


def test_one_of_response_and_answer(grader):
    with pytest.raises(TypeError):
        grader.grade(gold="7")
    with pytest.raises(TypeError):
        grader.grade(gold="7", answer="7", response="7")


def test_coroutine_and_call_agree(grader):
    pairs = [("7", "7"), ("7", "8"), (r"2\ln 2", r"\ln 4"), (r"2\ln 2", r"\ln 5")]

    async def all_at_once():
        return await asyncio.gather(*(grader.agrade(answer=a, gold=g) for g, a in pairs))

    assert [v.correct for v in asyncio.run(all_at_once())] == [True, False, True, False]
    assert [grader.grade(answer=a, gold=g).correct for g, a in pairs] == [True, False, True, False]


def test_several_golds(grader):
    assert grader.grade(answer="2", gold=["1", "2"]).correct
    assert grader.grade(answer=r"\ln 4", gold=["1", r"2\ln 2"]).correct
    assert grader.grade(answer="3", gold=["1", "2"]).correct is False
    assert grader.grade(answer="3", gold=np.array(["3"])).correct


def test_gold_texts():
    assert gold_texts("16 - 3 = 13\n#### 1,300") == ["1,300"]
    assert gold_texts(r"So \boxed{4} is not it but \boxed{5}") == ["5"]
    assert gold_texts(18) == ["18"]
    assert gold_texts([1, None, "", "2"]) == ["1", "2"]
    assert gold_texts(None) == gold_texts("") == gold_texts([]) == []


def test_no_gold_is_no_verdict(grader):
    for gold in (None, "", []):
        assert grader.grade(answer="5", gold=gold).correct is None
    assert grader.grade(answer="", gold="").correct is False


def test_kinds(grader):
    assert grader.grade(answer="b", gold="B", kind="choice").correct
    assert grader.grade(answer="B it is", gold="B", kind="choice").correct is False
    assert grader.grade(answer="the Moon", gold="moon", kind="text").correct
    assert grader.grade(answer="2/4", gold="1/2", kind="text").correct is False


def test_policy_tolerance(grader):
    assert verdict("3.14", "3.15", tolerance="abs", tolerance_value=0.02).correct
    assert verdict("3.14", "3.17", tolerance="abs", tolerance_value=0.02).correct is False
    assert verdict("1000", "1009", tolerance="rel", tolerance_value=0.01).correct
    assert verdict("1000", "1011", tolerance="rel", tolerance_value=0.01).correct is False
    with Grader(Policy(tolerance="rel", tolerance_value=1e-3), 1, 20.0) as near:
        assert near.grade(answer="3.1416", gold=r"\pi").correct
        assert near.grade(answer="3.15", gold=r"\pi").correct is False
    with pytest.raises(ValueError, match="tolerance_value"):
        Policy(tolerance="abs")


def test_policy_units():
    assert verdict("5 m", "5").correct
    assert verdict("5 m", "5", units="strict").correct is False
    assert verdict("5 m", "5 meters", units="strict").correct
    assert verdict("5 m", "5 cm").correct is False
    assert verdict("5 apples", "5 pears", units="ignore").correct


def test_policy_fractions_percent_lists():
    assert verdict("1/2", "2/4").correct
    assert verdict("1/2", "2/4", unreduced=False).correct is False
    assert verdict("50%", "50").correct
    assert verdict("50%", "50", percent=False).correct is False
    assert verdict("50%", "0.5", percent=False).correct
    assert verdict("(1,2)", r"\{2,1\}").correct is False
    assert verdict("(1,2)", r"\{2,1\}", sets_match_tuples=True).correct
    assert verdict("1, 2", "2, 1").correct
    assert verdict("1, 2", "2, 1", ordered_lists=True).correct is False


def test_long_answers_are_compared_as_text():
    digits = "7" * 5001
    assert verdict(digits, digits).correct
    assert verdict(digits, digits + "7").correct is False


def test_whose_fault_an_outage_is(monkeypatch):
    def fake(reply):
        grader = Grader()
        monkeypatch.setattr(grader.workers, "submit", lambda *a: type("F", (), {"result": lambda self: reply})())
        return grader.grade(answer=r"\ln 2", gold=r"\ln 3")

    assert fake(Reply("timeout", mark="compare")).correct is False
    assert fake(Reply("timeout", mark="gold")).correct is None
    assert fake(Reply("crash", "gone")).correct is None
    assert fake(Reply("unavailable", "no math-verify")).correct is None
    unknown = {"type": "KeyError", "message": "x", "where": "y.py:1"}
    assert fake(Reply("error", unknown, "answer")).correct is False
    assert fake(Reply("error", unknown, "compare")).correct is None
    assert fake(Reply("error", unknown | {"type": "MemoryError"}, "compare")).correct is False


def test_grade_in_one_call():
    assert grade(answer="0.5", gold=r"\frac12").correct
    assert grade(response="#### 7", gold="7", policy=Policy()).correct


HOSTILE = {
    "tower": "9^{9^{9^{9}}}",
    "10^10^10": r"10^{10^{10}} + \ln 2",
    "evaluated tower": r"\sqrt[3]{2^{9999}!}",
    "factorials": "((((5!)!)!)!)!",
    "sum": r"\sum_{n=1}^{987654321} \frac{1}{n^2+1}",
    "integral": r"\int_0^\infty \sin(x^x) e^{-x^3} dx",
    "nested functions": r"\sin(" * 90 + "1" + ")" * 90,
    "many letters": "+".join(f"x_{{{i}}}" for i in range(240)),
    "parentheses": "(" * 1000 + "1" + ")" * 1000,
    "fractions": r"\frac{1}{" * 400 + "1" + "}" * 400,
    "determinant": r"\begin{vmatrix}" + r"\\".join(["&".join("abcdefghu")] * 9) + r"\end{vmatrix}",
    "digits": "7" * 1999,
    "big list": ",".join(rf"\ln {i}" for i in range(60)),
    "code": "7+0*__import__('os').system('touch pwned')",
    "call": "open('pwned','w')",
    "lambda": "(lambda: 7)()",
    "nul": "7\x008",
    "surrogate": "\ud800",
}  # fmt: skip


@pytest.fixture(scope="module")
def cwd(tmp_path_factory):
    """An empty current folder, also of the workers: whatever code an answer ran would leave its file here."""
    folder, before = tmp_path_factory.mktemp("cwd"), Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def strict_grader(cwd):
    with Grader(workers=1, deadline_s=1.0) as grader:
        grader.grade(answer=r"\ln 2", gold=r"\ln 3")
        yield grader


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_wrong_and_back_in_time(strict_grader, cwd, name):
    for gold in ("7", r"\ln 3 + x"):
        result = strict_grader.grade(answer=HOSTILE[name], gold=gold)
        assert result.correct is False, result
        assert result.stage in ("guard", "symbolic", "exact", "text")
    assert list(cwd.iterdir()) == []


def test_the_interpreter_runs_on_meanwhile(strict_grader):
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    result = strict_grader.grade(answer=HOSTILE["integral"], gold="7")
    stop.set()
    thread.join()
    assert result.reason.startswith("timeout")
    assert len(ticks) > 10  # of some hundred; a held interpreter lock would leave none


HOSTILE_RESPONSES = {
    "boxes": r"\boxed{7}" * 20_000 + "x",
    "open boxes": r"\boxed{" * 20_000,
    "nested boxes": r"\boxed{" * 8_000 + "8" + "}" * 8_000,
    "dollars": "$" * 50_001,
    "braces": "{" * 100_000,
    "thoughts": "<think>" * 20_000,
    "tags": "<answer>" * 20_000,
    "hashes": "#### a b c\n" * 6_000,
    "phrases": "the answer is " * 5_000,
    "blanks": "final answer is" + " " * 65_000 + "x",
    "fences": "```" * 20_000,
    "math spans": "answer is " + "$a$," * 16_000,
}


@pytest.mark.parametrize("name", HOSTILE_RESPONSES)
def test_hostile_responses_are_read_in_one_pass(strict_grader, name):
    text = HOSTILE_RESPONSES[name]
    result = strict_grader.grade(response=text, gold="7")
    assert result.correct is (name == "boxes")


def test_importing_rewards_imports_no_algebra_system():
    code = (
        "import sys; import coterie.rewards.answers, coterie.rewards.functions, coterie.rewards.border, "
        "coterie.rewards.gym, coterie.rewards.combine, coterie.rewards.smoke; "
        "print(*[m for m in ('sympy', 'math_verify', 'latex2sympy2_extended', 'reasoning_gym', 'torch') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
