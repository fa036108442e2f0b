import math

import pytest
import torch

from coterie.algos import PPOClip, Reinforce
from coterie.core.batch import Outputs
from coterie.core.metrics import values

OLD, SAMPLER = [-1.0, -1.0, -1.0], [-1.0 - math.log(3), -1.0, -1.0 + math.log(4)]


def batch_of(flat_batch, **changes):
    streams = {"old_logprobs": OLD, "sampler_logprobs": SAMPLER} | changes
    return flat_batch([2, 1], advantages=[1.0, -2.0, 3.0], **streams)


def loss_of(loss, batch, logprobs=OLD):
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    out = loss(Outputs(x), batch)
    out.loss.backward()
    return out, x.grad


def test_truncated_weights_multiply_the_loss(flat_batch):
    """w = 3, 1, 1/4; truncated to 3, 2 and 3 by bounds of 2 and 0.5."""
    _, grad = loss_of(PPOClip(correction="token_tis"), batch_of(flat_batch))
    assert grad.tolist() == pytest.approx([-2.0 / 3, 2.0 / 3, -0.25])
    _, grad = loss_of(PPOClip(correction="token_tis", correction_low=0.5, correction_high=2.5), batch_of(flat_batch))
    assert grad.tolist() == pytest.approx([-2.5 / 3, 2.0 / 3, -0.5])
    _, grad = loss_of(PPOClip(correction="sequence_tis"), batch_of(flat_batch))
    assert grad.tolist() == pytest.approx([-2.0 / 3, 4.0 / 3, -0.25])


def test_masked_weights_reject_outside_and_stay_raw_inside(flat_batch):
    out, grad = loss_of(PPOClip(correction="icepop"), batch_of(flat_batch))
    assert grad.tolist() == pytest.approx([-1.0, 2.0 / 3, 0.0])
    assert values(out.metrics)["mismatch/rejected_frac"] == pytest.approx(1 / 3)
    _, grad = loss_of(PPOClip(correction="token_mis"), batch_of(flat_batch))
    assert grad.tolist() == pytest.approx([0.0, 2.0 / 3, 0.0])


def test_trap_7_rejected_tokens_stay_in_the_denominator_unless_asked(flat_batch):
    batch = batch_of(flat_batch)
    _, grad = loss_of(PPOClip(rejection="token"), batch)
    assert grad.tolist() == pytest.approx([0.0, 2.0 / 3, 0.0])
    loss = PPOClip(rejection="token", denominator="kept")
    streams = loss.prepass(Outputs(torch.tensor(OLD, dtype=torch.float64)), batch)
    _, grad = loss_of(loss, batch.with_streams(*streams))
    assert grad.tolist() == pytest.approx([0.0, 2.0, 0.0])


def test_veto_takes_the_whole_sequence(flat_batch):
    _, grad = loss_of(PPOClip(veto=0.5), batch_of(flat_batch))
    assert grad.tolist() == pytest.approx([-1 / 3, 2 / 3, 0.0])
    _, grad = loss_of(PPOClip(veto=1.5), batch_of(flat_batch))
    assert grad.tolist() == [0.0, 0.0, 0.0]


def test_an_empty_rest_still_has_a_gradient_of_zero(flat_batch):
    out, grad = loss_of(PPOClip(veto=1.5, kl="none"), batch_of(flat_batch))
    assert out.loss.item() == 0.0
    assert grad is not None


def test_bypass_puts_the_mismatch_into_the_ratio(flat_batch):
    batch = batch_of(flat_batch)
    _, grad = loss_of(PPOClip(bypass=True, clip_high=9.0, clip_low=1.0), batch)
    assert grad.tolist() == pytest.approx([-3 / 3, 2 / 3, -0.25])
    assert PPOClip(bypass=True).needs == {"sampler_logprobs"}


def test_bypass_with_a_weight_would_count_the_mismatch_twice():
    with pytest.raises(ValueError, match="twice"):
        PPOClip(bypass=True, correction="token_tis")
    assert Reinforce(bypass=True, correction="token_tis").needs == {"sampler_logprobs"}
    assert PPOClip(bypass=True, rejection="token").rejects


