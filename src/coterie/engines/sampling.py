"""Drawing tokens from logits: temperature, then top-k, top-p and min-p, then one inverse-CDF lookup a token.

The order is transformers' own: the logits are divided by the temperature; top-k keeps the k most likely tokens; top-p
keeps the smallest set of most likely tokens whose share of what top-k left is at least p (Holtzman et al. 2020,
arXiv:1904.09751, §3.1); min-p keeps tokens at least `min_p` times as likely as the likeliest (Nguyen et al. 2024,
arXiv:2407.01082, §3). Tokens exactly as likely as the last one kept are kept too, so the result does not depend on how
a sort breaks ties.

A draw is one uniform number u: the token at which the cumulative distribution first exceeds u. The same u gives the
same token whatever else is in the batch, except where u lies within rounding of a boundary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import FloatArray, IntArray, Sampling
from coterie.errors import EngineError

_BLOCK = 256  # tokens whose probabilities are summed before the cumulative sum runs over the sums
_BELOW_ONE = 1.0 - 2.0**-52
_TOP = 1024  # most likely tokens that are sorted before a whole row is


def check_sampling(sampling: Sampling) -> None:
    """Raise `EngineError` for a setting outside its range."""
    heat = sampling.temperature
    rules = (
        ("temperature", heat, heat == 0 or 1e-6 <= heat < math.inf, "0 (greedy) or a number ≥ 1e-6"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "in (0, 1]; 1 keeps all tokens"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "an integer ≥ 0; 0 keeps all tokens"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "in [0, 1]; 0 keeps all tokens"),
        ("max_tokens", sampling.max_tokens, sampling.max_tokens >= 1, "an integer ≥ 1"),
        ("stop", sampling.stop, all(sampling.stop), "strings of at least one character"),
    )
    for name, value, fine, rule in rules:
        if not fine:
            raise EngineError(f"sampling.{name}={value!r}: must be {rule}")


def draws_of(seed: int, count: int) -> FloatArray:
    """float64[count] in [0, 1): number t decides token t of the sample with this 64-bit seed (see `core.keys`)."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


@dataclass(frozen=True, eq=False)
class Drawer:
    """How a batch of rows is drawn, as tensors made once and used until the rows change.

    Attributes:
        scale: [R, 1] reciprocal temperatures, or None when all are 1.
        greedy: [R] rows that take the likeliest token, or None when no row does.
        top_k: [R] counts, 0 for all tokens; None when no row is cut so.
        top_p: [R] masses, 1 for all tokens; None when no row is cut so.
        min_p: [R] shares; None when no row is cut so.
        widest: the largest top_k.
        device: where tokens are drawn.
    """

    scale: Tensor | None
    greedy: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    widest: int
    device: torch.device

    @classmethod
    def of(cls, settings: Sequence[Sampling], device: torch.device) -> Drawer:
        """One setting a row of logits on `device` (Apple's GPUs have no float64: there the CPU draws)."""
        device = torch.device("cpu") if device.type == "mps" else device

        def column(values: list[float], dtype: torch.dtype, neutral: float) -> Tensor | None:
            return None if all(v == neutral for v in values) else torch.tensor(values, dtype=dtype, device=device)

        scale = column([1.0 / s.temperature if s.temperature else 1.0 for s in settings], torch.float32, 1.0)
        cut = [s for s in settings if s.temperature]
        return cls(
            scale=None if scale is None else scale[:, None],
            greedy=column([s.temperature == 0 for s in settings], torch.bool, False),
            top_k=column([s.top_k if s.temperature else 0 for s in settings], torch.int64, 0),
            top_p=column([s.top_p if s.temperature else 1.0 for s in settings], torch.float64, 1.0),
            min_p=column([s.min_p if s.temperature else 0.0 for s in settings], torch.float32, 0.0),
            widest=max((s.top_k for s in cut), default=0),
            device=device,
        )

    def draw(self, logits: Tensor, uniforms: FloatArray, rows: IntArray | None = None) -> tuple[IntArray, FloatArray]:
        """One token a uniform number.

        Args:
            logits: [R, V]; overwritten when it is float32.
            uniforms: float64[B] in [0, 1).
            rows: int64[B], the row of logits each number belongs to; None when B = R and they go in step.

        Returns:
            int64[B] tokens and float64[B] logprobs of the distribution drawn from: after temperature and truncation;
            for greedy rows the whole distribution at temperature 1.

        Raises:
            EngineError: for logits that are NaN or infinite, which give no distribution.
        """
        probs = self.probabilities(logits)
        tokens, logprobs = _inverse_cdf(probs, uniforms, rows, self.greedy)
        if not np.isfinite(logprobs).all():
            raise EngineError("the model gives logits that are not finite (NaN or infinite): its weights have diverged")
        return tokens, logprobs

    def probabilities(self, logits: Tensor) -> Tensor:
        """float32[R, V] probabilities, 0 for tokens cut off; not normalised again after the cut."""
        logits = logits.to(self.device, torch.float32)
        if self.scale is not None:
            logits.mul_(self.scale)
        probs = torch.softmax(logits, dim=-1)
        if self.top_k is not None or self.top_p is not None or self.min_p is not None:
            probs.masked_fill_(probs < self._smallest_kept(probs)[:, None], 0.0)
        return probs

    def _smallest_kept(self, probs: Tensor) -> Tensor:
        """[R] the smallest probability that each row keeps."""
        size = probs.shape[-1]
        limit = torch.zeros(probs.shape[0], dtype=probs.dtype, device=probs.device)
        if self.top_k is not None:
            highest = torch.topk(probs, min(self.widest, size), dim=-1).values
            kth = highest.gather(1, (self.top_k.clamp(1, highest.shape[1]) - 1)[:, None])[:, 0]
            limit = torch.where((self.top_k > 0) & (self.top_k < size), kth, limit)
        if self.top_p is not None:
            limit = self._nucleus(probs, limit, min(size, _TOP) if probs.device.type == "cpu" else size)
        if self.min_p is not None:
            limit = torch.maximum(limit, self.min_p * probs.amax(-1))
        return limit

    def _nucleus(self, probs: Tensor, limit: Tensor, width: int) -> Tensor:
        """`limit` raised to the smallest probability of the nucleus; sorts `width` tokens, then all if too few."""
        assert self.top_p is not None
        kept = probs if self.top_k is None else torch.where(probs >= limit[:, None], probs, 0.0)
        target = self.top_p * kept.sum(-1, dtype=torch.float64)
        highest = torch.topk(kept, width, dim=-1).values
        mass = highest.double().cumsum(-1)
        if width < probs.shape[-1] and bool(((mass[:, -1] < target) & (self.top_p < 1)).any()):
            return self._nucleus(probs, limit, probs.shape[-1])
        last = (mass < target[:, None]).sum(-1).clamp(max=width - 1)
        raised = torch.maximum(limit, highest.gather(1, last[:, None])[:, 0])
        return torch.where(self.top_p < 1, raised, limit)


