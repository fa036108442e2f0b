"""Checks of `coterie dpo` and `coterie rm`: which losses fit, and settings without effect there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from coterie.config.resolve import Resolution

Rows = Literal["pairs", "labels"]

_TRAIN_IDLE = (
    "prompts_per_step",
    "minibatches",
    "epochs",
    "reward_concurrency",
    "max_missing_reward_rate",
    "smoke_test",
    "smoke_test_examples",
    "patience",
    "temperature_logprobs",
)
_EVAL_IDLE = ("n", "temperature", "top_p", "max_tokens", "metric", "threshold")
PREFERENCE_KEYS = ("chosen_key", "rejected_key", "label_key", "margin_key")
"""Keys of the data section that `coterie dpo` and `coterie rm` alone read."""


def is_reward_model_loss(loss: Any) -> bool:
    """Whether it reads the score of a reward model."""
    return "score" in getattr(loss, "wants", ())


def is_preference_loss(loss: Any) -> bool:
    """Whether `coterie dpo` takes it: over whole groups, or over labelled answers like KTO."""
    return rows_of_loss(loss) is not None and not is_reward_model_loss(loss)


def rows_of_loss(loss: Any) -> Rows | None:
    """What rows a preference loss reads; None for a loss that is none."""
    if getattr(loss, "whole_groups", False):
        return "pairs"
    return "labels" if hasattr(loss, "reference_point") else None


def dpo_problems(run: Any, found: Resolution) -> Iterator[str]:
    """What speaks against a preference run."""
    choice = found.pieces["loss"].choice
    if is_reward_model_loss(run.loss):
        yield f"loss={choice} trains a reward model; use coterie rm"
    elif not is_preference_loss(run.loss):
        yield f"loss={choice} is no preference loss; use loss=dpo or another one (`coterie algo list` shows them)"
    elif run.eval.every and rows_of_loss(run.loss) == "pairs" and not hasattr(run.loss, "pair_loss"):
        yield (
            f"eval.every={run.eval.every}: held-out pairs are judged by the methods of coterie.algos.PreferenceLoss, "
            f"which loss={choice} lacks; derive it from that class, or set eval.every=0"
        )
    if getattr(run.loss, "reference_point", "zero") == "kl" and run.dpo.batch_size < 2:
        yield (
            f"dpo.batch_size={run.dpo.batch_size}: the reference point of loss={choice} is a mean over the batch; use "
            "more, or loss.reference_point=zero"
        )
    yield from _common_problems(run)


def rm_problems(run: Any, found: Resolution) -> Iterator[str]:
    """What speaks against the training of a reward model."""
    if not is_reward_model_loss(run.loss):
        choice = found.pieces["loss"].choice
        yield f"loss={choice} wants no score, so it can't train a reward model; use loss=bradley_terry"
    if run.data.margin_key and not getattr(run.loss, "margin", 1.0):
        yield f"data.margin_key={run.data.margin_key} has no effect: loss.margin=0; set loss.margin=1"
    yield from _common_problems(run)


def idle_rules(verb: str, run: Any) -> Iterator[tuple[str, str, str]]:
    """Key, the key that makes it idle, and the reason."""
    for name in _TRAIN_IDLE:
        remedy = f"; use {verb}.batch_size" if name == "prompts_per_step" else ""
        remedy = f"; use {verb}.epochs" if name == "epochs" else remedy
        yield f"train.{name}", "", f"it belongs to RL{remedy}"
    for name in _EVAL_IDLE:
        yield f"eval.{name}", "", f"coterie {verb} evaluates on held-out rows, it samples nothing"
    if getattr(run, verb).epochs:
        yield "train.steps", f"{verb}.epochs", f"{verb}.epochs decides; set {verb}.epochs=0 to count steps"
    yield "data.reference_key", "", "preference data has no reference answer"
    yield "data.max_prompt_tokens", "", f"{verb}.max_tokens bounds prompt and answer together"
    pairs = rows_of_loss(run.loss) == "pairs"
    for name in ("response_key", "label_key") if pairs else ("chosen_key", "rejected_key"):
        rows = "pairs of answers" if pairs else "single answers with a label"
        yield f"data.{name}", "loss", f"this loss reads {rows}"
    if verb == "dpo":
        yield "data.margin_key", "", "only coterie rm weighs pairs by a margin"
    if "ref_logprobs" not in run.loss.needs:
        yield "learner.ref_model", "loss", "this loss has no reference"
        if verb == "dpo":
            yield "dpo.reference", "loss", "this loss has no reference"


def _common_problems(run: Any) -> Iterator[str]:
    if run.data.path.startswith("gym:"):
        yield f"data.path={run.data.path}: a gym: task has no preferences; give rows with chosen and rejected answers"
    if run.eval.every and run.data.path and not {"path", "split"} & set(run.eval.data):
        yield (
            f"eval.every={run.eval.every}: it would evaluate on training rows; set eval.data.path=…, or eval.every=0"
        )
    if run.learner.share_prefix and run.learner.gradient_checkpointing:
        yield (
            "learner.share_prefix=true: can't be had with learner.gradient_checkpointing=true, which drops the shared "
            "activations; switch one off"
        )
