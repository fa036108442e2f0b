"""Corrections for rollouts that another policy sampled: importance weights and rejections.

With w = exp(proximal - sampler) per token, where `proximal` are the logprobs that the trainer gives the policy at the
start of the update (`old_logprobs`) and `sampler` those reported by the engine: w repairs numerics and staleness and is
constant during the update; the PPO ratio, exp(logprob - proximal), is another thing and is not touched here.

Weights (multiply the loss, never carry gradient) and rejections (take tokens or whole sequences out by index) are
independent, so every published combination is one of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coterie.algos.aggregate import segment_mean, segment_sum
from coterie.algos.surrogates import binary_kl

LOG_WEIGHT_BOUND = 20.0

Correction = Literal[
    "none", "token_tis", "sequence_tis", "geometric_tis", "token_mis", "icepop", "sequence_mis", "geometric_mis"
]
Rejection = Literal[
    "none",
    "token",
    "sequence",
    "geometric",
    "outlier",
    "token_k2",
    "token_k3",
    "sequence_sum_k2",
    "sequence_sum_k3",
    "sequence_mean_k2",
    "sequence_mean_k3",
    "sequence_max_k2",
    "sequence_max_k3",
    "kpop",
    "m2po",
]


@dataclass(frozen=True)
class Rule:
    """How a named correction or rejection reads w.

    Attributes:
        level: "token"; "sequence" (product of a sequence's weights); "geometric" (their geometric mean).
        low: default lower bound.
        high: default upper bound.
        masks: outside the bounds the token or sequence is rejected instead of truncated.
    """

    level: str
    low: float
    high: float
    masks: bool = False


def correction_rule(name: str) -> Rule:
    """The rule of a correction.

    | name | weight | outside [low, high] | default bounds |
    |---|---|---|---|
    | token_tis | w_t | truncated | 0, 2 |
    | sequence_tis | product over the sequence | truncated | 0, 2 |
    | geometric_tis | geometric mean over the sequence | truncated | 0, 2 |
    | token_mis | w_t | token rejected | 0.5, 2 |
    | icepop | w_t | token rejected | 0.5, 5 |
    | sequence_mis | product | sequence rejected | 0.5, 2 |
    | geometric_mis | geometric mean | sequence rejected | 0.999, 1.001 |

    "seq-mask-tis" of OpenRLHF and NeMo-RL is token_tis with a very high bound and rejection=geometric. Decoupled PPO
    (AReaL) is any of these with old logprobs that the trainer recomputed; `bypass` needs none of them. Sources:
    truncated importance sampling, fengyao.notion.site/off-policy-rl; masked, richardli.xyz/rl-collapse and IcePop,
    ringtech.notion.site/icepop.
    """
    rules = {
        "token_tis": Rule("token", 0.0, 2.0),
        "sequence_tis": Rule("sequence", 0.0, 2.0),
        "geometric_tis": Rule("geometric", 0.0, 2.0),
        "token_mis": Rule("token", 0.5, 2.0, masks=True),
        "icepop": Rule("token", 0.5, 5.0, masks=True),
        "sequence_mis": Rule("sequence", 0.5, 2.0, masks=True),
        "geometric_mis": Rule("geometric", 0.999, 1.001, masks=True),
    }
    if name not in rules:
        raise ValueError(f"correction={name!r} is not one of none, {', '.join(rules)}")
    return rules[name]


def rejection_rule(name: str) -> Rule:
    """The rule of a rejection.

    | name | rejected | default bounds |
    |---|---|---|
    | token | tokens with w_t outside [low, high] | 0.5, 2 |
    | sequence | sequences whose product of w is outside | 0.5, 2 |
    | geometric | sequences whose geometric mean of w is outside | 0.999, 1.001 |
    | outlier | sequences in which any w_t is outside | 1e-4, 100 |
    | token_k2, token_k3 | tokens with k2 = log(w)^2 / 2 or k3 = w - 1 - log w above high | 0.01 |
    | sequence_sum_*, sequence_mean_*, sequence_max_* | sequences with that statistic of k2 or k3 above high | 0.01 |
    | kpop | tokens whose binary KL between proximal and sampler, the larger direction, is above high | 2 |
    | m2po | the tokens with the largest log(w)^2, until the mean of the rest is at most high | 0.04 |

    Bounds are on w itself; verl's "k1" modes bound -log w, the inverse ratio. Sources: verl rollout correction,
    richardli.xyz/rl-collapse; outlier: SkyRL; KPop: ringtech.notion.site/kpop; M2PO: arXiv 2510.01161.
    """
    rules = {
        "token": Rule("token", 0.5, 2.0),
        "sequence": Rule("sequence", 0.5, 2.0),
        "geometric": Rule("geometric", 0.999, 1.001),
        "outlier": Rule("outlier", 1e-4, 100.0),
        "kpop": Rule("kpop", 0.0, 2.0),
        "m2po": Rule("m2po", 0.0, 0.04),
    }
    for k in ("k2", "k3"):
        rules[f"token_{k}"] = Rule(f"token_{k}", 0.0, 0.01)
        for reduction in ("sum", "mean", "max"):
            rules[f"sequence_{reduction}_{k}"] = Rule(f"sequence_{reduction}_{k}", 0.0, 0.01)
    if name not in rules:
        raise ValueError(f"rejection={name!r} is not one of none, {', '.join(sorted(rules))}")
    return rules[name]


def importance_weights(
    log_weights: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    level: Literal["token", "sequence", "geometric"] | str = "token",
) -> Float[Tensor, "A"]:
    """exp(log w) at a level, one an action token; the exponent is bounded to ±20. Constant.

    Args:
        log_weights: proximal - sampler logprobs of each action token.
        sequence_id: sequence of each token.
        num_sequences: how many there are.
        level: "token"; "sequence": of the sum over the sequence; "geometric": of the mean over the sequence.
    """
    logs = log_weights.detach()
    if level == "sequence":
        logs = segment_sum(logs, sequence_id, num_sequences)[sequence_id]
    elif level == "geometric":
        logs = segment_mean(logs, sequence_id, num_sequences)[sequence_id]
    elif level != "token":
        raise ValueError(f"level {level!r} is not one of token, sequence, geometric")
    return logs.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND).exp()


def within(values: Float[Tensor, "A"], low: float, high: float) -> Bool[Tensor, "A"]:
    """Inside closed bounds; NaN is outside."""
    return (values >= low) & (values <= high)


def kept_by(
    name: Rejection | str,
    proximal: Float[Tensor, "A"],
    sampler: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    low: float | None = None,
    high: float | None = None,
) -> Bool[Tensor, "A"]:
    """Which action tokens a rejection leaves (see `rejection_rule`); a NaN never stays.

    Args:
        name: the rejection.
        proximal, sampler: logprobs of each action token.
        sequence_id: sequence of each token.
        num_sequences: how many there are.
        low, high: bounds; None takes the rule's own.
    """
    rule = rejection_rule(name)
    low, high = rule.low if low is None else low, rule.high if high is None else high
    logs = (proximal - sampler).detach()
    if rule.level in ("token", "sequence", "geometric"):
        return within(importance_weights(logs, sequence_id, num_sequences, rule.level), low, high)
    if rule.level == "outlier":
        inside = within(importance_weights(logs, sequence_id, num_sequences), low, high)
        return all_in_sequence(inside, sequence_id, num_sequences)
    if rule.level == "kpop":
        return _kpop(proximal.detach(), sampler.detach()) <= high
    if rule.level == "m2po":
        return m2po_keep(logs, high)
    scope, _, kind = rule.level.rpartition("_")
    bounded = logs.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    estimate = bounded.square() / 2 if kind == "k2" else torch.expm1(bounded) - bounded
    return _reduce(estimate, scope, sequence_id, num_sequences) <= high


def all_in_sequence(
    condition: Bool[Tensor, "A"], sequence_id: Int[Tensor, "A"], num_sequences: int
) -> Bool[Tensor, "A"]:
    """For each token, whether every token of its sequence satisfies the condition."""
    failures = torch.bincount(sequence_id[~condition], minlength=num_sequences)
    return (failures == 0)[sequence_id]


def m2po_keep(log_weights: Float[Tensor, "A"], threshold: float) -> Bool[Tensor, "A"]:
    """Drop the tokens with the largest squared log-weight until the mean of the rest is at most `threshold`.

    At least one token stays. Needs the whole batch.
    """
    squares = log_weights.square()
    squares = torch.where(squares.isnan(), torch.full_like(squares, float("inf")), squares)
    order = torch.argsort(squares, stable=True)
    running = torch.cumsum(squares[order], 0) / torch.arange(1, len(squares) + 1, device=squares.device)
    count = max(int((running <= threshold).sum()), min(1, len(squares)))
    keep = torch.zeros_like(squares, dtype=torch.bool)
    keep[order[:count]] = True
    return keep


def opsm_keep(
    logprobs: Float[Tensor, "A"],
    behaviour: Float[Tensor, "A"],
    advantages: Float[Tensor, "A"],
    sequence_id: Int[Tensor, "A"],
    num_sequences: int,
    delta: float,
) -> Bool[Tensor, "A"]:
    """Off-policy sequence mask: drops negative tokens of sequences with mean(behaviour - logprob) > delta.

    Source: DeepSeek-V3.2, arXiv 2512.02556, eq. 9.
    """
    drift = segment_mean((behaviour - logprobs).detach(), sequence_id, num_sequences)[sequence_id]
    return (advantages >= 0) | (drift <= delta)


def _kpop(proximal: Float[Tensor, "A"], sampler: Float[Tensor, "A"]) -> Float[Tensor, "A"]:
    eps = 1e-8
    p, q = proximal.exp().clamp(eps, 1 - eps).log(), sampler.exp().clamp(eps, 1 - eps).log()
    return torch.maximum(binary_kl(p, q, 0.0), binary_kl(q, p, 0.0))


def _reduce(
    values: Float[Tensor, "A"], scope: str, sequence_id: Int[Tensor, "A"], num_sequences: int
) -> Float[Tensor, "A"]:
    if scope == "token":
        return values
    if scope == "sequence_max":
        start = values.new_full((num_sequences,), -float("inf"))
        return start.scatter_reduce(0, sequence_id, values, "amax")[sequence_id]
    reduce = segment_sum if scope == "sequence_sum" else segment_mean
    return reduce(values, sequence_id, num_sequences)[sequence_id]
