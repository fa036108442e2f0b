"""Reward models from pairs of answers, on the same learner, batch and records as everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coterie.algos.pairs import pair_index
from coterie.config.primary import RMRun
from coterie.config.schema import DataConfig
from coterie.core.batch import Batch, Outputs
from coterie.core.keys import seed_of
from coterie.core.protocols import LossFn
from coterie.core.types import Group
from coterie.data.cursor import Cursor
from coterie.data.preference import load_pairs, scored_group
from coterie.learners.models import load_tokenizer
from coterie.learners.reward_model import SCORE, LocalRewardModel, load_reward_model
from coterie.runtime.device import choose_device, choose_threads
from coterie.runtime.parts import eval_data
from coterie.train.preference import Rows, first, in_directory, pair_metrics, select_rows
from coterie.train.session import Session, recorded_threads
from coterie.train.sft import Encoded, total_steps
from coterie.train.step_loop import StepLoop


@dataclass(frozen=True, eq=False)
class RewardModelParts:
    """What the loop works with; as `train.preference.PreferenceParts`."""

    learner: LocalRewardModel
    rows: Rows
    held_out: Rows
    steps: int


def build(run: RMRun, *, threads: int) -> tuple[RewardModelParts, int, str]:
    """Data, then model; returns the parts, the thread count in force and the device."""
    device = choose_device(run.run.device)
    tokenizer = load_tokenizer(run.model)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = encode_rows(run, run.data, tokenizer)
    held_out = Rows([], ())
    if run.eval.every:
        held_out = first(encode_rows(run, eval_data(run.data, run.eval.data), tokenizer), run.eval.max_examples)
    steps = total_steps(run.train.steps, run.rm.epochs, len(rows.kept), run.rm.batch_size)
    torch.manual_seed(seed_of("process", run.run.seed))
    module = load_reward_model(
        run.model, pad_token_id=int(tokenizer.pad_token_id), kwargs=run.model_kwargs, device=device
    )
    threads = choose_threads(threads or run.run.threads, sum(p.numel() for p in module.parameters()))
    torch.set_num_threads(threads)
    learner = LocalRewardModel(module, tokenizer, run.learner, run.optim, device=device, total_steps=steps)
    return RewardModelParts(learner, rows, held_out, steps), threads, str(device)


def encode_rows(run: RMRun, config: DataConfig, tokenizer: Any) -> Rows:
    """Pairs as groups of two whole chats."""
    pairs = load_pairs(config, seed=config.seed if config.seed >= 0 else run.run.seed)
    return select_rows([scored_group(p, tokenizer, config) for p in pairs], run.rm.max_tokens, "rm.max_tokens")


async def train(run: RMRun, parts: RewardModelParts, session: Session) -> dict[str, Any]:
    """Run to the last step or a stop request; returns the summary."""
    cursor = Cursor(parts.rows.kept, seed=run.run.seed, shuffle=run.data.shuffle)
    restored = session.restore(parts.learner, cursor)
    session.note(*parts.rows.notes)

    async def prepare(rows: list[Encoded]) -> Batch:
        return Batch.from_groups([row.group for row in rows])

    async def evaluate() -> Mapping[str, float]:
        return await evaluate_scores(parts.learner, run.loss, parts.held_out.groups, seed=run.run.seed)

    loop = StepLoop(
        learner=parts.learner,
        cursor=cursor,
        loss=run.loss,
        batch_size=run.rm.batch_size,
        steps=parts.steps,
        seed=run.run.seed,
        prepare=prepare,
        evaluate=evaluate,
        eval_every=run.eval.every,
    )
    return await loop.run(session, restored)


async def evaluate_scores(
    learner: LocalRewardModel, loss: LossFn, groups: Sequence[Group], *, seed: int
) -> dict[str, float]:
    """Accuracy, margin and loss over held-out pairs, with 95 % bootstrap intervals over pairs; a tie counts half."""
    batch = Batch.from_groups(groups)
    scores = (await learner.score(batch, [SCORE]))[SCORE]
    chosen, rejected = pair_index(batch)
    value = loss(Outputs(torch.full_like(scores, torch.nan), extra={SCORE: scores}), batch).loss
    return pair_metrics(scores[chosen] - scores[rejected], value[None], seed)


def run_rm(resolved: Any) -> dict[str, Any]:
    """Load, open the run directory and train; what `coterie rm` calls."""
    run: RMRun = resolved.run
    parts, threads, device = build(run, threads=recorded_threads(run.run))
    return in_directory(resolved, parts.steps, threads, device, lambda session: train(run, parts, session))
