"""The long-lived parts of a run, built from its configuration by a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch

from coterie.config.needs import reads_values, warmup_steps
from coterie.config.primary import RLRun
from coterie.config.schema import DataConfig, LocalLearnerConfig, OptimConfig
from coterie.core.keys import seed_of
from coterie.core.protocols import Engine, Learner
from coterie.core.types import Example
from coterie.data.chat import encode_prompt
from coterie.data.cursor import Cursor
from coterie.data.filters import DataReport, filter_prompts, without_prompts
from coterie.data.sources import load_examples
from coterie.engines.embedded import TransformersEngine
from coterie.errors import ConfigError
from coterie.learners.critic import LocalCritic, check_same_tokens, load_value_model
from coterie.learners.local import LocalLearner
from coterie.learners.models import load_model, load_tokenizer
from coterie.runtime.device import choose_device, choose_threads
from coterie.runtime.local import LocalRuntime

Encode = Callable[[Example], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Parts:
    """What the loop works with.

    Attributes:
        learner, engine: see `core.protocols`; in the local runtime both hold the same module.
        cursor: where the training data stands.
        eval_examples: held-out problems, the same each time.
        encode, eval_encode: prompt tokens of a training and of a held-out example.
        tokenizer: of the model.
        device, threads: chosen for this process.
        report: what was left out of the data, and why.
        resources: what rewards may use through `Context.resources`.
        critic: predicts values; None where nothing needs them.
    """

    learner: Learner
    engine: Engine
    cursor: Cursor
    eval_examples: Sequence[Example]
    encode: Encode
    eval_encode: Encode
    tokenizer: Any
    device: torch.device
    threads: int
    report: DataReport
    resources: Mapping[str, Any] = field(default_factory=dict)
    critic: Learner | None = None


def build_parts(run: RLRun, runtime: LocalRuntime, *, threads: int = 0) -> Parts:
    """Load tokenizer, data and model, cheapest first, so that a mistake is found before anything is written.

    Args:
        threads: compute threads to use instead of the configured number (a resumed run uses the recorded one).
    """
    device = choose_device(run.run.device)
    tokenizer = load_tokenizer(run.model)
    examples, report, encode = load_prompts(run.data, tokenizer, run.run.seed)
    eval_examples: Sequence[Example] = ()
    eval_encode = encode
    if run.eval.every:
        eval_examples, _, eval_encode = load_prompts(eval_data(run.data, run.eval.data), tokenizer, run.run.seed)
        eval_examples = eval_examples[: run.eval.max_examples or None]
        if run.data.path.startswith("gym:"):  # procedural tasks repeat themselves
            examples, apart = without_prompts(examples, eval_examples)
            report = report.then(apart)
    updates = run.train.epochs * run.train.minibatches
    temperature = run.rollout.temperature if run.train.temperature_logprobs else 1.0
    learner, threads = build_learner(
        run.model,
        run.model_kwargs,
        run.learner,
        run.optim,
        runtime,
        tokenizer,
        device=device,
        threads=threads or run.run.threads,
        seed=run.run.seed,
        temperature=temperature,
        total_steps=updates * (run.train.steps - warmup_steps(run)),
    )
    critic = None
    if reads_values(run):
        critic = build_critic(run, runtime, tokenizer, device=device, total_steps=updates * run.train.steps)
    engine = runtime.spawn(
        TransformersEngine, learner.module, tokenizer, run.engine, device=device, dtype=learner.dtype
    )
    return Parts(
        learner=learner,
        engine=engine,
        cursor=Cursor(examples, seed=run.run.seed, shuffle=run.data.shuffle),
        eval_examples=eval_examples,
        encode=encode,
        eval_encode=eval_encode,
        tokenizer=tokenizer,
        device=device,
        threads=threads,
        report=report,
        resources={"tokenizer": tokenizer, "engine": engine, "debug": run.run.debug},
        critic=critic,
    )


def load_prompts(config: DataConfig, tokenizer: Any, seed: int) -> tuple[list[Example], DataReport, Encode]:
    """Examples short enough for `max_prompt_tokens`, what was left out, and their encoder."""
    examples = load_examples(config, seed=config.seed if config.seed >= 0 else seed)
    kept, report = filter_prompts(examples, tokenizer, config)
    return kept, report, partial(encode_prompt, tokenizer, config=config)


def eval_data(data: DataConfig, changes: Mapping[str, Any]) -> DataConfig:
    """The data section with the keys of `eval.data` in place.

    Raises:
        ConfigError: for a key that the data section doesn't have, and when no key tells the two sets apart.
    """
    known = {f.name for f in fields(DataConfig)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise ConfigError(f"eval.data.{unknown[0]}: no such key of the data section; it has {', '.join(sorted(known))}")
    telling = {"path", "split", "seed"} if data.path.startswith("gym:") else {"path", "split"}
    if not telling & set(changes):
        raise ConfigError(
            f"eval.every is set, but eval.data has none of {', '.join(sorted(telling))}: it would evaluate on training "
            "problems. Set eval.data.path=…, or eval.every=0"
        )
    return replace(data, **changes)


def build_learner(
    model: str,
    model_kwargs: Mapping[str, Any],
    config: LocalLearnerConfig,
    optim: OptimConfig,
    runtime: LocalRuntime,
    tokenizer: Any,
    *,
    device: torch.device,
    threads: int,
    seed: int,
    temperature: float,
    total_steps: int,
) -> tuple[LocalLearner, int]:
    """The learner with its module on `device`, and the thread count now in force.

    torch's own generator is seeded too: a user's piece may draw from it, and it is part of the checkpoint.
    """
    torch.manual_seed(seed_of("process", seed))
    module = load_model(model, kwargs=model_kwargs, device=device)
    threads = choose_threads(threads, sum(p.numel() for p in module.parameters()))
    torch.set_num_threads(threads)
    reference = config.ref_model or model
    learner = runtime.spawn(
        LocalLearner,
        module,
        tokenizer,
        config,
        optim,
        device=device,
        total_steps=total_steps,
        temperature=temperature,
        load_reference=lambda: load_model(reference, kwargs=model_kwargs, device=device),
    )
    return learner, threads


def build_critic(
    run: RLRun, runtime: LocalRuntime, tokenizer: Any, *, device: torch.device, total_steps: int
) -> LocalCritic:
    """The critic with its module on `device`; its optimizer is the policy's with another learning rate."""
    if run.critic.model:
        check_same_tokens(run.critic.model, tokenizer)
    module, head = load_value_model(run.critic.model or run.model, kwargs=run.model_kwargs, device=device)
    optim = replace(run.optim, lr=run.critic.lr)
    return runtime.spawn(
        LocalCritic, module, head, tokenizer, run.learner, optim, device=device, total_steps=total_steps
    )
