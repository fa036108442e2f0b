import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.advantages import DrGRPO
from coterie.algos.replay import DifficultyPools, Replay


def trained(make_group, scores, example, version=0):
    group = make_group(scores, example=example)
    group = group.with_rollouts(replace(r, weights_version=version) for r in group.rollouts)
    return DrGRPO()([group])[0]


def ids(entries):
    return [e.group.example.id for e in entries]


def test_replay_keeps_the_groups_with_most_signal(make_group):
    replay = Replay(size=2, max_age=0)
    groups = [trained(make_group, s, n) for s, n in [([1, 1], "flat"), ([1, 0], "a"), ([2, 0], "b"), ([4, 0], "c")]]
    buffer = replay.add(replay.init(), groups, version=0)
    assert ids(buffer) == ["c", "b"]
    assert replay.priority(groups[1]) == pytest.approx((0.5 + 0.5) * np.std([1, 0], ddof=1))
    assert ids(replay.add(buffer, [trained(make_group, [9, 0], "d")], 1)) == ["d", "c"]
    assert ids(buffer) == ["c", "b"]  # states are values


def test_replay_forgets_the_old(make_group):
    replay = Replay(max_age=2)
    buffer = replay.add(replay.init(), [trained(make_group, [1, 0], "a", 0)], version=0)
    assert ids(replay.add(buffer, [], version=2)) == ["a"] and ids(replay.add(buffer, [], version=3)) == []


def test_replay_fills_groups_without_signal(make_group):
    replay = Replay(max_age=0)
    buffer = replay.add(replay.init(), [trained(make_group, [1, 0], "a"), trained(make_group, [3, 0], "b")], 0)
    step = [trained(make_group, [1, 1], "x"), trained(make_group, [1, 0], "y"), trained(make_group, [0, 0], "z")]
    out = [g.example.id for g in replay.fill(buffer, step)]
    assert out[1] == "y" and sorted((out[0], out[2])) == ["a", "b"]  # without replacement
    more = [g.example.id for g in replay.fill(buffer, [*step, trained(make_group, [2, 2], "w")])]
    assert {more[0], more[2], more[3]} <= {"a", "b"}
    assert out == [g.example.id for g in replay.fill(buffer, step)]
    assert replay.fill((), step) == step and replay.fill(buffer, step[1:2]) == step[1:2]


def test_replay_draws_by_priority(make_group):
    buffer = Replay().add((), [trained(make_group, [1, 0], "a"), trained(make_group, [3, 0], "b")], 0)
    flat = [trained(make_group, [1, 1], "x")]
    drawn = [Replay(seed=s).fill(buffer, flat)[0].example.id for s in range(300)]
    assert drawn.count("b") / 300 == pytest.approx(0.9, abs=0.06)  # 9 : 1


def test_replay_state_crosses_a_checkpoint(make_group):
    replay = Replay()
    buffer = replay.add(replay.init(), [trained(make_group, [1, 0], "a")], 0)
    back = pickle.loads(pickle.dumps(buffer))
    assert ids(back) == ids(buffer) and back[0].priority == buffer[0].priority


def test_pools_follow_the_last_mean(make_group):
    pools = DifficultyPools()
    rates = pools.init()
    assert pools.pool(rates, "a") is None and pools.weight(rates, "a") == 1.0
    rates = pools.update(rates, [make_group([1, 0, 0, 0], example="a"), make_group([None, None], example="b")])
    assert rates == {"a": 0.25} and pools.pool(rates, "a") == 0 and pools.weight(rates, "a") == 0.2
    rates = pools.update(rates, [make_group([1, 0, None], example="a")])
    assert pools.pool(rates, "a") == 1 and pools.weight(rates, "a") == 1.0
    assert [pools.pool({"a": r}, "a") for r in (0.26, 0.75, 0.76, 1.0, 3.0)] == [1, 1, 2, 2, 2]
    assert json.loads(json.dumps(rates)) == rates


def test_pools_draw_by_weight():
    pools = DifficultyPools(thresholds=(0.5, 1.0), weights=(1.0, 0.25))
    rates = {"hard": 0.0, "easy": 1.0}
    drawn = [pools.choose(rates, ["hard", "easy"], 1, 0, step)[0] for step in range(400)]
    assert drawn.count("hard") / 400 == pytest.approx(0.8, abs=0.06)
    assert pools.choose(rates, ["hard", "easy"], 1, 0, 7) == pools.choose(rates, ["hard", "easy"], 1, 0, 7)
    assert sorted(pools.choose(rates, ["hard", "easy", "new"], 9, 0)) == ["easy", "hard", "new"]


def test_skywork_retires_what_is_always_solved():
    pools = DifficultyPools(**DifficultyPools.conventions["skywork"])
    rates = {"solved": 1.0, "nearly": 15 / 16}
    assert pools.choose(rates, ["solved", "nearly"], 2, 0) == ["nearly"]
    assert pools.choose(rates, ["solved"], 2, 0) == []


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Replay, {"size": 0}),
        (Replay, {"max_age": -1}),
        (DifficultyPools, {"thresholds": (), "weights": ()}),
        (DifficultyPools, {"thresholds": (1.0, 0.5, 2.0)}),
        (DifficultyPools, {"weights": (1.0,)}),
        (DifficultyPools, {"weights": (1.0, -1.0, 1.0)}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [Replay, DifficultyPools])
def test_conventions_construct(cls):
    assert cls(score="s").needs == {"score:s"}
    for overrides in cls.conventions.values():
        cls(**overrides)
