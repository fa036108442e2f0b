"""Supervised fine-tuning on RL's learner, batch and records: a conversation is one rollout, its answers the actions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.config.primary import SFTRun
from coterie.config.schema import DataConfig
from coterie.core.batch import Batch
from coterie.core.metrics import Stat, gauge, mean, merge, total, values
from coterie.core.protocols import Learner
from coterie.core.types import Group
from coterie.data.chat import conversation_group
from coterie.data.cursor import Cursor
from coterie.data.sources import load_conversations
from coterie.errors import DataError
from coterie.learners.models import load_tokenizer
from coterie.runtime.device import choose_device
from coterie.runtime.local import LocalRuntime
from coterie.runtime.parts import build_learner, eval_data
from coterie.train.clock import Clock
from coterie.train.session import Session, open_directory, recorded_threads

EVAL_BATCH = 64


@dataclass(frozen=True, eq=False)
class Encoded:
    """A conversation as a group of one rollout."""

    id: str
    group: Group


@dataclass(frozen=True, eq=False)
class SFTParts:
    """What the loop works with: learner, training data, held-out data."""

    learner: Learner
    cursor: Cursor[Encoded]
    held_out: Sequence[Group]
    steps: int


async def train(run: SFTRun, parts: SFTParts, session: Session) -> dict[str, Any]:
    """Run to the last step or a stop request; returns the summary."""
    restored = session.restore(parts.learner, parts.cursor) or {"step": 0, "evaluations": {}}
    step, evaluations = int(restored["step"]), dict(restored["evaluations"])
    if step == 0 and run.eval.every:
        evaluations["0"] = await validate(parts, session, 0, {})
    while step < parts.steps and not session.stopping:
        step += 1
        record = values(await train_step(run, parts))
        if run.eval.every and (step % run.eval.every == 0 or step == parts.steps):
            evaluations[str(step)] = await validate(parts, session, step, record)
        else:
            session.record(step, record)
        if session.save_is_due(step):
            session.save(step, {"step": step, "evaluations": evaluations}, parts.learner, parts.cursor)
    if step > session.saved_step:
        session.save(step, {"step": step, "evaluations": evaluations}, parts.learner, parts.cursor)
    return session.finish({"steps": step, "seed": run.run.seed, "eval_loss": evaluations})


async def train_step(run: SFTRun, parts: SFTParts) -> dict[str, Stat]:
    """One optimizer step on `sft.batch_size` conversations."""
    clock = Clock()
    groups = [encoded.group for encoded in parts.cursor.take(run.sft.batch_size)]
    with clock("update"):
        batch = Batch.from_groups(groups)
        metrics = [await parts.learner.forward_backward(batch, run.loss), await parts.learner.step()]
    tokens = sum(len(r.tokens) for g in groups for r in g.rollouts)
    merged = merge([*metrics, {"data/epoch": gauge(parts.cursor.epoch), "data/tokens": total(tokens)}])
    return merged | clock.metrics(rollouts=len(groups), tokens=0)


async def validate(parts: SFTParts, session: Session, step: int, record: Mapping[str, float]) -> float:
    """Record the step with the negative log-likelihood per assistant token of the held-out conversations."""
    nll, count = 0.0, 0
    for start in range(0, len(parts.held_out), EVAL_BATCH):
        batch = Batch.from_groups(parts.held_out[start : start + EVAL_BATCH])
        streams = await parts.learner.score(batch, ["old_logprobs"])
        nll -= float(streams["old_logprobs"].double().sum())
        count += batch.num_actions
    loss = nll / count
    session.record(
        step, {**record, **values({"eval/loss": mean(nll, count)}), "eval/perplexity": math.exp(min(loss, 50))}
    )
    return loss


def encode_all(config: DataConfig, tokenizer: Any, max_tokens: int, seed: int) -> list[Encoded]:
    """Encoded conversations; those longer than `max_tokens` or without a trained token are left out.

    Raises:
        DataError: when nothing is left.
    """
    conversations = load_conversations(config, seed=config.seed if config.seed >= 0 else seed)
    encoded = [Encoded(c.id, conversation_group(c, tokenizer, config)) for c in conversations]
    lengths = [len(e.group.rollouts[0].tokens) for e in encoded]
    kept = [e for e, n in zip(encoded, lengths, strict=True) if e.group.rollouts[0].num_actions > 0 and n <= max_tokens]
    if not kept:
        raise DataError(
            f"{config.path}: none of the {len(encoded)} conversations is left; the shortest has "
            f"{min(lengths, default=0)} tokens and sft.max_tokens={max_tokens}. Raise sft.max_tokens"
        )
    return kept


def total_steps(steps: int, epochs: float, rows: int, batch_size: int) -> int:
    """The run's last step: `steps`, or those that `epochs` passes take."""
    return int(np.ceil(epochs * rows / batch_size)) if epochs else steps


def build(run: SFTRun, *, threads: int) -> tuple[SFTParts, int, str]:
    """Data, then model; returns the parts, the thread count in force and the device."""
    device = choose_device(run.run.device)
    tokenizer = load_tokenizer(run.model)
    encoded = encode_all(run.data, tokenizer, run.sft.max_tokens, run.run.seed)
    held_out: list[Group] = []
    if run.eval.every:
        found = encode_all(eval_data(run.data, run.eval.data), tokenizer, run.sft.max_tokens, run.run.seed)
        held_out = [e.group for e in found[: run.eval.max_examples or None]]
    steps = total_steps(run.train.steps, run.sft.epochs, len(encoded), run.sft.batch_size)
    learner, threads = build_learner(
        run.model,
        run.model_kwargs,
        run.learner,
        run.optim,
        LocalRuntime(),
        tokenizer,
        device=device,
        threads=threads or run.run.threads,
        seed=run.run.seed,
        temperature=1.0,
        total_steps=steps,
    )
    cursor = Cursor(encoded, seed=run.run.seed, shuffle=run.data.shuffle)
    return SFTParts(learner, cursor, held_out, steps), threads, str(device)


def run_sft(resolved: Any) -> dict[str, Any]:
    """Load, open the run directory and train; what `coterie sft` calls."""
    run: SFTRun = resolved.run
    parts, threads, device = build(run, threads=recorded_threads(run.run))
    directory = open_directory(resolved, threads=threads, device=device)
    with Session(resolved, directory, total_steps=parts.steps) as session:
        return asyncio.run(train(run, parts, session))
