"""Advantages that differ from token to token, or are normalised over the batch's tokens: REINFORCE++, ReMax, OTB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from coterie.algos.advantages import DrGRPO, Singleton
from coterie.algos.checks import Overrides, require, require_between, require_choices, require_positive, stream_of
from coterie.algos.moments import Floor
from coterie.algos.token_rewards import returns_to_go, token_rewards
from coterie.algos.transforms import BatchWhitening
from coterie.core.types import FloatArray, Group, Rollout


@dataclass(frozen=True)
class ReinforcePlusPlus:
    """Token returns, normalised over the action tokens of the whole batch: no critic and no group.

    Equation: `G_t = r_t + gamma G_{t+1}`, `A = (G - mean(G)) / sqrt(var(G) + eps)` over the batch's action tokens.

    Paper: REINFORCE++, arXiv 2501.03262. Its rewards hold a k1 KL penalty a token (`KLReward` before this).

    Differences: verl and SkyRL as here; OpenRLHF takes the population variance clamped at 1e-8 and can leave the
    division out (`std=false`).

    Degenerate cases: equal returns everywhere, or one action token: exactly 0. A constant *group* is nothing special
    here: its tokens are compared with the batch. A missing score enters no statistic and its rollout gets 0.

    Attributes:
        score: outcome score; stream `<score>_tokens` is used instead where a rollout has it.
        gamma: discount a token, in [0, 1].
        std: divide by the batch's deviation.
        ddof: 1 or 0 in the variance.
        eps: see floor; > 0.
        floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
    """

    score: str = "reward"
    gamma: float = 1.0
    std: bool = True
    ddof: int = 1
    eps: float = 1e-8
    floor: Floor = "variance"

    paper: ClassVar[str] = "2501.03262"
    min_group_size: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"verl": {}, "skyrl": {}, "openrlhf": {"ddof": 0, "floor": "clamp"}}

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps")
        require_between(self, 0, 1, "gamma")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        out = [group.with_advantages([self._of(r) for r in group.rollouts]) for group in groups]
        return BatchWhitening(scale=self.std, ddof=self.ddof, eps=self.eps, floor=self.floor)(out, (self.score,))

    def _of(self, rollout: Rollout) -> FloatArray:
        rewards = token_rewards(rollout, self.score)
        return np.zeros(rollout.num_actions) if rewards is None else returns_to_go(rewards, self.gamma)


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline:
    """Reward minus the group's mean, normalised over the action tokens of the whole batch.

    Equation: `a_i = R_i - mean_g(R)` on every action token, then `A = (a - mean(a)) / sqrt(var(a) + eps)` over the
    batch's action tokens.

    Paper: REINFORCE++ with baseline, arXiv 2501.03262 (v3 on); recommended by ProRLv2 and ScaleRL.

    Differences: every framework normalises constant groups along, so that they get the batch's token mean (which is not
    0 when lengths differ) as a signal; here they stay exactly 0 and enter no statistic, unless `zero_groups`. slime
    subtracts `kl_coef * kl_t` between the two steps (`DrGRPO`, `KLAdvantage`, `Whiten` in a row). OpenRLHF takes the
    population variance clamped at 1e-8.

    Degenerate cases: constant group, group of one score, all scores missing: exactly 0. A missing score enters no
    statistic and its rollout gets 0.

    Attributes:
        score: name of the score read.
        std: divide by the batch's deviation.
        ddof: 1 or 0 in the variance.
        eps: see floor; > 0.
        floor: "variance": 1 / sqrt(var + eps); "std": 1 / (std + eps); "clamp": 1 / sqrt(max(var, eps)).
        zero_groups: normalise constant groups along with the rest.
        singleton: what the only score of a group enters the normalisation as: "zero", or "raw" for the score itself.
    """

    score: str = "reward"
    std: bool = True
    ddof: int = 1
    eps: float = 1e-8
    floor: Floor = "variance"
    zero_groups: bool = False
    singleton: Singleton = "zero"

    paper: ClassVar[str] = "2501.03262"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {
        "verl": {"zero_groups": True, "singleton": "raw"},
        "slime": {"zero_groups": True},
        "openrlhf": {"zero_groups": True, "ddof": 0, "floor": "clamp"},
        "nemo_rl": {"zero_groups": True, "ddof": 0, "floor": "clamp"},
    }

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(self, "eps")
        require(self, "ddof", self.ddof in (0, 1), "must be 0 or 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        centred = DrGRPO(self.score, self.singleton)(groups)
        whitening = BatchWhitening(
            scale=self.std, ddof=self.ddof, eps=self.eps, floor=self.floor, zero_groups=self.zero_groups
        )
        return whitening(centred, (self.score,))


@dataclass(frozen=True)
class ReMax:
    """Return minus the reward of a greedy response to the same prompt.

    Equation: `A_t = sum_{s >= t} r_s - b`, b the score of the group's greedy rollout (`meta["greedy"]` true), which is
    sampled at temperature 0, scored like the others, and leaves the group here: it is not trained on.

    Paper: ReMax, arXiv 2310.10505.

    Differences: verl as here. Skywork-OR1's fork samples the baseline at the training temperature, which makes it an
    ordinary sample.

    Degenerate cases: reward equal to the greedy one: exactly 0. Several greedy rollouts: the mean of their scores. The
    greedy rollout's score is missing: there is no baseline and every advantage of the group is 0. A missing score gives
    0. No greedy rollout in a group: ValueError.

    Attributes:
        score: outcome score; stream `<score>_tokens` is used instead where a rollout has it.
    """

    score: str = "reward"

    paper: ClassVar[str] = "2310.10505"
    min_group_size: ClassVar[int] = 1
    greedy_rollouts: ClassVar[int] = 1
    conventions: ClassVar[Overrides] = {"verl": {}}

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"score:{self.score}"})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> Group:
        greedy = np.array([bool(r.meta.get("greedy")) for r in group.rollouts], dtype=bool)
        if not greedy.any():
            raise ValueError(f"ReMax needs a greedy rollout of example {group.example.id!r} (meta['greedy'] = True)")
        baselines = group.scores(self.score)[greedy]
        baselines = baselines[~np.isnan(baselines)]
        sampled = [r for r, is_greedy in zip(group.rollouts, greedy, strict=True) if not is_greedy]
        return group.with_rollouts(self._trained(r, baselines) for r in sampled)

    def _trained(self, rollout: Rollout, baselines: FloatArray) -> Rollout:
        rewards = token_rewards(rollout, self.score)
        if rewards is None or not baselines.size:
            return replace(rollout, advantages=np.zeros(rollout.num_actions))
        return replace(rollout, advantages=returns_to_go(rewards) - baselines.mean())


def otb_advantages(
    returns: Sequence[Float[np.ndarray, "A_i"]],
    energies: Sequence[Float[np.ndarray, "A_i"]],
    *,
    zero_tail: bool = False,
    eps: float = 1e-8,
) -> list[Float[np.ndarray, "A_i"]]:
    """Optimal token baseline of one group: `G_{i,t} - sum_j G_{j,t} W_{j,t} / (sum_j W_{j,t} + eps)`.

    Args:
        returns: of each rollout, the reward-to-go at each action token.
        energies: of each rollout, `s_t >= 0` at each action token; `W_t` is their running sum.
        zero_tail: no baseline where one rollout alone is still running (its advantage is its return there).
        eps: added to the sum of weights; > 0.
    """
    longest = max((len(g) for g in returns), default=0)
    padded = np.full((len(returns), longest), np.nan)
    weights = np.zeros((len(returns), longest))
    for row, (g, s) in enumerate(zip(returns, energies, strict=True)):
        padded[row, : len(g)], weights[row, : len(g)] = g, np.cumsum(s)
    alive = ~np.isnan(padded)
    filled = np.where(alive, padded, 0.0)
    baseline = (filled * weights).sum(axis=0) / (weights.sum(axis=0) + eps)
    low = padded.min(axis=0, where=alive, initial=np.inf)
    high = padded.max(axis=0, where=alive, initial=-np.inf)
    baseline = np.where(low == high, low, baseline)
    if zero_tail:
        baseline = np.where(alive.sum(axis=0) == 1, 0.0, baseline)
    return [g - baseline[: len(g)] for g in returns]


@dataclass(frozen=True)
class OTB:
    """Return minus the baseline with the least variance at each token: siblings weigh by the energy of their path.

    Equation: `s_t = 1 - 2 pi_t + sum_v pi_v^2` (the squared norm of the logit gradient, pi_t the sampled token's
    probability), times `w_t^2` with an importance stream; `W_t = sum_{u <= t} s_u`;
    `b_t = sum_i G_{i,t} W_{i,t} / (sum_i W_{i,t} + eps)` over the group's rollouts that are at least t tokens long;
    `A_{i,t} = G_{i,t} - b_t`, G the reward-to-go.

    Paper: "optimal token baseline", as implemented in verl (`optimal_token_baseline`, 2026).

    Differences: position t counts action tokens, as verl's `tir_` variant does (there by squeezing masked tokens out).
    verl gives a group of one its raw return. Where all returns at t are equal, as in a constant group, the baseline is
    exactly that return; verl leaves `G eps / (W + eps)`.

    Degenerate cases: constant group, group of one score, all scores missing: exactly 0 (with outcome rewards). On the
    tail where one rollout alone still runs: 0, or its return with `zero_tail`. A missing score enters no baseline and
    its rollout gets 0.

    Attributes:
        score: outcome score; stream `<score>_tokens` is used instead where a rollout has it.
        policy: stream of the policy's logprobs.
        energy: stream of `sum_v pi_v^2` at each action token.
        importance: stream of importance weights w_t; empty for none.
        zero_tail: no baseline where one rollout alone is still running.
        eps: added to the sum of weights; > 0.
    """

    score: str = "reward"
    policy: str = "old_logprobs"
    energy: str = "sum_probs_squared"
    importance: str = ""
    zero_tail: bool = False
    eps: float = 1e-8

    paper: ClassVar[str] = "verl, optimal_token_baseline"
    min_group_size: ClassVar[int] = 2
    conventions: ClassVar[Overrides] = {"verl": {}, "verl_tir": {"zero_tail": True}}

    def __post_init__(self) -> None:
        require_positive(self, "eps")

    @property
    def needs(self) -> frozenset[str]:
        streams = {f"stream:{name}" for name in (self.policy, self.energy, self.importance) if name}
        return frozenset({f"score:{self.score}", *streams})

    def __call__(self, groups: list[Group]) -> list[Group]:
        return [group.with_advantages(self._of(group)) for group in groups]

    def _of(self, group: Group) -> list[FloatArray]:
        out = [np.zeros(r.num_actions) for r in group.rollouts]
        scored = {i: w for i, r in enumerate(group.rollouts) if (w := token_rewards(r, self.score)) is not None}
        if len(scored) < 2:
            return out
        returns = [returns_to_go(rewards) for rewards in scored.values()]
        energies = [self._energy(group.rollouts[i]) for i in scored]
        for i, advantages in zip(
            scored, otb_advantages(returns, energies, zero_tail=self.zero_tail, eps=self.eps), strict=True
        ):
            out[i] = advantages
        return out

    def _energy(self, rollout: Rollout) -> FloatArray:
        probability = np.exp(stream_of(rollout, self.policy))
        energy = 1.0 - 2.0 * probability + stream_of(rollout, self.energy)
        return energy * stream_of(rollout, self.importance) ** 2 if self.importance else energy
