import copy
import logging
import math

import pytest
import torch

from coterie.config.schema import OptimConfig
from coterie.learners.optim import Optimizer, learning_rate


def rates(steps, **options):
    config = OptimConfig(lr=1.0, **options)
    return [learning_rate(step, steps, config) for step in range(steps)]


def test_warm_up_rises_to_the_peak_and_constant_stays():
    assert rates(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_its_floor_at_the_last_step():
    assert rates(5, schedule="linear", min_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_down_in_the_middle():
    found = rates(7, schedule="cosine", warmup_steps=2)
    assert found[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert found[4] == pytest.approx(0.5) and found[-1] == pytest.approx(0.0)
    assert found[3] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_bear_a_single_step_and_steps_past_the_end(schedule):
    config = OptimConfig(lr=1.0, schedule=schedule, min_lr_ratio=0.1)
    assert 0.1 <= learning_rate(0, 1, config) <= 1.0
    assert learning_rate(50, 10, config) == pytest.approx(1.0 if schedule == "constant" else 0.1)


def make(**options):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    return module, Optimizer(module, OptimConfig(**{"lr": 0.1, **options}), total_steps=10)


def loss(module, scale=1.0):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    return scale * (module(x) ** 2 * torch.arange(4)).sum()


def test_a_step_is_adamw_on_the_clipped_gradient():
    module, optimizer = make(max_grad_norm=0.5, weight_decay=0.1)
    reference = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    reference.load_state_dict(module.state_dict())
    decayed, rest = [reference[0].weight], [reference[0].bias, *reference[1].parameters()]
    adamw = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.1, fused=False
    )
    for _ in range(3):
        optimizer.backward(loss(module))
        changed, metrics = optimizer.step()
        loss(reference).backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        adamw.step()
        adamw.zero_grad()
        assert changed
        assert metrics["optim/grad_norm"].value == pytest.approx(float(norm), rel=1e-5)
        assert metrics["optim/clipped_share"].value == 1.0
    for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_small_gradient_is_not_touched():
    module, optimizer = make(max_grad_norm=1e9)
    optimizer.backward(loss(module))
    _, metrics = optimizer.step()
    assert metrics["optim/clipped_share"].value == 0.0


def test_weight_decay_reaches_matrices_only():
    module, optimizer = make(weight_decay=0.5)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer.backward(sum((p * 0).sum() for p in module.parameters()))
    optimizer.step()
    for name, parameter in module.named_parameters():
        expected = before[name] * (1 - 0.1 * 0.5) if parameter.ndim == 2 else before[name]
        torch.testing.assert_close(parameter.detach(), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_gradient_skips_the_step_and_says_so(bad, caplog):
    module, optimizer = make()
    before = [p.detach().clone() for p in module.parameters()]
    optimizer.backward(loss(module, bad))
    with caplog.at_level(logging.WARNING):
        changed, metrics = optimizer.step()
    assert not changed and "skipped" in caplog.text
    assert metrics["optim/skipped_steps"].value == 1 and "optim/grad_norm" not in metrics
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert all(p.grad is None for p in module.parameters())
    optimizer.backward(loss(module))
    changed, metrics = optimizer.step()
    assert changed and metrics["optim/skipped_steps"].value == 0 and optimizer.skipped == 1
    assert optimizer.steps == 2  # the schedule went on


def test_loss_scaling_leaves_the_update_as_it_was_and_backs_off():
    plain, first = make()
    scaled, _ = make()
    second = Optimizer(scaled, OptimConfig(lr=0.1), total_steps=10, loss_scaling=True)
    norms = []
    for optimizer, module in ((first, plain), (second, scaled)):
        optimizer.backward(loss(module))
        norms.append(optimizer.step()[1]["optim/grad_norm"].value)
    assert norms[0] == pytest.approx(norms[1])
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    scale = second.scaler.get_scale()
    second.backward(loss(scaled, float("inf")))
    assert second.step()[0] is False
    assert second.scaler.get_scale() < scale


def test_state_survives_a_round_trip_bit_for_bit():
    module, optimizer = make(schedule="cosine", warmup_steps=2)
    for _ in range(2):
        optimizer.backward(loss(module))
        optimizer.step()
    twin, other = make(schedule="cosine", warmup_steps=2)
    twin.load_state_dict(module.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # on disk in real life
    for m, o in ((module, optimizer), (twin, other)):
        o.backward(loss(m))
        o.step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters(), strict=True))
    assert other.steps == optimizer.steps == 3


def test_frozen_parameters_are_left_out():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    module[0].requires_grad_(False)
    optimizer = Optimizer(module, OptimConfig(), total_steps=1)
    assert {id(p) for p in optimizer.parameters} == {id(p) for p in module[1].parameters()}
