import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.config.schema import DataConfig
from coterie.data.sources import load_conversations, load_examples
from coterie.errors import ConfigError, DataError

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0},
}
USER = {"role": "user", "content": "hello"}


def jsonl(tmp_path, *rows, name="train.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(path, *, need_reference=False, **keys):
    return load_examples(DataConfig(path=path, **keys), seed=3, need_reference=need_reference)


def test_plain_columns(tmp_path):
    path = jsonl(tmp_path, {"prompt": "1+1?", "reference": "2", "level": 3}, {"prompt": "2+2?", "reference": "4"})
    first, second = load(path)
    assert first.prompt == ({"role": "user", "content": "1+1?"},)
    assert (first.reference, first.source, first.id, dict(first.meta)) == ("2", "train", "train-0", {"level": 3})
    assert second.id == "train-1"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_verl_schema(tmp_path, kind):
    if kind == "jsonl":
        path = jsonl(tmp_path, VERL)
    else:
        path = str(tmp_path / "train.parquet")
        pq.write_table(pa.Table.from_pylist([VERL]), path)
    (example,) = load(path, need_reference=True)
    assert example.prompt == ({"role": "user", "content": "1+1?"},)
    assert (example.reference, example.source, example.id) == ("2", "openai/gsm8k", "openai/gsm8k-0")
    assert example.meta == {"ability": "math", "split": "train", "index": 0}


def test_other_column_names_and_numbers_as_references(tmp_path):
    path = jsonl(tmp_path, {"question": "1+1?", "answer": 2, "id": 17, "source": "sums"})
    (example,) = load(path, prompt_key="question", reference_key="answer")
    assert (example.reference, example.id, example.source) == (2, "17", "sums")


def test_ids_of_a_folder_are_unique_though_its_files_share_a_source(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        jsonl(tmp_path, VERL, VERL, name=name)
    assert [e.id for e in load(str(tmp_path))] == ["a.jsonl-0", "a.jsonl-1", "b.jsonl-0", "b.jsonl-1"]


def test_max_examples_reads_no_further(tmp_path):
    path = jsonl(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    with Path(path).open("a") as stream:
        stream.write("not json")
    assert [e.prompt[0]["content"] for e in load(path, max_examples=2)] == ["a", "b"]


def test_system_template_and_raw(tmp_path):
    path = jsonl(tmp_path, {"prompt": "1+1?", "unit": "apples"})
    template = "In {unit}: {prompt} End with \\boxed{{}}."
    (chat,) = load(path, system="Be brief.", template=template)
    assert [m["role"] for m in chat.prompt] == ["system", "user"]
    assert chat.prompt[1]["content"] == "In apples: 1+1? End with \\boxed{}."
    (raw,) = load(path, chat=False, template=template)
    assert raw.prompt == ({"role": "raw", "content": "In apples: 1+1? End with \\boxed{}."},)


def test_template_formats_the_last_user_message_and_own_system_stays(tmp_path):
    chat = [{"role": "system", "content": "S"}, USER, {"role": "assistant", "content": "hi"}, USER]
    (example,) = load(jsonl(tmp_path, {"prompt": chat}), template="<{prompt}>", system="other")
    assert [m["content"] for m in example.prompt] == ["S", "hello", "hi", "<hello>"]


def test_null_fields_of_parquet_messages_are_dropped(tmp_path):
    path = tmp_path / "x.parquet"
    chat = [{"role": "user", "content": "a", "name": None}, {"role": "user", "content": "b", "name": "n"}]
    pq.write_table(pa.Table.from_pylist([{"prompt": chat}]), path)
    (example,) = load(str(path))
    assert example.prompt == ({"role": "user", "content": "a"}, {"role": "user", "content": "b", "name": "n"})


@pytest.mark.parametrize(
    ("row", "keys", "message"),
    [
        (
            {"promt": "x"},
            {},
            r"line 1: no column 'prompt' \(columns: promt; did you mean 'promt'\?\)\. Set data.prompt_key",
        ),
        ({"prompt": ""}, {}, "column 'prompt' is an empty prompt"),
        ({"prompt": " \n"}, {}, "empty prompt"),
        ({"prompt": None}, {}, r"column 'prompt' is empty \(null\)"),
        ({"prompt": 5}, {}, r"column 'prompt' is a int \('5'\)"),
        ({"prompt": []}, {}, "column 'prompt' is empty, not a text or a list"),
        ({"prompt": ["hi"]}, {}, "message 0 is a str"),
        ({"prompt": [USER, {"content": "x"}]}, {}, "message 1 has no 'role'"),
        ({"prompt": [{"role": "user"}]}, {}, r"message 0 has as 'content' empty \(null\)"),
        ({"prompt": [USER, USER]}, {"chat": False}, "chat of 2 messages"),
        ({"prompt": [USER, {"role": "assistant", "content": "x"}]}, {}, "ends with an assistant message"),
        ({"prompt": "x", "answer": 1}, {"reference_key": "anwser"}, r"no column 'anwser' .*did you mean 'answer'"),
        ({"prompt": "x", "reward_model": {"style": "rule"}}, {}, "'reward_model' has no field 'ground_truth'"),
        ({"prompt": "x", "reward_model": "2"}, {}, "'reward_model' is a str"),
        ({"prompt": "x", "extra_info": "2"}, {}, "'extra_info' is a str"),
        ({"prompt": "x", "id": 1.5}, {}, "column 'id' is a float"),
        ({"prompt": [{"role": "system", "content": "x"}]}, {"template": "{prompt}!"}, "needs a user message"),
    ],
)
def test_bad_rows_name_file_row_and_field(tmp_path, row, keys, message):
    path = jsonl(tmp_path, row)
    with pytest.raises(DataError, match=message) as caught:
        load(path, **keys)
    assert f"{path}, line 1" in str(caught.value)


def test_needed_references(tmp_path):
    assert load(jsonl(tmp_path, {"prompt": "x"}))[0].reference is None
    with pytest.raises(DataError, match=r"no column 'reference' .*Set data.reference_key"):
        load(jsonl(tmp_path, {"prompt": "x"}), need_reference=True)
    with pytest.raises(DataError, match="the reference is empty"):
        load(jsonl(tmp_path, {"prompt": "x", "reference": ""}), need_reference=True)


@pytest.mark.parametrize("template", ["{unknown}", "{", "{}", "{prompt.x}"])
def test_bad_templates(tmp_path, template):
    with pytest.raises(ConfigError, match=r"data\.template=.*written twice"):
        load(jsonl(tmp_path, {"prompt": "x"}), template=template)


def test_repeated_ids(tmp_path):
    with pytest.raises(DataError, match="rows 0 and 1 have the same id 'a'"):
        load(jsonl(tmp_path, {"prompt": "x", "id": "a"}, {"prompt": "y", "id": "a"}))


def test_no_rows_and_no_path(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        load(jsonl(tmp_path))
    with pytest.raises(ConfigError, match=r"data\.path is empty"):
        load("")


@pytest.mark.parametrize(
    "keys",
    [
        {"chat": False, "system": "x"},
        {"chat": False, "chat_template_kwargs": {"a": 1}},
        {"options": {"a": 1}},
    ],
)
def test_settings_without_effect_are_errors(tmp_path, keys):
    with pytest.raises(ConfigError, match="effect"):
        load(jsonl(tmp_path, {"prompt": "x"}), **keys)


def conversations(path, **keys):
    return load_conversations(DataConfig(path=path, **keys), seed=3)


def test_conversations_from_chats_and_from_columns(tmp_path):
    answer = {"role": "assistant", "content": "hi"}
    (chat,) = conversations(jsonl(tmp_path, {"messages": [USER, answer]}), system="S")
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    path = jsonl(tmp_path, {"question": "hello", "answer": "hi", "id": 4})
    (pair,) = conversations(path, prompt_key="question", response_key="answer", template="{prompt}!")
    assert pair.messages == ({"role": "user", "content": "hello!"}, answer)
    assert pair.id == "4"
    (raw,) = conversations(path, prompt_key="question", response_key="answer", chat=False)
    assert raw.messages == ({"role": "raw", "content": "hello"}, answer)


def test_tool_calls_need_no_content(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    (example,) = load(jsonl(tmp_path, {"prompt": [USER, call, {"role": "tool", "content": "2"}]}))
    assert example.prompt[1] == {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}


@pytest.mark.parametrize(
    ("row", "keys", "message"),
    [
        ({"messages": [USER]}, {}, "last message has role 'user'"),
        ({"messages": "x"}, {}, "column 'messages' is a str"),
        ({"messages": [USER]}, {"chat": False}, "need data.chat=true"),
        ({"prompt": "a", "respones": "b"}, {}, r"no column 'response' .*did you mean 'respones'.*or give chat rows"),
        ({"prompt": "a", "response": ""}, {}, "column 'response' is empty, not a text"),
        ({"prompt": "a", "response": 3}, {}, "column 'response' is a int"),
    ],
)
def test_bad_conversations(tmp_path, row, keys, message):
    with pytest.raises(DataError, match=message):
        conversations(jsonl(tmp_path, row), **keys)
