"""The `[batch, length]` + mask form of the common primitives, for people who bring padded tensors.

Semantics are those of Stanford CS336's alignment assignment: a mean over an empty slice is NaN, a normalised sum is 0,
groups are consecutive rows, deviations have ddof 1 and eps is added to them. B rows, T positions, V vocabulary entries.
The flat form of `coterie.algos` is exact under any split; here the caller's micro-batches are averaged as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coterie.algos import preference
from coterie.algos.surrogates import clipped

Mask = Bool[Tensor, "..."] | Int[Tensor, "..."] | Float[Tensor, "..."]
PolicyLossKind = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]
RewardFunction = Callable[[str, str], Mapping[str, float]]


def masked_mean(values: Float[Tensor, "..."], mask: Mask, dim: int | None = None) -> Float[Tensor, "..."]:
    """sum(values where mask) / sum(mask) over `dim`, or over everything; NaN for an empty slice.

    What lies outside the mask is never read, so NaN there is harmless.
    """
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    if dim is None:
        return kept.sum() / mask.sum()
    return kept.sum(dim) / mask.sum(dim)


def masked_normalize(
    values: Float[Tensor, "..."], mask: Mask, dim: int | None = None, normalize_constant: float = 1.0
) -> Float[Tensor, "..."]:
    """sum(values where mask) / normalize_constant over `dim`, or over everything; 0 for an empty slice."""
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    return (kept.sum() if dim is None else kept.sum(dim)) / normalize_constant


def entropy(logits: Float[Tensor, "... V"]) -> Float[Tensor, "..."]:
    """Entropy in nats of softmax(logits) over the last dimension; entries of -inf count 0."""
    logprobs = torch.log_softmax(logits, dim=-1)
    terms = torch.where(logprobs == -float("inf"), torch.zeros_like(logprobs), logprobs.exp() * logprobs)
    return -terms.sum(-1)


def logprobs_of(logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log softmax(logits) at `labels`."""
    return torch.log_softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def group_normalized_rewards(
    reward_fn: RewardFunction,
    responses: Sequence[str],
    ground_truths: Sequence[str],
    group_size: int,
    advantage_eps: float = 1e-6,
    normalize_by_std: bool = True,
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"], dict[str, float]]:
    """Rewards of consecutive groups, minus their mean, optionally over (unbiased deviation + eps).

    Returns:
        advantages, raw rewards (both float32), and mean, std, min and max of the raw rewards. A constant group, and a
        group of one, has advantage exactly 0.

    Raises:
        ValueError: when the number of responses isn't a multiple of `group_size`, lengths differ, or a reward isn't
            finite.
    """
    if group_size < 1 or len(responses) % group_size:
        raise ValueError(f"{len(responses)} responses don't divide into groups of {group_size}")
    rewards = [float(reward_fn(r, t)["reward"]) for r, t in zip(responses, ground_truths, strict=True)]
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"response {[math.isfinite(r) for r in rewards].index(False)} has a reward that is not finite")
    raw = torch.tensor(rewards, dtype=torch.float32)
    groups = raw.double().reshape(-1, group_size)
    advantages = groups - groups.mean(1, keepdim=True)
    constant = (groups == groups[:, :1]).all(1, keepdim=True)
    if normalize_by_std and group_size > 1 and len(groups):
        advantages = advantages / (groups.std(1, keepdim=True) + advantage_eps)
    advantages = torch.where(constant, torch.zeros_like(advantages), advantages)
    found = {"mean": raw.mean(), "std": raw.std(correction=0), "min": raw.min(), "max": raw.max()} if rewards else {}
    return advantages.flatten().float(), raw, {name: float(value) for name, value in found.items()}


