"""Data sets as lists of `Example` (prompts with references) or `Conversation` (chat rows to imitate)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.config.schema import DataConfig
from coterie.core.types import Example, Message
from coterie.data.cursor import Identified
from coterie.data.external import read_gym, read_hub
from coterie.data.rows import Row, nearest, read_rows
from coterie.data.worked import worked_solution
from coterie.errors import ConfigError, DataError


@dataclass(frozen=True)
class Conversation:
    """A chat to imitate; the last message is the assistant's.

    Attributes:
        id: unique in its data set.
        messages: dicts with `role` and `content`. A message with `weight: 0` is not trained on.
        source: name of the data set.
    """

    id: str
    messages: tuple[Message, ...]
    source: str = ""


BRACES = "A brace that stands for itself is written twice, as in \\boxed{{}}"

T = TypeVar("T", bound=Identified)


def load_examples(config: DataConfig, *, seed: int, need_reference: bool = False) -> list[Example]:
    """Read `config.path`; nothing is shuffled or left out but for `max_examples`.

    Columns: verl's (`data_source, prompt, ability, reward_model{style, ground_truth}, extra_info{…}`) or plain ones
    (`prompt_key`, `reference_key`). `id` and `source` (or `data_source`) are used when there; else an id is
    `<source>-<row number>`. Every other column, and the entries of `extra_info`, go into `meta`.

    Args:
        config: the data section.
        seed: the run's seed; used by procedural tasks when `config.seed` is -1.
        need_reference: whether a row without a reference is an error.

    Raises:
        DataError: for a missing file, a bad row (file, row and field), repeated ids, or no rows at all.
        ConfigError: for a setting that can't have an effect or names something unknown.
    """
    check_config(config)
    return collect(config, (_example(row, config, need_reference) for row in rows_of(config, seed)))


def load_conversations(config: DataConfig, *, seed: int) -> list[Conversation]:
    """Chats to imitate: rows with `messages`, or with a prompt and a response column; worked solutions for `gym:`.

    Raises:
        DataError: as `load_examples`; also for a chat that doesn't end with an assistant message.
    """
    check_config(config)
    return collect(config, (_conversation(row, config) for row in rows_of(config, seed)))


def check_config(config: DataConfig) -> None:
    """Refuse settings that can't have an effect.

    Raises:
        ConfigError: naming the setting.
    """
    if not config.path:
        raise ConfigError("data.path is empty: give a .jsonl or .parquet file, a folder, hub:owner/name or gym:task")
    if not config.chat:
        for key in ("system", "chat_template_kwargs"):
            if getattr(config, key):
                raise ConfigError(f"data.{key} has no effect with data.chat=false; use data.template for fixed text")
    if config.options and not config.path.startswith(("hub:", "gym:")):
        raise ConfigError("data.options has an effect on hub: and gym: sources only")


def rows_of(config: DataConfig, seed: int) -> Iterator[Row]:
    """Rows of a file, folder, hub data set or procedural task, as `config.path` says."""
    kind, _, name = config.path.partition(":")
    if kind == "hub":
        return read_hub(name, config.split, config.options)
    if kind == "gym":
        size = min(config.size, config.max_examples) if config.max_examples else config.size
        return read_gym(name, size, seed if config.seed == -1 else config.seed, config.options)
    return read_rows(config.path)


def collect(config: DataConfig, items: Iterator[T]) -> list[T]:
    """The first `max_examples` items.

    Raises:
        DataError: for repeated ids, and when there are none.
    """
    seen: dict[str, int] = {}
    kept: list[T] = []
    for number, item in enumerate(items):
        if item.id in seen:
            raise DataError(
                f"data.path={config.path}: rows {seen[item.id]} and {number} have the same id {item.id!r}; ids must be "
                "unique, since they key the random draws (rename the column to have ids made from row numbers)"
            )
        seen[item.id] = number
        kept.append(item)
        if len(kept) == config.max_examples:
            break
    if not kept:
        raise DataError(f"data.path={config.path}: no rows")
    return kept


def _example(row: Row, config: DataConfig, need_reference: bool) -> Example:
    source = source_of(row)
    extra = row.values.get("extra_info") or {}
    if not isinstance(extra, Mapping):
        raise DataError(f"{row.place}: column 'extra_info' is {kind_of(extra)}, not an object")
    used = {config.prompt_key, config.reference_key, "reward_model", "extra_info", "data_source", "source", "id"}
    return Example(
        id=identity_of(row, source),
        prompt=prompt_of(row, config),
        reference=_reference(row, config, need_reference),
        source=source,
        meta={**{key: value for key, value in row.values.items() if key not in used}, **extra},
    )


def _conversation(row: Row, config: DataConfig) -> Conversation:
    source = source_of(row)
    if "messages" in row.values:
        if not config.chat:
            raise DataError(f"{row.place}: chat rows ('messages') need data.chat=true")
        messages = messages_of(row, "messages", row.values["messages"])
        if config.system and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": config.system}, *messages)
    else:
        if "gym" in row.values and config.response_key not in row.values:
            response = worked_solution(_example(row, config, True))
        else:
            remedy = "Set data.response_key=NAME, or give chat rows with a column 'messages'"
            response = row.get(config.response_key, remedy)
        if not isinstance(response, str) or not response:
            raise DataError(f"{row.place}: column {config.response_key!r} is {kind_of(response)}, not a text")
        messages = (*prompt_of(row, config), {"role": "assistant", "content": response})
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{row.place}: the last message has role {messages[-1]['role']!r}, not 'assistant'")
    return Conversation(identity_of(row, source), messages, source)


def source_of(row: Row) -> str:
    """Name of the data set a row belongs to: a column, or the file's name."""
    for column in ("data_source", "source"):
        value = row.values.get(column)
        if isinstance(value, str) and value:
            return value
    return row.label


