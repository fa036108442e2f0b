"""When a completion ends: end-of-sequence ids and stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_HALF = "\ufffd"  # how a decoder writes bytes that do not make a whole character yet
_PATIENCE = 16  # tokens after which bytes that still make no character are taken as they are


def eos_ids(module: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a sequence: of the generation config, else of the model config, and of the tokenizer."""
    found: set[int] = set()
    generation = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    model = getattr(module.config, "eos_token_id", None)
    for value in (generation if generation is not None else model, getattr(tokenizer, "eos_token_id", None)):
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, Iterable):
            found.update(int(v) for v in value)
    return frozenset(found)


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first stop string in it, and whether there is one."""
    places = [place for s in stop if (place := text.find(s)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


class StopWatch:
    """Finds a stop string in a growing list of tokens, decoding only the newest few each time.

    A token's text depends on its neighbours (spaces, bytes of one character), so a window of tokens is decoded with and
    without the new ones and the difference is what they add; it waits while a character is incomplete.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._reach = max(len(s) for s in stop) - 1
        self._start = 0  # first token of the window
        self._read = 0  # tokens whose text is in the tail
        self._tail = ""

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether the text of `tokens`, one or more longer than at the last call, now holds a stop string."""
        old = self._decode(tokens[self._start : self._read])
        new = self._decode(tokens[self._start :])
        added = new[len(old) :]
        waits = not added or added.endswith(_HALF)
        if waits and len(tokens) - self._read < _PATIENCE:
            return any(s in self._tail + added.rstrip(_HALF) for s in self._stop)
        self._start, self._read = self._read, len(tokens)
        seen = self._tail + added
        self._tail = seen[-self._reach :] if self._reach else ""
        return any(s in seen for s in self._stop)

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
