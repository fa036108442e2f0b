"""Preference training on RL's learner, batch and records: a pair of answers is a group of two rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike

from coterie.algos.pairs import PreferenceLoss
from coterie.config.preference_checks import rows_of_loss
from coterie.config.primary import DPORun
from coterie.config.schema import DataConfig
from coterie.core.batch import Batch, Outputs
from coterie.core.protocols import HasPrepass, LossFn
from coterie.core.types import Group
from coterie.data.cursor import Cursor
from coterie.data.preference import add_mismatched, labelled_group, load_labelled, load_pairs, pair_group
from coterie.errors import DataError
from coterie.evals.stats import bootstrap_ci
from coterie.learners.local import LocalLearner
from coterie.learners.models import load_tokenizer
from coterie.runtime.device import choose_device
from coterie.runtime.local import LocalRuntime
from coterie.runtime.parts import build_learner, eval_data
from coterie.train.reference import cache_key, with_reference
from coterie.train.session import Session, open_directory, recorded_threads
from coterie.train.sft import Encoded, total_steps
from coterie.train.step_loop import StepLoop

REFERENCE = "ref_logprobs"


@dataclass(frozen=True, eq=False)
class Rows:
    """Encoded rows and what was left out.

    Attributes:
        kept: rows that can be trained on.
        notes: what a person should know about the others.
    """

    kept: list[Encoded]
    notes: tuple[str, ...]

    @property
    def groups(self) -> list[Group]:
        """Their groups."""
        return [e.group for e in self.kept]


@dataclass(frozen=True, eq=False)
class PreferenceParts:
    """What the loop works with.

    Attributes:
        learner: of the policy; makes the reference's logprobs too.
        rows, held_out: training and evaluation data; the second is empty without evaluation.
        steps: the run's last step.
    """

    learner: LocalLearner
    rows: Rows
    held_out: Rows
    steps: int


def select_rows(groups: Sequence[Group], max_tokens: int, what: str) -> Rows:
    """Leave out groups with a sequence over `max_tokens`, and pairs whose answers are the same.

    Args:
        groups: one a row.
        max_tokens: longest sequence.
        what: the key of `max_tokens`, for messages.

    Raises:
        DataError: when nothing is left.
    """
    fitting = [g for g in groups if max(len(r.tokens) for r in g.rollouts) <= max_tokens]
    kept = [g for g in fitting if len(g) < 2 or not np.array_equal(g.rollouts[0].tokens, g.rollouts[1].tokens)]
    dropped = ((len(groups) - len(fitting), f"longer than {what}"), (len(fitting) - len(kept), "with equal answers"))
    notes = tuple(f"{count} of {len(groups)} rows left out: {why}" for count, why in dropped if count)
    if not kept:
        raise DataError(f"none of the {len(groups)} rows can be trained on: {'; '.join(notes)} ({what}={max_tokens})")
    return Rows([Encoded(g.example.id, g) for g in kept], notes)


def encode_rows(run: DPORun, config: DataConfig, tokenizer: Any) -> Rows:
    """The rows that the run's loss reads, as groups."""
    seed = config.seed if config.seed >= 0 else run.run.seed
    if rows_of_loss(run.loss) == "pairs":
        groups = [pair_group(pair, tokenizer, config) for pair in load_pairs(config, seed=seed)]
        return select_rows(groups, run.dpo.max_tokens, "dpo.max_tokens")
    labelled = [labelled_group(row, tokenizer, config) for row in load_labelled(config, seed=seed)]
    rows = select_rows(labelled, run.dpo.max_tokens, "dpo.max_tokens")
    if getattr(run.loss, "reference_point", "zero") != "kl":
        return rows
    groups = add_mismatched(rows.groups, max_tokens=run.dpo.max_tokens, seed=run.run.seed)
    kept = [g for g in groups if len(g) == 2]
    note = f"{len(groups) - len(kept)} of {len(groups)} rows left out: no answer to another prompt fits behind theirs"
    if not kept:
        raise DataError(
            f"data.path={config.path}: {note}, which KTO's reference point needs; raise dpo.max_tokens, give more "
            "prompts, or set loss.reference_point=zero"
        )
    notes = (*rows.notes, note) if len(kept) < len(groups) else rows.notes
    return Rows([Encoded(g.example.id, g) for g in kept], notes)


def build(run: DPORun, *, threads: int) -> tuple[PreferenceParts, int, str]:
    """Data, then model; returns the parts, the thread count in force and the device."""
    device = choose_device(run.run.device)
    tokenizer = load_tokenizer(run.model)
    rows = encode_rows(run, run.data, tokenizer)
    held_out = Rows([], ())
    if run.eval.every:
        held_out = first(encode_rows(run, eval_data(run.data, run.eval.data), tokenizer), run.eval.max_examples)
    steps = total_steps(run.train.steps, run.dpo.epochs, len(rows.kept), run.dpo.batch_size)
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
    return PreferenceParts(learner, rows, held_out, steps), threads, str(device)


def first(rows: Rows, count: int) -> Rows:
    """The first `count` rows; 0 for all."""
    return Rows(rows.kept[: count or None], rows.notes)


