import math

import pytest
import torch

from coterie.algos import GMPO, GSPO, LUSPO, VESPO, PPOClip
from coterie.core.batch import Outputs
from coterie.core.metrics import values

LOGS, OLD = [-1.0, -0.5, -2.0], [-1.2, -0.6, -1.5]


def run(loss, batch, logprobs=LOGS):
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    out = loss(Outputs(x), batch)
    out.loss.backward()
    return out, x.grad


@pytest.mark.parametrize("cls", [GSPO, LUSPO, GMPO, VESPO])
def test_every_convention_builds(cls):
    for fields in cls.conventions.values():
        assert cls(**fields) is not None


@pytest.mark.parametrize("cls", [GSPO, LUSPO, GMPO])
@pytest.mark.parametrize("aggregate", ["token_mean", "prompt_mean", "token_sum"])
def test_trap_10_a_sequence_ratio_with_a_token_denominator_is_refused(cls, aggregate):
    with pytest.raises(ValueError, match="another objective"):
        cls(aggregate=aggregate)


def test_defaults():
    assert (GSPO().aggregate, LUSPO().aggregate, GMPO().aggregate) == (
        "sequence_mean",
        "sequence_sum",
        "sequence_mean",
    )
    assert (GSPO().clip_low, GSPO().clip_high) == (3e-4, 4e-4)
    assert GSPO(aggregate="fixed_length", fixed_length=3) is not None


def test_gspo_clips_whole_sequences(flat_batch):
    batch = flat_batch([2, 1], advantages=[1.0, 1.0, -1.0], old_logprobs=OLD)
    out, grad = run(GSPO(clip_low=0.2, clip_high=0.1), batch)
    assert grad.tolist() == [0.0, 0.0, 0.0]
    shown = values(out.metrics)
    assert shown["policy/clip_frac"] == 1.0
    assert shown["policy/clip_frac_high"] == pytest.approx(2 / 3)
    assert shown["policy/sequence_ratio_mean"] == pytest.approx((2 * math.exp(0.15) + math.exp(-0.5)) / 3)
    assert out.loss.item() == pytest.approx((-1.1 + 0.8) / 2)


def test_gspo_gradient_is_that_of_the_mean(flat_batch):
    batch = flat_batch([2, 1], advantages=[1.0, 1.0, -1.0], old_logprobs=OLD)
    _, grad = run(GSPO(clip_low=0.9, clip_high=0.9), batch)
    s = math.exp(0.15)
    assert grad.tolist() == pytest.approx([-s / 4, -s / 4, math.exp(-0.5) / 2])


def test_mean_advantage(flat_batch):
    batch = flat_batch([2, 1], advantages=[3.0, -1.0, 0.0], old_logprobs=OLD)
    flat = flat_batch([2, 1], advantages=[1.0, 1.0, 0.0], old_logprobs=OLD)
    mean = run(GSPO(clip_high=0.05, mean_advantage=True), batch)[0].loss.item()
    assert mean == pytest.approx(run(GSPO(clip_high=0.05), flat)[0].loss.item())
    assert mean != pytest.approx(run(GSPO(clip_high=0.05), batch)[0].loss.item())


def test_luspo_is_gspo_times_length(flat_batch):
    batch = flat_batch([2, 2], advantages=[1.0, 1.0, -1.0, -1.0], old_logprobs=[*OLD, -1.0])
    logs = [*LOGS, -1.1]
    wide = {"clip_low": 0.5, "clip_high": 0.5}
    assert run(LUSPO(**wide), batch, logs)[0].loss.item() == pytest.approx(
        2 * run(GSPO(**wide), batch, logs)[0].loss.item()
    )


def test_gmpo_reports_its_clips_and_weighs_by_the_geometric_mean(flat_batch):
    streams = {"old_logprobs": OLD, "sampler_logprobs": [-1.2, -0.6 - math.log(4.0), -1.5]}
    batch = flat_batch([2, 1], advantages=[1.0, 1.0, -1.0], **streams)
    plain = run(GMPO(clip_low=0.3, clip_high=0.15), batch)[0]
    shown = values(plain.metrics)
    assert shown["policy/clip_frac"] == pytest.approx(2 / 3)
    assert shown["policy/clip_frac_low"] == shown["policy/clip_frac_high"] == pytest.approx(1 / 3)
    first = -math.exp((0.15 + 0.1) / 2)
    assert plain.loss.item() == pytest.approx((first + math.exp(-0.3)) / 2)
    weighted = run(GMPO(clip_low=0.3, clip_high=0.15, correction="token_tis", correction_high=4.0), batch)[0]
    assert weighted.loss.item() == pytest.approx((2.0 * first + math.exp(-0.3)) / 2)


def test_a_weight_of_0_does_not_make_a_geometric_mean_nan(flat_batch):
    batch = flat_batch([2], old_logprobs=[-1.0, -1.0], sampler_logprobs=[-1.0, 60.0])
    assert math.isfinite(run(GMPO(correction="token_tis"), batch, [-1.0, -1.0])[0].loss.item())


def test_vespo_refuses_a_second_correction_and_takes_bypass(flat_batch):
    with pytest.raises(ValueError, match="bypass"):
        VESPO(correction="token_tis")
    batch = flat_batch([2, 1], advantages=[1.0, 1.0, -1.0], old_logprobs=[-9.0] * 3, sampler_logprobs=OLD)
    w = math.exp(0.3)
    out, grad = run(VESPO(bypass=True), batch)
    assert grad[0].item() == pytest.approx(-(w**2) * math.exp(3 * (1 - w)) / 3)
    assert "policy/vespo_weight_mean" in out.metrics


@pytest.mark.parametrize("cls", [GSPO, GMPO])
def test_on_policy_all_of_them_are_grpo_with_sequence_mean(flat_batch, cls):
    batch = flat_batch([2, 1], advantages=[1.0, 1.0, -1.0])
    _, expected = run(PPOClip(aggregate="sequence_mean"), batch)
    torch.testing.assert_close(run(cls(), batch)[1], expected)


@pytest.mark.parametrize(
    ("cls", "fields", "words"),
    [
        (GSPO, {"clip_low": 0.0}, "clip_low"),
        (GSPO, {"form": "group"}, "form"),
        (GMPO, {"clip_high": -0.4}, "clip_high"),
        (VESPO, {"k_positive": 0.0}, "k_positive"),
        (VESPO, {"lam_negative": 0.0}, "lam_negative"),
    ],
)
def test_values_out_of_range_are_refused(cls, fields, words):
    with pytest.raises(ValueError, match=words):
        cls(**fields)
