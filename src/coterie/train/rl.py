"""The loop: sample, reward, score, estimate, update. One file, one process or many (DESIGN §1).

Stages before the tensor border take groups and give groups; `Batch` is made once, after the advantages. Every line of
`train_step` runs on the driver: `breakpoint()` works anywhere in it, in reward, advantage, loss and model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.algos.critic import ValueLoss
from coterie.algos.mismatch import derived
from coterie.config.needs import warmup_steps
from coterie.config.primary import RLRun
from coterie.core.batch import Batch
from coterie.core.keys import generator
from coterie.core.metrics import Stat, gauge, mean, merge, total, values
from coterie.core.protocols import Context, GroupFn, RewardFn
from coterie.core.types import Group, Sampling
from coterie.evals.run import evaluate
from coterie.learners.critic import add_values, with_explained_variance
from coterie.rewards.border import score_groups
from coterie.rollout.single_turn import rollout_metrics, sample_groups
from coterie.runtime.parts import Parts
from coterie.train.clock import Clock
from coterie.train.preflight import check_reward
from coterie.train.session import Session, open_directory, recorded_threads
from coterie.train.state import LoopState


async def train(run: RLRun, parts: Parts, session: Session) -> dict[str, Any]:
    """Run the loop to its end, to a stop request, or to `train.patience`; returns the summary.

    Args:
        run: the frozen configuration.
        parts: learner, engine, reward, data, made by a runtime.
        session: run directory, records, checkpoints, console.
    """
    restored = session.restore(parts.learner, parts.cursor, parts.critic)
    state = LoopState.from_dict(restored) if restored else LoopState.fresh(run)
    if state.step == 0:
        session.note(f"data: {parts.report}", *await check_reward(run, parts))
    if state.step == 0 and run.eval.every:
        state, first_metrics, first_groups = await validate(run, parts, state)
        session.record(0, values(first_metrics), eval_groups=first_groups)
    while state.step < run.train.steps and not session.stopping and not out_of_patience(run, state):
        state, metrics, groups = await train_step(run, parts, state)
        eval_groups: list[Group] = []
        if run.eval.every and (state.step % run.eval.every == 0 or state.step == run.train.steps):
            state, eval_metrics, eval_groups = await validate(run, parts, state)
            metrics = merge([metrics, eval_metrics])
        numbers = values(metrics)
        session.record(state.step, numbers | derived(numbers), groups=groups, eval_groups=eval_groups)
        if session.save_is_due(state.step, best=state.is_best):
            session.save(state.step, state.to_dict(), parts.learner, parts.cursor, parts.critic, best=state.is_best)
    if state.step > session.saved_step:
        session.save(state.step, state.to_dict(), parts.learner, parts.cursor, parts.critic, best=state.is_best)
    return session.finish(summary(run, state))


def out_of_patience(run: RLRun, state: LoopState) -> bool:
    """Whether `train.patience` evaluations in a row brought no better `eval.metric`."""
    return bool(run.train.patience) and state.evals_without_gain >= run.train.patience


async def train_step(run: RLRun, parts: Parts, state: LoopState) -> tuple[LoopState, dict[str, Stat], list[Group]]:
    """One step: a batch of prompts sampled, rewarded, scored, estimated and learned from."""
    step, clock = state.step + 1, Clock()
    warming_up = step <= warmup_steps(run)
    with clock("sample"):
        sampled = await sample_groups(
            parts.cursor.take(run.train.prompts_per_step),
            parts.engine,
            parts.encode,
            n=run.rollout.n,
            sampling=train_sampling(run),
            seed=run.run.seed,
            step=step,
        )
    with clock("reward"):
        context = Context(step=step, seed=run.run.seed, split="train", resources=parts.resources)
        scored, reward_metrics = await score_groups(
            sampled,
            run.reward,
            context,
            concurrency=1 if run.run.debug else run.train.reward_concurrency,
            max_missing_rate=run.train.max_missing_reward_rate,
        )
    kept, stage_metrics = apply_stages("filter", run.filters, scored)
    metrics = [rollout_metrics(scored), reward_metrics, group_metrics(scored), stage_metrics]
    if action_tokens(kept):
        with clock("score"):
            kept = await add_streams(run, parts, kept)
        kept, shaping_metrics = apply_stages("shaping", controlled(run, state), kept)
        kept = run.advantage(kept)
        kept, transform_metrics = apply_stages("transform", run.transforms, kept)
        metrics += [shaping_metrics, transform_metrics, advantage_metrics(kept)]
    if action_tokens(kept):
        with clock("update"):
            metrics.append(await update(run, parts, state, step, kept, only_critic=warming_up))
        weights = await parts.learner.publish()
        await parts.engine.load(weights)
    metrics += [control_metrics(run, state), parts.report.metrics(), {"data/epoch": gauge(parts.cursor.epoch)}]
    merged = merge(metrics)
    merged |= clock.metrics(rollouts=sum(len(g) for g in sampled), tokens=action_tokens(sampled))
    following = replace(state, step=step) if warming_up else state.advanced(run, step, values(merged))
    return following, merged, kept or scored


async def update(
    run: RLRun, parts: Parts, state: LoopState, step: int, groups: list[Group], *, only_critic: bool = False
) -> dict[str, Stat]:
    """`train.epochs` passes over the groups, each in `train.minibatches` optimizer steps of whole groups."""
    value_loss = ValueLoss(clip=run.critic.value_clip, huber=run.critic.huber)
    whole = Batch.from_groups(groups).with_streams({}, state.coefficients(run))
    collected: list[Mapping[str, Stat]] = []
    for epoch in range(run.train.epochs):
        order = np.arange(len(groups))
        if run.train.minibatches > 1:
            order = generator("minibatch", run.run.seed, step, epoch).permutation(len(groups))
        for chosen in np.array_split(order, min(run.train.minibatches, len(groups))):
            batch = whole
            if len(chosen) < len(groups):
                rows = np.flatnonzero(np.isin(whole.group_id.numpy(), chosen))
                batch = whole.select(rows.tolist()).with_own_counts()
            if batch.num_actions == 0:
                continue
            if parts.critic is not None:
                collected.append(await parts.critic.forward_backward(batch, value_loss))
                collected.append(await parts.critic.step())
            if not only_critic:
                collected.append(await parts.learner.forward_backward(batch, run.loss))
                collected.append(await parts.learner.step())
    return with_explained_variance(merge(collected))


async def add_streams(run: RLRun, parts: Parts, groups: list[Group]) -> list[Group]:
    """Per-token streams from learner and critic, only those that somebody needs."""
    if parts.critic is not None:
        groups = await add_values(parts.critic, groups, bootstrap=run.critic.bootstrap)
    names = needed_streams(run)
    if not names:
        return groups
    streams = await parts.learner.score(Batch.from_groups(groups), sorted(names))
    lengths = [r.num_actions for g in groups for r in g.rollouts]
    ends = np.cumsum(lengths)[:-1]
    rows = iter(zip(*(np.split(streams[n].cpu().numpy().astype(np.float64), ends) for n in sorted(names)), strict=True))
    return [
        g.with_rollouts(r.with_streams(**dict(zip(sorted(names), next(rows), strict=True))) for r in g.rollouts)
        for g in groups
    ]


def needed_streams(run: RLRun) -> set[str]:
    """Streams the learner must compute; old logprobs are skipped when the one update is exactly on-policy."""
    stages: list[GroupFn] = [*run.shaping.values(), run.advantage, *run.transforms.values()]
    wanted = {need.removeprefix("stream:") for stage in stages for need in stage.needs if need.startswith("stream:")}
    wanted |= set(run.loss.needs)
    if run.train.epochs * run.train.minibatches > 1:
        wanted.add("old_logprobs")
    return wanted & {"old_logprobs", "ref_logprobs"}


def controlled(run: RLRun, state: LoopState) -> dict[str, GroupFn]:
    """The shaping stages, with the KL controller's coefficient where one is at work."""
    coefficient = state.coefficients(run).get("kl_coef")
    if coefficient is None:
        return dict(run.shaping)
    return {n: replace(f, coef=coefficient) if hasattr(f, "coef") else f for n, f in run.shaping.items()}  # type: ignore[type-var]


