import json

import numpy as np
import pytest

from coterie.config.schema import DataConfig
from coterie.data.preference import (
    add_mismatched,
    labelled_group,
    load_labelled,
    load_pairs,
    pair_group,
    scored_group,
)
from coterie.errors import ConfigError, DataError
from coterie.learners.tiny import tiny_tokenizer

USER, GOOD, BAD = (
    {"role": "user", "content": "1+1="},
    {"role": "assistant", "content": "2"},
    {"role": "assistant", "content": "3"},
)


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return DataConfig(path=str(path))

    return write


def one(config):
    [pair] = load_pairs(config, seed=0)
    return [[m["content"] for m in part] for part in (pair.prompt, pair.chosen, pair.rejected)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "1+1=", "chosen": [GOOD], "rejected": "3"},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "1+1=", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
    ids=["text", "chat", "mixed", "whole_chats", "whole_chats_and_prompt"],
)
def test_the_ways_to_write_a_pair(write, row):
    assert one(write(row)) == [["1+1="], ["2"], ["3"]]


def test_whole_chats_share_earlier_turns(write):
    more = {"role": "user", "content": "and 4?"}
    row = {"chosen": [USER, GOOD, more, GOOD], "rejected": [USER, GOOD, more, BAD]}
    assert one(write(row)) == [["1+1=", "2", "and 4?"], ["2"], ["3"]]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "a", "chosen": "b"}, "no column 'rejected'"),
        ({"prompt": "a", "choosen": "b", "rejected": "c"}, "did you mean 'choosen'"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "'rejected' is empty (null)"),
        ({"prompt": "a", "chosen": "", "rejected": "c"}, "'chosen' is empty"),
        ({"prompt": "a", "chosen": 3, "rejected": "c"}, "'chosen' is a int ('3')"),
        ({"chosen": "b", "rejected": "c"}, "no column 'prompt'"),
        ({"prompt": "a", "chosen": [USER, GOOD], "rejected": [BAD]}, "role 'assistant', not 'user'"),
        ({"prompt": "a", "chosen": [GOOD, USER], "rejected": [BAD]}, "role 'assistant', not 'user'"),
        ({"chosen": [USER, GOOD], "rejected": [{"role": "user", "content": "2+2="}, BAD]}, "part at message 0"),
        ({"prompt": "other", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "is not the prompt"),
    ],
)
def test_rows_without_a_pair_are_told_with_file_and_line(write, row, told):
    config = write({"prompt": "a", "chosen": "b", "rejected": "c"}, row)
    with pytest.raises(DataError) as caught:
        load_pairs(config, seed=0)
    assert "rows.jsonl, line 2" in str(caught.value) and told in str(caught.value)


@pytest.mark.parametrize(("value", "gap"), [(2, 2.0), (0.5, 0.5)])
def test_a_margin_is_a_number_above_0(write, value, gap):
    config = write({"prompt": "a", "chosen": "b", "rejected": "c", "m": value})
    assert load_pairs(config, seed=0)[0].gap == 1.0
    assert load_pairs(DataConfig(path=config.path, margin_key="m"), seed=0)[0].gap == gap


@pytest.mark.parametrize("value", [0, -1, True, "2", None, float("nan"), float("inf")])
def test_other_margins_are_refused(write, value):
    config = write({"prompt": "a", "chosen": "b", "rejected": "c", "m": value})
    with pytest.raises(DataError, match="line 1.*'m'.*above 0"):
        load_pairs(DataConfig(path=config.path, margin_key="m"), seed=0)


@pytest.mark.parametrize(("label", "desirable"), [(True, True), (False, False), (1, True), (0, False), (1.0, True)])
def test_labels(write, label, desirable):
    [row] = load_labelled(write({"prompt": "a", "response": "b", "label": label}), seed=0)
    assert row.desirable is desirable


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "a", "response": "b"}, "no column 'label'"),
        ({"prompt": "a", "response": "b", "label": "good"}, "'label' is a str ('good'), not true or false"),
        ({"prompt": "a", "response": "b", "label": None}, "'label' is empty (null)"),
        ({"prompt": "a", "response": "b", "label": 2}, "not true or false"),
        ({"prompt": "a", "label": True}, "no column 'response'"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "no column 'label'"),
    ],
)
def test_rows_without_a_label_are_told_with_file_and_line(write, row, told):
    with pytest.raises(DataError) as caught:
        load_labelled(write({"prompt": "a", "response": "b", "label": True}, row), seed=0)
    assert "rows.jsonl, line 2" in str(caught.value) and told in str(caught.value)


