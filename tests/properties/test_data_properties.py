"""Cursor and mixture: whatever the sizes, weights and steps, nothing is lost, repeated or out of proportion."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.types import Example
from coterie.data.cursor import Cursor, Mixture


def examples(count, prefix=""):
    return [Example(f"{prefix}{n}", ({"role": "user", "content": "x"},)) for n in range(count)]


@given(count=st.integers(1, 30), takes=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 2**40))
def test_every_item_comes_as_often_as_every_other(count, takes, seed):
    cursor = Cursor(examples(count), seed=seed)
    seen = Counter({example.id: 0 for example in examples(count)})
    for take in takes:
        seen.update(example.id for example in cursor.take(take))
    assert max(seen.values()) - min(seen.values()) <= 1
    assert sum(seen.values()) == sum(takes) == cursor.taken


@given(count=st.integers(1, 12), before=st.integers(0, 40), after=st.integers(0, 40), shuffle=st.booleans())
def test_resuming_at_any_point_changes_nothing(count, before, after, shuffle):
    whole = Cursor(examples(count), seed=3, shuffle=shuffle)
    whole.take(before)
    resumed = Cursor(examples(count), seed=3, shuffle=shuffle)
    resumed.restore(whole.state())
    assert [e.id for e in resumed.take(after)] == [e.id for e in whole.take(after)]


@settings(max_examples=60)
@given(weights=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), draws=st.integers(1, 80))
def test_a_mixture_is_never_one_item_off(weights, draws):
    names = [f"s{n}" for n in range(len(weights))]
    mixed = Mixture({name: Cursor(examples(3, name), seed=0) for name in names}, dict(zip(names, weights, strict=True)))
    shares = [weight / sum(weights) for weight in weights]
    for turn in range(1, draws + 1):
        mixed.take(1)
        taken = mixed.state()["taken"]
        assert sum(taken.values()) == turn
        for name, share in zip(names, shares, strict=True):
            assert abs(taken[name] - share * turn) < 1
