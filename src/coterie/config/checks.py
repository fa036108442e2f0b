"""Checks of a whole run, before anything is loaded: ranges, conflicts, settings without effect, missing streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from coterie.config.hints import any_of, did_you_mean
from coterie.config.needs import needs_problems, reads_reference, reads_values, warmup_steps
from coterie.config.preference_checks import (
    PREFERENCE_KEYS,
    dpo_problems,
    idle_rules,
    is_reward_model_loss,
    rm_problems,
    rows_of_loss,
)
from coterie.config.primary import RLRun, SFTRun, Verb
from coterie.config.resolve import Resolution, show
from coterie.errors import ConfigError

SINKS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True)
class Range:
    """Bounds of a number: `low` and `high` belong to it unless open."""

    low: float
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether the number is inside."""
        above = value > self.low if self.open_low else value >= self.low
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below

    def __str__(self) -> str:
        if self.high is None:
            return f"must be {'above' if self.open_low else 'at least'} {self.low:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"must be in {left}{self.low:g}, {self.high:g}{right}"


COUNT, ONE_OR_MORE, SHARE, NOT_NEGATIVE = Range(0), Range(1), Range(0, 1), Range(0)
NUCLEUS, DECAY, POSITIVE = Range(0, 1, open_low=True), Range(0, 1, open_high=True), Range(0, open_low=True)

RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "run.seed": COUNT,
        "run.threads": COUNT,
        "train.steps": ONE_OR_MORE,
        "train.prompts_per_step": ONE_OR_MORE,
        "train.minibatches": ONE_OR_MORE,
        "train.epochs": ONE_OR_MORE,
        "train.save_every": COUNT,
        "train.keep": COUNT,
        "train.reward_concurrency": ONE_OR_MORE,
        "train.max_missing_reward_rate": SHARE,
        "train.smoke_test_examples": ONE_OR_MORE,
        "train.patience": COUNT,
        "sft.batch_size": ONE_OR_MORE,
        "sft.max_tokens": Range(2),
        "sft.epochs": NOT_NEGATIVE,
        "dpo.batch_size": ONE_OR_MORE,
        "dpo.max_tokens": Range(2),
        "dpo.epochs": NOT_NEGATIVE,
        "rm.batch_size": ONE_OR_MORE,
        "rm.max_tokens": Range(2),
        "rm.epochs": NOT_NEGATIVE,
        "data.max_prompt_tokens": COUNT,
        "data.max_examples": COUNT,
        "data.seed": Range(-1),
        "data.size": ONE_OR_MORE,
        "rollout.n": ONE_OR_MORE,
        "rollout.temperature": NOT_NEGATIVE,
        "rollout.top_p": NUCLEUS,
        "rollout.top_k": COUNT,
        "rollout.min_p": SHARE,
        "rollout.max_tokens": ONE_OR_MORE,
        "eval.every": COUNT,
        "eval.n": ONE_OR_MORE,
        "eval.temperature": NOT_NEGATIVE,
        "eval.top_p": NUCLEUS,
        "eval.max_tokens": COUNT,
        "eval.max_examples": COUNT,
        "optim.lr": NOT_NEGATIVE,
        "optim.beta1": DECAY,
        "optim.beta2": DECAY,
        "optim.eps": POSITIVE,
        "optim.weight_decay": NOT_NEGATIVE,
        "optim.max_grad_norm": NOT_NEGATIVE,
        "optim.warmup_steps": COUNT,
        "optim.min_lr_ratio": SHARE,
        "critic.lr": NOT_NEGATIVE,
        "critic.warmup_steps": COUNT,
        "critic.value_clip": NOT_NEGATIVE,
        "critic.huber": NOT_NEGATIVE,
        "learner.micro_batch_tokens": COUNT,
        "learner.head_chunk": COUNT,
        "engine.max_rows": ONE_OR_MORE,
        "engine.kv_cache_gib": NOT_NEGATIVE,
        "engine.prefill_tokens": ONE_OR_MORE,
        "log.rollouts_every": COUNT,
        "log.sample_every": COUNT,
    }
)
"""What each number may be. Pieces in slots check their own."""