async def train(run: DPORun, parts: PreferenceParts, session: Session) -> dict[str, Any]:
    """Reference first, then steps; returns the summary."""
    learner = parts.learner
    cursor = Cursor(parts.rows.kept, seed=run.run.seed, shuffle=run.data.shuffle)
    restored = session.restore(learner, cursor)
    session.note(*parts.rows.notes)
    groups = [*parts.rows.groups, *parts.held_out.groups]
    found = await _referenced(run, learner, groups, session, is_start=restored is None)
    if found is None:
        return session.finish({"steps": int(restored["step"]) if restored else 0, "seed": run.run.seed})
    by_id = dict(zip((e.id for e in parts.rows.kept), found, strict=False))
    held_out = found[len(parts.rows.kept) :]

    async def prepare(rows: list[Encoded]) -> Batch:
        return await _scored(learner, run.loss, Batch.from_groups([by_id[row.id] for row in rows]))

    async def evaluate() -> Mapping[str, float]:
        return await evaluate_preferences(learner, run.loss, held_out, seed=run.run.seed)

    loop = StepLoop(
        learner=learner,
        cursor=cursor,
        loss=run.loss,
        batch_size=run.dpo.batch_size,
        steps=parts.steps,
        seed=run.run.seed,
        prepare=prepare,
        evaluate=evaluate,
        eval_every=run.eval.every,
    )
    return await loop.run(session, restored)


async def _referenced(
    run: DPORun, learner: LocalLearner, groups: list[Group], session: Session, *, is_start: bool
) -> list[Group] | None:
    """The groups with the reference's logprobs, where they are to be computed once; None when a stop was requested."""
    if REFERENCE not in run.loss.needs or run.dpo.reference != "once":
        return groups
    # Before the first step the policy is the reference, unless another one is named: no second model is loaded.
    name = "old_logprobs" if is_start and not run.learner.ref_model else REFERENCE

    async def score(batch: Batch) -> torch.Tensor:
        return (await learner.score(batch, [name]))[name]

    found = await with_reference(
        groups,
        score,
        folder=session.directory.path,
        key=cache_key(groups, run.learner.ref_model or run.model, learner.dtype),
        stopping=lambda: session.stopping,
        note=session.note,
    )
    learner.release_reference()
    return found


async def _scored(learner: LocalLearner, loss: LossFn, batch: Batch, *names: str) -> Batch:
    """The batch with the streams `names`, and the reference's where the loss needs them."""
    wanted = [*names, *({REFERENCE} & loss.needs - batch.streams.keys())]
    return batch.with_streams(await learner.score(batch, wanted)) if wanted else batch


async def evaluate_preferences(
    learner: LocalLearner, loss: LossFn, groups: Sequence[Group], *, seed: int
) -> dict[str, float]:
    """Accuracy, margin and loss over held-out rows, with 95 % bootstrap intervals over rows.

    A pair is right when its chosen answer has the higher implicit reward (a tie counts half), a labelled answer when
    its implicit reward lies on the right side of the reference point.
    """
    batch = await _scored(learner, loss, Batch.from_groups(groups), "old_logprobs")
    outputs = Outputs(batch.streams["old_logprobs"])
    if isinstance(loss, HasPrepass):
        batch = batch.with_streams(*loss.prepass(outputs, batch))
    if rows_of_loss(loss) == "labels":
        return _labelled_metrics(loss, outputs, batch, seed)
    judge = cast(PreferenceLoss, loss)
    pairs = judge.pairs(outputs, batch)
    chosen, rejected = judge.scores(pairs)
    losses = judge.pair_loss(pairs, batch)
    return pair_metrics(judge.beta * (chosen - rejected), losses, seed)


def pair_metrics(margins: torch.Tensor, losses: torch.Tensor, seed: int) -> dict[str, float]:
    """Metrics of P held-out pairs from their margins and losses."""
    values = margins.double().numpy()
    right = (values > 0) + 0.5 * (values == 0)
    return {
        **_with_interval("eval/accuracy", right, seed),
        **_with_interval("eval/margin", values, seed),
        "eval/loss": float(losses.double().mean()),
        "eval/problems": float(len(values)),
    }


def _labelled_metrics(loss: LossFn, outputs: Outputs, batch: Batch, seed: int) -> dict[str, float]:
    labelled = ~batch.rewards.isnan()
    ratios = batch.segment_sum(outputs.logprobs - batch.streams[REFERENCE])[labelled]
    desirable = batch.rewards[labelled] > 0
    right = (ratios > batch.scalars.get("loss/kto_point", 0.0)) == desirable
    return {
        **_with_interval("eval/accuracy", right.double().numpy(), seed),
        "eval/loss": float(loss(outputs, batch).loss),
        "eval/problems": float(len(ratios)),
    }


def _with_interval(name: str, values: ArrayLike, seed: int) -> dict[str, float]:
    found = bootstrap_ci(values, seed=seed)
    return {name: found.value, f"{name}_ci95_low": found.low, f"{name}_ci95_high": found.high}


def run_dpo(resolved: Any) -> dict[str, Any]:
    """Load, open the run directory and train; what `coterie dpo` calls."""
    run: DPORun = resolved.run
    parts, threads, device = build(run, threads=recorded_threads(run.run))
    return in_directory(resolved, parts.steps, threads, device, lambda session: train(run, parts, session))


def in_directory(
    resolved: Any, steps: int, threads: int, device: str, work: Callable[[Session], Any]
) -> dict[str, Any]:
    """Open the run directory and run `work` in its session."""
    directory = open_directory(resolved, threads=threads, device=device)
    with Session(resolved, directory, total_steps=steps) as session:
        result: dict[str, Any] = asyncio.run(work(session))
    return result