def apply_stages(kind: str, stages: Mapping[str, GroupFn], groups: list[Group]) -> tuple[list[Group], dict[str, Stat]]:
    """Run stages in order and count what each left out."""
    metrics: dict[str, Stat] = {}
    for name, stage in stages.items():
        before, rollouts = len(groups), sum(map(len, groups))
        groups = stage(groups)
        metrics[f"{kind}/{name}_groups_dropped"] = total(before - len(groups))
        metrics[f"{kind}/{name}_rollouts_dropped"] = total(rollouts - sum(map(len, groups)))
    return groups, metrics


def train_sampling(run: RLRun) -> Sampling:
    """`rollout.*` as an engine takes it."""
    r = run.rollout
    return Sampling(r.temperature, r.top_p, r.top_k, r.min_p, r.max_tokens, tuple(r.stop))


def group_metrics(groups: Sequence[Group]) -> dict[str, Stat]:
    """How much a group-relative estimator can learn from these groups."""
    spreads = [np.ptp(found) for g in groups if len(found := g.scores()[np.isfinite(g.scores())])]
    return {"group/zero_variance_frac": mean(sum(s == 0 for s in spreads), len(spreads))}


def advantage_metrics(groups: Sequence[Group]) -> dict[str, Stat]:
    """Moments of the advantages over action tokens."""
    arrays = [r.advantages for g in groups for r in g.rollouts if r.advantages is not None]
    flat = np.concatenate(arrays) if arrays else np.zeros(0)
    return {
        "advantage/mean": mean(flat.sum(), flat.size),
        "advantage/abs_mean": mean(np.abs(flat).sum(), flat.size),
        "advantage/positive_frac": mean((flat > 0).sum(), flat.size),
    }


