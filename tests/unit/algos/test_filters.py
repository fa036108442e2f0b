import numpy as np
import pytest

from coterie.algos.advantages import GRPO, DrGRPO
from coterie.algos.filters import DropConstant, DropMissing, DropTruncated, KeepGroups, SolveRate, Truncated


def ids(groups):
    return [g.example.id for g in groups]


def test_drop_constant_decides_on_spread(make_group):
    groups = [
        make_group([1, 0], example="mixed"),
        make_group([0.3, 0.3, 0.3], example="equal fractions"),
        make_group([-1, -1], example="equal negatives"),
        make_group([0.3, None, 0.3], example="equal where there"),
        make_group([None, None], example="all missing"),
        make_group([1], example="one"),
        make_group([0.1, 0.2, None], example="mixed where there"),
    ]
    assert ids(DropConstant()(groups)) == ["mixed", "mixed where there"]
    assert ids(DropConstant(keep_singletons=True)(groups)) == ["mixed", "one", "mixed where there"]
    assert ids(DropConstant(tolerance=0.5)(groups)) == ["mixed"]
    assert [len(g) for g in DropConstant()(groups)] == [2, 3]  # whole groups


def test_solve_rate_window(make_group):
    groups = [make_group(scores, example=str(sum(scores))) for scores in ([0, 0], [0, 1], [1, 1])]
    groups.append(make_group([None, None], example="missing"))
    assert ids(SolveRate()(groups)) == ["1"]
    assert ids(SolveRate(inclusive=True)(groups)) == ["0", "1", "2"]
    assert ids(SolveRate(low=0.4, high=1.5)(groups)) == ["1", "2"]
    assert ids(SolveRate()([make_group([1, None], example="x")])) == []


FINISH = ["stop", "length", "stop", "length"]


def test_truncated_none_changes_nothing(make_group):
    group = make_group([1, 0, 0, 1], finish=FINISH)
    assert Truncated()([group])[0].rollouts == group.rollouts


def test_truncated_before_leaves_the_statistics(make_group, first):
    group = make_group([1, 1, 0, 0.5], finish=FINISH, judge=[3, None, 1, 2])
    out = Truncated("before")([group])[0]
    np.testing.assert_array_equal(out.scores(), [1, np.nan, 0, np.nan])
    assert (
        out.rollouts[1].scores["reward"].info["value"] == 1 and out.rollouts[1].scores["reward"].reason == "truncated"
    )
    assert out.rollouts[1].scores["judge"].reason == "test"  # was missing before
    np.testing.assert_array_equal(first(DrGRPO()([out])[0]), [0.5, 0, -0.5, 0])


def test_truncated_after_counts_in_the_statistics(make_group, first):
    group = make_group([1, 1, 0, 0], finish=FINISH)
    out = first(Truncated("after")(DrGRPO()([group]))[0])
    np.testing.assert_array_equal(out, [0.5, 0, -0.5, 0])
    assert not first(Truncated("after")(GRPO()([make_group([1, 0], finish=["length", "length"])]))[0]).any()


def test_truncated_says_where_it_stands(make_group):
    group = make_group([1, 0], finish=["length", "stop"])
    assert (Truncated("before").stage, Truncated("after").stage) == ("before", "after")
    with pytest.raises(ValueError, match="before the estimator"):
        Truncated("before")(GRPO()([group]))
    with pytest.raises(ValueError, match="after the estimator"):
        Truncated("after")([group])


def test_drop_truncated_takes_the_tokens_along(make_group, first):
    group = make_group([1, 1, 0, 0], finish=FINISH)
    after = DropTruncated()(DrGRPO()([group]))[0]
    np.testing.assert_array_equal(first(after), [0.5, -0.5])
    assert [r.index for r in after.rollouts] == [0, 2]
    assert DropTruncated(min_rollouts=3)([group]) == []
    assert DropTruncated()([make_group([1], finish=["length"])]) == []


def test_drop_missing(make_group):
    group = make_group([1, None, 0], judge=[1, 2, None])
    assert [r.index for r in DropMissing()([group])[0].rollouts] == [0, 2]
    assert [r.index for r in DropMissing(("reward", "judge"))([group])[0].rollouts] == [0]
    assert DropMissing(min_rollouts=3)([group]) == []
    assert DropMissing()([make_group([None])]) == []
    assert DropMissing(("a", "b")).needs == {"score:a", "score:b"}


def test_keep_groups_keeps_whole_groups_in_order(make_group):
    groups = [make_group([1, 0], example=str(i)) for i in range(3)]
    assert ids(KeepGroups(2)(groups)) == ["0", "1"]
    assert KeepGroups(5)(groups) == groups


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (DropConstant, {"tolerance": -1}),
        (Truncated, {"mode": "mask"}),
        (DropTruncated, {"min_rollouts": 0}),
        (DropMissing, {"min_rollouts": 0}),
        (DropMissing, {"scores": ()}),
        (SolveRate, {"high": 0.0}),
        (KeepGroups, {"count": 0}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [DropConstant, Truncated, DropTruncated, DropMissing, SolveRate, KeepGroups])
def test_conventions_construct(cls):
    assert cls.min_group_size == 1
    for overrides in cls.conventions.values():
        cls(**overrides)
