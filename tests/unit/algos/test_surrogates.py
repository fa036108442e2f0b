import dataclasses
import inspect
import math

import pytest
import torch

import coterie.algos as algos
from coterie.algos import surrogates
from coterie.algos.surrogates import (
    binary_kl,
    cispo,
    clipped,
    dppo,
    dppo_keep,
    dro,
    importance_sampling,
    log_ratio,
    ppo_clip,
    reinforce,
    sapo,
    topr,
)


def t(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual", "expected"),
    [
        (1.0, 1.5, 0.0, -1.2),
        (1.0, 0.5, 0.0, -0.5),
        (-1.0, 1.5, 0.0, 1.5),
        (-1.0, 0.5, 0.0, 0.8),
        (-1.0, 5.0, 0.0, 5.0),
        (-1.0, 5.0, 3.0, 3.0),
        (1.0, 5.0, 3.0, -1.2),
        (-1.0, 2.5, 3.0, 2.5),
    ],
)
def test_golden_numbers_of_skywork_spec_e(advantage, ratio, dual, expected):
    loss = ppo_clip(t(math.log(ratio)), t(0.0), t(advantage), 0.2, 0.2, dual_clip=dual)
    assert float(loss) == pytest.approx(expected)


def test_separate_bounds():
    assert float(ppo_clip(t(math.log(1.5)), t(0.0), t(1.0), 0.1, 0.28)) == pytest.approx(-1.28)
    assert float(ppo_clip(t(math.log(0.5)), t(0.0), t(-1.0), 0.1, 0.28)) == pytest.approx(0.9)


def test_delta_caps_the_ratio_of_negative_advantages_only():
    assert float(ppo_clip(t(2.0), t(0.0), t(-1.0), delta=3.0)) == pytest.approx(3.0)
    assert float(ppo_clip(t(1.0), t(0.0), t(-1.0), delta=3.0)) == pytest.approx(math.e)
    assert float(ppo_clip(t(2.0), t(0.0), t(1.0), delta=3.0)) == pytest.approx(-1.2)


def test_log_ratio_bound():
    assert log_ratio(t(0.0, -50.0, 1.0), t(-50.0, 0.0, 0.0)).tolist() == [20.0, -20.0, 1.0]
    assert log_ratio(t(0.0), t(-50.0), 0.0).tolist() == [50.0]
    assert log_ratio(t(0.0), t(-50.0), 5.0).tolist() == [5.0]


def test_nothing_is_written_in_place():
    inputs = [t(-1.0, -2.0), t(-1.5, -1.0), t(1.0, -1.0)]
    copies = [x.clone() for x in inputs]
    for f in (ppo_clip, cispo, sapo, dppo, dro, importance_sampling):
        f(*inputs)
    topr(*inputs, torch.tensor([True, False]))
    reinforce(inputs[0], inputs[2])
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


@pytest.mark.parametrize("function", [ppo_clip, cispo, sapo, dppo, dro, importance_sampling])
def test_gradient_reaches_the_current_logprobs_alone(function):
    streams = [t(-1.0, -2.0).requires_grad_() for _ in range(3)]
    function(*streams).sum().backward()
    assert streams[0].grad is not None
    assert streams[1].grad is None
    assert streams[2].grad is None


@pytest.mark.parametrize("function", [ppo_clip, cispo, sapo, dppo, dro, importance_sampling])
def test_at_ratio_1_the_gradient_is_the_policy_gradient(function):
    logprobs, advantages = t(-1.0, -2.0, -0.3).requires_grad_(), t(0.7, -1.3, 0.0)
    function(logprobs, logprobs.detach(), advantages).sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


def test_cispo_keeps_the_gradient_of_clipped_tokens_and_bounds_are_distances():
    """peers.md §2.9, trap 3: clip_high = 4 is an absolute bound of 5."""
    x = t(math.log(8.0), math.log(0.01)).requires_grad_()
    cispo(x, t(0.0, 0.0), t(1.0, 1.0)).sum().backward()
    assert x.grad.tolist() == pytest.approx([-5.0, -0.01])
    x.grad = None
    cispo(x, t(0.0, 0.0), t(1.0, 1.0), 0.2, 0.2).sum().backward()
    assert x.grad.tolist() == pytest.approx([-1.2, -0.8])


def test_sapo_value_and_gate():
    loss = sapo(t(0.0, 0.0), t(0.0, 0.0), t(1.0, -1.0), 2.0, 4.0)
    assert loss.tolist() == pytest.approx([-1.0, 0.5])
    far = sapo(t(3.0), t(0.0), t(0.0), 2.0, 4.0)
    assert far.tolist() == [0.0]


def test_sapo_uses_the_negative_temperature_at_zero_and_stays_double():
    assert sapo(t(0.1), t(0.0), t(1.0), 1.0, 1.1).dtype == torch.float64
    loss = sapo(t(0.0), t(0.0), t(1.0), 1 / 3, 1.0)
    assert float(loss) == pytest.approx(-6.0, abs=1e-14)


