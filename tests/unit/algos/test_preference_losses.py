import math

import pytest
import torch

from coterie.algos import BCO, DPO, EXO, IPO, NCA, SPPO, APODown, APOZero, DiscoPOP, HingeDPO, RobustDPO
from coterie.core.batch import Outputs

ALL = [DPO, RobustDPO, HingeDPO, IPO, EXO, DiscoPOP, NCA, BCO, SPPO, APOZero, APODown]
LOGPROBS = [-1.0, -2.0, -0.5, -1.5, -1.0, -3.0, -0.2]


def batch_of(flat_batch, ref=LOGPROBS):
    return flat_batch([2, 1, 1, 3], [0, 0, 1, 1], [0.0, 1.0, 2.0, -1.0], ref_logprobs=ref)


def run(loss, batch):
    x = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    out = loss(Outputs(x), batch)
    out.loss.backward()
    return out.loss.item(), x.grad


@pytest.mark.parametrize(
    ("loss", "value", "slope"),
    [
        (DPO(beta=0.3), math.log(2), 0.15),
        (DPO(beta=0.3, label_smoothing=0.1), math.log(2), 0.15 * 0.8),
        (RobustDPO(beta=0.3), math.log(2), 0.15 / 0.8),
        (HingeDPO(beta=0.3), 1.0, 0.3),
        (IPO(beta=0.3, length_normalize=False), 1 / 0.36, 1 / 0.3),
        (NCA(beta=0.3), 2 * math.log(2), 0.075),
        (BCO(beta=0.3), 2 * math.log(2), 0.15),
        (SPPO(beta=0.3), 1 / (2 * 0.09), 1 / 0.3),
        (APOZero(beta=0.3), 1.0, 0.075),
        (DiscoPOP(beta=0.3), 0.5 * math.log(2) + 0.5, None),
    ],
)
def test_where_policy_and_reference_agree(flat_batch, loss, value, slope):
    """The documented degenerate case: known value, chosen pushed up by a known slope."""
    found, grad = run(loss, batch_of(flat_batch))
    assert found == pytest.approx(value)
    if slope is not None:
        assert grad[2].item() == pytest.approx(-slope / 2)


def test_apo_down_pushes_both_down(flat_batch):
    _, grad = run(APODown(beta=0.3), batch_of(flat_batch))
    assert grad[2].item() == pytest.approx(0.0)
    assert grad[0].item() == pytest.approx(0.075 / 2)
    ahead = [x - 2.0 if i == 2 else x for i, x in enumerate(LOGPROBS)]
    _, grad = run(APODown(beta=0.3), batch_of(flat_batch, ahead))
    assert grad[2].item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("tau", "up"), [(0.05, False), (0.101, False), (0.103, True), (1.0, True)])
def test_discopop_pushes_the_margin_down_at_a_tie_unless_tau_is_larger(flat_batch, tau, up):
    _, grad = run(DiscoPOP(beta=0.3, tau=tau), batch_of(flat_batch))
    assert (grad[2].item() < 0) == up


def test_trap_4_ipo_averages_by_default_and_sums_on_request(flat_batch):
    ref = [-1.5, -2.5, -1.0, -1.0, -2.0, -4.0, -1.2]
    h_sum, h_mean = [(0.5 - 1.0), (-0.5 - 3.0)], [(0.5 - 0.5), (-0.5 - 1.0)]
    target = 1 / 0.6

    def expected(h):
        return sum((x - target) ** 2 for x in h) / 2

    assert run(IPO(beta=0.3), batch_of(flat_batch, ref))[0] == pytest.approx(expected(h_mean))
    assert run(IPO(**{**IPO.conventions["openrlhf"], "beta": 0.3}), batch_of(flat_batch, ref))[0] == pytest.approx(
        expected(h_sum)
    )
    assert IPO.conventions["trl"] == {"length_normalize": True}


def test_dpo_convention_tulu3(flat_batch):
    loss = DPO(**DPO.conventions["tulu3"])
    assert (loss.beta, loss.length_normalize) == (5.0, True)


def test_bco_shift_comes_from_the_batch(flat_batch):
    batch = batch_of(flat_batch)
    shifted = batch.with_streams({}, {"bco_shift": 0.4})
    expected = math.log(1 + math.exp(0.4)) + math.log(1 + math.exp(-0.4))
    assert run(BCO(), shifted)[0] == pytest.approx(expected)


@pytest.mark.parametrize("cls", ALL)
def test_declarations_and_conventions(cls):
    assert cls().needs == {"ref_logprobs"}
    assert cls.whole_groups
    for fields in cls.conventions.values():
        assert cls(**fields) is not None


@pytest.mark.parametrize(
    ("cls", "fields", "words"),
    [
        (DPO, {"label_smoothing": 0.5}, "label_smoothing"),
        (DPO, {"label_smoothing": -0.1}, "label_smoothing"),
        (DPO, {"divergence": "kl"}, "divergence"),
        (RobustDPO, {"label_smoothing": 0.5}, "label_smoothing"),
        (EXO, {"label_smoothing": 0.0}, "label_smoothing"),
        (DiscoPOP, {"tau": 0.0}, "tau"),
    ],
)
def test_values_out_of_range_are_refused(cls, fields, words):
    with pytest.raises(ValueError, match=words):
        cls(**fields)