def test_reinforce_bypass_weighs_by_current_over_sampler(flat_batch):
    _, grad = loss_of(Reinforce(bypass=True, correction="token_tis"), batch_of(flat_batch), [-1.0, -1.5, -1.0])
    assert grad.tolist() == pytest.approx([-2 / 3, 2 / 3 * math.exp(-0.5), -0.25])


def test_without_old_logprobs_the_mismatch_is_that_of_the_current_policy(flat_batch):
    batch = flat_batch([2, 1], advantages=[1.0, -2.0, 3.0], sampler_logprobs=SAMPLER)
    out, grad = loss_of(PPOClip(correction="token_tis"), batch)
    assert grad.tolist() == pytest.approx([-2 / 3, 2 / 3, -0.25])
    assert values(out.metrics)["mismatch/weight_max"] == pytest.approx(3.0)


def test_trap_15_a_missing_sampler_logprob_is_never_a_weight_of_1(flat_batch):
    """peers.md §2.9: OpenRLHF stores 0.0 for it. NaN either shows in the loss or is rejected and counted."""
    batch = batch_of(flat_batch, sampler_logprobs=[-1.0, math.nan, -1.0])
    assert math.isnan(loss_of(PPOClip(correction="token_tis"), batch)[0].loss.item())
    out, grad = loss_of(PPOClip(correction="token_mis"), batch)
    assert grad.tolist() == pytest.approx([-1 / 3, 0.0, -1.0])
    assert values(out.metrics)["mismatch/nonfinite_tokens"] == 1


def test_normalised_weights_average_1(flat_batch):
    batch = batch_of(flat_batch)
    loss = PPOClip(correction="token_tis", correction_normalize=True)
    _, scalars = loss.prepass(Outputs(torch.tensor(OLD, dtype=torch.float64)), batch)
    assert scalars == pytest.approx({"loss/weight_mean": (2 + 1 + 0.25) / 3})
    loss = PPOClip(correction="sequence_tis", correction_normalize=True)
    _, scalars = loss.prepass(Outputs(torch.tensor(OLD, dtype=torch.float64)), batch)
    assert scalars == pytest.approx({"loss/weight_mean": (2 + 0.25) / 2})


def test_weights_of_nothing_are_not_normalised_by_0(flat_batch):
    batch = batch_of(flat_batch, sampler_logprobs=[19.0, 19.0, 19.0])
    loss = PPOClip(correction="token_tis", correction_normalize=True)
    _, scalars = loss.prepass(Outputs(torch.tensor(OLD, dtype=torch.float64)), batch)
    assert scalars["loss/weight_mean"] == 1.0
    loss = PPOClip(correction="token_mis", correction_normalize=True)
    _, scalars = loss.prepass(Outputs(torch.tensor(OLD, dtype=torch.float64)), batch)
    assert scalars["loss/weight_mean"] == 1.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"correction_low": 0.5}, "correction_low.*no effect"),
        ({"correction_high": 0.5}, "correction_high.*no effect"),
        ({"correction_normalize": True}, "correction_normalize.*no effect"),
        ({"rejection_low": 0.5}, "rejection_low.*no effect"),
        ({"rejection_high": 0.5}, "rejection_high.*no effect"),
        ({"veto": -0.1}, "veto"),
        ({"opsm_delta": -0.1}, "opsm_delta"),
        ({"correction": "tis"}, "correction='tis'"),
        ({"rejection": "all"}, "rejection='all'"),
    ],
)
def test_contradictions_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        PPOClip(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"correction": "token_tis"}, {"rejection": "token"}, {"veto": 0.1}, {"opsm_delta": 0.1}, {"bypass": True}],
)
def test_what_reads_the_sampler_says_so(fields):
    """peers.md §2.9, trap 15: a missing sampler logprob is an error, never 0."""
    assert PPOClip(**fields).needs == {"sampler_logprobs"}
    assert PPOClip().needs == frozenset()