def _inverse_cdf(
    probs: Tensor, uniforms: FloatArray, rows: IntArray | None, greedy: Tensor | None
) -> tuple[IntArray, FloatArray]:
    """Tokens and logprobs; everything stays on the device until one transfer at the end."""
    device = probs.device
    size = probs.shape[-1]
    whole = size // _BLOCK * _BLOCK
    sums = probs[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1)
    if whole < size:
        sums = torch.cat((sums, probs[:, whole:].sum(-1, keepdim=True)), dim=1)
    index = np.arange(len(uniforms)) if rows is None else rows
    scaled = uniforms * _BELOW_ONE
    if device.type == "cpu":  # the same steps on the same memory: numpy's calls are shorter
        token, share = _look_up(probs.numpy(), sums.numpy(), scaled, index, np.arange(_BLOCK), np.float64)
    else:
        u, where = torch.from_numpy(scaled).to(device), torch.from_numpy(index).to(device)
        token, share = _look_up(probs, sums, u, where, torch.arange(_BLOCK, device=device), torch.float64)
    tokens, shares = torch.as_tensor(token), torch.as_tensor(share)
    if greedy is not None:
        where = torch.from_numpy(index).to(device)
        best, total = probs.max(dim=-1), sums.sum(-1, dtype=torch.float64)
        tokens = torch.where(greedy[where], best.indices[where], tokens)
        shares = torch.where(greedy[where], (best.values / total)[where], shares)
    both = torch.stack((tokens.double(), shares)).cpu().numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        return both[0].astype(np.int64), np.log(both[1])


def _look_up(probs: Any, sums: Any, u: Any, index: Any, offsets: Any, double: Any) -> tuple[Any, Any]:
    """The token of each number and its share of the row's mass; numpy arrays or tensors, all of one kind.

    Blocks first, then inside one block, both in float64. Every sum a number is looked up in is larger than the number,
    so a place of positive probability is found: the numbers are scaled by 1 - 2⁻⁵², which exceeds their own spacing.

    Args:
        probs: [R, V].
        sums: [R, blocks] of probs, the last block may be short.
        u: float64[B] in [0, 1 - 2⁻⁵²).
        index: int64[B], row of each number.
        offsets: 0 … block - 1.
        double: the float64 of arrays of this kind.
    """
    size, every = probs.shape[1], (index * 0 + 1).cumsum(0) - 1
    edges = sums.cumsum(1, dtype=double)[index]
    total = edges[:, -1]
    target = u * total
    block = (edges <= target[:, None]).sum(1)
    share = ((target - edges[every, block]) / sums[index, block] + 1.0).clip(0.0, 1.0)
    columns = block[:, None] * _BLOCK + offsets
    if size % _BLOCK:
        inside = probs[index[:, None], columns.clip(0, size - 1)] * (columns < size)
    else:
        inside = probs.reshape(-1, _BLOCK)[index * (size // _BLOCK) + block]
    steps = inside.cumsum(1, dtype=double)
    place = (steps <= (share * steps[:, -1] * _BELOW_ONE)[:, None]).sum(1)
    return block * _BLOCK + place, inside[every, place] / total
