import pytest

from coterie.config.schema import DataConfig
from coterie.core.types import Example
from coterie.data.filters import DataReport, filter_prompts, without_prompts
from coterie.errors import DataError


def examples(*texts):
    return [Example(str(n), ({"role": "raw", "content": text},)) for n, text in enumerate(texts)]


def config(limit):
    return DataConfig(path="x.jsonl", chat=False, max_prompt_tokens=limit)


def test_long_prompts_are_left_out_and_counted(make_tokenizer):
    kept, report = filter_prompts(examples("abc", "abcd", "ab"), make_tokenizer(), config(3))
    assert [e.id for e in kept] == ["0", "2"]
    assert report == DataReport(3, 2, {"prompt_too_long": 1})
    assert str(report) == "2 of 3 rows (left out: 1 prompt too long)"
    assert {name: stat.value for name, stat in report.metrics().items()} == {
        "data/rows_read": 3,
        "data/rows_kept": 2,
        "data/dropped_prompt_too_long": 1,
    }


def test_no_limit_keeps_all(make_tokenizer):
    kept, report = filter_prompts(examples("a" * 5000), make_tokenizer(), config(0))
    assert len(kept) == 1
    assert str(report) == "1 of 1 rows"


def test_nothing_left_is_an_error_with_the_shortest_length(make_tokenizer):
    with pytest.raises(DataError, match=r"x\.jsonl: no row is left of 2.*max_prompt_tokens=3.*shortest has 4"):
        filter_prompts(examples("abcd", "abcdef"), make_tokenizer(), config(3))


def test_held_out_prompts_are_left_out_whatever_their_white_space():
    kept, report = without_prompts(examples("1 + 1 =", "2+2"), examples("1+1 = "))
    assert [e.prompt[0]["content"] for e in kept] == ["2+2"]
    assert report.dropped == {"also_held_out": 1}
    with pytest.raises(DataError, match="held-out"):
        without_prompts(examples("a"), examples("A"))


def test_reports_of_filters_in_a_row():
    both = DataReport(9, 7, {"a": 2}).then(DataReport(7, 4, {"b": 2, "a": 1}))
    assert both == DataReport(9, 4, {"a": 3, "b": 2})
