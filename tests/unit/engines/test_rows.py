import pytest

from coterie.core.types import Request, Sampling
from coterie.engines.rows import prompts_of


def test_requests_become_prompts_with_rows():
    a, b = prompts_of(
        [Request((1, 2, 3), (7, 8), Sampling(max_tokens=5)), Request((4,), (9, 10), Sampling(max_tokens=5), (2, 6))]
    )
    assert [r.limit for r in a.rows] == [5, 5] and [r.limit for r in b.rows] == [2, 6]
    assert (a.longest, b.longest, a.waiting) == (8, 7, 2)
    assert [r.seed for r in b.rows] == [9, 10]


@pytest.mark.parametrize(
    ("tokens", "ignore_eos", "finish"),
    [([3, 4], False, None), ([3, 4, 5], False, "length"), ([3, 1], False, "stop"), ([3, 1], True, None)],
)
def test_a_row_ends_at_an_end_token_or_its_limit(tokenizer, tokens, ignore_eos, finish):
    ((row,),) = (p.rows for p in prompts_of([Request((2,), (0,), Sampling(max_tokens=3, ignore_eos=ignore_eos))]))
    row.start(tokenizer)
    for token in tokens:
        assert row.finish is None
        row.push(token, -1.0, frozenset({1}))
    assert row.finish == finish
    assert row.length == len(tokens)
    assert row.draws.shape == (3,)


def test_an_end_token_at_the_limit_is_a_stop(tokenizer):
    ((row,),) = (p.rows for p in prompts_of([Request((2,), (0,), Sampling(max_tokens=1))]))
    row.start(tokenizer)
    row.push(1, -0.5, frozenset({1}))
    completion = row.completion(tokenizer, 4)
    assert (completion.finish_reason, completion.text, completion.weights_version) == ("stop", "", 4)
    assert completion.tokens.tolist() == [1] and completion.logprobs.tolist() == [-0.5]
