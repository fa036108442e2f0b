import math

import numpy as np
import pytest

from coterie.algos.moments import (
    centre,
    deviation,
    deviation_of_others,
    inverse_scale,
    is_constant,
    present,
    whiten,
    whitening,
)

NAN = math.nan


def test_constant_is_decided_by_comparison():
    assert is_constant(np.array([0.1, 0.1, 0.1]))
    assert is_constant(np.array([0.7])) and is_constant(np.array([])) and is_constant(np.array([NAN, NAN]))
    assert is_constant(np.array([NAN, 0.3, 0.3]))
    assert not is_constant(np.array([0.1, np.nextafter(0.1, 1)]))


def test_infinite_scores_are_refused():
    with pytest.raises(ValueError, match="finite number or NaN"):
        present(np.array([1.0, math.inf]))


def test_centre_ignores_missing_scores():
    np.testing.assert_allclose(centre(np.array([1.0, NAN, 0.0, 2.0])), [0, 0, -1, 1])
    np.testing.assert_allclose(centre(np.array([1.0, NAN, 0.0, 2.0]), leave_one_out=True), [0, 0, -1.5, 1.5])


def test_centre_of_a_constant_set_is_exactly_zero():
    assert not centre(np.full(7, 0.1)).any()  # the mean of seven 0.1 is not 0.1
    assert np.full(7, 0.1).mean() != 0.1


def test_deviations():
    values = np.array([1.0, 0.0, 0.0, 0.0])
    assert deviation(values) == pytest.approx(0.5)
    assert deviation(values, ddof=0) == pytest.approx(math.sqrt(3) / 4)
    assert deviation(np.array([2.0, NAN])) == 0
    np.testing.assert_allclose(deviation_of_others(values), [0, *[1 / math.sqrt(3)] * 3])
    np.testing.assert_allclose(deviation_of_others(np.array([NAN, 1.0, 0.0])), [0, 0, 0])


def test_where_eps_goes():
    assert inverse_scale(4.0, 0.5, "variance") == pytest.approx(1 / math.sqrt(4.5))
    assert inverse_scale(4.0, 0.5, "std") == pytest.approx(1 / 2.5)
    assert inverse_scale(4.0, 0.5, "clamp") == pytest.approx(1 / 2)
    assert inverse_scale(0.1, 0.5, "clamp") == pytest.approx(1 / math.sqrt(0.5))


def test_whiten_gives_mean_zero_and_variance_one():
    out = whiten(np.array([3.0, 1.0, 8.0, 2.0]))
    assert out.mean() == pytest.approx(0) and out.var(ddof=1) == pytest.approx(1)
    assert whiten(np.array([3.0, 1.0, 8.0, 2.0]), ddof=0).var() == pytest.approx(1)


def test_whiten_can_leave_either_half_out():
    values = np.array([1.0, 3.0])
    np.testing.assert_allclose(whiten(values, scale=False), [-1, 1])
    np.testing.assert_allclose(whiten(values, center=False), values / math.sqrt(2 + 1e-8))


def test_whiten_of_constant_values():
    assert not whiten(np.full(7, 0.1)).any()
    np.testing.assert_array_equal(whiten(np.full(3, 0.1), center=False), np.full(3, 0.1))
    assert whitening(np.zeros(0)) == (0.0, 1.0)
    assert whitening(np.array([5.0])) == (5.0, 1.0)


def test_defaults_of_whitening_are_verls():
    values = np.array([1.0, 1.0 + 1e-4, 1.0 - 1e-4])
    expected = (values - values.mean()) / math.sqrt(values.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(whiten(values), expected, rtol=1e-9)
    shift, factor = whitening(values)
    np.testing.assert_allclose((values - shift) * factor, expected, rtol=1e-9)
