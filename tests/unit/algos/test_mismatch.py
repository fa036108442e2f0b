import math

import pytest
import torch

from coterie.algos.mismatch import derived, effective_sample_size, mismatch_metrics
from coterie.core.metrics import merge, values

ROWS = torch.tensor([0, 0, 1])


def t(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


PROXIMAL, SAMPLER = t(-1.0, -2.0, -0.5), t(-1.2, -1.5, -0.6)
D = [0.2, -0.5, 0.1]


def test_every_number_against_its_formula():
    out = values(mismatch_metrics(PROXIMAL, SAMPLER, ROWS, 3))
    w = [math.exp(d) for d in D]
    log_ppl, sampler_log_ppl = [1.5, 0.5], [1.35, 0.6]
    expected = {
        "kl/sampler_k1": -sum(D) / 3,
        "kl/sampler_k3": sum(x - 1 - d for x, d in zip(w, D, strict=True)) / 3,
        "kl/sampler_abs_diff": 0.8 / 3,
        "mismatch/weight_mean": sum(w) / 3,
        "mismatch/weight_square_mean": sum(x * x for x in w) / 3,
        "mismatch/chi2_token": sum(x * x for x in w) / 3 - 1,
        "mismatch/chi2_sequence": (math.exp(-0.6) + math.exp(0.2)) / 2 - 1,
        "mismatch/token_mult_prob_error": sum(math.exp(abs(d)) for d in D) / 3,
        "mismatch/policy_ppl": sum(map(math.exp, log_ppl)) / 2,
        "mismatch/sampler_ppl": sum(map(math.exp, sampler_log_ppl)) / 2,
        "mismatch/log_ppl_diff_mean": (0.15 - 0.1) / 2,
        "mismatch/log_ppl_diff_abs": 0.25 / 2,
        "mismatch/ppl_ratio": (math.exp(0.15) + math.exp(-0.1)) / 2,
        "mismatch/log_ppl_diff_max": 0.15,
        "mismatch/log_ppl_diff_min": -0.1,
        "mismatch/weight_max": max(w),
        "mismatch/weight_min": min(w),
        "mismatch/nonfinite_tokens": 0.0,
    }
    assert out == pytest.approx(expected, abs=1e-12)


def test_split_or_whole_it_is_the_same():
    whole = mismatch_metrics(PROXIMAL, SAMPLER, ROWS, 2)
    parts = [
        mismatch_metrics(PROXIMAL[:2], SAMPLER[:2], ROWS[:2], 1),
        mismatch_metrics(PROXIMAL[2:], SAMPLER[2:], torch.tensor([0]), 1),
    ]
    assert values(merge(parts)) == pytest.approx(values(whole), abs=1e-12)


def test_non_finite_tokens_are_counted_not_hidden():
    out = values(mismatch_metrics(t(-1.0, math.nan, -0.5), t(-1.0, -2.0, -math.inf), ROWS, 2))
    assert out["mismatch/nonfinite_tokens"] == 2.0
    assert out["kl/sampler_abs_diff"] == 0.0
    assert out["mismatch/policy_ppl"] == pytest.approx(math.e)


def test_exponents_are_bounded():
    out = values(mismatch_metrics(t(0.0, 0.0), t(-90.0, -90.0), torch.tensor([0, 0]), 1))
    assert out["mismatch/weight_max"] == pytest.approx(math.e**20)
    assert out["mismatch/chi2_sequence"] == pytest.approx(math.e**40)


def test_effective_sample_size_from_moments_and_from_weights():
    w = (PROXIMAL - SAMPLER).exp()
    out = derived(values(mismatch_metrics(PROXIMAL, SAMPLER, ROWS, 2)))
    assert out["mismatch/ess"] == pytest.approx(effective_sample_size(w))
    assert out["mismatch/weight_std"] == pytest.approx(float(w.std(correction=0)))
    assert effective_sample_size(t(1.0, 1.0)) == pytest.approx(1.0)
    assert effective_sample_size(t(1.0, 0.0, 0.0, 0.0)) == pytest.approx(0.25)
    assert derived({}) == {}
