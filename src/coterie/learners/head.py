"""LM head and log-softmax over action tokens, a chunk of positions at a time.

A `[tokens, vocabulary]` tensor never exists, forward or backward: logits live for `chunk` positions at most. The
backward pass recomputes the logits of every chunk but the last one, which it finds where the forward pass left it, so
a micro-batch whose action tokens fit into one chunk computes its logits once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from coterie.errors import ModelError

_BLOCK_ELEMENTS = 1 << 20  # logits handled at a time by elementwise work: small enough to stay in the cache


@dataclass(frozen=True)
class LogitMap:
    """What a model does to `hidden @ weight.T` before the softmax, the sampling temperature included.

    Attributes:
        scale: multiplies the product (Cohere's `logit_scale`, Granite's 1 / `logits_scaling`…).
        softcap: logits become `softcap * tanh(logits / softcap)` (Gemma 2); None for no cap.
        temperature: divides the logits at last.
    """

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, config: Any, temperature: float = 1.0) -> LogitMap:
        """What a transformers configuration says; `logprobs.check_head` compares it with the model itself."""
        text = config.get_text_config()
        scale = float(getattr(text, "logit_scale", None) or 1.0)
        scale /= float(getattr(text, "logits_scaling", None) or 1.0)
        scale *= float(getattr(text, "lm_head_multiplier", None) or 1.0)
        softcap = getattr(text, "final_logit_softcapping", None)
        return cls(scale, float(softcap) if softcap else None, temperature)

    @property
    def factor(self) -> float:
        """Multiplies the hidden states; without a cap it holds the temperature as well."""
        return self.scale if self.softcap else self.scale / self.temperature


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """Per action token, fp32 (fp64 for fp64 input), with gradient: A entries each; None where not asked for."""

    logprobs: Float[Tensor, "A"]
    entropy: Float[Tensor, "A"] | None = None
    sum_probs_squared: Float[Tensor, "A"] | None = None


def head_of(module: PreTrainedModel) -> tuple[Tensor, Tensor | None]:
    """Weight [V, H] and bias [V] of a causal LM's output layer.

    Raises:
        ModelError: when the model has no linear output layer.
    """
    layer = module.get_output_embeddings()
    if layer is None or not isinstance(getattr(layer, "weight", None), Tensor) or layer.weight.ndim != 2:
        raise ModelError(
            f"{type(module).__name__} has no linear output layer (get_output_embeddings), so it can't be trained "
            "as a policy; use a causal language model"
        )
    return layer.weight, getattr(layer, "bias", None)


def action_logprobs(
    hidden: Float[Tensor, "A H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "A"],
    *,
    logits: LogitMap,
    chunk: int,
    wants: frozenset[str] = frozenset(),
) -> HeadOutputs:
    """Log-probability (nats) of each target, and on demand "entropy" and "sum_probs_squared", all with exact gradients.

    The matrix products run in `hidden`'s dtype, everything else in fp32.
    """
    entropy, squares = "entropy" in wants, "sum_probs_squared" in wants
    spec = _Spec(logits, max(1, chunk), entropy, squares)
    logprobs, h, s = _ChunkedHead.apply(hidden, weight, bias, targets, spec)
    return HeadOutputs(logprobs, h if entropy else None, s if squares else None)


@dataclass(frozen=True)
class _Spec:
    logits: LogitMap
    chunk: int
    entropy: bool
    squares: bool


class _ChunkedHead(torch.autograd.Function):
    """Outputs: log p(target), entropy, sum of squared probabilities.

    With z the logits after scale, cap and temperature, p = softmax(z), H the entropy, S the sum of squares:
    d log p_target / dz = onehot - p;  dH / dz = -p (log p + H);  dS / dz = 2 p (p - S).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, spec: _Spec
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        scaled = hidden * spec.logits.factor if spec.logits.factor != 1.0 else hidden
        matrix = weight.to(hidden.dtype)
        accumulate = torch.promote_types(hidden.dtype, torch.float32)
        count = len(targets)
        logprobs = hidden.new_empty(count, dtype=accumulate)
        log_total = torch.empty_like(logprobs)
        entropy = torch.empty_like(logprobs) if spec.entropy else None
        squares = torch.empty_like(logprobs) if spec.squares else None
        chunks = _chunks(count, spec.chunk)
        buffer = hidden.new_empty(chunks[0][1], len(weight), dtype=accumulate)
        for start, stop in chunks:
            z = _logits(scaled[start:stop], matrix, bias, spec.logits, buffer)
            for low, high in _blocks(z):
                block, at = z[low:high], slice(start + low, start + high)
                peak = block.amax(1)
                p = torch.softmax(block, 1)
                # log(sum exp z) = max z - log(max p): one vectorised softmax instead of a slow exp and sum.
                log_total[at] = peak - p.amax(1).log()
                logprobs[at] = block.gather(1, targets[at, None])[:, 0] - log_total[at]
                if entropy is not None:
                    entropy[at] = log_total[at] - torch.linalg.vecdot(p, block)
                if squares is not None:
                    squares[at] = torch.linalg.vecdot(p, p)
        ctx.spec, ctx.buffer = spec, buffer  # its first rows hold the logits of the last chunk
        ctx.save_for_backward(hidden, weight, bias, targets, log_total, entropy, squares)
        ctx.set_materialize_grads(False)
        return logprobs, entropy, squares

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, grad_squares: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_total, entropy, squares = ctx.saved_tensors
        spec: _Spec = ctx.spec
        buffer, ctx.buffer = ctx.buffer, None
        if buffer is None:
            raise RuntimeError("the backward pass of action_logprobs ran twice; it keeps its logits for one")
        factor = spec.logits.factor
        scaled = hidden * factor if factor != 1.0 else hidden
        matrix = weight.to(hidden.dtype)
        count = len(targets)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for start, stop in reversed(_chunks(count, spec.chunk)):
            at = slice(start, stop)
            z = buffer[: stop - start]
            if stop < count:
                _logits(scaled[at], matrix, bias, spec.logits, buffer)
            _logits_to_gradient(
                z,
                targets[at],
                spec.logits,
                None if grad_logprobs is None else grad_logprobs[at],
                None if grad_entropy is None else (grad_entropy[at], entropy[at], log_total[at]),
                None if grad_squares is None else (grad_squares[at], squares[at]),
            )
            if grad_bias is not None:
                grad_bias += z.sum(0) * factor
            gradient = z.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(gradient, matrix, out=grad_hidden[at])
            if ctx.needs_input_grad[1]:
                if grad_weight is None:
                    grad_weight = torch.mm(gradient.T, scaled[at]).to(weight.dtype)
                elif weight.dtype == hidden.dtype:
                    grad_weight.addmm_(gradient.T, scaled[at])
                else:
                    grad_weight += torch.mm(gradient.T, scaled[at])
        if grad_hidden is not None and factor != 1.0:
            grad_hidden *= factor
        return grad_hidden, grad_weight, grad_bias, None, None


