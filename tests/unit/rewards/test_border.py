import asyncio

import numpy as np
import pytest

from coterie.core.metrics import values
from coterie.core.protocols import Context
from coterie.core.types import Score
from coterie.errors import ConfigError, RewardError
from coterie.rewards.border import attempt, score_groups, slug


def scored(groups, reward, **options):
    resources = options.pop("resources", {})
    result, metrics = asyncio.run(score_groups(groups, reward, Context(resources=resources), **options))
    return result, values(metrics)


def numbers(result):
    return [[r.scores["reward"].value for r in g.rollouts] for g in result]


async def by_text(group, context):
    return group.with_scores(
        "reward", [Score(float(r.text), info={"half": float(r.text) / 2, "note": "x"}) for r in group.rollouts]
    )


def test_order_and_metrics(group_of):
    result, metrics = scored([group_of(["1", "0"]), group_of(["1", "1"])], by_text)
    assert numbers(result) == [[1.0, 0.0], [1.0, 1.0]]
    assert metrics["reward/reward"] == 0.75
    assert metrics["reward/reward/half"] == 0.375
    assert metrics["reward/reward/std"] == pytest.approx(np.std([1, 0, 1, 1]))
    assert metrics["reward/missing_rate"] == 0.0
    assert not any("note" in name for name in metrics)


def test_result_does_not_depend_on_who_is_first(group_of):
    async def slow_first(group, context):
        await asyncio.sleep(0.02 if group.example.id == "a" else 0.0)
        return await by_text(group, context)

    groups = [group_of(["1"], id="a"), group_of(["0"], id="b")]
    assert numbers(scored(groups, slow_first)[0]) == [[1.0], [0.0]]


def test_concurrency_is_bounded(group_of):
    running, most = 0, []

    async def watch(group, context):
        nonlocal running
        running += 1
        most.append(running)
        await asyncio.sleep(0.005)
        running -= 1
        return await by_text(group, context)

    groups = [group_of(["1"]) for _ in range(8)]
    scored(groups, watch, concurrency=3)
    assert max(most) == 3
    most.clear()
    scored(groups, watch, concurrency=3, resources={"debug": True})
    assert max(most) == 1


def test_what_raises_is_missing_and_counted(group_of):
    async def half(group, context):
        if group.example.id == "bad":
            raise ValueError("no\nluck")
        return await by_text(group, context)

    result, metrics = scored([group_of(["1"]), group_of(["1", "1"], id="bad")], half, max_missing_rate=1.0)
    assert numbers(result) == [[1.0], [None, None]]
    assert result[1].rollouts[0].scores["reward"].reason.startswith("ValueError: no luck (test_border.py:")
    assert metrics["reward/missing_rate"] == pytest.approx(2 / 3)
    assert metrics["reward/missing/valueerror"] == 2.0
    assert metrics["reward/reward"] == 1.0


def test_above_the_rate_it_stops_with_reasons_and_examples(group_of):
    async def broken(group, context):
        return group.with_scores("reward", [Score.missing("judge down: 503")] * len(group))

    groups = [group_of(["1"], id="good"), group_of(["1", "1", "1"], id="worst")]
    with pytest.raises(RewardError) as caught:
        scored(groups, broken, max_missing_rate=0.5)
    text = str(caught.value)
    assert "4 of 4 rewards are missing (100%" in text and "4 × judge down: 503" in text and "'good'" in text
    assert scored(groups, broken, max_missing_rate=1.0)[1]["reward/missing/judge_down"] == 4.0


@pytest.mark.parametrize(("result", "kind"), [(None, "no_group"), ("fewer", "rollouts_lost"), ("unscored", "no_score")])
def test_nonsense_is_missing(group_of, result, kind):
    async def odd(group, context):
        return {"fewer": group.with_rollouts(group.rollouts[:1]), "unscored": group}.get(result)

    _, metrics = scored([group_of(["1", "1"])], odd, max_missing_rate=1.0)
    assert metrics[f"reward/missing/{kind}"] == 2.0


def test_all_declared_scores_are_there_even_when_it_raises(group_of):
    class Two:
        writes = frozenset({"reward", "style"})

        async def __call__(self, group, context):
            raise KeyError("x")

    result, metrics = scored([group_of(["1"])], Two(), max_missing_rate=1.0)
    assert set(result[0].rollouts[0].scores) == {"reward", "style"}
    assert "reward/style" not in metrics


def test_extra_scores_get_their_own_means(group_of):
    async def two(group, context):
        return (await by_text(group, context)).with_scores("style", [Score(0.5)] * len(group))

    assert scored([group_of(["1", "0"])], two)[1]["reward/style"] == 0.5


def test_a_user_mistake_passes_through(group_of):
    async def mistaken(group, context):
        raise ConfigError("reward.path: no")

    with pytest.raises(ConfigError):
        scored([group_of(["1"])], mistaken, max_missing_rate=1.0)


def test_no_groups():
    assert scored([], by_text)[0] == []


def test_attempt_deadline():
    async def late():
        await asyncio.sleep(600)

    assert asyncio.run(attempt(late(), 0.01)) == (None, "timeout: no score within 0.01 s")


def test_slug():
    assert slug("ValueError: x (a.py:3)") == "valueerror"
    assert slug("Judge down: 503") == "judge_down"
    assert slug("::") == "unknown"
