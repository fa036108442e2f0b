import math

import pytest
import torch

from coterie.algos import CPO, ORPO, AlphaPO, SimPO
from coterie.core.batch import Outputs
from coterie.core.metrics import values

LOGPROBS = [-1.0, -2.0, -0.5]


def sig(x):
    return 1 / (1 + math.exp(-x))


def run(loss, batch):
    out = loss(Outputs(torch.tensor(LOGPROBS, dtype=torch.float64)), batch)
    return out.loss.item(), values(out.metrics)


@pytest.fixture
def batch(flat_batch):
    return flat_batch([2, 1], [0, 0], [1.0, 0.0])


def test_no_reference_is_needed():
    for cls in (ORPO, CPO, SimPO, AlphaPO):
        assert cls().needs == frozenset()
        for fields in cls.conventions.values():
            assert cls(**fields)


def test_orpo_is_nll_plus_odds(batch):
    odds = [math.log(math.exp(a) / (1 - math.exp(a))) for a in (-1.5, -0.5)]
    loss, shown = run(ORPO(beta=0.2), batch)
    assert loss == pytest.approx(1.5 - 0.2 * math.log(sig(odds[0] - odds[1])))
    assert shown["preference/chosen_reward"] == pytest.approx(-0.3)


def test_cpo_sums_and_adds_nll(batch):
    loss, shown = run(CPO(beta=0.2), batch)
    assert loss == pytest.approx(-math.log(sig(0.2 * -2.5)) + 1.5)
    assert run(CPO(beta=0.2, sft_coef=0.0), batch)[0] == pytest.approx(-math.log(sig(-0.5)))
    assert shown["preference/accuracy"] == 0.0


def test_simpo_averages_and_has_a_margin(batch):
    loss, shown = run(SimPO(beta=2.0, gamma=0.7), batch)
    assert loss == pytest.approx(-math.log(sig(-2.0 - 0.7)))
    assert shown["preference/margin"] == pytest.approx(-2.0)
    smooth, _ = run(SimPO(beta=2.0, gamma=0.7, label_smoothing=0.1), batch)
    assert smooth == pytest.approx(-0.9 * math.log(sig(-2.7)) - 0.1 * math.log(sig(2.7)))


def test_alphapo_bends_the_reward_and_is_simpo_at_0(batch):
    r = [(1 - math.exp(a) ** -0.5) / 0.5 for a in (-1.5, -0.5)]
    loss, shown = run(AlphaPO(beta=2.0, gamma=0.7, alpha=0.5), batch)
    assert loss == pytest.approx(-math.log(sig(2.0 * (r[0] - r[1]) - 0.7)))
    assert shown["preference/margin"] == pytest.approx(2.0 * (r[0] - r[1]))
    assert run(AlphaPO(alpha=0.0), batch)[0] == pytest.approx(run(SimPO(), batch)[0])


def test_values_out_of_range_are_refused():
    for cls, fields, words in (
        (SimPO, {"gamma": -0.1}, "gamma"),
        (SimPO, {"label_smoothing": 0.5}, "label_smoothing"),
        (CPO, {"label_smoothing": 0.5}, "label_smoothing"),
    ):
        with pytest.raises(ValueError, match=words):
            cls(**fields)