def naive_policy_gradient_loss(
    raw_rewards_or_advantages: Float[Tensor, "B 1"], policy_log_probs: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """-A log pi, one a position."""
    return -raw_rewards_or_advantages.detach() * policy_log_probs


def grpo_clip_loss(
    advantages: Float[Tensor, "B 1"],
    policy_log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    cliprange: float,
) -> tuple[Float[Tensor, "B T"], dict[str, Tensor]]:
    """-min(rho A, clip(rho, 1 - cliprange, 1 + cliprange) A), and where the clipped branch is the smaller one."""
    ratio = (policy_log_probs - old_log_probs.detach()).exp()
    loss = clipped(ratio, advantages, cliprange, cliprange)
    return loss, {"clipped": (loss > -advantages * ratio).detach()}


def policy_gradient_loss(
    policy_log_probs: Float[Tensor, "B T"],
    loss_type: PolicyLossKind,
    raw_rewards: Float[Tensor, "B 1"] | None = None,
    advantages: Float[Tensor, "B 1"] | None = None,
    old_log_probs: Float[Tensor, "B T"] | None = None,
    cliprange: float | None = None,
) -> tuple[Float[Tensor, "B T"], dict[str, Tensor]]:
    """The loss of that type and its metadata.

    no_baseline: -R log pi. reinforce_with_baseline: -A log pi. grpo_clip: see `grpo_clip_loss`. grpo_no_clip: -A rho.

    Raises:
        ValueError: for an unknown type, or an argument that the type needs and doesn't have.
    """
    if loss_type == "no_baseline":
        return naive_policy_gradient_loss(_given(raw_rewards, "raw_rewards", loss_type), policy_log_probs), {}
    if loss_type == "reinforce_with_baseline":
        return naive_policy_gradient_loss(_given(advantages, "advantages", loss_type), policy_log_probs), {}
    if loss_type not in ("grpo_clip", "grpo_no_clip"):
        raise ValueError(
            f"loss_type={loss_type!r} is not one of no_baseline, reinforce_with_baseline, grpo_clip, grpo_no_clip"
        )
    given = _given(advantages, "advantages", loss_type)
    old = _given(old_log_probs, "old_log_probs", loss_type)
    if loss_type == "grpo_no_clip":
        return -given.detach() * (policy_log_probs - old.detach()).exp(), {}
    return grpo_clip_loss(given, policy_log_probs, old, _given(cliprange, "cliprange", loss_type))


def sft_microbatch_train_step(
    policy_log_probs: Float[Tensor, "B T"],
    response_mask: Mask,
    gradient_accumulation_steps: int,
    normalize_constant: float = 1.0,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Backward of -mean_B(sum_T logprob / constant) / gradient_accumulation_steps; returns that scaled loss."""
    sums = masked_normalize(policy_log_probs, response_mask, -1, normalize_constant)
    loss = -sums.mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), {}


def grpo_microbatch_train_step(
    policy_log_probs: Float[Tensor, "B T"],
    response_mask: Mask,
    gradient_accumulation_steps: int,
    loss_type: PolicyLossKind,
    raw_rewards: Float[Tensor, "B 1"] | None = None,
    advantages: Float[Tensor, "B 1"] | None = None,
    old_log_probs: Float[Tensor, "B T"] | None = None,
    cliprange: float | None = None,
    normalize_constant: float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Backward of mean_B(mean over each row's mask) / gradient_accumulation_steps; returns that scaled loss.

    With `normalize_constant` each row is summed and divided by it instead (Dr. GRPO). The metadata of the loss comes
    back, with the share of clipped positions inside the mask as "clip_fraction". Positions outside the mask get a zero
    gradient, whatever they hold.
    """
    inside, nothing = response_mask.bool(), torch.zeros_like(policy_log_probs)
    policy_log_probs = torch.where(inside, policy_log_probs, nothing)
    old_log_probs = None if old_log_probs is None else torch.where(inside, old_log_probs, nothing)
    losses, metadata = policy_gradient_loss(
        policy_log_probs, loss_type, raw_rewards, advantages, old_log_probs, cliprange
    )
    if normalize_constant is None:
        rows = masked_mean(losses, response_mask, 1)
    else:
        rows = masked_normalize(losses, response_mask, 1, normalize_constant)
    loss = rows.mean() / gradient_accumulation_steps
    loss.backward()
    if "clipped" in metadata:
        metadata["clip_fraction"] = masked_mean(metadata["clipped"].to(losses.dtype), response_mask)
    return loss.detach(), metadata


def per_instance_dpo_loss(
    policy_chosen: Float[Tensor, "..."],
    policy_rejected: Float[Tensor, "..."],
    reference_chosen: Float[Tensor, "..."],
    reference_rejected: Float[Tensor, "..."],
    beta: float,
) -> Float[Tensor, "..."]:
    """DPO of one pair from summed logprobs of the whole sequences; a common prompt cancels in the differences.

    The reference's logprobs may live on another device and carry no gradient.
    """
    chosen = policy_chosen - reference_chosen.detach().to(policy_chosen.device)
    rejected = policy_rejected - reference_rejected.detach().to(policy_rejected.device)
    return preference.dpo(chosen, rejected, beta)


def _given(value: Any, name: str, loss_type: str) -> Any:
    if value is None:
        raise ValueError(f"loss_type={loss_type!r} needs {name}")
    return value
