"""Statistics of an evaluation: intervals over problems, paired differences, pass@k and its relatives.

Host side, numpy float64. A missing score is NaN: it is left out and counted, never taken as 0. The unit of resampling
is the problem (cluster), not the sample: samples of one problem are not independent. Random draws depend only on the
seed (`core.keys`), so an interval is the same in every process.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.core.keys import generator

FloatArray = NDArray[np.float64]
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A mean over problems with its interval.

    Attributes:
        value: the mean; NaN when nothing was observed.
        low, high: bounds of the interval; NaN when nothing was observed.
        clusters: problems with at least one observed sample.
        count: observed samples.
        missing: samples left out because they have no score.
        level: nominal coverage.
    """

    value: float
    low: float
    high: float
    clusters: int
    count: int
    missing: int
    level: float = 0.95

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        lost = f", {self.missing} missing" if self.missing else ""
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] (n={self.clusters}{lost})"


def cluster_means(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> dict[Hashable, float]:
    """Mean of the observed (not NaN) values of each cluster, in order of first appearance; NaN where none is observed.

    Args:
        values: one a sample.
        clusters: problem of each sample; without it every sample is a problem of its own (0, 1, …).

    Raises:
        ValueError: when the lengths differ or a value is infinite.
    """
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if np.isinf(array).any():
        raise ValueError("a score is a finite number or NaN for missing, not infinity")
    keys: Sequence[Hashable] = range(len(array)) if clusters is None else clusters
    if len(keys) != len(array):
        raise ValueError(f"{len(array)} values but {len(keys)} cluster names")
    members: dict[Hashable, list[float]] = {}
    for key, value in zip(keys, array.tolist(), strict=True):
        members.setdefault(key, []).extend([] if math.isnan(value) else [value])
    return {key: math.fsum(group) / len(group) if group else math.nan for key, group in members.items()}


def bootstrap_ci(
    values: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    seed: int = 0,
    draws: int = 10_000,
) -> Interval:
    """Mean over problems of the mean over samples, with the percentile bootstrap interval over problems.

    Args:
        values: one a sample; NaN is missing.
        clusters: problem of each sample; without it every sample is one problem.
        level: coverage, in (0, 1).
        seed: of the resampling.
        draws: bootstrap resamples.

    Raises:
        ValueError: for a level outside (0, 1), fewer than one draw, or lengths that differ.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; clustering as in Miller, Adding
    Error Bars to Evals (2024).
    """
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    means = np.array(list(cluster_means(array, clusters).values()), dtype=np.float64)
    observed = int(np.count_nonzero(~np.isnan(array)))
    return _interval(means[~np.isnan(means)], observed, len(array) - observed, level, seed, draws)


def paired_difference(
    before: ArrayLike,
    after: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    clusters_after: Sequence[Hashable] | None = None,
    level: float = 0.95,
    seed: int = 0,
    draws: int = 10_000,
) -> Interval:
    """Mean over problems of `after - before`, with the paired bootstrap interval over problems.

    Problems are matched by cluster name, each side by the mean of its observed samples; a problem without an observed
    sample on both sides is left out. `missing` counts such problems, `count` those that are compared.

    Args:
        before: one score a sample; NaN is missing.
        after: likewise; may hold another number of samples a problem when `clusters_after` is given.
        clusters: problem of each sample of `before`, and of `after` unless `clusters_after` is given.
        clusters_after: problem of each sample of `after`.
        level: coverage, in (0, 1).
        seed: of the resampling.
        draws: bootstrap resamples.

    Raises:
        ValueError: as `bootstrap_ci`.
    """
    first = cluster_means(before, clusters)
    second = cluster_means(after, clusters if clusters_after is None else clusters_after)
    names = list(dict.fromkeys([*first, *second]))
    gaps = np.array([second.get(name, math.nan) - first.get(name, math.nan) for name in names], dtype=np.float64)
    kept = gaps[~np.isnan(gaps)]
    return _interval(kept, len(kept), len(gaps) - len(kept), level, seed, draws)


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion, for one 0/1 sample a problem; (0, 1) without trials.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927).
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be in [0, {trials}], not {successes}")
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + _checked_level(level) / 2)
    p, z2 = successes / trials, z * z / trials
    centre = (p + z2 / 2) / (1 + z2)
    half = z / (1 + z2) * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials))
    low = 0.0 if successes == 0 else centre - half
    return low, 1.0 if successes == trials else centre + half


def mcnemar(before: ArrayLike, after: ArrayLike) -> float:
    """Exact two-sided p-value that two 0/1 results on the same problems have the same accuracy.

    Only problems that changed count: with b lost and c won, the smaller tail of Binomial(b + c, 1/2), doubled. NaN on
    either side leaves the problem out.

    Source: McNemar, Note on the sampling error of the difference between correlated proportions (1947), exact form.
    """
    first, second = (np.asarray(a, dtype=np.float64).reshape(-1) for a in (before, after))
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} results before but {len(second)} after")
    if not np.isin(np.concatenate([first, second]), [0.0, 1.0]).all(where=~np.isnan(np.concatenate([first, second]))):
        raise ValueError("McNemar's test needs results that are 0, 1 or NaN")
    won, lost = int(np.sum(second > first)), int(np.sum(second < first))
    changed = won + lost
    tail = sum(math.comb(changed, i) for i in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that at least one of k samples of a problem is right: `1 - C(n-c, k) / C(n, k)`.

    Args:
        n: observed samples of the problem.
        c: right ones among them.
        k: samples allowed.

    Returns:
        NaN where n < k, for fewer samples can't tell.

    Raises:
        ValueError: unless k >= 1 and 0 <= c <= n.

    Source: Chen et al., Evaluating Large Language Models Trained on Code (2021), equation 1, as the stable product
    `1 - prod_{j=n-c+1..n} (1 - k/j)`.
    """
    _check_counts(n, c, k)
    if n < k:
        return math.nan
    if n - c < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1, dtype=np.float64)))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that all of k samples are right: `C(c, k) / C(n, k)`; arguments as `pass_at_k`.

    Source: Yao et al., tau-bench (2024).
    """
    _check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k) if n >= k else math.nan


