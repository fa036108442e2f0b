import asyncio

import pytest

from coterie.core.protocols import Context
from coterie.core.types import Example, Score
from coterie.rewards.answers import MathReward
from coterie.rewards.smoke import smoke_test


def examples(references):
    return [Example(str(i), (), reference) for i, reference in enumerate(references)]


def run(rows, reward, **options):
    report = asyncio.run(smoke_test(rows, reward, Context(), **options))
    if hasattr(reward, "close"):
        reward.close()
    return report


def constant(value):
    async def reward(group, context):
        return group.with_scores("reward", [value] * len(group))

    return reward


async def equal(group, context):
    return group.with_scores("reward", [Score(float(r.text == str(group.example.reference))) for r in group.rollouts])


def test_a_good_reward_passes():
    report = run(examples(["work\n#### 1", "work\n#### 2", "more\n#### 3"]), MathReward())
    assert (report.ok, report.own, report.shuffled, report.missing) == (True, 1.0, 0.0, 0.0)
    assert "1.00" in report.diagnosis[0]


def test_equal_references_are_not_shuffled_onto_each_other():
    report = run(examples(["a\n#### 1", "b\n#### 1", "c\n#### 2"]), MathReward())
    assert report.shuffled == 0.0


def test_references_that_the_reward_cannot_read():
    report = run(examples(["1", "2"]), equal, encode_reference=lambda example, reference: f"It is {reference}")
    assert not report.ok and report.own == 0.0
    assert "own references score only 0.00" in report.diagnosis[0] and "data.reference_key" in report.diagnosis[0]
    assert "example '0'" in report.diagnosis[0]


def test_a_reward_that_likes_everything():
    report = run(examples(["1", "2"]), constant(Score(1.0)))
    assert not report.ok
    assert report.shuffled == 1.0 and any("hardly tells answers apart" in line for line in report.diagnosis)


def test_a_reward_that_likes_nothing():
    report = run(examples(["1", "2"]), constant(Score(0.0)))
    assert not report.ok and "score only 0.00" in report.diagnosis[0]


def test_missing_scores_are_told():
    report = run(examples(["1", "2"]), constant(Score.missing("judge down: 503")))
    assert not report.ok and report.missing == 1.0
    assert "judge down: 503 (4 times)" in report.diagnosis[0]


def test_other_scales():
    async def signed(group, context):
        return group.with_scores(
            "reward", [Score(1.0 if r.text == group.example.reference else -1.0) for r in group.rollouts]
        )

    report = run(examples(["1", "2"]), signed)
    assert report.ok and (report.own, report.shuffled) == (1.0, -1.0)


def test_no_references():
    report = run(examples([None, None]), equal)
    assert report.ok and report.skipped == 2 and report.tested == 0


@pytest.mark.parametrize("count", [1, 2])
def test_few_examples(count):
    assert run(examples(["1", "2"][:count]), equal).ok
