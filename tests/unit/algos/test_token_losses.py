import math

import pytest
import torch

from coterie.algos import CISPO, DPPO, DRO, SAPO, TOPR
from coterie.core.batch import Outputs
from coterie.core.metrics import values


def run(loss, batch, logprobs):
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    out = loss(Outputs(x), batch)
    out.loss.backward()
    return values(out.metrics), x.grad


@pytest.mark.parametrize("cls", [CISPO, SAPO, DPPO, TOPR, DRO])
def test_every_convention_builds(cls):
    for fields in cls.conventions.values():
        assert cls(**fields) is not None


def test_trap_3_the_five_conventions_of_cispo(flat_batch):
    """One token of ratio 6 and one of ratio 0.5 under each framework's bounds."""
    streams = {"old_logprobs": [0.0, 0.0], "sampler_logprobs": [0.0, 0.0]}
    batch = flat_batch([2], advantages=[1.0, 1.0], **streams)
    found = {}
    for name, fields in CISPO.conventions.items():
        _, grad = run(CISPO(**{**fields, "aggregate": "token_sum"}), batch, [math.log(6.0), math.log(0.5)])
        found[name] = (-grad).round(decimals=9).tolist()
    assert found == {
        "verl": [1.2, 0.8],
        "slime": [1.2, 0.8],
        "areal": [1.2, 0.8],
        "trl": [5.0, 0.5],
        "skyrl": [5.0, 0.5],
        "tinker": [4.0, 0.5],
    }


def test_cispo_counts_what_it_clips(flat_batch):
    batch = flat_batch([3], old_logprobs=[0.0] * 3)
    shown, _ = run(CISPO(clip_low=0.4, clip_high=1.0), batch, [math.log(2.5), math.log(0.5), 0.0])
    assert shown["policy/clip_frac"] == pytest.approx(2 / 3)
    assert shown["policy/clip_frac_low"] == shown["policy/clip_frac_high"] == pytest.approx(1 / 3)


def test_sapo_closes_the_gate_far_from_1(flat_batch):
    batch = flat_batch([2], advantages=[1.0, -1.0], old_logprobs=[0.0, 0.0])
    _, near = run(SAPO(tau_positive=5.0, tau_negative=9.0), batch, [0.0, 0.0])
    _, far = run(SAPO(tau_positive=5.0, tau_negative=9.0), batch, [0.7, 0.7])
    assert near.tolist() == pytest.approx([-0.5, 0.5])
    assert abs(far[0]) < 0.2
    assert abs(far[1]) < 0.01


def test_dppo_counts_what_it_drops(flat_batch):
    old = [math.log(0.5)] * 4
    batch = flat_batch([4], advantages=[1.0, 1.0, -1.0, -1.0], old_logprobs=old)
    logs = [math.log(p) for p in (0.8, 0.25, 0.8, 0.25)]
    shown, grad = run(DPPO(), batch, logs)
    assert shown["policy/clip_frac"] == 0.5
    assert grad.tolist() == pytest.approx([0.0, -0.5 / 4, 1.6 / 4, 0.0])
    _, drifted = run(DPPO(drift_coef=0.1), batch, logs)
    assert drifted[0].item() == pytest.approx(0.1 * 2 * math.log(1.6) / 4)


def test_topr_by_advantage_or_by_reward(flat_batch):
    streams = {"old_logprobs": [-0.5, -0.5, -0.5]}
    batch = flat_batch([2, 1], rewards=[1.0, math.nan], advantages=[-1.0, -1.0, -1.0], **streams)
    logs = [-1.0, -1.0, -2.0]
    _, grad = run(TOPR(), batch, logs)
    assert (3 * grad).tolist() == pytest.approx([math.exp(-1.0)] * 2 + [math.exp(-1.5)])
    _, grad = run(TOPR(positive_by="reward"), batch, logs)
    assert (3 * grad).tolist() == pytest.approx([1.0, 1.0, math.exp(-1.5)])
    shown, grad = run(TOPR(level="token"), batch, logs)
    assert (3 * grad).tolist() == pytest.approx([math.exp(-0.5)] * 2 + [math.exp(-1.5)])
    assert shown["policy/taper_mean"] == pytest.approx((2 * math.exp(-0.5) + math.exp(-1.5)) / 3)


def test_topr_never_weighs_above_1(flat_batch):
    batch = flat_batch([1], advantages=[-1.0], old_logprobs=[-3.0])
    assert run(TOPR(), batch, [-1.0])[1].item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cls", "fields", "words"),
    [
        (CISPO, {"clip_high": -0.1}, "clip_high.*distance from 1"),
        (CISPO, {"clip_low": -0.1}, "clip_low"),
        (SAPO, {"tau_positive": 0.0}, "tau_positive"),
        (SAPO, {"tau_negative": -1.0}, "tau_negative"),
        (DPPO, {"divergence": "js"}, "divergence"),
        (DPPO, {"clip_low": 0.0}, "clip_low"),
        (DPPO, {"ratio_cap": 0.0}, "ratio_cap"),
        (DPPO, {"drift_coef": -1.0}, "drift_coef"),
        (TOPR, {"level": "group"}, "level"),
        (TOPR, {"positive_by": "sign"}, "positive_by"),
        (DRO, {"beta": 0.0}, "beta"),
    ],
)
def test_values_out_of_range_are_refused(cls, fields, words):
    with pytest.raises(ValueError, match=words):
        cls(**fields)
