"""Tricky pairs written by hand from the known mistakes of graders: units, bases, tiny numbers, percent, spellings…"""

import json
from collections import Counter
from pathlib import Path

import pytest

from coterie.rewards.answers import Grader

HERE = Path(__file__).parent
PAIRS = [json.loads(line) for line in (HERE / "answer_pairs.jsonl").read_text().splitlines()]
RESPONSES = [json.loads(line) for line in (HERE / "answer_responses.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=1, deadline_s=20.0) as grader:
        yield grader


def test_pairs_have_the_right_verdict(grader):
    wrong = [p for p in PAIRS if grader.grade(answer=p["answer"], gold=p["gold"]).correct is not p["correct"]]
    assert wrong == []


def test_pairs_cover_both_verdicts_of_every_kind():
    seen = Counter((p["kind"], p["correct"]) for p in PAIRS)
    one_sided = {"code and junk"}
    for kind in {p["kind"] for p in PAIRS} - one_sided:
        assert seen[kind, True] > 0 and seen[kind, False] > 0, kind
    assert len(PAIRS) >= 600


@pytest.mark.parametrize("row", RESPONSES, ids=lambda r: r["name"])
def test_responses_have_the_right_verdict(grader, row):
    verdict = grader.grade(response=row["response"], gold=row["gold"])
    assert verdict.correct is row["correct"], verdict
