"""Before step 0: does the reward give the data's own answers about 1, and other examples' answers about 0?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.types import Example, Group, Rollout, Score
from coterie.rewards.border import score_groups

if TYPE_CHECKING:
    from coterie.core.protocols import Context, RewardFn

EncodeReference = Callable[[Example, Any], "str | Rollout"]


@dataclass(frozen=True)
class SmokeReport:
    """What the smoke test saw.

    Attributes:
        own: mean reward of the examples' own references (NaN when there is none).
        shuffled: mean reward of other examples' references.
        missing: share of missing scores in both.
        tested: examples used.
        skipped: examples without a reference.
        ok: own references score high, others low, and nothing is missing.
        diagnosis: plain-language lines: what is wrong and where to look, or that all is well.
    """

    own: float
    shuffled: float
    missing: float
    tested: int
    skipped: int
    ok: bool
    diagnosis: tuple[str, ...]


async def smoke_test(
    examples: Sequence[Example],
    reward: RewardFn,
    context: Context,
    encode_reference: EncodeReference | None = None,
    *,
    high: float = 0.9,
    low: float = 0.3,
) -> SmokeReport:
    """Score references as if a model had written them.

    Args:
        examples: rows of the data.
        reward: the run's reward.
        context: as in training.
        encode_reference: makes a response (text, or a whole rollout for rewards that read tokens) that states a
            reference. Default: the reward's own `reference_response(example, reference)`, else the reference as text.
        high: own references should score at least this, on average, as a share of the largest reward seen.
        low: other references should score at most this share.
    """
    known = [e for e in examples if e.reference is not None]
    skipped = len(examples) - len(known)
    if not known:
        note = f"no example has a reference ({skipped} looked at), so the reward can't be tested against the data"
        return SmokeReport(math.nan, math.nan, 0.0, 0, skipped, True, (note,))
    encode = encode_reference or getattr(reward, "reference_response", None) or _as_text
    own = [Group(e, (_rollout(encode(e, e.reference), 0),)) for e in known]
    others = [Group(e, (_rollout(encode(e, other), 0),)) for e, other in _other_references(known)]
    scored, _ = await score_groups([*own, *others], reward, context, max_missing_rate=1.0)
    scores = [g.rollouts[0].scores["reward"] for g in scored]
    return _report(known, scores[: len(own)], scores[len(own) :], skipped, high, low)


def _other_references(examples: Sequence[Example]) -> list[tuple[Example, Any]]:
    """Each example with the next example's reference that reads differently; examples without one are left out."""
    pairs = []
    for i, example in enumerate(examples):
        rest = [*examples[i + 1 :], *examples[:i]]
        other = next((o.reference for o in rest if _end(o.reference) != _end(example.reference)), None)
        if other is not None:
            pairs.append((example, other))
    return pairs


def _end(reference: Any) -> str:
    """The last line of a reference, where worked solutions state their answer."""
    return str(reference).strip().rsplit("\n", 1)[-1].strip()


def _as_text(example: Example, reference: Any) -> str:
    return str(reference)


def _rollout(response: str | Rollout, index: int) -> Rollout:
    if isinstance(response, Rollout):
        return response
    empty = np.zeros(0, dtype=np.int64)
    return Rollout(empty, empty, response, "stop", index)


def _report(
    examples: Sequence[Example], own: list[Score], others: list[Score], skipped: int, high: float, low: float
) -> SmokeReport:
    own_values = [s.value for s in own if s.value is not None]
    other_values = [s.value for s in others if s.value is not None]
    missing = [s.reason for s in [*own, *others] if s.value is None]
    own_mean = float(np.mean(own_values)) if own_values else math.nan
    other_mean = float(np.mean(other_values)) if other_values else math.nan
    best, worst = max([*own_values, *other_values], default=1.0), min([*own_values, *other_values, 0.0])
    span = best - worst or 1.0
    lines = []
    if missing:
        reason, count = Counter(missing).most_common(1)[0]
        lines.append(
            f"{len(missing)} of {len(own) + len(others)} scores are missing, most often: {reason} ({count} times)"
        )
    if own_values and (best <= worst or (own_mean - worst) / span < high):
        failed = [
            (e, s)
            for e, s in zip(examples, own, strict=True)
            if s.value is not None and (s.value < best or best <= worst)
        ]
        lines.append(_low_line(own_mean, failed))
    if other_values and best > worst and (other_mean - worst) / span > low:
        lines.append(
            f"other examples' references score {other_mean:.2f} on average: the reward hardly tells answers apart. "
            "Check that it compares with the example's own reference, and whether the data has few different answers "
            "(yes/no, letters)"
        )
    ok = not lines
    if ok:
        lines.append(f"own references score {own_mean:.2f}, other examples' references {other_mean:.2f}")
    total = len(own) + len(others)
    return SmokeReport(own_mean, other_mean, len(missing) / total, len(examples), skipped, ok, tuple(lines))


def _low_line(mean: float, failed: Sequence[tuple[Example, Score]]) -> str:
    line = (
        f"the data's own references score only {mean:.2f} on average: the reward can't read them, or expects another "
        "format. Check data.reference_key and the reward's format"
    )
    if failed:
        example, score = failed[0]
        shown = " ".join(str(example.reference).split())[-80:]
        seen = score.info.get("extracted")
        line += (
            f"; first: example {example.id!r}, reference …{shown!r}, score {score.value} ({score.reason or 'no reason'}"
        )
        line += f", read as {seen!r})" if seen is not None else ")"
    return line