def check_run(verb: Verb, run: Any, found: Resolution) -> None:
    """Check a resolved run.

    Raises:
        ConfigError: with every problem found, one a line.
    """
    run_problems: dict[str, Callable[[Any, Resolution], Iterator[str]]] = {
        "train": _train_problems,
        "sft": _sft_problems,
        "dpo": dpo_problems,
        "rm": rm_problems,
        "generate": _generate_problems,
    }
    problems = [*_missing(verb, run), *_out_of_range(run, found), *run_problems[verb](run, found)]
    problems += _idle(verb, run, found)
    if problems:
        raise ConfigError("\n".join(problems))


def _missing(verb: Verb, run: Any) -> Iterator[str]:
    if not run.model:
        yield (
            "model is not set: give a folder or a hub id, like model=HuggingFaceTB/SmolLM2-135M-Instruct "
            "(`coterie model import` makes a folder of a GGUF file)"
        )
    if not run.data.path:
        kind = {"sft": "conversations", "dpo": "preferences", "rm": "preferences"}.get(verb, "prompts")
        yield f"data.path is not set: give {kind} as data.path=FILE.jsonl, FILE.parquet, hub:owner/name or gym:task"
    if verb == "generate" and not run.out:
        yield "out is not set: give the file to write, like out=completions.jsonl or out=completions.parquet"


def _out_of_range(run: Any, found: Resolution) -> Iterator[str]:
    for key, bounds in RANGES.items():
        section, name = key.split(".")
        value = getattr(getattr(run, section, None), name, None)
        if value is not None and not bounds.holds(value):
            yield f"{key}={show(value)}: {bounds}{found.origins.note(key)}"
    for sink in getattr(getattr(run, "log", None), "sinks", ()):
        if sink not in SINKS:
            yield f"log.sinks={show(run.log.sinks)}: {sink} is unknown; {did_you_mean(sink, SINKS)}"


def _train_problems(run: RLRun, found: Resolution) -> Iterator[str]:
    train, rollout = run.train, run.rollout
    if train.minibatches > 0 and train.prompts_per_step % train.minibatches:
        divisors = [d for d in range(1, train.prompts_per_step + 1) if train.prompts_per_step % d == 0]
        yield (
            f"train.minibatches={train.minibatches}: must divide train.prompts_per_step={train.prompts_per_step}; "
            f"{any_of([str(d) for d in divisors])} would"
        )
    if rollout.temperature == 0:
        yield "rollout.temperature=0: greedy rollouts of a prompt are all the same, so nothing can be learned; use 1"
    if warmup_steps(run) >= train.steps > 0:
        yield (
            f"critic.warmup_steps={warmup_steps(run)}: the run ends after train.steps={train.steps}, before the policy "
            "learns anything"
        )
    if rows_of_loss(run.loss) or is_reward_model_loss(run.loss):
        verb = "rm" if is_reward_model_loss(run.loss) else "dpo"
        yield f"loss={found.pieces['loss'].choice} learns from preferences, not from rewards; use coterie {verb}"
    yield from _group_sizes(run, found)
    yield from _eval_problems(run)
    yield from _control_problems(run)
    yield from _learner_problems(run.learner)
    yield from needs_problems(run, found)


def _group_sizes(run: RLRun, found: Resolution) -> Iterator[str]:
    stages = {**{f"filters.{n}": f for n, f in run.filters.items()}, "advantage": run.advantage}
    stages |= {f"transforms.{n}": f for n, f in run.transforms.items()}
    for prefix, stage in stages.items():
        least = getattr(stage, "min_group_size", 1)
        if run.rollout.n < least:
            yield (
                f"rollout.n={run.rollout.n}: {prefix.partition('.')[0]}={found.pieces[prefix].choice} compares the "
                f"rollouts of a group and needs rollout.n={least} or more{found.origins.note('rollout.n')}"
            )


