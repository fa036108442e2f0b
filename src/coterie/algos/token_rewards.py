"""Rewards a token: how an outcome score and dense rewards become one array an action token.

Score `s` of a rollout has token rewards in stream `s_tokens`, where somebody wrote one (KL in the reward, an
environment that pays by step); they sum to the score. Without that stream the score stands at the last action token.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from coterie.algos.checks import stream_of
from coterie.core.types import FloatArray, IntArray, Rollout, Score


def tokens_name(score: str) -> str:
    """Name of the stream that holds the token rewards of `score`."""
    return f"{score}_tokens"


def token_rewards(rollout: Rollout, score: str) -> FloatArray | None:
    """float64[A] rewards that sum to the score, or None when the score is missing."""
    value = rollout.scores[score].value if score in rollout.scores else None
    if value is None:
        return None
    if tokens_name(score) in rollout.streams:
        return stream_of(rollout, tokens_name(score))
    rewards = np.zeros(rollout.num_actions)
    if rollout.num_actions:
        rewards[-1] = value
    return rewards


def reshaped(rollout: Rollout, score: str, value: float, note: str, **info: float) -> Rollout:
    """A copy whose score has another value; the first value is kept as score `<score>_unshaped`.

    Where token rewards exist, the difference is paid at the last action token, so that they still sum to the score.
    """
    before = rollout.scores[score]
    if before.value is None:
        return rollout
    scores = {f"{score}_unshaped": before, **rollout.scores}
    scores[score] = Score(value, note, {**before.info, **info})
    streams = dict(rollout.streams)
    if tokens_name(score) in streams and rollout.num_actions:
        paid = streams[tokens_name(score)].copy()
        paid[-1] += value - before.value
        streams[tokens_name(score)] = paid
    return replace(rollout, scores=scores, streams=streams)


def turn_starts(rollout: Rollout) -> IntArray:
    """Index of the first action token of each turn: a turn is a run of neighbouring action tokens."""
    if not rollout.num_actions:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(rollout.action_index) > 1) + 1]).astype(np.int64)


def returns_to_go(rewards: Float[np.ndarray, "A"], gamma: float = 1.0) -> Float[np.ndarray, "A"]:
    """`G_t = r_t + gamma G_{t+1}`, in log2(A) passes: after pass k, entry t holds the discounted sum of 2^k rewards."""
    out = np.array(rewards, dtype=np.float64)
    reach, weight = 1, gamma
    while reach < len(out) and weight != 0.0:
        out[:-reach] += weight * out[reach:]
        reach, weight = 2 * reach, weight * weight
    return out
