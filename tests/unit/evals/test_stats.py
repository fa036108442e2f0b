import math

import numpy as np
import pytest

from coterie.evals.stats import (
    avg_at_k,
    best_at_k,
    bootstrap_ci,
    cluster_means,
    maj_at_k,
    mcnemar,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson,
)

NAN = math.nan


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (8, 2, 1, 0.25),
        (8, 2, 4, 0.7857142857142857),
        (256, 10, 128, 0.9991864),
        (4, 0, 2, 0.0),
        (4, 4, 4, 1.0),
        (4, 3, 2, 1.0),
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k_golden(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-7)


def test_pass_at_k_is_unknown_with_fewer_samples():
    assert math.isnan(pass_at_k(2, 1, 4))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0)])
@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k])
def test_pass_at_k_refuses_nonsense(estimator, n, c, k):
    with pytest.raises(ValueError):
        estimator(n, c, k)


def test_pass_hat_k():
    assert pass_hat_k(4, 2, 2) == pytest.approx(1 / 6)
    assert pass_hat_k(4, 1, 2) == 0.0 and pass_hat_k(4, 4, 4) == 1.0 and math.isnan(pass_hat_k(2, 1, 3))


def test_avg_at_k():
    assert avg_at_k([[1, 0, NAN, 1], [0, 0, 0, 0], [NAN] * 4])[:2].tolist() == [pytest.approx(2 / 3), 0.0]
    assert np.isnan(avg_at_k([[NAN, NAN]])[0])


def test_cluster_means_leave_out_what_is_missing():
    found = cluster_means([1, NAN, 0, 1, NAN], ["a", "a", "b", "b", "c"])
    assert list(found) == ["a", "b", "c"] and found["a"] == 1.0 and found["b"] == 0.5 and math.isnan(found["c"])
    with pytest.raises(ValueError, match="2 values but 3"):
        cluster_means([1, 2], ["a", "b", "c"])
    with pytest.raises(ValueError, match="infinity"):
        cluster_means([math.inf])


def test_bootstrap_counts_what_is_missing():
    interval = bootstrap_ci([1, 0, NAN, 1, NAN], ["a", "a", "a", "b", "c"])
    assert (interval.value, interval.clusters, interval.count, interval.missing) == (0.75, 2, 3, 2)
    assert 0.5 <= interval.low <= interval.value <= interval.high <= 1.0
    assert str(interval) == f"0.7500 [{interval.low:.4f}, {interval.high:.4f}] (n=2, 2 missing)"


def test_bootstrap_of_nothing():
    interval = bootstrap_ci([NAN, NAN])
    assert math.isnan(interval.value) and math.isnan(interval.low) and interval.missing == 2 and interval.clusters == 0
    assert not interval.excludes_zero


def test_bootstrap_agrees_with_the_normal_interval():
    """For n = 400 the percentile interval of a mean is within 10 % of mean ± 1.96 s / sqrt(n)."""
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    interval = bootstrap_ci(values)
    half = 1.959964 * values.std(ddof=0) / 20
    assert interval.high - interval.value == pytest.approx(half, rel=0.1)
    assert interval.value - interval.low == pytest.approx(half, rel=0.1)


def test_bootstrap_agrees_with_the_exact_binomial_for_two_problems():
    """With problems 0 and 1, resampled means are 0, 1/2, 1 with probability 1/4, 1/2, 1/4."""
    interval = bootstrap_ci([0.0, 1.0], level=0.4, draws=20_000)
    assert (interval.low, interval.high) == (0.5, 0.5)
    interval = bootstrap_ci([0.0, 1.0], level=0.6, draws=20_000)
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_clusters_widen_the_interval():
    """Ten copies of each sample tell nothing new; pretending that they do makes the interval sqrt(10) too small."""
    values = np.random.default_rng(1).integers(0, 2, 100).astype(float)
    copies, owners = np.repeat(values, 10), np.repeat(np.arange(100), 10).tolist()
    right, wrong = bootstrap_ci(copies, owners), bootstrap_ci(copies)
    single = bootstrap_ci(values)
    assert (right.low, right.high) == (single.low, single.high)
    assert (right.high - right.low) / (wrong.high - wrong.low) == pytest.approx(math.sqrt(10), rel=0.1)


def test_coverage_of_the_bootstrap():
    """The 90 % interval holds the true mean in about 90 % of 400 data sets; percentile intervals are a little short."""
    rng = np.random.default_rng(2)
    hits = 0
    for trial in range(400):
        interval = bootstrap_ci(rng.random(50) < 0.6, level=0.9, seed=trial, draws=500)
        hits += interval.low <= 0.6 <= interval.high
    assert 0.84 <= hits / 400 <= 0.95


def test_many_problems_are_resampled_in_parts(monkeypatch):
    import coterie.evals.stats as stats

    values = np.random.default_rng(3).random(1000)
    whole = bootstrap_ci(values, draws=300)
    monkeypatch.setattr(stats, "_CHUNK", 10_000)
    assert bootstrap_ci(values, draws=300) == whole


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_level_is_a_share(level):
    with pytest.raises(ValueError, match="level"):
        bootstrap_ci([1.0, 2.0], level=level)


