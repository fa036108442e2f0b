"""Semantics and numbers of specs/cs336.md §1, at a tight tolerance (§1.20: the assignment's own lets bugs through)."""

import hashlib
import math

import pytest
import torch

from coterie.algos import padded

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def seeded(make):
    torch.manual_seed(42)
    return make()


LOGITS = seeded(lambda: torch.randn(2, 10, 100))
REWARDS = seeded(lambda: torch.rand(2, 1))
ADVANTAGES = REWARDS - REWARDS.mean()
LOGPROBS = seeded(lambda: torch.randn(2, 10))
OLD = LOGPROBS + seeded(lambda: torch.randn(2, 10))
MASK = seeded(lambda: torch.rand(2, 10) > 0.5)


def test_the_fixture_is_the_assignment_s():
    torch.testing.assert_close(REWARDS.flatten(), torch.tensor([0.88227, 0.91500]), rtol=0, atol=1e-5)
    torch.testing.assert_close(OLD, 2 * LOGPROBS)


# --- reductions


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_masked_mean_is_raw_and_empty_slices_are_nan(dim):
    values, mask = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[1, 0, 0], [1, 1, 0]])
    expected = {None: torch.tensor(10 / 3), 0: torch.tensor([2.5, 5.0, math.nan])}.get(dim, torch.tensor([1.0, 4.5]))
    torch.testing.assert_close(padded.masked_mean(values, mask, dim), expected, equal_nan=True)


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_masked_normalize_divides_by_its_constant_and_empty_slices_are_0(dim):
    values, mask = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[1, 0, 0], [1, 1, 0]])
    expected = {None: torch.tensor(10.0), 0: torch.tensor([5.0, 5.0, 0.0])}.get(dim, torch.tensor([1.0, 9.0])) / 42.0
    torch.testing.assert_close(padded.masked_normalize(values, mask, dim, 42.0), expected)


def test_length_normalisation_example():
    ratio = torch.ones(2, 7, requires_grad=True)
    mask = torch.arange(7)[None] < torch.tensor([[4], [7]])
    rows = padded.masked_mean(ratio * 2.0, mask, 1)
    assert rows.tolist() == [2.0, 2.0]
    rows.mean().backward()
    torch.testing.assert_close(ratio.grad, mask * torch.tensor([[0.25], [1 / 7]]))
    rows = padded.masked_normalize(ratio * 2.0, mask, 1, 7.0)
    torch.testing.assert_close(rows, torch.tensor([8 / 7, 2.0]))


