import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.keys import generator, seed_of, uniforms

coordinates = st.lists(st.one_of(st.integers(), st.text()), min_size=1, max_size=5)


@given(coordinates, coordinates)
def test_other_coordinates_give_other_seeds(a, b):
    assert (seed_of(*a) == seed_of(*b)) == (a == b)


def test_strings_and_integers_never_collide():
    assert len({seed_of("1"), seed_of(1), seed_of("1", ""), seed_of("", "1")}) == 4


def test_seeds_are_stable_across_processes_and_versions():
    assert seed_of("sample", 0, 3, "gsm8k-17", 2) == 8569953191976461312


@given(coordinates, st.integers(0, 40), st.integers(0, 40))
def test_a_longer_draw_begins_with_the_shorter_one(c, n, more):
    assert np.array_equal(uniforms(*c, count=n + more)[:n], uniforms(*c, count=n))


def test_generators_with_the_same_coordinates_agree():
    assert generator("a", 1).integers(1 << 60) == generator("a", 1).integers(1 << 60)


@pytest.mark.parametrize("bad", [1.0, True, None, ("a",)])
def test_a_coordinate_that_rounds_or_compares_loosely_is_refused(bad):
    with pytest.raises(TypeError, match="coordinate"):
        seed_of(bad)