def avg_at_k(scores: ArrayLike) -> FloatArray:
    """Mean over the observed samples of each problem: float64[P] from [P, k]; NaN where none is observed."""
    array = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    observed = ~np.isnan(array)
    counts = observed.sum(axis=1)
    sums = np.where(observed, array, 0.0).sum(axis=1)
    return np.divide(sums, counts, out=np.full(len(array), np.nan), where=counts > 0)


def maj_at_k(
    answers: Sequence[Hashable | None], correct: ArrayLike, k: int | None = None, seed: int = 0, draws: int = 1000
) -> float:
    """Expected correctness of the majority answer among k samples of one problem.

    Answers are compared by equality, so give normal forms (a key per equivalence class). None is no answer and has no
    vote; without any vote the result is 0. Ties are broken at random, in expectation: the mean over the tied answers.
    With more than k samples it is the mean over all subsets of size k where those are at most `draws`, else over
    `draws` seeded random ones.

    Args:
        answers: one a sample, hashable, or None.
        correct: correctness in [0, 1] of each sample; an answer's correctness is the mean over its samples. NaN marks
            a sample whose grading is missing: it votes, but says nothing about its answer.
        k: samples that vote; None for all.
        seed: of the subsets.
        draws: subsets at most.

    Returns:
        The expectation; NaN when a winning answer was never graded or when there are fewer than k samples.

    Source: Wang et al., Self-Consistency Improves Chain of Thought Reasoning (2022).
    """
    graded = np.asarray(correct, dtype=np.float64).reshape(-1)
    n = len(answers)
    if len(graded) != n:
        raise ValueError(f"{n} answers but {len(graded)} gradings")
    k = n if k is None else k
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if n < k:
        return math.nan
    worth = _worth(answers, graded)
    if math.comb(n, k) <= draws:
        subsets = [list(s) for s in combinations(range(n), k)]
    else:
        rng = generator("maj_at_k", seed, n, k)
        subsets = [rng.choice(n, size=k, replace=False).tolist() for _ in range(draws)]
    results = [_majority([answers[i] for i in subset], worth) for subset in subsets]
    return math.fsum(results) / len(results)


def best_at_k(values: ArrayLike, k: int, by: ArrayLike | None = None) -> float:
    """Expected value of the sample that a scorer ranks first among k of the n samples of one problem.

    `sum_i C(i-1, k-1) / C(n, k) * x_(i)` with x in the order of `by` (of the values themselves without it: best-of-k).
    Samples that `by` ranks equal share their places. A sample with NaN on either side is left out.

    Raises:
        ValueError: when k < 1 or the lengths differ.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    worth = np.asarray(values, dtype=np.float64).reshape(-1)
    rank = worth if by is None else np.asarray(by, dtype=np.float64).reshape(-1)
    if rank.shape != worth.shape:
        raise ValueError(f"{len(worth)} values but {len(rank)} ranking scores")
    kept = ~(np.isnan(worth) | np.isnan(rank))
    worth, rank = worth[kept], rank[kept]
    n = len(worth)
    if n < k:
        return math.nan
    worth = worth[np.argsort(rank, kind="stable")]
    _, place, sizes = np.unique(rank, return_inverse=True, return_counts=True)
    place = np.sort(place)
    shared = np.bincount(place, weights=worth) / sizes
    weights = [math.comb(i, k - 1) / math.comb(n, k) for i in range(n)]
    return math.fsum(w * v for w, v in zip(weights, shared[place], strict=True))


def _interval(means: FloatArray, count: int, missing: int, level: float, seed: int, draws: int) -> Interval:
    _checked_level(level)
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    n = len(means)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, 0, missing, level)
    rng = generator("bootstrap", seed)
    rows = max(1, _CHUNK // n)
    parts = []
    for start in range(0, draws, rows):
        picks = rng.integers(0, n, size=(min(rows, draws - start), n))
        parts.append(means[picks].mean(axis=1))
    low, high = np.quantile(np.concatenate(parts), [(1 - level) / 2, (1 + level) / 2])
    value = math.fsum(means.tolist()) / n
    return Interval(value, float(low), float(high), n, count, missing, level)


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, not {level}")
    return level


def _check_counts(n: int, c: int, k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if not 0 <= c <= n:
        raise ValueError(f"the number of right samples must be between 0 and {n}, not {c}")


def _worth(answers: Sequence[Hashable | None], graded: FloatArray) -> dict[Hashable, float]:
    """Mean correctness of each answer over its graded samples; NaN where there is none."""
    return {a: m for a, m in cluster_means(graded, answers).items() if a is not None}


def _majority(votes: Sequence[Hashable | None], worth: dict[Hashable, float]) -> float:
    tally = Counter(v for v in votes if v is not None)
    if not tally:
        return 0.0
    most = max(tally.values())
    winners = [answer for answer, count in tally.items() if count == most]
    return math.fsum(worth[w] for w in winners) / len(winners)
