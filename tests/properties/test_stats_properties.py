"""Properties of the evaluation statistics, against enumeration where that is possible."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.evals.stats import (
    best_at_k,
    bootstrap_ci,
    maj_at_k,
    mcnemar,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson,
)

finite = st.floats(-100, 100)
samples = st.lists(finite, min_size=1, max_size=20)
maybe = st.one_of(finite, st.just(math.nan))


@st.composite
def counts(draw, top=9):
    n = draw(st.integers(1, top))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@given(counts())
def test_pass_at_k_is_the_mean_over_all_subsets(case):
    n, c, k = case
    right = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(right, k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([max(s) for s in subsets]))
    assert pass_hat_k(n, c, k) == pytest.approx(np.mean([min(s) for s in subsets]))


@given(counts(top=400))
def test_pass_at_k_is_a_probability_and_grows(case):
    n, c, k = case
    value = pass_at_k(n, c, k)
    assert 0 <= value <= 1
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert pass_hat_k(n, c, k) <= value + 1e-12
    if k < n:
        assert value <= pass_at_k(n, c, k + 1) + 1e-12
    if c < n:
        assert value <= pass_at_k(n, c + 1, k) + 1e-12
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert value == pytest.approx(exact, rel=1e-9, abs=1e-12)


@given(st.lists(finite, min_size=1, max_size=7), st.data())
def test_best_at_k_is_the_mean_over_all_subsets(values, data):
    k = data.draw(st.integers(1, len(values)))
    expected = np.mean([max(s) for s in itertools.combinations(values, k)])
    assert best_at_k(values, k) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=7), st.data())
def test_best_at_k_by_a_scorer_shares_ties(pairs, data):
    k = data.draw(st.integers(1, len(pairs)))
    expected = []
    for subset in itertools.combinations(pairs, k):
        top = max(rank for _, rank in subset)
        # A tie goes to any sample of that rank, so its worth is the mean over all samples of the problem with it.
        expected.append(np.mean([w for w, rank in pairs if rank == top]))
    worths, ranks = zip(*pairs, strict=True)
    assert best_at_k(worths, k, by=ranks) == pytest.approx(np.mean(expected))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8), st.data())
def test_majority_is_a_probability_that_does_not_see_order_or_names(answers, data):
    truth = data.draw(st.sampled_from(["a", "b", "c"]))
    correct = [float(a == truth) for a in answers]
    k = data.draw(st.integers(1, len(answers)))
    value = maj_at_k(answers, correct, k)
    assert 0 <= value <= 1
    order = data.draw(st.permutations(range(len(answers))))
    renamed = {"a": 10, "b": 20, "c": 30, None: None}
    shuffled = maj_at_k([renamed[answers[i]] for i in order], [correct[i] for i in order], k)
    assert shuffled == pytest.approx(value)
    assert maj_at_k(answers, correct, 1) == pytest.approx(np.mean(correct))


@settings(deadline=None, max_examples=50)
@given(samples, st.integers(0, 5))
def test_bootstrap_interval_holds_its_mean_and_stays_in_range(values, seed):
    interval = bootstrap_ci(values, seed=seed, draws=400)
    assert interval.value == pytest.approx(np.mean(values), abs=1e-9)
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    assert interval == bootstrap_ci(values, seed=seed, draws=400)


@settings(deadline=None, max_examples=50)
@given(samples, st.floats(-10, 10), st.floats(0.1, 10))
def test_bootstrap_follows_shift_and_scale(values, shift, scale):
    plain = bootstrap_ci(values, draws=200)
    moved = bootstrap_ci(np.array(values) * scale + shift, draws=200)
    for name in ("value", "low", "high"):
        assert getattr(moved, name) == pytest.approx(getattr(plain, name) * scale + shift, abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), maybe), min_size=1, max_size=20), st.integers(0, 3))
def test_missing_values_change_counts_and_nothing_else(rows, lost):
    owners, values = [o for o, _ in rows], [v for _, v in rows]
    base = bootstrap_ci(values, owners, draws=100)
    more = bootstrap_ci([*values, *[math.nan] * lost], [*owners, *["new"] * lost], draws=100)
    assert more.missing == base.missing + lost and more.count == base.count
    np.testing.assert_equal((more.value, more.low, more.high), (base.value, base.low, base.high))
    assert base.count + base.missing == len(rows)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(maybe, maybe), min_size=1, max_size=20))
def test_paired_difference_is_antisymmetric_and_zero_on_itself(rows):
    before, after = [a for a, _ in rows], [b for _, b in rows]
    there, back = paired_difference(before, after, draws=100), paired_difference(after, before, draws=100)
    np.testing.assert_allclose(there.value, -back.value, equal_nan=True, atol=1e-12)
    np.testing.assert_allclose((there.low, there.high), (-back.high, -back.low), equal_nan=True, atol=1e-9)
    assert there.count + there.missing == len(rows)
    same = paired_difference(before, before, draws=100)
    assert same.count == 0 or (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=15))
def test_paired_difference_is_the_bootstrap_of_the_differences(rows):
    before, after = np.array(rows).T
    paired, plain = paired_difference(before, after, seed=3, draws=100), bootstrap_ci(after - before, seed=3, draws=100)
    assert (paired.value, paired.low, paired.high) == pytest.approx((plain.value, plain.low, plain.high))


@given(st.integers(1, 200), st.data(), st.floats(0.5, 0.99))
def test_wilson_holds_the_proportion_and_mirrors(trials, data, level):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials, level)
    assert 0 <= low <= successes / trials <= high <= 1
    mirrored = wilson(trials - successes, trials, level)
    assert mirrored == (pytest.approx(1 - high, abs=1e-12), pytest.approx(1 - low, abs=1e-12))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60))
def test_mcnemar_is_a_symmetric_probability(rows):
    before, after = [a for a, _ in rows], [b for _, b in rows]
    p = mcnemar(before, after)
    assert 0 < p <= 1 and p == mcnemar(after, before)
