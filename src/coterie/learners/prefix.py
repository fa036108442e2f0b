"""Which sequences share a prompt that is computed once, and which models can't be packed at all.

With a shared prompt the packed row reads `[prompt][response 1][response 2]…`; each response attends to the prompt's
keys and to its own, and its positions go on where the prompt ends. Outputs and gradients are those of the plain
layout: the prompt's keys and values collect the gradient of all responses in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from coterie.config.schema import LocalLearnerConfig
from coterie.core.batch import Batch
from coterie.errors import ConfigError


def shared_prefixes(batch: Batch, needed: Sequence[int], share: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`(shared, prefix)` of `packing.Plan`: sequences of one group whose leading tokens are really the same.

    `batch.prefix_length` is trusted as an upper bound only; the tokens themselves are compared. A prefix that only one
    sequence has is not split off.
    """
    count = batch.num_sequences
    if not share:
        return tuple(range(count)), (0,) * count
    tokens, starts = batch.tokens.tolist(), batch.cu_seqlens.tolist()
    keys: list[tuple[Any, ...]] = []
    for s, (group, declared) in enumerate(zip(batch.group_id.tolist(), batch.prefix_length.tolist(), strict=True)):
        prefix = min(declared, needed[s])
        keys.append((group, *tokens[starts[s] : starts[s] + prefix]) if prefix else (group, "alone", s))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    members = [numbers[key] for key, n in zip(keys, needed, strict=True) if n]
    prefix = [
        len(key) - 1 if n and members.count(numbers[key]) > 1 and key[1] != "alone" else 0
        for key, n in zip(keys, needed, strict=True)
    ]
    return tuple(numbers[key] for key in keys), tuple(prefix)


def packing_obstacle(module: PreTrainedModel, config: LocalLearnerConfig) -> str | None:
    """Why this model can't be fed packed rows, or None; `logprobs.Forward` also tries it on a few tokens."""
    name = type(module).__name__
    if config.compile:
        return "torch.compile would compile every packed layout anew (learner.compile=true)"
    if config.attention not in ("auto", "sdpa"):
        return f"learner.attention={config.attention} is not the packed attention (auto or sdpa)"
    if not getattr(module, "_supports_attention_backend", False):
        return f"{name} doesn't take its attention function from transformers' AttentionInterface"
    text: Any = module.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return f"{name} has layers of another kind than full attention: {', '.join(sorted(kinds - {'full_attention'}))}"
    if not kinds and getattr(text, "sliding_window", None):
        return f"{name} attends through a sliding window of {text.sliding_window} tokens"
    return None


def check_sharing(obstacle: str | None, config: LocalLearnerConfig) -> None:
    """Refuse `learner.share_prefix=true` where it can't be exact.

    Raises:
        ConfigError: with the reason and the remedy.
    """
    if not config.share_prefix:
        return
    if config.gradient_checkpointing:
        obstacle = (
            "with learner.gradient_checkpointing=true every layer of the shared prompt would be recomputed for all its "
            "responses in one piece, which undoes the saving; use one of the two"
        )
    if obstacle:
        raise ConfigError(f"learner.share_prefix=true can't be had: {obstacle}. Set learner.share_prefix=false")
