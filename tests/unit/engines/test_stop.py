from types import SimpleNamespace

import pytest

from coterie.engines.stop import StopWatch, cut, eos_ids


def first_stop(tokenizer, text, stop):
    """Tokens after which the watch fires, or None."""
    watch, tokens = StopWatch(tokenizer, stop), tokenizer.encode(text)
    for n in range(1, len(tokens) + 1):
        if watch.found(tokens[:n]):
            return n
    return None


@pytest.mark.parametrize(
    ("text", "stop", "fires"),
    [
        ("hello world", ("lo w",), len("hello w")),
        ("hello world", ("o",), len("hello")),
        ("hello world", ("xyz", "rld"), len("hello world")),
        ("hello world", ("helloworld",), None),
        ("aaab", ("aab",), len("aaab")),
        ("naïve é!", ("é",), len("naïve é".encode())),
        ("中文字", ("文",), len("中文".encode())),
        ("a 🙂 b", ("🙂 b",), len("a 🙂 b".encode())),
        ("\n\n### Next", ("\n###",), len("\n\n###")),
    ],
)
def test_the_watch_fires_at_the_token_that_completes_a_stop_string(tokenizer, text, stop, fires):
    assert first_stop(tokenizer, text, stop) == fires


def test_special_tokens_inside_a_stop_string_are_seen_through(tokenizer):
    a, b = tokenizer.encode("ab")
    watch = StopWatch(tokenizer, ("ab",))
    assert not watch.found([a])
    assert not watch.found([a, 2])
    assert watch.found([a, 2, b])


def test_bytes_that_never_make_a_character_do_not_block_the_watch(tokenizer):
    half = tokenizer.encode("é")[0]
    tokens = [half] * 60 + tokenizer.encode("stop")
    watch = StopWatch(tokenizer, ("stop",))
    fired = [watch.found(tokens[:n]) for n in range(1, len(tokens) + 1)]
    assert fired == [False] * (len(tokens) - 1) + [True]


def test_only_a_few_tokens_are_decoded_at_a_time(tokenizer):
    longest = 0

    def decode(tokens, skip_special_tokens):
        nonlocal longest
        longest = max(longest, len(tokens))
        return tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    watch, tokens = StopWatch(SimpleNamespace(decode=decode), ("never",)), tokenizer.encode("some long text " * 20)
    for n in range(1, len(tokens) + 1):
        watch.found(tokens[:n])
    assert longest <= 4


def test_text_is_cut_at_the_first_stop_string():
    assert cut("one two three", ("three", "two")) == ("one ", True)
    assert cut("one", ("two",)) == ("one", False)
    assert cut("one", ()) == ("one", False)


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer_id", "want"),
    [
        ([5, 6], 7, 1, {1, 5, 6}),
        (5, 7, None, {5}),
        (None, 7, 1, {1, 7}),
        (None, None, None, set()),
    ],
)
def test_end_ids_come_from_generation_config_and_tokenizer(generation, config, tokenizer_id, want):
    module = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=generation), config=SimpleNamespace(eos_token_id=config)
    )
    assert eos_ids(module, SimpleNamespace(eos_token_id=tokenizer_id)) == want
