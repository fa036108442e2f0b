import math
from dataclasses import replace

import pytest
import torch

from coterie.algos import KTO, BradleyTerry, ImplicitPRM
from coterie.core.batch import Outputs
from coterie.core.metrics import values
from coterie.core.protocols import HasPrepass

NAN = math.nan
LOGPROBS, REF = [-1.0, -2.0, -0.5, -1.5, -1.0], [-1.5, -2.2, -0.9, -1.0, -1.4]
RATIOS = [0.7, 0.4, -0.5, 0.4]


def sig(x):
    return 1 / (1 + math.exp(-x))


def outputs(grad=False, **extra):
    x = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=grad)
    return Outputs(x, extra={k: torch.tensor(v, dtype=torch.float64) for k, v in extra.items()})


def batch_of(flat_batch, rewards, groups=None):
    return flat_batch([2, 1, 1, 1], groups, rewards, ref_logprobs=REF)


def test_kto_reference_point_comes_from_mismatched_answers(flat_batch):
    batch = batch_of(flat_batch, [1.0, NAN, 0.0, NAN])
    loss = KTO(beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    streams, scalars = loss.prepass(outputs(), batch)
    assert scalars == pytest.approx({"loss/kto_point": 0.4, "loss/kto_labelled": 2.0})
    out = loss(outputs(), batch.with_streams(streams, scalars))
    expected = (2.0 * (1 - sig(0.5 * 0.3)) + 3.0 * (1 - sig(0.5 * 0.9))) / 2
    assert out.loss.item() == pytest.approx(expected)
    shown = values(out.metrics)
    assert shown["preference/desirable_reward"] == pytest.approx(0.35)
    assert shown["preference/undesirable_reward"] == pytest.approx(-0.25)
    assert shown["preference/reference_point"] == pytest.approx(0.4)


def test_kto_reference_point_is_never_negative(flat_batch):
    batch = batch_of(flat_batch, [1.0, 1.0, NAN, 0.0])
    assert KTO().prepass(outputs(), batch)[1]["loss/kto_point"] == 0.0


def test_kto_without_a_reference_point(flat_batch):
    loss = KTO(beta=0.5, reference_point="zero")
    assert not isinstance(loss, HasPrepass)
    out = loss(outputs(), batch_of(flat_batch, [1.0, 0.0, 0.0, 1.0]))
    expected = (1 - sig(0.35) + sig(0.2) + sig(-0.25) + 1 - sig(0.2)) / 4
    assert out.loss.item() == pytest.approx(expected)


def test_kto_refuses_rows_without_label_and_a_missing_prepass(flat_batch):
    with pytest.raises(ValueError, match="no label"):
        KTO(reference_point="zero")(outputs(), batch_of(flat_batch, [1.0, NAN, 0.0, 1.0]))
    with pytest.raises(ValueError, match="mismatched"):
        KTO().prepass(outputs(), batch_of(flat_batch, [1.0, 0.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match="prepass"):
        KTO()(outputs(), batch_of(flat_batch, [1.0, NAN, 0.0, 1.0]))


def test_implicit_prm_is_a_classifier_on_log_ratios(flat_batch):
    out = ImplicitPRM(beta=0.5)(outputs(), batch_of(flat_batch, [1.0, 0.0, 0.0, 1.0]))
    expected = -(math.log(sig(0.35)) + math.log(sig(-0.2)) + math.log(sig(0.25)) + math.log(sig(0.2))) / 4
    assert out.loss.item() == pytest.approx(expected)
    assert values(out.metrics)["reward_model/accuracy"] == 0.75
    with pytest.raises(ValueError, match="no label"):
        ImplicitPRM()(outputs(), batch_of(flat_batch, [1.0, NAN, 0.0, 1.0]))


def test_bradley_terry_reads_the_last_action_token(flat_batch):
    batch = batch_of(flat_batch, [1.0, 0.0, -1.0, 2.0], [0, 0, 1, 1])
    scores = [9.0, 0.8, 0.3, -0.2, 0.1]
    out = BradleyTerry()(outputs(score=scores), batch)
    assert out.loss.item() == pytest.approx(-(math.log(sig(0.5)) + math.log(sig(0.3))) / 2)
    shown = values(out.metrics)
    assert shown["reward_model/accuracy"] == 1.0
    assert shown["reward_model/margin"] == pytest.approx(0.4)
    assert shown["reward_model/score_mean"] == pytest.approx(0.25)
    margin = BradleyTerry(margin=0.1, centre_coef=0.01)(outputs(score=scores), batch).loss.item()
    pairs = -(math.log(sig(0.5 - 0.1)) + math.log(sig(0.3 - 0.3))) / 2
    assert margin == pytest.approx(pairs + 0.01 * (1.1**2 + 0.1**2) / 2)


def test_bradley_terry_refusals(flat_batch):
    batch = batch_of(flat_batch, [1.0, 0.0, -1.0, 2.0], [0, 0, 1, 1])
    with pytest.raises(ValueError, match='"score"'):
        BradleyTerry()(outputs(), batch)
    empty = flat_batch([1, 0], [0, 0], [1.0, 0.0])
    with pytest.raises(ValueError, match="at least one action token"):
        BradleyTerry()(Outputs(torch.zeros(1), extra={"score": torch.zeros(1)}), empty)
    assert BradleyTerry.wants == {"score"}
    assert BradleyTerry.whole_groups


@pytest.mark.parametrize("cls", [KTO, ImplicitPRM])
def test_the_reference_gets_no_gradient(flat_batch, cls):
    batch = batch_of(flat_batch, [1.0, 0.0, 0.0, 1.0])
    ref = batch.streams["ref_logprobs"].clone().requires_grad_()
    loss = cls(reference_point="zero") if cls is KTO else cls()
    loss(outputs(grad=True), replace(batch, streams={"ref_logprobs": ref})).loss.backward()
    assert ref.grad is None
    assert cls.needs == {"ref_logprobs"}
    for fields in cls.conventions.values():
        assert cls(**fields)


@pytest.mark.parametrize(
    ("cls", "fields", "words"),
    [
        (KTO, {"beta": 0.0}, "beta"),
        (KTO, {"desirable_weight": 0.0}, "desirable_weight"),
        (KTO, {"reference_point": "mean"}, "reference_point"),
        (ImplicitPRM, {"beta": -1.0}, "beta"),
        (BradleyTerry, {"margin": -1.0}, "margin"),
        (BradleyTerry, {"centre_coef": -1.0}, "centre_coef"),
    ],
)
def test_values_out_of_range_are_refused(cls, fields, words):
    with pytest.raises(ValueError, match=words):
        cls(**fields)
