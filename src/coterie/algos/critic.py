"""The critic's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.algos.aggregate import Aggregation, check_aggregation, token_weights
from coterie.algos.checks import Overrides, require, require_choices
from coterie.algos.loss_metrics import means
from coterie.core.batch import Batch, Outputs
from coterie.core.protocols import LossOutput


def value_loss(
    values: Float[Tensor, "A"],
    old_values: Float[Tensor, "A"],
    returns: Float[Tensor, "A"],
    clip: float = 0.5,
    huber: float = 0.0,
) -> Float[Tensor, "A"]:
    """Clipped value loss, max(f(V - G), f(clip(V, V_old ± clip) - G)), one an action token.

    f(x) = x^2 / 2, or Huber's with threshold `huber` > 0. `clip` = 0 means none. Gradient flows into `values` only.
    """
    returns, old_values = returns.detach(), old_values.detach()
    losses = _penalty(values - returns, huber)
    if clip > 0:
        clipped = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        losses = torch.maximum(losses, _penalty(clipped - returns, huber))
    return losses


@dataclass(frozen=True)
class ValueLoss:
    """PPO's value loss: squared error to the returns, pessimistic about moves beyond the clip range.

    Equation: `loss_t = max((V - G)^2, (clip(V, V_old - clip, V_old + clip) - G)^2) / 2`.

    Paper: PPO's reference implementation (arXiv 1707.06347, eq. 9, with the clip of OpenAI baselines).

    Differences: clip is 0.5 in verl and NeMo-RL, 0.2 in OpenRLHF and SkyRL; AReaL also has Huber's loss.

    Degenerate cases: before the first critic update V = V_old and the clip has no effect.

    Attributes:
        clip: how far a value may move from the old one with profit; 0 for no clip.
        huber: threshold of Huber's loss; 0 for the squared error.
        aggregate: denominator, as in the policy losses.
        fixed_length: tokens a sequence is divided by with aggregate=fixed_length; 0 otherwise.
    """

    paper: ClassVar[str] = "1707.06347 eq. 9"
    conventions: ClassVar[Overrides] = {
        "verl": {"clip": 0.5},
        "openrlhf": {"clip": 0.2},
        "areal": {"huber": 10.0},
    }
    needs: ClassVar[frozenset[str]] = frozenset({"values", "returns"})
    wants: ClassVar[frozenset[str]] = frozenset({"values"})

    clip: float = 0.5
    huber: float = 0.0
    aggregate: Aggregation = "token_mean"
    fixed_length: int = 0

    def __post_init__(self) -> None:
        require_choices(self)
        check_aggregation(self.aggregate, self.fixed_length)
        require(self, "clip", self.clip >= 0, "must be >= 0")
        require(self, "huber", self.huber >= 0, "must be >= 0")

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        if outputs.values is None:
            raise ValueError("the value loss needs the critic's values in the outputs")
        values, old, returns = outputs.values, batch.streams["values"], batch.streams["returns"]
        losses = value_loss(values, old, returns, self.clip, self.huber)
        weights = token_weights(batch, self.aggregate, self.fixed_length).to(losses.dtype)
        residual = (returns - values).detach()
        clipped = losses > _penalty(values - returns, self.huber)
        shown = {
            "critic/value_mean": values,
            "critic/return_mean": returns,
            "critic/error_square_mean": residual.square(),
            "critic/error_mean": residual,
            "critic/return_square_mean": returns.square(),
            "critic/clip_frac": clipped,
        }
        return LossOutput((losses * weights).sum(), means(shown))


def explained_variance(values: dict[str, float]) -> float:
    """1 - var(G - V) / var(G) from merged metrics of `ValueLoss`; NaN where returns vary by rounding alone or not."""
    square = values["critic/return_square_mean"]
    variance = square - values["critic/return_mean"] ** 2
    residual = values["critic/error_square_mean"] - values["critic/error_mean"] ** 2
    return 1.0 - residual / variance if variance > 1e-12 * square else float("nan")


def _penalty(error: Float[Tensor, "A"], huber: float) -> Float[Tensor, "A"]:
    if huber <= 0:
        return error.square() / 2
    size = error.abs()
    return torch.where(size <= huber, error.square() / 2, huber * (size - huber / 2))
