"""Rows of preference data: pairs of answers to one prompt, and single answers with a label; and their groups.

A pair becomes a group of two rollouts, the chosen one with the higher reward; a labelled answer a group of one, or of
two with a mismatched answer, which has no reward. So every preference loss reads `core.batch.Batch`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from coterie.config.schema import DataConfig
from coterie.core.keys import generator
from coterie.core.types import Example, Group, Message, Rollout, Score
from coterie.data.chat import encode_chat, encode_conversation
from coterie.data.rows import Row
from coterie.data.sources import (
    check_config,
    collect,
    identity_of,
    kind_of,
    messages_of,
    prompt_of,
    rows_of,
    source_of,
)
from coterie.errors import DataError

Messages = tuple[Message, ...]

PAIR_REMEDY = (
    "A pair has a prompt, a chosen and a rejected answer: set data.chosen_key=NAME and data.rejected_key=NAME. Single "
    "answers with a label are for loss=kto"
)
LABEL_REMEDY = (
    "This loss takes one answer a row with a label, true when it is desirable: set data.label_key=NAME. Pairs of "
    "answers are for loss=dpo and its like"
)
TRIED = 64
"""Rows that are looked at for a mismatched answer that has another prompt and fits."""


@dataclass(frozen=True)
class Pair:
    """Two answers to a prompt.

    Attributes:
        id: unique in its data set.
        prompt: chat messages, or one of role "raw".
        chosen, rejected: messages that follow the prompt; the last one is the assistant's.
        gap: by how much the chosen answer is better; above 0.
        source: name of the data set.
    """

    id: str
    prompt: Messages
    chosen: Messages
    rejected: Messages
    gap: float = 1.0
    source: str = ""


@dataclass(frozen=True)
class Labelled:
    """An answer and whether it is desirable; otherwise as `Pair`."""

    id: str
    prompt: Messages
    response: Messages
    desirable: bool
    source: str = ""


def load_pairs(config: DataConfig, *, seed: int) -> list[Pair]:
    """Rows with a prompt and two answers, each a text or chat messages; without a prompt column both are whole chats.

    Raises:
        DataError: for a missing file, a row without a pair (file, row and field), repeated ids, or no rows at all.
        ConfigError: for a setting that can't have an effect.
    """
    check_config(config)
    return collect(config, (_pair(row, config) for row in rows_of(config, seed)))


def load_labelled(config: DataConfig, *, seed: int) -> list[Labelled]:
    """Rows with a prompt, a response and a label (true or false, 1 or 0).

    Raises:
        DataError, ConfigError: as `load_pairs`; also for a row without a label.
    """
    check_config(config)
    return collect(config, (_labelled(row, config) for row in rows_of(config, seed)))


def pair_group(pair: Pair, tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> Group:
    """A pair as a group of two rollouts, chosen first, whose action tokens are those of the answers.

    Raises:
        DataError, ModelError: as `encode_conversation`, with the id of the pair.
    """
    example = Example(pair.id, pair.prompt, source=pair.source)
    answers = ((pair.chosen, pair.gap), (pair.rejected, 0.0))
    return Group(example, tuple(_rollout(example, a, reward, tokenizer, config) for a, reward in answers))


def labelled_group(row: Labelled, tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> Group:
    """A labelled answer as a group of one rollout with reward 1 or 0.

    Raises:
        DataError, ModelError: as `encode_conversation`, with the id of the row.
    """
    example = Example(row.id, row.prompt, source=row.source)
    return Group(example, (_rollout(example, row.response, float(row.desirable), tokenizer, config),))


def scored_group(pair: Pair, tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> Group:
    """A pair as a group of two whole chats with one action token each: the last one, where a reward model is read.

    Padding ids at the end are cut off, since transformers' sequence classification reads the last token before them.

    Raises:
        DataError, ModelError: as `encode_chat`, with the id of the pair.
    """
    example = Example(pair.id, pair.prompt, source=pair.source)
    rollouts = []
    for answer, reward in ((pair.chosen, pair.gap), (pair.rejected, 0.0)):
        try:
            tokens = encode_chat(tokenizer, (*pair.prompt, *answer), config)
        except DataError as error:
            raise DataError(f"row {pair.id!r}: {error}") from error
        while len(tokens) > 1 and tokens[-1] == tokenizer.pad_token_id:
            tokens = tokens[:-1]
        last = np.array([len(tokens) - 1], dtype=np.int64)
        rollouts.append(Rollout(tokens, last, _text(answer), "stop", scores={"reward": Score(reward)}))
    return Group(example, tuple(rollouts))


def add_mismatched(groups: Sequence[Group], *, max_tokens: int, seed: int) -> list[Group]:
    """Give each labelled answer's group another row's answer under its own prompt, without a reward.

    The other row is the next in a seeded order that has another prompt and fits into `max_tokens`. Where there is none
    nearby the group stays as it is.
    """
    order = generator("mismatched", seed).permutation(len(groups))
    found = list(groups)
    for place, number in enumerate(order):
        group = groups[number]
        for step in range(1, min(TRIED, len(groups) - 1) + 1):
            other = _mismatched(group.rollouts[0], groups[order[(place + step) % len(groups)]].rollouts[0])
            if other is not None and len(other.tokens) <= max_tokens:
                found[number] = group.with_rollouts((*group.rollouts, other))
                break
    return found


def _mismatched(own: Rollout, other: Rollout) -> Rollout | None:
    """The other rollout's answer behind the own prompt; None when both have the same prompt."""
    start, begin = int(own.action_index[0]), int(other.action_index[0])
    if np.array_equal(own.tokens[:start], other.tokens[:begin]):
        return None
    return replace(
        other,
        tokens=np.concatenate([own.tokens[:start], other.tokens[begin:]]),
        action_index=other.action_index - begin + start,
        scores={"reward": Score.missing("mismatched answer")},
        index=1,
    )


