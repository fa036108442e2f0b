import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.types import Sampling
from coterie.engines.sampling import Drawer, check_sampling, draws_of
from coterie.errors import EngineError

CPU = torch.device("cpu")


def draw(logits, sampling, u, rows=None):
    settings_ = sampling if isinstance(sampling, list) else [sampling] * len(logits)
    return Drawer.of(settings_, CPU).draw(torch.tensor(logits, dtype=torch.float32), np.atleast_1d(u), rows)


def naive_distribution(logits, s):
    """float64 distribution of one row, step by step as the documentation says."""
    z = np.asarray(logits, dtype=np.float64) / s.temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    if s.top_k:
        kth = np.sort(p)[::-1][min(s.top_k, len(p)) - 1]
        p = np.where(p >= kth * (1 - 1e-9), p, 0)
        p /= p.sum()
    if s.top_p < 1:
        order = np.sort(p)[::-1]
        last = int(np.searchsorted(np.cumsum(order), s.top_p * (1 - 1e-12)))
        p = np.where(p >= order[min(last, len(p) - 1)] * (1 - 1e-9), p, 0)
        p /= p.sum()
    if s.min_p:
        p = np.where(p >= s.min_p * p.max() * (1 - 1e-9), p, 0)
        p /= p.sum()
    return p


def test_greedy_takes_the_likeliest_and_reports_the_whole_distribution():
    logits = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    tokens, logprobs = draw(logits, Sampling(temperature=0.0, top_k=1), [0.99, 0.99])
    assert tokens.tolist() == [1, 0]
    want = logits.max(1) - np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(logprobs, want, atol=1e-6)


@pytest.mark.parametrize("size", [2, 255, 256, 257, 1000, 5000])
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(size):
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 3, (4, size)).astype(np.float32)
    for u in (0.0, 0.1, 0.5, 0.9, 1 - 2**-53):
        tokens, logprobs = draw(logits, Sampling(temperature=0.7), np.full(4, u))
        for row, token, logprob in zip(logits, tokens, logprobs, strict=True):
            p = naive_distribution(row, Sampling(temperature=0.7))
            cumulative = np.cumsum(p)
            assert cumulative[token] >= u - 1e-6
            assert token == 0 or cumulative[token - 1] <= u + 1e-6
            assert logprob == pytest.approx(np.log(p[token]), abs=1e-5)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = np.full((1, 600), -np.inf)
    logits[0, [3, 300]] = 0.0
    seen = {int(draw(logits, Sampling(), u)[0][0]) for u in (0.0, 0.25, 0.4999, 0.5, 0.75, 1 - 2**-53)}
    assert seen == {3, 300}


def test_frequencies_are_those_of_the_distribution():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, 12).astype(np.float32)
    sampling = Sampling(temperature=1.3, top_k=9, top_p=0.9, min_p=0.02)
    count = 40_000
    tokens, _ = draw(logits[None], sampling, rng.random(count), np.zeros(count, dtype=np.int64))
    want = naive_distribution(logits, sampling) * count
    got = np.bincount(tokens, minlength=12)
    assert got[want == 0].sum() == 0
    kept = want > 0
    statistic = ((got - want)[kept] ** 2 / want[kept]).sum()
    assert 2 <= kept.sum() - 1 <= 11
    assert statistic < 31.3  # 99.9 % point of chi-square with 11 degrees of freedom, the most there can be


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 400),
    temperature=st.floats(0.3, 3),
    top_k=st.integers(0, 420),
    top_p=st.floats(0.05, 1),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    ties=st.booleans(),
)
def test_truncation_equals_the_naive_one(seed, size, temperature, top_k, top_p, min_p, ties):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (3, size)).astype(np.float32)
    if ties:
        logits = np.round(logits)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probs = Drawer.of([sampling] * 3, CPU).probabilities(torch.from_numpy(logits.copy())).double().numpy()
    probs /= probs.sum(1, keepdims=True)
    for row, got in zip(logits, probs, strict=True):
        want = naive_distribution(row, sampling)
        different = (got > 0) != (want > 0)
        assert got[different].sum() + want[different].sum() <= 1e-5 or _at_a_boundary(row, sampling)
        if not different.any():
            np.testing.assert_allclose(got, want, atol=2e-6)


def _at_a_boundary(row, s):
    """Whether top_p or min_p lies so near a step that float32 may fall on either side."""
    looser = naive_distribution(row, Sampling(s.temperature, min(1.0, s.top_p + 1e-5), s.top_k, s.min_p * (1 - 1e-5)))
    tighter = naive_distribution(row, Sampling(s.temperature, s.top_p - 1e-5, s.top_k, s.min_p * (1 + 1e-5)))
    return ((looser > 0) != (tighter > 0)).any()


def test_the_nucleus_of_a_flat_distribution_is_found_beyond_the_first_sort():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 1e-3, (2, 5000)).astype(np.float32)
    probs = Drawer.of([Sampling(top_p=0.9), Sampling(top_p=0.01)], CPU).probabilities(torch.from_numpy(logits))
    kept = (probs > 0).sum(1).tolist()
    assert kept[0] == pytest.approx(4500, abs=10)
    assert kept[1] == pytest.approx(50, abs=2)


def test_rows_with_different_settings_do_not_touch_each_other():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (6, 300))
    mixed = [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(temperature=0.5, top_k=3),
        Sampling(top_p=0.7),
        Sampling(min_p=0.2),
        Sampling(temperature=2.0),
    ]
    u = rng.random(6)
    tokens, logprobs = draw(logits, mixed, u)
    for i, s in enumerate(mixed):
        token, logprob = draw(logits[i : i + 1], s, u[i : i + 1])
        assert token[0] == tokens[i]
        assert logprob[0] == pytest.approx(logprobs[i], abs=1e-6)


def test_many_draws_may_share_a_row_of_logits():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (2, 300))
    u, rows = rng.random(5), np.array([1, 0, 1, 1, 0])
    shared = draw(logits, Sampling(), u, rows)
    apart = draw(logits[rows], Sampling(), u)
    np.testing.assert_array_equal(shared[0], apart[0])
    np.testing.assert_allclose(shared[1], apart[1], atol=1e-7)


def test_the_lowest_temperature_is_as_good_as_greedy():
    logits = np.random.default_rng(4).normal(0, 300, (3, 400))
    tokens, logprobs = draw(logits, Sampling(temperature=1e-6), [0.1, 0.5, 0.9])
    assert tokens.tolist() == logits.argmax(1).tolist()
    assert np.abs(logprobs).max() < 1e-6


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(EngineError, match="not finite"):
        draw(np.array([[0.0, np.nan, 1.0]]), Sampling(), [0.5])


def test_draws_are_a_prefix_of_longer_draws_and_belong_to_their_seed():
    np.testing.assert_array_equal(draws_of(7, 5), draws_of(7, 50)[:5])
    assert not np.array_equal(draws_of(7, 5), draws_of(8, 5))
    assert draws_of(2**64 - 1, 3).shape == (3,)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e-9},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": 2.0},
        {"max_tokens": 0},
        {"stop": ("",)},
    ],
)
def test_settings_out_of_range_are_named(change):
    with pytest.raises(EngineError, match=next(iter(change))):
        check_sampling(Sampling(**change))
