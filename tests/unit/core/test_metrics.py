import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.metrics import Stat, gauge, maximum, mean, merge, minimum, total, values

parts = st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 50)), min_size=1, max_size=8)


@given(parts)
def test_a_mean_over_micro_batches_is_the_mean_over_all(rows):
    merged = merge({"m": mean(s, w)} for s, w in rows)["m"]
    assert merged.value == pytest.approx(sum(s for s, _ in rows) / sum(w for _, w in rows))


def test_each_kind_merges_its_own_way():
    first = {"mean": mean(3, 1), "sum": total(3), "max": maximum(3), "min": minimum(3), "only": gauge(5)}
    second = {"mean": mean(3, 5), "sum": total(4), "max": maximum(4), "min": minimum(4)}
    assert values(merge([first, second])) == {"mean": 1.0, "sum": 7.0, "max": 4.0, "min": 3.0, "only": 5.0}


def test_a_mean_over_nothing_has_no_value():
    assert math.isnan(mean(0, 0).value)
    assert values({"a": mean(0, 0), "b": total(0)}) == {"b": 0.0}


def test_a_nan_that_was_computed_reaches_the_record():
    assert math.isnan(values({"policy/loss": mean(math.nan, 1)})["policy/loss"])


def test_kinds_do_not_mix():
    with pytest.raises(ValueError, match="merge"):
        Stat("mean", 1.0).merge(Stat("sum", 1.0))