def _rollout(
    example: Example, answer: Messages, reward: float, tokenizer: PreTrainedTokenizerBase, config: DataConfig
) -> Rollout:
    """Prompt and answer; assistant messages of the prompt are no action."""
    prompt = tuple({**m, "weight": 0} if m["role"] == "assistant" else m for m in example.prompt)
    try:
        tokens, action_index = encode_conversation(tokenizer, (*prompt, *answer), config)
    except DataError as error:
        raise DataError(f"row {example.id!r}: {error}") from error
    return Rollout(tokens, action_index, _text(answer), "stop", scores={"reward": Score(reward)})


def _text(answer: Messages) -> str:
    return str(answer[-1]["content"])


def _pair(row: Row, config: DataConfig) -> Pair:
    chosen, rejected = (row.get(key, PAIR_REMEDY) for key in (config.chosen_key, config.rejected_key))
    if _is_chat(chosen) and _is_chat(rejected):
        row, chosen, rejected = _split_chats(row, config)
    better, worse = _answer(row, config.chosen_key, chosen), _answer(row, config.rejected_key, rejected)
    source = source_of(row)
    return Pair(identity_of(row, source), prompt_of(row, config), better, worse, _gap(row, config), source)


def _labelled(row: Row, config: DataConfig) -> Labelled:
    label = row.get(config.label_key, LABEL_REMEDY)
    if label not in (0, 1):
        raise DataError(
            f"{row.place}: column {config.label_key!r} is {kind_of(label)}, not true or false (1 or 0). {LABEL_REMEDY}"
        )
    response = _answer(row, config.response_key, row.get(config.response_key, "Set data.response_key=NAME"))
    source = source_of(row)
    return Labelled(identity_of(row, source), prompt_of(row, config), response, bool(label), source)


def _is_chat(value: Any) -> bool:
    """Whether an answer is written with its prompt before it."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and first.get("role") != "assistant"


def _split_chats(row: Row, config: DataConfig) -> tuple[Row, list[Any], list[Any]]:
    """The row with the messages that both chats begin with as its prompt, and what follows in each.

    Raises:
        DataError: when the chats don't part at an assistant's message, or their prompt is not the row's.
    """
    keys = (config.chosen_key, config.rejected_key)
    chosen, rejected = (list(messages_of(row, key, row.values[key])) for key in keys)
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    prompt, rests = chosen[:shared], (chosen[shared:], rejected[shared:])
    if not prompt or any(rest[0]["role"] != "assistant" for rest in rests):
        raise DataError(
            f"{row.place}: the chats in {keys[0]!r} and {keys[1]!r} must begin with the same messages and part at an "
            f"assistant's; they part at message {shared}"
        )
    own = row.values.get(config.prompt_key)
    if isinstance(own, str) and own.strip() not in {str(m["content"]).strip() for m in prompt if m["role"] == "user"}:
        raise DataError(f"{row.place}: column {config.prompt_key!r} is not the prompt that the chats begin with")
    return replace(row, values={**row.values, config.prompt_key: prompt}), *rests


def _answer(row: Row, column: str, value: Any) -> Messages:
    if isinstance(value, str) and value:
        return ({"role": "assistant", "content": value},)
    if not isinstance(value, list) or not value:
        raise DataError(f"{row.place}: column {column!r} is {kind_of(value)}, not an answer: a text or chat messages")
    messages = messages_of(row, column, value)
    if messages[0]["role"] != "assistant" or messages[-1]["role"] != "assistant":
        wrong = messages[0] if messages[0]["role"] != "assistant" else messages[-1]
        raise DataError(
            f"{row.place}: column {column!r} must begin and end with a message of role 'assistant', not "
            f"{wrong['role']!r}; give both answers as whole chats, or both as what follows the prompt"
        )
    return messages


def _gap(row: Row, config: DataConfig) -> float:
    if not config.margin_key:
        return 1.0
    value = row.get(config.margin_key, "Set data.margin_key=NAME, or leave it empty to weigh all pairs alike")
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise DataError(
            f"{row.place}: column {config.margin_key!r} is {kind_of(value)}, not a number above 0: it says by how much "
            "the chosen answer is better"
        )
    return float(value)
