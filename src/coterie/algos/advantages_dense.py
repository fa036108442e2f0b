"""Advantages from another model's logprobs: implicit process rewards, distillation on own samples, KL penalties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.algos.checks import Overrides, require, require_between, require_choices, require_positive, stream_of
from coterie.algos.kl import kl_estimate
from coterie.algos.moments import Floor, centre
from coterie.algos.token_rewards import returns_to_go
from coterie.algos.transforms import BatchWhitening, advantages_of
from coterie.core.types import FloatArray, Group, Rollout


@dataclass(frozen=True)
class PRIME:
    """Implicit process rewards and the outcome reward, each with a leave-one-out baseline, summed and made returns.

    Equation: process reward `p_t = beta (log prm(y_t) - log ref(y_t))`; over the group of G scored rollouts with mean
    process rewards m_j: `A_t = process_coef sum_{s >= t} gamma^{s-t} (p_s - sum_{j != i} m_j / (G - 1))
    + outcome_coef (R_i - sum_{j != i} R_j / (G - 1))`, whitened over the batch's action tokens.

    Paper: PRIME, arXiv 2502.01456 (coefficients 1 there, 5 in the released scripts). The process model is trained
    online with the cross-entropy of `sigmoid(beta * sum_t q_t)` against the outcome; that is a loss, not this.

    Differences: the released code uses the token's own process reward in place of the rollout's mean in the baseline
    sum (`own="token"`), gives the last action token no process reward (`last_token=false`), can smooth with `lam`, and
    can divide process rewards by the largest magnitude of their reward-to-go in the batch (`scale="batch"`).

    Degenerate cases: fewer than two scored rollouts: exactly 0. Equal outcomes still have process signal. A rollout
    without action tokens has no mean process reward and stays out of that baseline, but in the outcome's. A missing
    score enters no baseline and no statistic, and its rollout gets 0.

    Attributes:
        score: outcome score.
        prm: stream of the process model's logprobs.
        reference: stream of its reference model's logprobs.
        beta: scale of the process reward; > 0.
        process_coef: weight of the process part; >= 0.
        outcome_coef: weight of the outcome part; >= 0.
        gamma: discount a token, in [0, 1].
        lam: weight of the process rewards that follow, `p_t + lam p_{t+1} + ...`; 0 for none.
        own: what of rollout i stands in the baseline sum: nothing but its "rollout" mean left out, or its own "token".
        last_token: the last action token has a process reward.
        scale: "none", or "batch": process rewards over the batch's largest absolute reward-to-go + 1e-6.
        whiten: normalise over the batch's action tokens.
        ddof: 1 or 0 in the whitening variance.
        eps: see floor; > 0.
        floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
    """

    score: str = "reward"
    prm: str = "prm_logprobs"
    reference: str = "ref_logprobs"
    beta: float = 0.05
    process_coef: float = 5.0
    outcome_coef: float = 5.0
    gamma: float = 1.0
    lam: float = 0.0
    own: Literal["rollout", "token"] = "rollout"
    last_token: bool = True
    scale: Literal["none", "batch"] = "none"
    whiten: bool = True
    ddof: int = 1
    eps: float = 1e-8
    floor: Floor = "variance"

    paper: ClassVar[str] = "2502.01456"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {"own": "token", "last_token": False, "scale": "batch"}}

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "beta", "eps")
        require_between(self, 0, 1, "gamma", "lam")
        require_between(self, 0, float("inf"), "process_coef", "outcome_coef")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}", f"stream:{self.prm}", f"stream:{self.reference}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        process = [[self._process(r) for r in group.rollouts] for group in groups]
        if self.scale == "batch":
            scored = [
                (s, p)
                for g, rows in zip(groups, process, strict=True)
                for s, p in zip(g.scores(self.score), rows, strict=True)
            ]
            peaks = [float(np.abs(returns_to_go(p)).max()) for s, p in scored if p.size and not np.isnan(s)]
            largest = max(peaks, default=0.0)
            process = [[p / (largest + 1e-6) for p in rows] for rows in process]
        out = [g.with_advantages(self._of(g, rows)) for g, rows in zip(groups, process, strict=True)]
        return (
            BatchWhitening(ddof=self.ddof, eps=self.eps, floor=self.floor)(out, (self.score,)) if self.whiten else out
        )

    def _process(self, rollout: Rollout) -> FloatArray:
        gap = stream_of(rollout, self.prm) - stream_of(rollout, self.reference)
        rewards = returns_to_go(self.beta * gap, self.lam)
        if not self.last_token and rewards.size:
            rewards = np.append(rewards[:-1], 0.0)
        return rewards

    def _of(self, group: Group, process: list[FloatArray]) -> list[FloatArray]:
        scores = group.scores(self.score)
        outcome = self.outcome_coef * centre(scores, leave_one_out=True)
        means = {i: float(p.mean()) for i, p in enumerate(process) if p.size and not np.isnan(scores[i])}
        total = sum(means.values())
        out = [np.zeros(r.num_actions) for r in group.rollouts]
        if np.count_nonzero(~np.isnan(scores)) < 2:
            return out
        for i, mean in means.items():
            own = process[i] if self.own == "token" else mean
            baseline = (total - own) / (len(means) - 1) if len(means) > 1 else process[i]
            out[i] = self.process_coef * returns_to_go(process[i] - baseline, self.gamma) + outcome[i]
        return out


@dataclass(frozen=True)
class OnPolicyDistillation:
    """How much more likely the teacher finds each token that the student sampled: reverse KL as an advantage.

    Equation: `A_t = coef (log teacher(y_t) - log pi(y_t))`, a constant for the loss; with `add` it is added to the
    advantages that are there. Its expectation under the student is minus the reverse KL at t (k1 estimate).

    Paper: on-policy distillation, thinkingmachines.ai/blog/on-policy-distillation (2025). GKD, arXiv 2306.13649,
    takes the divergence itself as a loss.

    Differences: verl (PG-OPD), NeMo-RL (MOPD) and tinker-cookbook as here; slime adds it to a task advantage with a
    coefficient (`add=true`).

    Degenerate cases: teacher equal to student: exactly 0. Group size 1 is the normal case; no score is read.

    Attributes:
        teacher: stream of the teacher's logprobs.
        policy: stream of the student's logprobs: "old_logprobs" (learner) or "sampler_logprobs" (engine).
        coef: scale; > 0.
        add: add to existing advantages instead of replacing them.
    """

    teacher: str = "teacher_logprobs"
    policy: str = "old_logprobs"
    coef: float = 1.0
    add: bool = False

    paper: ClassVar[str] = "thinkingmachines.ai/blog/on-policy-distillation"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"verl": {}, "nemo_rl": {}, "slime": {"add": True}}

    def __post_init__(self) -> None:
        require_positive(self, "coef")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"stream:{self.teacher}", f"stream:{self.policy}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages([self._of(r) for r in group.rollouts]) for group in groups]

    def _of(self, rollout: Rollout) -> FloatArray:
        gap = self.coef * (stream_of(rollout, self.teacher) - stream_of(rollout, self.policy))
        return gap + advantages_of(rollout) if self.add else gap


@dataclass(frozen=True)
class MiniLLM:
    """Reward-to-go of the teacher-student gap: reverse-KL distillation with long-range credit.

    Equation: `r_t = log teacher(y_t) - log pi(y_t)`, `A_t = sum_{s >= t} gamma^s r_s`, divided by
    `max(sum_{s >= t} gamma^s, 1e-4)` with `normalise_length`; s counts action tokens from 0.

    Paper: MiniLLM, arXiv 2306.08543 (TRL's form).

    Differences: the power is gamma^s, not gamma^(s - t), as in TRL: later tokens fade for the whole rollout.

    Degenerate cases: teacher equal to student: exactly 0. Group size 1 is the normal case; no score is read.

    Attributes:
        teacher: stream of the teacher's logprobs.
        policy: stream of the student's logprobs.
        gamma: discount, in [0, 1].
        normalise_length: divide by the discounted number of tokens left.
    """

    teacher: str = "teacher_logprobs"
    policy: str = "old_logprobs"
    gamma: float = 1.0
    normalise_length: bool = True

    paper: ClassVar[str] = "2306.08543"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"trl": {}}

    def __post_init__(self) -> None:
        require_between(self, 0, 1, "gamma")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"stream:{self.teacher}", f"stream:{self.policy}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages([self._of(r) for r in group.rollouts]) for group in groups]

    def _of(self, rollout: Rollout) -> FloatArray:
        gap = stream_of(rollout, self.teacher) - stream_of(rollout, self.policy)
        powers = self.gamma ** np.arange(len(gap), dtype=np.float64)
        advantages = returns_to_go(gap * powers)
        return advantages / np.maximum(returns_to_go(powers), 1e-4) if self.normalise_length else advantages


@dataclass(frozen=True)
class KLAdvantage:
    """A KL penalty to the reference policy taken off the advantages.

    Equation: `A_t <- A_t - coef (kl_t - mean(kl))`, the mean over the batch's action tokens with `center` and 0
    without; with `gamma` above 0 the penalty at t is the discounted sum over the tokens from t on.

    Paper: none; tinker-cookbook (`center=true`, so that the penalty sums to 0 over the batch); slime's REINFORCE++
    baseline (`center=false`, then `Whiten`).

    Differences: see the paper line. kl_t is a `coterie.algos.kl` estimate from the sampled token.

    Degenerate cases: policy equal to reference: nothing changes. Rollouts whose score is missing are left alone and
    enter no mean.

    Attributes:
        coef: weight of the penalty; > 0.
        kind: estimator of the KL: "k1", "k2", "k3" or "abs".
        center: subtract the batch's mean penalty.
        gamma: discount of the penalties that follow, in [0, 1]; 0 for the token's own alone.
        score: rollouts in which this score is missing are left alone; empty for none.
        policy: stream of the policy's logprobs: "old_logprobs" (learner) or "sampler_logprobs" (engine).
        reference: stream of the reference's logprobs.
        clamp: "none"; "k3" bounds the log-ratio to ±20 and the value to ±10 for k3; "all" bounds each value to ±10.
    """

    coef: float = 0.001
    kind: Literal["k1", "k2", "k3", "abs"] = "k1"
    center: bool = True
    gamma: float = 0.0
    score: str = "reward"
    policy: str = "old_logprobs"
    reference: str = "ref_logprobs"
    clamp: Literal["none", "k3", "all"] = "k3"

    paper: ClassVar[str] = "tinker-cookbook"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"tinker": {"policy": "sampler_logprobs"}, "slime": {"center": False}}

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "coef")
        require_between(self, 0, 1, "gamma")

    @property
    def needs(self) -> frozenset[str]:
        scores = {f"score:{self.score}"} if self.score else set()
        return frozenset({f"stream:{self.policy}", f"stream:{self.reference}", *scores})

    def __call__(self, groups: list[Group]) -> list[Group]:
        penalties = [[self._penalty(r) for r in group.rollouts] for group in groups]
        flat = np.concatenate([np.zeros(0), *(p for rows in penalties for p in rows if p is not None)])
        mean = float(flat.mean()) if self.center and flat.size else 0.0
        return [
            group.with_rollouts(
                r
                if p is None
                else replace(r, advantages=advantages_of(r) - returns_to_go(self.coef * (p - mean), self.gamma))
                for r, p in zip(group.rollouts, rows, strict=True)
            )
            for group, rows in zip(groups, penalties, strict=True)
        ]

    def _penalty(self, rollout: Rollout) -> FloatArray | None:
        if self.score and (self.score not in rollout.scores or rollout.scores[self.score].value is None):
            return None
        policy, reference = (torch.from_numpy(stream_of(rollout, name)) for name in (self.policy, self.reference))
        return np.asarray(kl_estimate(policy, reference, self.kind, self.clamp).numpy())
