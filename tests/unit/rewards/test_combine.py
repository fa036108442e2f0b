import asyncio
from dataclasses import dataclass

import pytest

from coterie.core.protocols import Context
from coterie.core.types import Score
from coterie.errors import ConfigError
from coterie.rewards.combine import Combine, Route, combine_scores


@dataclass
class Fixed:
    score: Score
    extra: str = ""
    closed: bool = False

    async def __call__(self, group, context):
        if self.extra:
            group = group.with_scores(self.extra, [Score(9.0)] * len(group))
        return group.with_scores("reward", [self.score] * len(group))

    def close(self):
        self.closed = True


def run(reward, group):
    return asyncio.run(reward(group, Context())).rollouts[0].scores


def test_weighted_sum_keeps_the_parts(group_of):
    reward = Combine({"a": Fixed(Score(1.0), extra="aside"), "b": Fixed(Score(0.5))}, {"b": 2.0})
    scores = run(reward, group_of(["x"]))
    assert {name: s.value for name, s in scores.items()} == {"reward": 2.0, "a": 1.0, "b": 0.5, "aside": 9.0}
    assert reward.writes == {"reward", "a", "b"}


def test_product(group_of):
    reward = Combine({"a": Fixed(Score(4.0)), "b": Fixed(Score(0.5))}, {"a": 0.5}, "product")
    assert run(reward, group_of(["x"]))["reward"].value == 1.0
    zero = Combine({"a": Fixed(Score(0.0)), "b": Fixed(Score(2.0))}, operation="product")
    assert run(zero, group_of(["x"]))["reward"].value == 0.0
    with pytest.raises(ConfigError, match="not negative"):
        run(Combine({"a": Fixed(Score(-1.0))}, operation="product"), group_of(["x"]))


def test_missing_in_a_needed_part_is_missing(group_of):
    down = Fixed(Score.missing("judge down: 503"))
    needed = run(Combine({"a": Fixed(Score(1.0)), "judge": down}), group_of(["x"]))["reward"]
    assert needed.value is None and needed.reason == "judge down: 503 (score 'judge')"
    only_metric = run(Combine({"a": Fixed(Score(1.0)), "judge": down}, {"judge": 0.0}), group_of(["x"]))["reward"]
    assert only_metric.value == 1.0


@pytest.mark.parametrize(
    ("parts", "weights", "message"),
    [
        ({}, {}, "at least one part"),
        ({"reward": Fixed(Score(1.0))}, {}, "can't be named"),
        ({"a": Fixed(Score(1.0))}, {"b": 1.0}, "weights for b"),
        ({"a": Fixed(Score(1.0))}, {"a": 0.0}, "all weights are 0"),
        ({"a": Fixed(Score(1.0))}, {"a": float("nan")}, "finite"),
    ],
)
def test_mistakes(parts, weights, message):
    with pytest.raises(ConfigError, match=message):
        Combine(parts, weights)


def test_combine_scores_names_what_is_absent(group_of):
    with pytest.raises(ConfigError, match="no score b"):
        combine_scores(group_of(["x"]).with_scores("a", [Score(1.0)]), {"a": 1.0, "b": 1.0})


def test_routes(group_of):
    maths, other = Fixed(Score(1.0)), Fixed(Score(2.0))
    reward = Route({"gsm8k": maths})
    assert run(reward, group_of(["x"], source="gsm8k"))["reward"].value == 1.0
    with pytest.raises(ConfigError, match="'svamp', which has no reward"):
        run(reward, group_of(["x"], source="svamp"))
    assert run(Route({"gsm8k": maths}, other), group_of(["x"], source="svamp"))["reward"].value == 2.0


def test_closing():
    parts = [Fixed(Score(1.0)) for _ in range(3)]
    Combine({"a": parts[0], "b": parts[1]}).close()
    Route({"x": parts[2]}).close()
    assert all(p.closed for p in parts)