def test_draws_at_least_one():
    with pytest.raises(ValueError, match="draws"):
        bootstrap_ci([1.0], draws=0)


def test_paired_difference_takes_out_what_problems_share():
    rng = np.random.default_rng(4)
    hard = rng.random(200)
    before, after = hard, hard + 0.02 + 0.001 * rng.standard_normal(200)
    paired = paired_difference(before, after)
    assert paired.value == pytest.approx(0.02, abs=1e-3) and paired.excludes_zero
    assert paired.high - paired.low < 1e-3
    apart = bootstrap_ci(after).high - bootstrap_ci(after).low
    assert apart > 0.05, "unpaired intervals could not tell"


def test_paired_difference_matches_problems_by_name():
    before, owners = [1, 0, 0, 0, NAN], ["a", "a", "b", "c", "d"]
    after, owners_after = [1, 1, 0, 1], ["b", "a", "c", "d"]
    paired = paired_difference(before, after, owners, owners_after)
    # a: 1 - 1/2, b: 1 - 0, c: 0 - 0; d has no score before.
    assert paired.value == pytest.approx(0.5) and (paired.count, paired.missing) == (3, 1)


def test_paired_difference_of_lost_problems():
    paired = paired_difference([1, 0], [NAN, 1])
    assert (paired.value, paired.count, paired.missing) == (1.0, 1, 1)
    assert paired_difference([1], [0], ["a"], ["b"]).missing == 2


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # R: prop.test(x, n, correct = FALSE)$conf.int
    [(10, 20, 0.2992980, 0.7007020), (1, 10, 0.01787621, 0.4041500), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0)],
)
def test_wilson_golden(successes, trials, low, high):
    assert wilson(successes, trials) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_wilson_edges():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError):
        wilson(3, 2)


def test_mcnemar():
    before = [0] * 8 + [1] * 2 + [1] * 10
    after = [1] * 8 + [0] * 2 + [1] * 10
    # exact: 2 * P(Binomial(10, 1/2) <= 2) = 112 / 1024
    assert mcnemar(before, after) == pytest.approx(0.109375)
    assert mcnemar([1, 0], [1, 0]) == 1.0
    assert mcnemar([0, 0, NAN], [1, 1, 1]) == 0.5
    with pytest.raises(ValueError, match="0, 1 or NaN"):
        mcnemar([0.5], [1])
    with pytest.raises(ValueError, match="1 results before but 2"):
        mcnemar([1], [1, 0])


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["4", "4", "5"], [1, 1, 0], 1.0),
        (["4", "5", "5"], [1, 0, 0], 0.0),
        (["4", "5"], [1, 0], 0.5),
        (["4", "5", "6"], [1, 0, 0], 1 / 3),
        ([None, None, "4"], [0, 0, 1], 1.0),
        ([None, None], [0, 0], 0.0),
        (["4", "4", "5"], [1, NAN, 0], 1.0),
    ],
)
def test_majority(answers, correct, expected):
    assert maj_at_k(answers, correct) == pytest.approx(expected)


def test_majority_of_subsets():
    # Of the three pairs of (4, 4, 5) one is (4, 4) and two are ties.
    assert maj_at_k(["4", "4", "5"], [1, 1, 0], k=2) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert maj_at_k(["4", "4", "5"], [1, 1, 0], k=1) == pytest.approx(2 / 3)


def test_majority_of_random_subsets_is_near_the_exact_one():
    answers = [str(i % 3) for i in range(20)]
    correct = [float(a == "0") for a in answers]
    exact = maj_at_k(answers, correct, k=5, draws=20_000)
    near = maj_at_k(answers, correct, k=5, seed=1, draws=2000)
    assert near == maj_at_k(answers, correct, k=5, seed=1, draws=2000) != exact
    assert near == pytest.approx(exact, abs=0.03)


def test_majority_unknown_and_nonsense():
    assert math.isnan(maj_at_k(["4"], [1], k=2))
    assert math.isnan(maj_at_k(["4", "4"], [NAN, NAN]))
    with pytest.raises(ValueError, match="1 answers but 2 gradings"):
        maj_at_k(["4"], [1, 0])
    with pytest.raises(ValueError, match="k must be at least 1"):
        maj_at_k([], [])


def test_best_at_k():
    assert best_at_k([3, 1, 2], 3) == 3.0
    assert best_at_k([3, 1, 2], 1) == pytest.approx(2.0)
    # pairs of (1, 2, 3): maxima 2, 3, 3
    assert best_at_k([3, 1, 2], 2) == pytest.approx(8 / 3)
    assert best_at_k([1, 0, 0], 2, by=[0.1, 0.9, 0.5]) == 0.0
    assert best_at_k([1, 0], 2, by=[0.5, 0.5]) == 0.5
    assert best_at_k([1, NAN], 1) == 1.0 and math.isnan(best_at_k([1, NAN], 2))
    with pytest.raises(ValueError):
        best_at_k([1], 0)
    with pytest.raises(ValueError, match="1 values but 2"):
        best_at_k([1], 1, by=[1, 2])
