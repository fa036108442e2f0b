"""From messages to tokens: prompts for sampling, and conversations with the tokens to be imitated marked.

A template decides how a chat is written; nothing here guesses at it. Which tokens are the assistant's comes from the
template's own `{% generation %}` blocks, or from rendering the chat message by message, which is valid only when each
rendering is the beginning of the next; a template or chat for which it is not is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import cast

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from coterie.config.schema import DataConfig
from coterie.core.types import Example, Group, IntArray, Message, Rollout
from coterie.data.sources import Conversation
from coterie.errors import DataError, ModelError

CharSpan = tuple[int, int]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, example: Example, config: DataConfig) -> tuple[int, ...]:
    """Token ids of an example's prompt, ready for the assistant's first token.

    With `data.chat` the chat template writes everything, the beginning-of-sequence token included; a `raw` message is
    encoded as the tokenizer does it. A doubled beginning token is made one, an end token at the end is taken off.

    Raises:
        ModelError: when the tokenizer has no chat template.
        DataError: when the template refuses the chat, or nothing is left.
    """
    if example.prompt[0]["role"] == "raw":
        tokens = tokenizer(str(example.prompt[0]["content"]))["input_ids"]
        if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id:
            tokens = tokens[:-1]
    else:
        text = _render(tokenizer, example.prompt, config, f"example {example.id!r}", generation_prompt=True)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens = _single_bos(tokens, tokenizer)
    if not tokens:
        raise DataError(f"example {example.id!r}: the prompt has no tokens")
    return tuple(tokens)


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], config: DataConfig
) -> tuple[IntArray, IntArray]:
    """Tokens of a chat and the positions to be imitated.

    Imitated are the assistant's messages with the token that ends each; what a template writes after that (a line
    break) is not, since the policy stops before. A message with `weight: 0` is not imitated. When the template ends the
    last message without an end-of-sequence token, one is added.

    Returns:
        int64[N] tokens and int64[A] increasing positions in them.

    Raises:
        ModelError: when the tokenizer has no chat template, can't report character offsets, or its template doesn't
            let the assistant's part be found.
        DataError: when the template refuses or alters this chat, or no message is left to imitate.
    """
    trained = [n for n, m in enumerate(messages) if m["role"] == "assistant" and m.get("weight", 1) != 0]
    if not trained:
        raise DataError("the chat has no assistant message to imitate (or all have weight 0)")
    if messages[0]["role"] == "raw":
        return _encode_raw(tokenizer, messages)
    if not tokenizer.is_fast:
        raise ModelError(
            f"{type(tokenizer).__name__} can't say which characters a token stands for, so the assistant's tokens "
            "can't be found; use a tokenizer with a tokenizer.json"
        )
    plain = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
    if re.search(r"\{%-?\s*generation\s*-?%\}", _template(tokenizer)):
        text, spans = _marked_spans(tokenizer, plain, trained, config)
    else:
        text, spans = _grown_spans(tokenizer, plain, trained, config)
    tokens, owners = _tokenize(tokenizer, text, spans)
    return _with_ends(tokenizer, tokens, owners, last_trained=trained[-1] == len(messages) - 1)


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], config: DataConfig) -> IntArray:
    """int64[N] tokens of a whole chat as its template writes it: what `apply_chat_template` gives anybody else.

    Raises:
        ModelError: when the tokenizer has no chat template.
        DataError: when the template refuses the chat.
    """
    if messages[0]["role"] == "raw":
        return _encode_raw(tokenizer, messages)[0]
    text = _render(tokenizer, messages, config, "the chat", generation_prompt=False)
    return np.array(_single_bos(tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer), dtype=np.int64)


def conversation_group(conversation: Conversation, tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> Group:
    """A chat as a group of one rollout, so that imitation goes the way of RL: `Batch.from_groups`.

    Raises:
        DataError, ModelError: as `encode_conversation`, with the id of the conversation.
    """
    try:
        tokens, action_index = encode_conversation(tokenizer, conversation.messages, config)
    except DataError as error:
        raise DataError(f"conversation {conversation.id!r}: {error}") from error
    text = str(conversation.messages[-1]["content"])
    prompt = conversation.messages[:-1]
    example = Example(conversation.id, prompt, reference=None, source=conversation.source)
    return Group(example, (Rollout(tokens, action_index, text, "stop"),))


def _encode_raw(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[IntArray, IntArray]:
    """Prompt and response without a template: encoded apart, as sampling meets them."""
    prompt = encode_prompt(tokenizer, Example("raw", (messages[0],)), DataConfig(chat=False))
    response = tokenizer(str(messages[1]["content"]), add_special_tokens=False)["input_ids"]
    tokens = np.array([*prompt, *response, tokenizer.eos_token_id], dtype=np.int64)
    return tokens, np.arange(len(prompt), len(tokens), dtype=np.int64)


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template. Set data.chat=false to give it plain "
            "text, or put a chat_template.jinja into the model folder"
        )
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:  # several templates, none of them the default
        raise ModelError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no default chat template: {error}"
        ) from error


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    config: DataConfig,
    what: str,
    *,
    generation_prompt: bool,
) -> str:
    _template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **config.chat_template_kwargs,
        )
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        raise DataError(f"{what}: the chat template refuses the messages: {error}") from error
    return str(text)


def _marked_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], trained: Sequence[int], config: DataConfig
) -> tuple[str, list[CharSpan]]:
    """The rendered chat and the character span of each trained message, from the template's generation blocks."""
    try:
        # Annotated as a string upstream; it is the texts and their marked spans.
        rendered, marked = cast(
            tuple[list[str], list[list[CharSpan]]],
            render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                chat_template=_template(tokenizer),
                return_assistant_tokens_mask=True,
                **{**tokenizer.special_tokens_map, **config.chat_template_kwargs},
            ),
        )
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        raise DataError(f"the chat template refuses the messages: {error}") from error
    text, blocks = rendered[0], marked[0]
    assistants = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if len(blocks) != len(assistants):
        raise ModelError(
            f"the chat template marks {len(blocks)} generation blocks for {len(assistants)} assistant messages; one "
            "block a message is needed"
        )
    spans = [span for number, span in zip(assistants, blocks, strict=True) if number in set(trained)]
    for number, (start, end) in zip(trained, spans, strict=True):
        _check_content(messages[number], text[start:end], number)
    return text, spans


