import pytest

from coterie.data.quickstart import CHARACTERS, WORDS, problems, warm_start_rows
from coterie.learners.tiny import tiny_tokenizer

pytest.importorskip("reasoning_gym")


def test_worked_solutions_first_then_mostly_bare_answers():
    rows = list(warm_start_rows(400, seed=1))
    bare = [row["response"].startswith("####") for row in rows]
    assert not any(bare[:280])
    assert 0.55 < sum(bare[280:]) / 120 < 0.85
    assert all("#### " in row["response"] for row in rows)
    assert rows == list(warm_start_rows(400, seed=1))


def test_held_out_problems_are_left_out():
    held_out = problems(size=200, seed=2)
    known = {example.prompt[0]["content"] for example in held_out}
    overlapping = {row["prompt"] for row in warm_start_rows(400, seed=1)} & known
    rows = list(warm_start_rows(400, seed=1, held_out=held_out))
    assert overlapping
    assert not {row["prompt"] for row in rows} & known
    assert len(rows) >= 400 - 4 * len(overlapping)


def test_the_tokenizer_knows_every_character_and_writes_short_rows():
    tokenizer = tiny_tokenizer(CHARACTERS, words=WORDS)
    lengths = []
    for row in warm_start_rows(100, seed=3, bare=0.0):
        text = row["prompt"] + row["response"]
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in tokens
        assert tokenizer.decode(tokens) == text
        lengths.append(len(tokens))
    assert sum(lengths) / len(lengths) < 30