def _sft_problems(run: SFTRun, found: Resolution) -> Iterator[str]:
    needs = sorted(getattr(run.loss, "needs", frozenset()))
    choice = found.pieces["loss"].choice
    if rows_of_loss(run.loss):
        yield f"loss={choice}: learns from preferences, which coterie sft doesn't read; use loss=nll, or coterie dpo"
    elif needs or hasattr(run.loss, "surrogate"):
        what = f"needs {any_of(needs)}" if needs else "weighs tokens by advantages"
        yield f"loss={choice}: {what}, which supervised data doesn't have; use loss=nll"
    yield from _learner_problems(run.learner)


def _generate_problems(run: Any, found: Resolution) -> Iterator[str]:
    if run.rollout.temperature == 0 and run.rollout.n > 1:
        yield f"rollout.n={run.rollout.n}: with rollout.temperature=0 all completions of a prompt are the same; use n=1"


def _eval_problems(run: RLRun) -> Iterator[str]:
    if not run.eval.every:
        return
    if run.eval.temperature == 0 and run.eval.n > 1:
        yield (
            f"eval.n={run.eval.n}: with eval.temperature=0 (greedy) all completions of a problem are the same; use "
            "eval.n=1, or sample with eval.temperature=0.6"
        )
    telling = {"path", "split", "seed"} if run.data.path.startswith("gym:") else {"path", "split"}
    if run.data.path and not telling & set(run.eval.data):
        keys = any_of([f"eval.data.{k}=…" for k in sorted(telling)])
        yield f"eval.every={run.eval.every}: it would evaluate on training problems; set {keys}, or eval.every=0"


def _control_problems(run: RLRun) -> Iterator[str]:
    shaped = any("coef" in {f.name for f in _fields(stage)} for stage in run.shaping.values())
    if run.kl_control is not None and not shaped and getattr(run.loss, "kl", "none") == "none":
        yield (
            "kl_control sets a coefficient that nothing uses; put the KL in the reward (shaping=[kl]) or in the loss "
            "(loss.kl=k3)"
        )
    if run.entropy_control is not None and "entropy_coef" not in {f.name for f in _fields(run.loss)}:
        yield "entropy_control sets entropy_coef, which this loss lacks; use another loss, or entropy_control=none"


def _learner_problems(learner: Any) -> Iterator[str]:
    if learner.share_prefix and learner.gradient_checkpointing:
        yield (
            "learner.share_prefix=true: can't be had with learner.gradient_checkpointing=true, which drops the shared "
            "activations; switch one off"
        )


def _idle(verb: Verb, run: Any, found: Resolution) -> Iterator[str]:
    """Settings that were made but change nothing, with what makes them idle."""
    for key, because, why in _idle_rules(verb, run):
        section, _, name = key.partition(".")
        value = getattr(getattr(run, section), name)
        default = getattr(type(getattr(run, section))(), name)
        made = [k for k in found.origins.of if k == key or k.startswith(f"{key}.")]
        if not made or value == default or found.origins.is_record:
            continue
        if found.origins.from_command_line(made[0]) or not (because and found.origins.from_command_line(because)):
            yield f"{key}={show(value)} has no effect: {why}{found.origins.note(made[0])}"