def control_metrics(run: RLRun, state: LoopState) -> dict[str, Stat]:
    """The coefficients in force during this step."""
    return {f"control/{name}": gauge(value) for name, value in state.coefficients(run).items()}


def action_tokens(groups: Sequence[Group]) -> int:
    """Action tokens of all rollouts."""
    return sum(r.num_actions for g in groups for r in g.rollouts)


def summary(run: RLRun, state: LoopState) -> dict[str, Any]:
    """What `summary.json` says of the loop."""
    curve = {int(step): value for step, value in state.evaluations.items()}
    out: dict[str, Any] = {"steps": state.step, "seed": run.run.seed, "eval_metric": run.eval.metric}
    if curve:
        out |= {"eval_before": curve[min(curve)], "eval_after": curve[max(curve)], "eval_best": state.best}
        out |= {"best_step": state.best_step, "evaluations": curve}
    return out


async def validate(run: RLRun, parts: Parts, state: LoopState) -> tuple[LoopState, dict[str, Stat], list[Group]]:
    """Evaluate, and note whether it is the best so far."""
    groups, metrics = await evaluate(run, parts, step=state.step)
    return state.evaluated(run, values(metrics)), metrics, groups


def run_rl(resolved: Any) -> dict[str, Any]:
    """Build the parts, open the run directory and train; what `coterie train` calls.

    Returns:
        The summary that is also in `summary.json`.
    """
    from coterie.runtime.local import LocalRuntime
    from coterie.runtime.parts import build_parts
    from coterie.train.warm_start import with_model

    run: RLRun = resolved.run
    threads = recorded_threads(run.run)
    run = with_model(run)
    parts = build_parts(run, LocalRuntime(), threads=threads)
    directory = open_directory(resolved, threads=parts.threads, device=str(parts.device))
    with Session(resolved, directory, total_steps=run.train.steps) as session, closing(run.reward):
        return asyncio.run(train(run, parts, session))


@contextmanager
def closing(reward: RewardFn) -> Iterator[None]:
    """End the worker processes of a reward that has some."""
    try:
        yield
    finally:
        close = getattr(reward, "close", None)
        if close is not None:
            close()