def identity_of(row: Row, source: str) -> str:
    """The row's `id`, or one made from its source and number."""
    value = row.values.get("id")
    if value is None or value == "":
        # The files of a folder may share a source name, but not a file name.
        return f"{row.label if row.in_folder else source}-{row.number}"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{row.place}: column 'id' is {kind_of(value)}, not a text or an integer")
    return str(value)


def _reference(row: Row, config: DataConfig, needed: bool) -> Any:
    key = config.reference_key
    if key and key in row.values:
        value = row.values[key]
    elif isinstance(rule := row.values.get("reward_model"), Mapping):
        if "ground_truth" not in rule:
            raise DataError(f"{row.place}: column 'reward_model' has no field 'ground_truth'{nearest('', rule)}")
        value = rule["ground_truth"]
    elif "reward_model" in row.values and rule is not None:
        raise DataError(f"{row.place}: column 'reward_model' is {kind_of(rule)}, not an object with 'ground_truth'")
    elif needed or (key and key != DataConfig.reference_key):
        hint = ", or give verl's reward_model.ground_truth"
        raise DataError(f"{row.place}: no column {key!r}{nearest(key, row.values)}. Set data.reference_key=NAME{hint}")
    else:
        return None
    if needed and (value is None or value == ""):
        raise DataError(f"{row.place}: the reference is empty; this reward needs one")
    return value


def prompt_of(row: Row, config: DataConfig) -> tuple[Message, ...]:
    """The messages of `prompt_key`, with system message and template in place.

    Raises:
        DataError: naming file, row and field.
    """
    value = row.get(config.prompt_key, "Set data.prompt_key=NAME")
    if isinstance(value, str):
        messages: tuple[Message, ...] = ({"role": "user", "content": value},)
    else:
        messages = messages_of(row, config.prompt_key, value)
        if messages[-1]["role"] == "assistant":
            raise DataError(
                f"{row.place}: column {config.prompt_key!r} ends with an assistant message; a prompt ends where the "
                "assistant is to go on"
            )
    if not any(str(message["content"]).strip() for message in messages):
        raise DataError(f"{row.place}: column {config.prompt_key!r} is an empty prompt")
    if config.template != DataConfig.template:
        messages = _with_template(row, config, messages)
    if not config.chat:
        if len(messages) != 1:
            raise DataError(
                f"{row.place}: column {config.prompt_key!r} is a chat of {len(messages)} messages; with "
                "data.chat=false it must be one text"
            )
        return ({"role": "raw", "content": messages[0]["content"]},)
    if config.system and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": config.system}, *messages)
    return messages


def _with_template(row: Row, config: DataConfig, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Format the last user message."""
    places = [number for number, message in enumerate(messages) if message["role"] == "user"]
    if not places:
        raise DataError(f"{row.place}: data.template needs a user message to format; the chat has none")
    chosen = messages[places[-1]]
    fields = {**row.values, "prompt": chosen["content"]}
    try:
        text = config.template.format(**fields)
    except KeyError as error:
        name = str(error.args[0])
        what = f"the row has no field {name!r}{nearest(name, fields)}"
        raise ConfigError(f"data.template={config.template!r}: {what}. {BRACES}") from error
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise ConfigError(f"data.template={config.template!r} is no format string: {error}. {BRACES}") from error
    return tuple({**m, "content": text} if n == places[-1] else m for n, m in enumerate(messages))


def messages_of(row: Row, column: str, value: Any) -> tuple[Message, ...]:
    """A column's list of chat messages, checked.

    Raises:
        DataError: naming file, row and message.
    """
    if not isinstance(value, list) or not value:
        raise DataError(f"{row.place}: column {column!r} is {kind_of(value)}, not a text or a list of chat messages")
    for number, message in enumerate(value):
        where = f"{row.place}: column {column!r}, message {number}"
        if not isinstance(message, Mapping):
            raise DataError(f"{where} is {kind_of(message)}, not an object with 'role' and 'content'")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise DataError(f"{where} has no 'role'{nearest('role', message)}")
        if not isinstance(content, str | list) and not message.get("tool_calls"):
            raise DataError(f"{where} has as 'content' {kind_of(content)}, not a text")
    # Parquet fills absent fields with null; templates take the presence of a key for its use.
    return tuple({"content": "", **{k: v for k, v in message.items() if v is not None}} for message in value)


def kind_of(value: Any) -> str:
    """What a wrong value is, in words."""
    if value is None:
        return "empty (null)"
    if value == "" or value == []:
        return "empty"
    return f"a {type(value).__name__} ({str(value)[:40]!r})"