def _idle_rules(verb: Verb, run: Any) -> Iterator[tuple[str, str, str]]:
    """Key, the key that makes it idle, and the reason."""
    if verb != "generate":
        yield from _idle_in_training(verb, run)
    if verb in ("dpo", "rm"):
        yield from idle_rules(verb, run)
    else:
        for name in PREFERENCE_KEYS:
            yield f"data.{name}", "", "only coterie dpo and coterie rm read preferences"
    if verb == "sft":
        for name in ("prompts_per_step", "minibatches", "epochs", "reward_concurrency", "max_missing_reward_rate"):
            yield (
                f"train.{name}",
                "",
                "it belongs to RL" + ("; use sft.batch_size" if name == "prompts_per_step" else ""),
            )
        for name in ("smoke_test", "smoke_test_examples", "patience", "temperature_logprobs"):
            yield f"train.{name}", "", "it belongs to RL"
        for name in ("n", "temperature", "top_p", "max_tokens", "metric", "threshold"):
            yield f"eval.{name}", "", "coterie sft evaluates the loss of held-out conversations, it samples nothing"
        if run.sft.epochs:
            yield "train.steps", "sft.epochs", "sft.epochs decides; set sft.epochs=0 to count steps"
        yield "data.reference_key", "", "supervised data has no reference; the answer's column is data.response_key"
    elif verb in ("train", "generate"):
        yield "data.response_key", "", "only coterie sft reads responses"
    if verb == "generate":
        for name in ("dir", "resume", "debug"):
            yield f"run.{name}", "", "coterie generate writes `out` alone"
        yield "data.shuffle", "", "completions come in the order of the data"
    gym, hub = run.data.path.startswith("gym:"), run.data.path.startswith("hub:")
    if not gym:
        for name in ("size", "seed"):
            yield (
                f"data.{name}",
                "data.path",
                "only gym: tasks are made by a seed; limit a data set with data.max_examples",
            )
    else:
        for name in ("prompt_key", "reference_key"):
            yield f"data.{name}", "data.path", "a gym: task has no columns"
    if not hub:
        yield "data.split", "data.path", "only hub: data sets have splits"
    if not (gym or hub):
        yield "data.options", "data.path", "only gym: tasks and hub: data sets have options"
    if not run.data.chat:
        for name in ("system", "chat_template_kwargs"):
            yield f"data.{name}", "data.chat", "data.chat=false gives the raw text to the model"


def _idle_in_training(verb: Verb, run: Any) -> Iterator[tuple[str, str, str]]:
    steps = run.train.steps
    if verb == "train":
        steps = (steps - warmup_steps(run)) * run.train.epochs * run.train.minibatches
    if run.optim.schedule == "constant":
        yield "optim.min_lr_ratio", "optim.schedule", "optim.schedule=constant never goes down; use linear or cosine"
    if run.optim.warmup_steps >= steps and not (verb in ("sft", "dpo", "rm") and getattr(run, verb).epochs):
        yield "optim.warmup_steps", "train.steps", f"the run ends after {steps} optimizer steps, still warming up"
    if not run.eval.every:
        for f in dataclasses.fields(run.eval):
            if f.name != "every":
                yield f"eval.{f.name}", "eval.every", "eval.every=0 switches evaluation off"
        yield "train.patience", "eval.every", "it counts evaluations, and eval.every=0 switches them off"
    if run.eval.every and run.eval.temperature == 0:
        yield "eval.top_p", "eval.temperature", "eval.temperature=0 is greedy"
    if run.train.smoke_test == "off":
        yield "train.smoke_test_examples", "train.smoke_test", "train.smoke_test=off"
    if not set(run.log.sinks) & {"wandb", "trackio"}:
        for name in ("project", "name"):
            yield f"log.{name}", "log.sinks", "it names the run for wandb and trackio; add one to log.sinks"
    if run.log.console == "off":
        yield "log.sample_every", "log.console", "log.console=off shows nothing"
    if verb == "sft" or (verb == "train" and not reads_reference(run)):
        yield "learner.ref_model", "", "nothing needs ref_logprobs; a KL in loss.kl or shaping=[kl] would"
    if verb == "train" and not reads_values(run):
        for f in dataclasses.fields(run.critic):
            yield f"critic.{f.name}", "advantage", "nothing needs values, so there is no critic; advantage=gae would"


def _fields(piece: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(piece) if dataclasses.is_dataclass(piece) and not isinstance(piece, type) else ()
