import math

import pytest
import torch

from coterie.algos import ValueLoss, explained_variance, value_loss
from coterie.core.batch import Outputs
from coterie.core.metrics import values


def t(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_golden_number_of_skywork_spec_e():
    assert value_loss(t(1.0), t(0.3), t(0.2), 0.5).tolist() == pytest.approx([0.32])
    assert value_loss(t(1.0), t(0.3), t(0.9), 0.5).tolist() == pytest.approx([0.1**2 / 2])


def test_the_clip_is_pessimistic_on_both_sides():
    assert value_loss(t(0.0), t(1.0), t(-1.0), 0.5).tolist() == pytest.approx([1.5**2 / 2])
    assert value_loss(t(2.0), t(1.0), t(3.0), 0.5).tolist() == pytest.approx([1.5**2 / 2])
    assert value_loss(t(2.0), t(1.0), t(3.0), 0.0).tolist() == pytest.approx([0.5])


def test_huber():
    new, nothing = t(1.0, 1.5, 5.0, -5.0), t(0.0, 0.0, 0.0, 0.0)
    assert value_loss(new, nothing, nothing, 0.0, 2.0).tolist() == [0.5, 1.125, 8.0, 8.0]


def test_gradient_reaches_the_new_values_alone():
    new, old, goal = (t(1.0).requires_grad_() for _ in range(3))
    value_loss(new, old, goal + 1.0, 0.5).sum().backward()
    assert new.grad.item() == -1.0
    assert old.grad is None
    assert goal.grad is None


def test_loss_and_metrics(flat_batch):
    batch = flat_batch([2, 1], values=[0.0, 0.0, 0.0], returns=[1.0, 0.0, 3.0])
    new = t(0.4, 0.0, 2.0)
    out = ValueLoss(clip=0.5)(Outputs(new, values=new), batch)
    assert out.loss.item() == pytest.approx((0.6**2 + 0 + 2.5**2) / 2 / 3)
    shown = values(out.metrics)
    assert shown["critic/clip_frac"] == pytest.approx(1 / 3)
    assert shown["critic/value_mean"] == pytest.approx(0.8)
    error, goal = torch.tensor([0.6, 0.0, 1.0]), torch.tensor([1.0, 0.0, 3.0])
    expected = 1 - error.var(correction=0) / goal.var(correction=0)
    assert explained_variance(shown) == pytest.approx(float(expected), abs=1e-6)


def test_explained_variance_of_constant_returns_is_undefined():
    shown = {"critic/return_square_mean": 4.0, "critic/return_mean": 2.0}
    shown |= {"critic/error_square_mean": 1.0, "critic/error_mean": 0.5}
    assert math.isnan(explained_variance(shown))
    assert math.isnan(explained_variance(shown | {"critic/return_square_mean": 4.0 + 1e-15}))
    assert not math.isnan(explained_variance(shown | {"critic/return_square_mean": 4.0 + 1e-9}))


def test_declarations_and_refusals(flat_batch):
    assert ValueLoss().needs == {"values", "returns"}
    assert ValueLoss().wants == {"values"}
    for fields in ValueLoss.conventions.values():
        assert ValueLoss(**fields)
    for fields, words in (({"clip": -0.1}, "clip"), ({"huber": -1.0}, "huber"), ({"aggregate": "x"}, "aggregate")):
        with pytest.raises(ValueError, match=words):
            ValueLoss(**fields)
    with pytest.raises(ValueError, match="values"):
        ValueLoss()(Outputs(t(1.0)), flat_batch([1], values=[0.0], returns=[0.0]))