def test_settings_without_effect_and_empty_files(write, tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match="no rows"):
        load_pairs(DataConfig(path=str(tmp_path / "rows.jsonl")), seed=0)
    with pytest.raises(ConfigError, match="data.system"):
        load_pairs(DataConfig(path="x.jsonl", chat=False, system="a"), seed=0)


def test_a_pair_is_a_group_of_two_that_share_the_prompt(write):
    tokenizer, config = tiny_tokenizer(), write({"prompt": "1+1=", "chosen": "2", "rejected": "33"})
    group = pair_group(load_pairs(config, seed=0)[0], tokenizer, config)
    assert group.scores().tolist() == [1.0, 0.0]
    texts = [tokenizer.decode(r.tokens[r.action_index]) for r in group.rollouts]
    assert texts == ["2<|im_end|>", "33<|im_end|>"]
    start = group.rollouts[0].action_index[0]
    assert np.array_equal(group.rollouts[0].tokens[:start], group.rollouts[1].tokens[:start])


def test_earlier_answers_are_no_actions(write):
    tokenizer = tiny_tokenizer()
    config = write({"chosen": [USER, BAD, USER, GOOD], "rejected": [USER, BAD, USER, BAD]})
    group = pair_group(load_pairs(config, seed=0)[0], tokenizer, config)
    assert [tokenizer.decode(r.tokens[r.action_index]) for r in group.rollouts] == ["2<|im_end|>", "3<|im_end|>"]


def test_raw_text_needs_no_template(write):
    tokenizer = tiny_tokenizer()
    config = DataConfig(path=write({"prompt": "1+1=", "chosen": "2", "rejected": "3"}).path, chat=False)
    group = pair_group(load_pairs(config, seed=0)[0], tokenizer, config)
    assert tokenizer.decode(group.rollouts[0].tokens) == "1+1=2<|im_end|>"


def test_a_scored_chat_is_what_the_template_writes_and_is_read_at_its_last_token(write, make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["chatml"])
    config = write({"prompt": "1+1=", "chosen": "2", "rejected": "3"})
    pair = load_pairs(config, seed=0)[0]
    for rollout, answer in zip(scored_group(pair, tokenizer, config).rollouts, (GOOD, BAD), strict=True):
        assert tokenizer.decode(rollout.tokens) == tokenizer.apply_chat_template([USER, answer], tokenize=False)
        assert rollout.action_index.tolist() == [len(rollout.tokens) - 1]


def test_a_scored_chat_does_not_end_with_padding(write):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    config = write({"prompt": "1+1=", "chosen": "2", "rejected": "3"})
    group = scored_group(load_pairs(config, seed=0)[0], tokenizer, config)
    assert tokenizer.decode(group.rollouts[0].tokens).endswith("2")


def test_mismatched_answers_stand_behind_the_own_prompt(write):
    tokenizer = tiny_tokenizer()
    rows = [{"prompt": f"{i // 2}+0=", "response": f"{i}{i}", "label": bool(i % 2)} for i in range(8)]
    config = write(*rows)
    groups = [labelled_group(row, tokenizer, config) for row in load_labelled(config, seed=0)]
    found = add_mismatched(groups, max_tokens=99, seed=0)
    for number, group in enumerate(found):
        own, other = group.rollouts
        start = own.action_index[0]
        assert np.array_equal(own.tokens[:start], other.tokens[:start])
        answer = tokenizer.decode(other.tokens[other.action_index]).removesuffix("<|im_end|>")
        assert int(answer[0]) // 2 != number // 2, "an answer to the same prompt is no mismatch"
        assert np.isnan(group.scores()[1]) and group.scores()[0] == number % 2
    again = add_mismatched(groups, max_tokens=99, seed=0)
    assert [g.rollouts[1].text for g in again] == [g.rollouts[1].text for g in found]
    assert [g.rollouts[1].text for g in add_mismatched(groups, max_tokens=99, seed=1)] != [
        g.rollouts[1].text for g in found
    ]


def test_mismatched_answers_fit_or_are_absent(write):
    tokenizer = tiny_tokenizer()
    config = write(
        {"prompt": "1=", "response": "1" * 30, "label": True}, {"prompt": "2=", "response": "2", "label": True}
    )
    groups = [labelled_group(row, tokenizer, config) for row in load_labelled(config, seed=0)]
    assert [len(g) for g in add_mismatched(groups, max_tokens=20, seed=0)] == [2, 1]
    assert [len(g) for g in add_mismatched(groups[:1], max_tokens=20, seed=0)] == [1]
