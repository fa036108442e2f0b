import json

import pytest

from coterie.core.types import Example
from coterie.data.cursor import Cursor, Mixture
from coterie.errors import DataError


def examples(count, prefix="e"):
    return [Example(f"{prefix}{n}", ({"role": "user", "content": str(n)},)) for n in range(count)]


def ids(items):
    return [item.id for item in items]


def test_each_epoch_is_a_permutation_of_its_own():
    cursor = Cursor(examples(20), seed=1)
    first, second = ids(cursor.take(20)), ids(cursor.take(20))
    assert sorted(first) == sorted(second) == sorted(ids(examples(20)))
    assert first != second
    assert first != ids(examples(20))
    assert cursor.epoch == 2


def test_the_order_depends_on_the_seed_and_not_on_how_it_is_taken():
    whole = ids(Cursor(examples(10), seed=1).take(25))
    parts = Cursor(examples(10), seed=1)
    assert ids(parts.take(3)) + ids(parts.take(0)) + ids(parts.take(22)) == whole
    assert ids(Cursor(examples(10), seed=2).take(25)) != whole


def test_without_shuffle_the_order_is_that_of_the_list():
    assert ids(Cursor(examples(3), seed=1, shuffle=False).take(7)) == [f"e{n % 3}" for n in range(7)]


def test_a_restored_cursor_goes_on():
    cursor = Cursor(examples(10), seed=1)
    cursor.take(13)
    state = json.loads(json.dumps(cursor.state()))
    other = Cursor(examples(10), seed=1)
    other.restore(state)
    assert other.epoch == 1
    assert ids(other.take(20)) == ids(cursor.take(20))


@pytest.mark.parametrize("changed", [examples(11), examples(10, "f"), examples(10)[::-1]])
def test_changed_data_is_refused(changed):
    state = Cursor(examples(10), seed=1).state()
    with pytest.raises(DataError, match="data changed"):
        Cursor(changed, seed=1).restore(state)


def test_empty_data_is_refused():
    with pytest.raises(DataError, match="no rows"):
        Cursor([], seed=1)


def mixture(**weights):
    return Mixture({name: Cursor(examples(7, name), seed=1) for name in weights}, weights)


def test_a_restored_mixture_goes_on():
    mixed = mixture(a=1.0, b=2.5)
    mixed.take(10)
    state = json.loads(json.dumps(mixed.state()))
    other = mixture(a=1.0, b=2.5)
    other.restore(state)
    assert ids(other.take(30)) == ids(mixed.take(30))
    assert other.state() == mixed.state()
    assert mixed.taken == 40


def test_other_weights_are_refused():
    with pytest.raises(DataError, match="weights changed"):
        mixture(a=1.0, b=2.0).restore(mixture(a=1.0, b=2.5).state())


def test_the_epoch_of_a_mixture_is_that_of_its_slowest_source():
    mixed = mixture(a=1.0, b=3.0)
    mixed.take(28)
    assert (mixed.cursors["a"].epoch, mixed.cursors["b"].epoch, mixed.epoch) == (1, 3, 1)


@pytest.mark.parametrize("weights", [{"a": 0.0, "b": 1.0}, {"a": -1.0, "b": 1.0}, {"a": float("nan"), "b": 1.0}])
def test_bad_weights_are_refused(weights):
    with pytest.raises(DataError, match="positive"):
        mixture(**weights)


def test_sources_and_weights_must_match():
    with pytest.raises(DataError, match="one weight a source"):
        Mixture({"a": Cursor(examples(3), seed=1)}, {"b": 1.0})
