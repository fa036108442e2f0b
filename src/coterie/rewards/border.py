"""The border of rewards: what raises, hangs or returns nonsense becomes a missing score with a reason, and is counted.

One of the two places where `except Exception` stands (DESIGN §6).
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from coterie.core.metrics import Metrics, Stat, gauge, mean, total
from coterie.core.types import Group, Score
from coterie.errors import RewardError, UserError

if TYPE_CHECKING:
    from coterie.core.protocols import Context, RewardFn

T = TypeVar("T")

MAIN = "reward"
_SLUG = re.compile(r"[^a-z0-9]+")


async def attempt(work: Awaitable[T], deadline_s: float | None = None) -> tuple[T | None, str]:
    """`(result, "")`, or `(None, reason)` when the work raises or is not done after `deadline_s` seconds.

    Raises:
        UserError: a mistake of the user's settings is no outage and passes through.
    """
    try:
        return await asyncio.wait_for(work, deadline_s), ""
    except UserError:
        raise
    except TimeoutError as error:
        limit = "" if deadline_s is None else f"no score within {deadline_s:g} s"
        return None, f"timeout: {limit or error}"
    except Exception as error:  # noqa: BLE001 - the border: a failed reward becomes a status
        return None, describe(error)


def describe(error: BaseException) -> str:
    """`ValueError: message (file.py:12)`: the line is the last one outside of installed packages, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "/coterie/" not in f.filename] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{where}"


async def score_groups(
    groups: Sequence[Group],
    reward: RewardFn,
    context: Context,
    *,
    concurrency: int = 8,
    max_missing_rate: float = 0.1,
) -> tuple[list[Group], Metrics]:
    """Score every group; the result and its metrics do not depend on which group finishes first.

    Args:
        groups: rollouts to score.
        reward: adds the score "reward" (and others).
        context: step, seed, split and resources.
        concurrency: groups whose rewards are computed at one time; debug mode takes them one after the other.
        max_missing_rate: share of rollouts with a missing "reward" above which scoring fails.

    Returns:
        The groups in the given order, and metrics: `reward/<name>`, `reward/<name>/std`, `reward/<name>/<key>` for
        numbers in `Score.info`, `reward/missing_rate`, `reward/missing/<reason>`.

    Raises:
        RewardError: above max_missing_rate, with the most frequent reasons.
    """
    gate = asyncio.Semaphore(1 if context.resources.get("debug") else max(1, concurrency))

    async def one(group: Group) -> Group:
        async with gate:
            result, reason = await attempt(reward(group, context))
        return _checked(group, result, reason, reward)

    scored = list(await asyncio.gather(*(one(group) for group in groups)))
    metrics = score_metrics(scored, new_names(groups, scored))
    _refuse_outage(scored, max_missing_rate)
    return scored, metrics


def new_names(before: Iterable[Group], after: Iterable[Group]) -> list[str]:
    """Names of scores that were added, in alphabetical order."""
    old = {name for g in before for r in g.rollouts for name in r.scores}
    return sorted({name for g in after for r in g.rollouts for name in r.scores} - old | {MAIN})


def score_metrics(groups: Sequence[Group], names: Sequence[str]) -> dict[str, Stat]:
    """Means, spreads, info means and missing rates of these scores."""
    out: dict[str, Stat] = {}
    for name in names:
        scores = [r.scores[name] for g in groups for r in g.rollouts if name in r.scores]
        values = [s.value for s in scores if s.value is not None]
        out[f"reward/{name}"] = mean(sum(values), len(values))
        if values:
            out[f"reward/{name}/std"] = gauge(float(np.std(values)))
        sums: dict[str, list[float]] = {}
        for score in scores:
            for key, number in score.info.items():
                if isinstance(number, int | float | np.number) and np.isfinite(number):
                    sums.setdefault(key, []).append(float(number))
        out |= {f"reward/{name}/{key}": mean(sum(numbers), len(numbers)) for key, numbers in sorted(sums.items())}
    missing = _missing(groups)
    count = sum(len(g) for g in groups)
    out["reward/missing_rate"] = mean(sum(missing.values()), count)
    by_slug: Counter[str] = Counter()
    for reason, number in missing.items():
        by_slug[slug(reason)] += number
    return out | {f"reward/missing/{name}": total(number) for name, number in sorted(by_slug.items())}


def slug(reason: str) -> str:
    """A reason's kind (the part before a colon) as a metric name."""
    return _SLUG.sub("_", reason.split(":", 1)[0].lower()).strip("_")[:40] or "unknown"


def _checked(group: Group, result: Group | None, reason: str, reward: RewardFn) -> Group:
    """The reward's result, if it is one: the same rollouts, each with its score."""
    names = sorted(getattr(reward, "writes", None) or {MAIN})
    if not reason:
        if not isinstance(result, Group):
            reason = f"no group: the reward returned {type(result).__name__}, not the group with scores"
        elif len(result) != len(group):
            reason = f"rollouts lost: the reward returned {len(result)} of {len(group)} rollouts"
    if reason:
        for name in names:
            group = group.with_scores(name, [Score.missing(reason)] * len(group))
        return group
    assert result is not None
    for name in names:
        scores = [
            r.scores.get(name) or Score.missing(f"no score: the reward wrote no {name!r}") for r in result.rollouts
        ]
        result = result.with_scores(name, scores)
    return result


def _missing(groups: Sequence[Group]) -> Counter[str]:
    return Counter(
        r.scores[MAIN].reason for g in groups for r in g.rollouts if MAIN in r.scores and r.scores[MAIN].value is None
    )


def _refuse_outage(groups: Sequence[Group], max_missing_rate: float) -> None:
    missing = _missing(groups)
    count, lost = sum(len(g) for g in groups), sum(missing.values())
    if not count or lost / count <= max_missing_rate:
        return
    first: dict[str, str] = {}
    for group in groups:
        for rollout in group.rollouts:
            score = rollout.scores[MAIN]
            if score.value is None:
                first.setdefault(score.reason, f"example {group.example.id!r}, rollout {rollout.index}")
    lines = [f"  {n} × {reason} (first: {first[reason]})" for reason, n in missing.most_common(3)]
    raise RewardError(
        f"{lost} of {count} rewards are missing ({lost / count:.0%}; train.max_missing_reward_rate allows "
        f"{max_missing_rate:.0%}). Most frequent reasons:\n" + "\n".join(lines) + "\n"
        "Mend the reward (run.debug=true stops in it with breakpoint()), or raise train.max_missing_reward_rate."
    )
