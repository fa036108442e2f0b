"""What a policy loss reports: per-token tensors become mergeable statistics with one copy to the host."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.core.metrics import Stat, maximum, mean, minimum


def means(values: Mapping[str, Tensor]) -> dict[str, Stat]:
    """Mean of each tensor, mergeable over micro-batches by its number of entries."""
    if not values:
        return {}
    sums = _host(torch.stack([_float(v).sum() for v in values.values()]))
    return {name: mean(total, v.numel()) for (name, v), total in zip(values.items(), sums, strict=True)}


def maxima(values: Mapping[str, Tensor]) -> dict[str, Stat]:
    """Maximum of each non-empty tensor."""
    return _extremes(values, largest=True)


def minima(values: Mapping[str, Tensor]) -> dict[str, Stat]:
    """Minimum of each non-empty tensor."""
    return _extremes(values, largest=False)


def _extremes(values: Mapping[str, Tensor], largest: bool) -> dict[str, Stat]:
    filled = {name: v for name, v in values.items() if v.numel()}
    if not filled:
        return {}
    found = _host(torch.stack([_float(v).max() if largest else _float(v).min() for v in filled.values()]))
    make = maximum if largest else minimum
    return {name: make(value) for name, value in zip(filled, found, strict=True)}


def _float(values: Tensor) -> Tensor:
    """Detached, double where the device has it."""
    return values.detach().to(torch.float32 if values.device.type == "mps" else torch.float64)


def _host(values: Tensor) -> list[float]:
    return [float(v) for v in values.tolist()]