def _logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None, spec: LogitMap, buffer: Tensor) -> Tensor:
    """Logits [n, V] after scale (already in `hidden`), bias, cap and temperature: the first n rows of `buffer`."""
    z = buffer[: len(hidden)]
    if hidden.dtype == z.dtype:
        torch.mm(hidden, matrix.T, out=z)
    else:
        z.copy_(torch.mm(hidden, matrix.T))
    if bias is not None:
        z += bias.to(z.dtype) * spec.factor
    if spec.softcap:
        for low, high in _blocks(z):
            z[low:high].div_(spec.softcap).tanh_().mul_(spec.softcap / spec.temperature)
    return z


def _logits_to_gradient(
    z: Tensor,
    targets: Tensor,
    spec: LogitMap,
    grad_logprobs: Tensor | None,
    grad_entropy: tuple[Tensor, Tensor, Tensor] | None,
    grad_squares: tuple[Tensor, Tensor] | None,
) -> None:
    """Overwrite logits [n, V] with the gradient of the loss with respect to the uncapped, scaled logits."""
    for low, high in _blocks(z):
        block = z[low:high]
        cap_slope = None
        if spec.softcap:  # d(cap * tanh(u / cap) / T) / du, with tanh read back from the capped logits
            cap_slope = (1 - (block * (spec.temperature / spec.softcap)) ** 2) / spec.temperature
        p = torch.softmax(block, 1)
        if grad_entropy is None:
            block.zero_() if grad_logprobs is None else torch.mul(p, -grad_logprobs[low:high, None], out=block)
        else:
            upstream, entropy, log_total = (t[low:high, None] for t in grad_entropy)
            block.sub_(log_total - entropy).mul_(-upstream)
            if grad_logprobs is not None:
                block.sub_(grad_logprobs[low:high, None])
            block.mul_(p)
        if grad_squares is not None:
            upstream, squares = (t[low:high, None] for t in grad_squares)
            block.addcmul_(p, (p - squares).mul_(2 * upstream))
        if grad_logprobs is not None:
            block.scatter_add_(1, targets[low:high, None], grad_logprobs[low:high, None])
        if cap_slope is not None:
            block.mul_(cap_slope)


def _chunks(count: int, chunk: int) -> list[tuple[int, int]]:
    """Ranges of at most `chunk` that cover `count`, the first ones longer by at most one."""
    pieces = max(1, -(-count // chunk))
    size, longer = divmod(count, pieces)
    ends = [(i + 1) * size + min(i + 1, longer) for i in range(pieces)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _blocks(z: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of rows that hold about `_BLOCK_ELEMENTS` logits; the whole tensor on a GPU, where launches cost more."""
    rows = len(z) if z.device.type == "cuda" else max(1, _BLOCK_ELEMENTS // max(1, z.shape[-1]))
    for low in range(0, len(z), max(1, rows)):
        yield low, min(low + rows, len(z))