def test_dppo_regions_point_by_advantage():
    new, old = t(math.log(0.8)), t(math.log(0.5))
    assert dppo_keep(new, old, t(1.0), 0.2, 0.2).tolist() == [False]
    assert dppo_keep(new, old, t(-1.0), 0.2, 0.2).tolist() == [True]
    assert dppo_keep(old, new, t(-1.0), 0.2, 0.2).tolist() == [False]
    assert dppo_keep(old, new, t(1.0), 0.2, 0.2).tolist() == [True]
    assert dppo_keep(old, new, t(-1.0), 0.31, 0.0).tolist() == [True]
    assert dppo_keep(new, old, t(1.0), 0.0, 0.31).tolist() == [True]


def test_dppo_kl_region():
    new, old = t(math.log(0.8)), t(math.log(0.5))
    kl = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert float(binary_kl(old, new)) == pytest.approx(kl, abs=1e-7)
    for advantage, moved, low, high, kept in [
        (1.0, (new, old), 9, kl - 0.01, False),
        (1.0, (new, old), 0, kl + 0.01, True),
        (-1.0, (new, old), 0, 9, True),
        (1.0, (old, new), 9, 0, True),
        (-1.0, (old, new), 0, 9, False),
    ]:
        assert dppo_keep(*moved, t(advantage), low, high, "kl").tolist() == [kept]


def test_binary_kl_of_certain_tokens_is_finite():
    assert binary_kl(t(0.0), t(-1.0)).tolist() == pytest.approx([1.0])
    assert math.isfinite(binary_kl(t(-1.0), t(0.0)).item())


@pytest.mark.parametrize(
    ("function", "cls", "renamed"),
    [
        (ppo_clip, algos.PPOClip, {}),
        (cispo, algos.CISPO, {}),
        (sapo, algos.SAPO, {}),
        (dppo, algos.DPPO, {}),
        (dro, algos.DRO, {}),
        (importance_sampling, algos.ImportanceSampling, {}),
        (algos.gspo, algos.GSPO, {}),
        (algos.gmpo, algos.GMPO, {}),
        (algos.value_loss, algos.ValueLoss, {}),
        (algos.dpo, algos.DPO, {}),
        (algos.robust_dpo, algos.RobustDPO, {}),
        (algos.hinge, algos.HingeDPO, {}),
        (algos.ipo, algos.IPO, {}),
        (algos.exo, algos.EXO, {}),
        (algos.nca, algos.NCA, {}),
        (algos.bco, algos.BCO, {"shift": None}),
        (algos.sppo, algos.SPPO, {}),
        (algos.apo_zero, algos.APOZero, {}),
        (algos.apo_down, algos.APODown, {}),
        (algos.discopop, algos.DiscoPOP, {}),
        (algos.orpo, algos.ORPO, {}),
        (algos.cpo, algos.CPO, {}),
        (algos.simpo, algos.SimPO, {}),
        (algos.kto, algos.KTO, {}),
        (algos.bradley_terry, algos.BradleyTerry, {}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_function_and_class_have_the_same_defaults(function, cls, renamed):
    fields = {f.name: f.default for f in dataclasses.fields(cls)}
    parameters = inspect.signature(function).parameters.values()
    shared = [p for p in parameters if p.default is not p.empty and renamed.get(p.name, p.name)]
    assert shared
    assert {p.name: p.default for p in shared} == {p.name: fields[p.name] for p in shared}


def test_dppo_caps_its_weight():
    x = t(math.log(0.9)).requires_grad_()
    dppo(x, t(math.log(0.001)), t(-1.0), ratio_cap=7.0).backward()
    assert float(x.grad) == pytest.approx(7.0)


def test_topr_tapers_what_is_not_positive():
    x = t(0.0, 0.0, 0.0).requires_grad_()
    old = t(math.log(2.0), math.log(2.0), math.log(0.5))
    topr(x, old, t(-1.0, -1.0, -1.0), torch.tensor([True, False, False])).sum().backward()
    assert x.grad.tolist() == pytest.approx([1.0, 0.5, 1.0])
    x.grad = None
    topr(x, old, t(-1.0, -1.0, -1.0), torch.tensor([True, False, False]), t(-9.0, math.log(0.25), 3.0)).sum().backward()
    assert x.grad.tolist() == pytest.approx([1.0, 0.25, 1.0])


def test_dro_pulls_back():
    x = t(1.0).requires_grad_()
    loss = dro(x, t(0.0), t(2.0), 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(-(2.0 - 0.25))
    assert float(x.grad) == pytest.approx(-(2.0 - 0.5))


def test_clipped_and_ppo_clip_agree():
    ratio = t(0.3, 1.0, 2.4)
    torch.testing.assert_close(
        clipped(ratio, t(1.0, -1.0, -1.0), 0.1, 0.3, dual_clip=2.0, delta=2.2),
        ppo_clip(ratio.log(), t(0.0, 0.0, 0.0), t(1.0, -1.0, -1.0), 0.1, 0.3, dual_clip=2.0, delta=2.2),
    )
    assert surrogates.clipped(t(2.4), t(-1.0), 0.1, 0.3, delta=2.2).tolist() == [2.2]
