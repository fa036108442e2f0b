"""Validation: the same problems each time, sampled or greedy, with intervals clustered by problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.config.primary import RLRun
from coterie.core.metrics import Stat, gauge, mean
from coterie.core.protocols import Context
from coterie.core.types import Group, Sampling
from coterie.evals.stats import bootstrap_ci, pass_at_k
from coterie.rewards.border import score_groups
from coterie.rollout.single_turn import rollout_metrics, sample_groups
from coterie.runtime.parts import Parts


async def evaluate(run: RLRun, parts: Parts, *, step: int) -> tuple[list[Group], dict[str, Stat]]:
    """Sample `eval.n` completions of every held-out problem and score them with the run's reward.

    The draws depend on the seed and the problem, not on the step: two checkpoints see the same noise.
    """
    sampling = Sampling(
        temperature=run.eval.temperature,
        top_p=run.eval.top_p,
        max_tokens=run.eval.max_tokens or run.rollout.max_tokens,
        stop=tuple(run.rollout.stop),
    )
    groups = await sample_groups(
        parts.eval_examples,
        parts.engine,
        parts.eval_encode,
        n=run.eval.n,
        sampling=sampling,
        seed=run.run.seed,
        step=0,
        purpose="eval",
    )
    context = Context(step=step, seed=run.run.seed, split="eval", resources=parts.resources)
    concurrency = 1 if run.run.debug else run.train.reward_concurrency
    scored, reward_metrics = await score_groups(
        groups, run.reward, context, concurrency=concurrency, max_missing_rate=run.train.max_missing_reward_rate
    )
    renamed = {f"eval/{name.replace('reward/', '', 1)}": stat for name, stat in reward_metrics.items()}
    return scored, renamed | rollout_metrics(scored, "eval") | accuracy_metrics(
        scored, run.eval.threshold, run.run.seed
    )


def accuracy_metrics(groups: Sequence[Group], threshold: float, seed: int) -> dict[str, Stat]:
    """`eval/accuracy` with a 95 % bootstrap interval over problems, `eval/pass@k` for powers of two, unbiased.

    Completions whose score is missing count neither as right nor as wrong; `eval/missing_rate` says how many there are.
    """
    samples = [(g.example.id, float(x >= threshold) if np.isfinite(x) else np.nan) for g in groups for x in g.scores()]
    interval = bootstrap_ci([right for _, right in samples], [name for name, _ in samples], seed=seed)
    if not interval.count:
        return {}
    out = {
        "eval/accuracy": gauge(interval.value),
        "eval/accuracy_ci95_low": gauge(interval.low),
        "eval/accuracy_ci95_high": gauge(interval.high),
        "eval/problems": gauge(interval.clusters),
    }
    observed = [found for found in (g.scores()[np.isfinite(g.scores())] for g in groups) if len(found)]
    for k in (2**i for i in range(1, min(map(len, observed)).bit_length())):
        passed = [pass_at_k(len(found), int((found >= threshold).sum()), k) for found in observed]
        out[f"eval/pass@{k}"] = mean(sum(passed), len(passed))
    return out