def _grown_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], trained: Sequence[int], config: DataConfig
) -> tuple[str, list[CharSpan]]:
    """The rendered chat and the character span of each trained message, from renderings of its beginnings."""
    full = _render(tokenizer, messages, config, "the chat", generation_prompt=False)
    spans = []
    for number in trained:
        if number == 0:
            raise DataError("message 0 is the assistant's: there is no prompt before it")
        before = _render(tokenizer, messages[:number], config, "the chat", generation_prompt=True)
        after = full
        if number + 1 < len(messages):
            after = _render(tokenizer, messages[: number + 1], config, "the chat", generation_prompt=False)
        for part, name in ((before, "the prompt of"), (after, "the chat up to")):
            if not full.startswith(part):
                raise DataError(_not_a_prefix(full, part, f"{name} message {number}"))
        span = (len(before), len(after))
        _check_content(messages[number], full[span[0] : span[1]], number)
        spans.append(span)
    return full, spans


def _not_a_prefix(whole: str, part: str, name: str) -> str:
    same = next((n for n, (a, b) in enumerate(zip(whole, part, strict=False)) if a != b), min(len(whole), len(part)))
    return (
        f"{name} is written differently inside the whole chat (…{whole[max(0, same - 20) : same]!r} goes on as "
        f"{whole[same : same + 20]!r}, alone as {part[same : same + 20]!r}), so the assistant's tokens can't be found. "
        "The chat template alters earlier turns (Qwen3 drops their thinking): use a template with {% generation %} "
        "blocks, set weight: 0 on the earlier assistant messages, or give one row a turn"
    )


def _check_content(message: Message, span: str, number: int) -> None:
    """The message's own words must stand in its span, up to white space."""
    content = message["content"]
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    if _squeezed(content) not in _squeezed(span):
        raise DataError(
            f"the chat template does not write message {number} as it is: {content[:60]!r} became {span[:60]!r}; what "
            "would be imitated is not what the row says"
        )


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _tokenize(tokenizer: PreTrainedTokenizerBase, text: str, spans: Sequence[CharSpan]) -> tuple[list[int], list[int]]:
    """Token ids and for each the number of the span it lies in, or -1.

    Where a token would reach over the beginning of a span, the text is encoded in two pieces: at sampling time the
    prompt ends there.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, offsets = list(encoded["input_ids"]), list(encoded["offset_mapping"])
    cuts = [start for start, _ in spans if any(a < start < b for a, b in offsets)]
    if cuts:
        whole = tokenizer.decode(tokens)
        tokens, offsets = [], []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            piece = tokenizer(text[start:end], add_special_tokens=False, return_offsets_mapping=True)
            tokens += piece["input_ids"]
            offsets += [(a + start, b + start) for a, b in piece["offset_mapping"]]
        if tokenizer.decode(tokens) != whole:
            raise ModelError(
                "a token of this tokenizer reaches over the beginning of the assistant's message, and the text can't "
                "be encoded in pieces there; end the template's generation prompt with a special token"
            )
    tokens = _single_bos(tokens, tokenizer)
    offsets = offsets[len(offsets) - len(tokens) :]
    owners = []
    for start, end in offsets:
        inside = [number for number, (a, b) in enumerate(spans) if a <= start < b and end > start]
        owners.append(inside[0] if inside else -1)
    return tokens, owners


def _with_ends(
    tokenizer: PreTrainedTokenizerBase, tokens: list[int], owners: list[int], *, last_trained: bool
) -> tuple[IntArray, IntArray]:
    """Let each span end with its end-of-turn token."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = {tokenizer.eos_token_id, *special} - {tokenizer.unk_token_id}
    for number in range(max(owners) + 1):
        mine = [position for position, owner in enumerate(owners) if owner == number]
        last = mine[-1]
        closing = [position for position in mine if tokens[position] in ends]
        rest = str(tokenizer.decode(tokens[closing[-1] + 1 : last + 1])) if closing else ""
        if closing and not rest.strip():
            for position in range(closing[-1] + 1, last + 1):
                owners[position] = -1
        elif last + 1 < len(tokens) and tokens[last + 1] in ends:
            owners[last + 1] = number
        elif last_trained and number == max(owners):
            while tokens and owners[-1] == -1:
                tokens, owners = tokens[:-1], owners[:-1]
            tokens, owners = [*tokens, tokenizer.eos_token_id], [*owners, number]
    index = np.flatnonzero(np.array(owners) >= 0).astype(np.int64)
    return np.array(tokens, dtype=np.int64), index


def _single_bos(tokens: Iterable[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids, bos = list(tokens), tokenizer.bos_token_id
    while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
        ids = ids[1:]
    return ids