def test_what_lies_outside_the_mask_is_never_read():
    values = torch.tensor([[1.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    for out in (padded.masked_mean(values, mask), padded.masked_normalize(values, mask)):
        assert out.item() == 1.0
        values.grad = None
        out.backward()
        assert values.grad.tolist() == [[1.0, 0.0]]


# --- logits


def test_entropy_is_in_nats_and_stable():
    torch.testing.assert_close(padded.entropy(torch.zeros(3, 8)), torch.full((3,), math.log(8)))
    p = torch.softmax(LOGITS, -1)
    torch.testing.assert_close(padded.entropy(LOGITS), -(p * p.log()).sum(-1), **CLOSE)
    torch.testing.assert_close(padded.entropy(LOGITS + 1e4), padded.entropy(LOGITS), rtol=1e-3, atol=1e-2)
    assert padded.entropy(torch.tensor([0.0, 0.0, -math.inf])).item() == pytest.approx(math.log(2))


def test_logprobs_of_labels():
    labels = torch.tensor([[3], [7]])
    expected = torch.log_softmax(LOGITS[:, :1], -1)[torch.arange(2), 0, labels[:, 0]]
    torch.testing.assert_close(padded.logprobs_of(LOGITS[:, :1], labels)[:, 0], expected)


# --- rewards


def hashed(response, truth):
    """The assignment's fixture: SHA-256 of the response, mod 10, over 10."""
    return {"reward": int(hashlib.sha256(response.encode()).hexdigest(), 16) % 10 / 10}


def listed(values):
    rest = iter(values)
    return lambda response, truth: {"reward": next(rest)}


RAW = [0.2, 0.5, 0.0, 0.4, 0.9, 0.7, 0.2, 0.0]


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        (True, [-0.33824, 1.01472, -1.24021, 0.56373, 1.07062, 0.59479, -0.59479, -1.07062]),
        (False, [-0.075, 0.225, -0.275, 0.125, 0.45, 0.25, -0.25, -0.45]),
    ],
)
def test_group_normalised_rewards(std, expected):
    advantages, raw, meta = padded.group_normalized_rewards(listed(RAW), [""] * 8, [""] * 8, 4, 1e-6, std)
    torch.testing.assert_close(advantages, torch.tensor(expected), rtol=0, atol=6e-6)
    torch.testing.assert_close(raw, torch.tensor(RAW))
    assert advantages.dtype == raw.dtype == torch.float32
    assert meta == pytest.approx(
        {"mean": 2.9 / 8, "std": torch.tensor(RAW).std(correction=0).item(), "min": 0, "max": 0.9}
    )


def test_the_reward_function_sees_each_pair():
    seen = []

    def reward(response, truth):
        seen.append((response, truth))
        return hashed(response, truth)

    padded.group_normalized_rewards(reward, ["a", "b"], ["x", "y"], 2)
    assert seen == [("a", "x"), ("b", "y")]


def test_constant_and_single_groups_are_exactly_0():
    advantages, _, _ = padded.group_normalized_rewards(listed([0.1] * 3 + [1, 0, 0]), [""] * 6, [""] * 6, 3)
    assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert padded.group_normalized_rewards(listed([0.7]), [""], [""], 1)[0].tolist() == [0.0]
    assert padded.group_normalized_rewards(listed([]), [], [], 4)[2] == {}


def test_eps_is_added_to_the_deviation():
    advantages, _, _ = padded.group_normalized_rewards(listed([0.0, 2e-3]), [""] * 2, [""] * 2, 2, 1e-3)
    std = math.sqrt(2) * 1e-3
    torch.testing.assert_close(advantages, torch.tensor([-1e-3, 1e-3]) / (std + 1e-3))


def test_bad_groups_are_refused():
    with pytest.raises(ValueError, match="groups of 3"):
        padded.group_normalized_rewards(listed(RAW), [""] * 8, [""] * 8, 3)
    with pytest.raises(ValueError, match="groups of 0"):
        padded.group_normalized_rewards(listed(RAW), [""] * 8, [""] * 8, 0)
    with pytest.raises(ValueError, match="response 1"):
        padded.group_normalized_rewards(listed([1.0, math.nan]), [""] * 2, [""] * 2, 2)


# --- policy gradients


@pytest.mark.parametrize(("cliprange", "everywhere", "inside"), [(0.1, 13, 11), (0.5, 8, 6), (10.0, 0, 0)])
def test_clip_fractions_of_the_fixture(cliprange, everywhere, inside):
    _, meta = padded.grpo_clip_loss(ADVANTAGES, LOGPROBS, OLD, cliprange)
    assert meta["clipped"].sum() == everywhere
    assert meta["clipped"][MASK].sum() == inside
    assert MASK.sum() == 14


def test_grpo_clip_is_its_formula():
    ratio = (LOGPROBS - OLD).exp()
    expected = -torch.minimum(ratio * ADVANTAGES, ratio.clamp(0.9, 1.1) * ADVANTAGES)
    torch.testing.assert_close(padded.grpo_clip_loss(ADVANTAGES, LOGPROBS, OLD, 0.1)[0], expected, **CLOSE)


def test_the_four_types():
    def loss(kind, **kwargs):
        return padded.policy_gradient_loss(LOGPROBS, kind, **kwargs)[0]

    torch.testing.assert_close(loss("no_baseline", raw_rewards=REWARDS), -REWARDS * LOGPROBS)
    torch.testing.assert_close(loss("reinforce_with_baseline", advantages=ADVANTAGES), -ADVANTAGES * LOGPROBS)
    clip = loss("grpo_clip", advantages=ADVANTAGES, old_log_probs=OLD, cliprange=0.5)
    torch.testing.assert_close(clip, padded.grpo_clip_loss(ADVANTAGES, LOGPROBS, OLD, 0.5)[0])
    free = loss("grpo_no_clip", advantages=ADVANTAGES, old_log_probs=OLD)
    torch.testing.assert_close(free, -ADVANTAGES * (LOGPROBS - OLD).exp())


@pytest.mark.parametrize(
    ("kind", "given", "missing"),
    [
        ("no_baseline", {}, "raw_rewards"),
        ("reinforce_with_baseline", {"raw_rewards": REWARDS}, "advantages"),
        ("grpo_clip", {"advantages": ADVANTAGES, "cliprange": 0.1}, "old_log_probs"),
        ("grpo_clip", {"advantages": ADVANTAGES, "old_log_probs": OLD}, "cliprange"),
        ("grpo_no_clip", {"old_log_probs": OLD}, "advantages"),
        ("ppo", {"advantages": ADVANTAGES}, "not one of"),
    ],
)
def test_missing_arguments_are_named(kind, given, missing):
    with pytest.raises(ValueError, match=missing):
        padded.policy_gradient_loss(LOGPROBS, kind, **given)


def test_gradient_reaches_the_policy_alone():
    streams = [x.clone().requires_grad_() for x in (LOGPROBS, OLD, ADVANTAGES, REWARDS)]
    logprobs, old, advantages, rewards = streams
    for kind in ("no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"):
        arguments = (logprobs, kind, rewards, advantages, old, 0.1)
        padded.policy_gradient_loss(*arguments)[0].sum().backward()
    assert logprobs.grad is not None
    assert old.grad is None
    assert advantages.grad is None
    assert rewards.grad is None


# --- micro-batch steps


@pytest.mark.parametrize(("constant", "loss", "slope"), [(1.0, -0.600784, -0.25), (42.0, -0.0143044, -0.00595238)])
def test_sft_step(constant, loss, slope):
    x = LOGPROBS.clone().requires_grad_()
    found, _ = padded.sft_microbatch_train_step(x, MASK, 2, constant)
    assert found.item() == pytest.approx(loss, rel=2e-6)
    torch.testing.assert_close(x.grad, slope * MASK, **CLOSE)
    assert not found.requires_grad


def test_sft_steps_accumulate():
    x = LOGPROBS.clone().requires_grad_()
    for _ in range(10):
        padded.sft_microbatch_train_step(x, MASK, 2, 1.0)
    torch.testing.assert_close(x.grad, -2.5 * MASK, **CLOSE)


@pytest.mark.parametrize(
    ("kind", "loss", "total"),
    [
        ("grpo_clip", 0.00440072, 0.00649224),
        ("reinforce_with_baseline", 0.00405005, 0.00818367),
        ("no_baseline", -0.10484299, 0.44931829),
    ],
)
def test_grpo_step(kind, loss, total):
    x = LOGPROBS.clone().requires_grad_()
    found, _ = padded.grpo_microbatch_train_step(x, MASK, 2, kind, REWARDS, ADVANTAGES, OLD, 0.1)
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert x.grad.abs().sum().item() == pytest.approx(total, rel=1e-5)
    assert torch.all(x.grad[~MASK] == 0)


def test_grpo_step_reports_the_clip_fraction_inside_the_mask():
    x = LOGPROBS.clone().requires_grad_()
    _, meta = padded.grpo_microbatch_train_step(x, MASK, 2, "grpo_clip", None, ADVANTAGES, OLD, 0.1)
    assert meta["clip_fraction"].item() == pytest.approx(11 / 14)
    assert not meta["clipped"][~MASK].any()


def test_dr_grpo_step_divides_by_a_constant():
    x = LOGPROBS.clone().requires_grad_()
    found, _ = padded.grpo_microbatch_train_step(
        x, MASK, 2, "reinforce_with_baseline", None, ADVANTAGES, normalize_constant=5.0
    )
    expected = ((-ADVANTAGES * LOGPROBS * MASK).sum(1) / 5.0).mean() / 2
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_nan_in_the_padding_reaches_no_gradient():
    old = OLD.masked_fill(~MASK, math.nan)
    x = LOGPROBS.masked_fill(~MASK, math.nan).requires_grad_()
    found, _ = padded.grpo_microbatch_train_step(x, MASK, 2, "grpo_clip", None, ADVANTAGES, old, 0.1)
    assert found.item() == pytest.approx(0.00440072, rel=1e-5)
    assert torch.isfinite(x.grad).all()


# --- DPO


def test_per_instance_dpo():
    policy_chosen = torch.tensor(-3.0, requires_grad=True)
    reference = torch.tensor(-4.0, requires_grad=True)
    loss = padded.per_instance_dpo_loss(policy_chosen, torch.tensor(-7.0), reference, torch.tensor(-6.5), 0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.5 * 1.5)))
    loss.backward()
    assert reference.grad is None
    assert policy_chosen.grad.item() == pytest.approx(-0.5 / (1 + math.exp(0.75)))
    prompt = 11.0
    shifted = padded.per_instance_dpo_loss(
        policy_chosen + prompt, torch.tensor(-7.0 + prompt), reference, torch.tensor(-6.5), 0.5
    )
    assert shifted.item() == pytest.approx(loss.item())
