"""Means and deviations of scores and advantages on the host, in float64.

A score that is missing is NaN: it enters no statistic and its result is 0. A set of equal scores is constant by
comparison (`max == min`), never by a rounded deviation, and its result is exactly 0.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

Floor = Literal["variance", "std", "clamp"]


def present(scores: Float[np.ndarray, "G"]) -> Bool[np.ndarray, "G"]:
    """Which scores are there (not NaN).

    Raises:
        ValueError: for an infinite score.
    """
    if np.any(np.isinf(scores)):
        raise ValueError(f"a score is a finite number or NaN (missing), not {scores[np.isinf(scores)][0]}")
    here: Bool[np.ndarray, "G"] = ~np.isnan(scores)
    return here


def is_constant(scores: Float[np.ndarray, "G"]) -> bool:
    """Whether the scores that are there are all equal; true for one score and for none."""
    values = scores[present(scores)]
    return values.size == 0 or bool(values.max() == values.min())


def centre(scores: Float[np.ndarray, "G"], leave_one_out: bool = False) -> Float[np.ndarray, "G"]:
    """Scores minus their mean, or minus the mean of the others; 0 where missing and for a constant set."""
    out = np.zeros(len(scores))
    if is_constant(scores):
        return out
    here = present(scores)
    values = scores[here]
    out[here] = values - values.mean()
    if leave_one_out:
        out *= values.size / (values.size - 1)
    return out


def deviation(scores: Float[np.ndarray, "G"], ddof: int = 1) -> float:
    """Standard deviation of the scores that are there; 0 for a constant set, one score or none."""
    if is_constant(scores):
        return 0.0
    return float(scores[present(scores)].std(ddof=ddof))


def deviation_of_others(scores: Float[np.ndarray, "G"], ddof: int = 1) -> Float[np.ndarray, "G"]:
    """For each score the standard deviation of the other ones; 0 where they are constant or at most one."""
    out = np.zeros(len(scores))
    for i in np.flatnonzero(present(scores)):
        out[i] = deviation(np.delete(scores, i), ddof)
    return out


def inverse_scale(variance: float, eps: float, floor: Floor) -> float:
    """What whitening multiplies by.

    "variance": `1 / sqrt(variance + eps)`; "std": `1 / (sqrt(variance) + eps)`; "clamp":
    `1 / sqrt(max(variance, eps))`.
    """
    if floor == "variance":
        return float(1.0 / np.sqrt(variance + eps))
    if floor == "std":
        return float(1.0 / (np.sqrt(variance) + eps))
    return float(1.0 / np.sqrt(max(variance, eps)))


def whitening(
    values: Float[np.ndarray, "N"],
    *,
    ddof: int = 1,
    eps: float = 1e-8,
    floor: Floor = "variance",
    center: bool = True,
    scale: bool = True,
) -> tuple[float, float]:
    """`(shift, factor)` that whiten these values as `(values - shift) * factor`.

    Constant values (one among them, or none) have no deviation: factor 1, and their value as the shift.
    """
    if values.size == 0:
        return 0.0, 1.0
    if values.max() == values.min():
        return (float(values[0]) if center else 0.0), 1.0
    mean = float(values.mean())
    variance = float(np.square(values - mean).sum() / (values.size - ddof))
    return (mean if center else 0.0), (inverse_scale(variance, eps, floor) if scale else 1.0)


def whiten(
    values: Float[np.ndarray, "N"],
    *,
    ddof: int = 1,
    eps: float = 1e-8,
    floor: Floor = "variance",
    center: bool = True,
    scale: bool = True,
) -> Float[np.ndarray, "N"]:
    """Values minus their mean, over their deviation (`inverse_scale` says where eps goes); constant values become 0."""
    shift, factor = whitening(values, ddof=ddof, eps=eps, floor=floor, center=center, scale=scale)
    return (values - shift) * factor
