import math

import pytest
import torch

from coterie.algos import DFTLoss, ImportanceSampling, PPOClip, Reinforce, SFTLoss
from coterie.algos.losses import clip_metrics
from coterie.core.batch import Outputs
from coterie.core.metrics import values
from coterie.core.protocols import HasPrepass


def run(loss, batch, logprobs):
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    out = loss(Outputs(x), batch)
    out.loss.backward()
    return out, x.grad


def test_clip_fractions_say_which_side_bites(flat_batch):
    logs = [math.log(r) for r in (1.5, 1.5, 0.5, 0.5, 1.0, 1.1)]
    batch = flat_batch([6], advantages=[1.0, -1.0, -1.0, 1.0, 1.0, 1.0], old_logprobs=[0.0] * 6)
    shown = values(run(PPOClip(), batch, logs)[0].metrics)
    assert shown["policy/clip_frac"] == pytest.approx(2 / 6)
    assert shown["policy/clip_frac_low"] == shown["policy/clip_frac_high"] == pytest.approx(1 / 6)
    assert "policy/dual_clip_frac" not in shown


def test_bounds_themselves_are_not_clipped():
    ratio, advantages = torch.tensor([0.5, 1.5, 0.5, 1.5]), torch.tensor([-1.0, 1.0, 1.0, -1.0])
    assert not clip_metrics(ratio, advantages, 0.5, 0.5)["policy/clip_frac"].any()
    found = clip_metrics(ratio, advantages, 0.4, 0.4)
    assert found["policy/clip_frac_low"].tolist() == [True, False, False, False]
    assert found["policy/clip_frac_high"].tolist() == [False, True, False, False]
    assert not clip_metrics(ratio, torch.zeros(4), 0.4, 0.4)["policy/clip_frac"].any()


def test_dual_clip_is_off_by_default_and_counted_when_on(flat_batch):
    batch = flat_batch([5], advantages=[-1.0, -1.0, 1.0, -2.0, 0.0], old_logprobs=[0.0] * 5)
    logs = [math.log(5.0), math.log(2.0), math.log(5.0), math.log(4.0), math.log(9.0)]
    assert run(PPOClip(), batch, logs)[1][0] == pytest.approx(5 / 5)
    out, grad = run(PPOClip(dual_clip=3.0), batch, logs)
    assert grad.tolist() == pytest.approx([0.0, 2 / 5, 0.0, 0.0, 0.0])
    assert values(out.metrics)["policy/dual_clip_frac"] == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dual_clip": 1.0}, "dual_clip=1.0.*above 1"),
        ({"delta": 1.2}, "delta=1.2.*above 1"),
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
    ],
)
def test_values_out_of_range_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        PPOClip(**fields)
    assert PPOClip(delta=1.21, dual_clip=1.01, clip_low=0.0, clip_high=0.0)


@pytest.mark.parametrize("cls", [PPOClip, Reinforce, ImportanceSampling, SFTLoss])
def test_every_convention_builds(cls):
    assert cls.conventions
    for name, fields in cls.conventions.items():
        assert cls(**fields) is not None, name


def test_trap_16_trl_masks_sequences_by_default():
    """Its docstring says token_truncate; its code, and ours under that convention, sequence_mask with max 3."""
    loss = PPOClip(**PPOClip.conventions["trl"])
    assert (loss.correction, loss.rejects) == ("sequence_mis", True)


def test_conventions_differ_where_the_frameworks_do():
    assert PPOClip.conventions["verl"] == {"dual_clip": 3.0}
    assert PPOClip(**PPOClip.conventions["trl"]).correction_bounds() == (0.0, 3.0)
    assert PPOClip(**PPOClip.conventions["slime"]).aggregate == "sequence_mean"


def test_reinforce_ignores_the_ratio(flat_batch):
    batch = flat_batch([2], advantages=[2.0, -1.0], old_logprobs=[-9.0, -9.0])
    assert run(Reinforce(), batch, [-1.0, -2.0])[1].tolist() == [-1.0, 0.5]


def test_importance_sampling_has_no_clip(flat_batch):
    batch = flat_batch([1], advantages=[1.0], old_logprobs=[-3.0])
    assert run(ImportanceSampling(), batch, [0.0])[1].item() == pytest.approx(-(math.e**3))
    assert run(ImportanceSampling(log_ratio_bound=2.0), batch, [0.0])[0].loss.item() == pytest.approx(-(math.e**2))


def test_sft_is_the_global_token_mean(flat_batch):
    batch = flat_batch([3, 1])
    out, grad = run(SFTLoss(), batch, [-1.0, -2.0, -3.0, -4.0])
    assert out.loss.item() == 2.5
    assert grad.tolist() == [-0.25] * 4
    assert values(out.metrics)["sft/nll"] == 2.5
    assert values(out.metrics)["sft/token_prob"] == pytest.approx(sum(math.exp(-x) for x in (1, 2, 3, 4)) / 4)
    assert not isinstance(SFTLoss(), HasPrepass)
    assert SFTLoss().needs == SFTLoss().wants == frozenset()


def test_sft_aggregations_and_entropy(flat_batch):
    batch = flat_batch([3, 1])
    assert run(SFTLoss(aggregate="sequence_sum"), batch, [-1.0, -2.0, -3.0, -4.0])[0].loss.item() == 5.0
    assert run(SFTLoss(aggregate="fixed_length", fixed_length=5), batch, [-1.0] * 4)[0].loss.item() == pytest.approx(
        0.4
    )
    entropy = torch.tensor([0.5, 0.5, 1.0, 2.0], dtype=torch.float64)
    shown = SFTLoss()(Outputs(torch.zeros(4, dtype=torch.float64), entropy), batch).metrics
    assert values(shown)["sft/entropy"] == 1.0
    with pytest.raises(ValueError, match="fixed_length"):
        SFTLoss(aggregate="fixed_length")


def test_dft_weighs_each_token_by_its_probability(flat_batch):
    out, grad = run(DFTLoss(), flat_batch([2]), [math.log(0.5), math.log(0.1)])
    assert grad.tolist() == pytest.approx([-0.25, -0.05])
    assert out.loss.item() == pytest.approx((0.5 * math.log(2) + 0.1 * math.log(10)) / 2)
    assert values(out.metrics)["sft/nll"] == pytest.approx((math.log(2) + math.log(10)) / 2)
