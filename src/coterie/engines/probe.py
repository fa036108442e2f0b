"""What a model is to the embedded engine: whether its cache is plain, and what a token costs in it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.engines.attention import NAME, PromptAttention, RowAttention, Run, length_mask
from coterie.engines.borrow import borrowed
from coterie.engines.continuous import forward
from coterie.engines.kv_cache import NotPlainError, Segment, SlotCache, Step
from coterie.errors import EngineError

_TOLERANCE = {True: 1e-3, False: 0.1}  # of the logits' standard deviation, by whether the cache is float32
_PLAIN = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class Nature:
    """What was found out about a model.

    Attributes:
        refusal: why its rows can't live in plain slots; empty when they can.
        window: tokens of its sliding window, which is plain as long as no row outgrows it; 0 for none.
        bytes_per_token: of keys and values of all layers; 0 when its cache holds neither.
    """

    refusal: str
    window: int
    bytes_per_token: int


def probe(module: Any, device: torch.device, dtype: torch.dtype | None) -> Nature:
    """Run six tokens through the model both ways and compare.

    Raises:
        EngineError: for a model that is no causal language model with a cache.
    """
    accepted = inspect.signature(module.forward).parameters
    headless = module.get_output_embeddings() is None
    if headless or "past_key_values" not in accepted or getattr(module.config, "is_encoder_decoder", False):
        raise EngineError(
            f"{type(module).__name__} is not a decoder-only language model with a key-value cache; "
            "the embedded engine samples from no other"
        )
    config = module.config.get_text_config()
    ids = [i % config.vocab_size for i in range(1, 7)]
    with borrowed(module, None, dtype):
        tokens = torch.tensor([ids], device=device)
        output = module(input_ids=tokens, use_cache=True)
    size = _cache_bytes(output.past_key_values) // len(ids)
    window = _window(config)
    refusal = _structure(module)
    if not refusal:
        try:
            with borrowed(module, NAME, dtype):
                refusal = _compare(module, ids, output.logits[0].float(), device)
        except NotPlainError as e:
            refusal = str(e)
    return Nature(refusal, window, size)


def _structure(module: Any) -> str:
    """Why the model can't be plain by its own description; empty if nothing speaks against it."""
    config = module.config.get_text_config()
    if not getattr(module, "_supports_attention_backend", False) or not getattr(module, "_supports_sdpa", False):
        return "its attention can't be replaced by sdpa"
    other = set(getattr(config, "layer_types", None) or ()) - _PLAIN
    return f"it has layers of type {', '.join(sorted(other))}" if other else ""


def _window(config: Any) -> int:
    """Smallest span that a layer sees; 0 when all see everything."""
    types = getattr(config, "layer_types", None)
    slides = "sliding_attention" in types if types else True
    return int(getattr(config, "sliding_window", None) or 0) if slides else 0


def _cache_bytes(cache: Any) -> int:
    tensors = [
        t
        for layer in getattr(cache, "layers", ())
        for t in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if isinstance(t, Tensor)
    ]
    return sum(t.numel() * t.element_size() for t in tensors)


def _compare(module: Any, ids: list[int], expected: Tensor, device: torch.device) -> str:
    """Two packed prompts and a step after each must give the logits of the plain forward pass, `expected` [6, V]."""
    cache = SlotCache()
    cache.rows.reserve(2, len(ids), len(ids))
    segments = (Segment(0, 3, (0,)), Segment(3, 5, (1,)))
    cache.begin(Step(segments=segments))
    packed = torch.tensor([ids[:3] + ids[:2]], device=device)
    places = torch.tensor([[0, 1, 2, 0, 1]], device=device)
    last = torch.tensor([2, 4], device=device)
    plan = PromptAttention(segments)
    first = forward(module, cache, packed, places, plan, last)[0]
    positions = torch.tensor([3, 2], device=device)
    cache.begin(Step(positions=positions))
    mask = length_mask(positions + 1, 4, cache.rows.dtype)
    column = torch.tensor([[ids[3]], [ids[2]]], device=device)
    step = RowAttention(cache, [Run(0, 2, 4)], [mask])
    second = forward(module, cache, column, positions[:, None], step, 1)[:, 0]
    got = torch.cat((first, second)).float()
    wanted = expected[[2, 1, 3, 2]]
    tolerance = _TOLERANCE[cache.rows.dtype == torch.float32]
    error = float((got - wanted).abs().max() / wanted.std().clamp(min=1e-6))
    if error <= tolerance:
        return ""
    return f"its logits differ by {error:.2g} of their spread when prompts are packed"
