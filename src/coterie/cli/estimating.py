"""What `coterie check` says about memory and time, from the model's config and a look at the data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config.compose import Resolved
from coterie.config.needs import reads_reference, reads_values
from coterie.config.schema import DataConfig

LOOKED_AT = 256
"""Rows whose length is measured."""

LONG = 0.9
"""Share of the rows that are at most as long as the length estimated with."""

GIB = 2**30
BYTES_PER_WEIGHT = 4


def estimate_lines(resolved: Resolved[Any]) -> Iterator[str]:
    """Lines about the memory and time of one training step, or why there are none.

    Raises:
        ModelError, DataError: for a model folder or data file that a run would stumble over.
    """
    run = resolved.run
    config = _model_config(run.model)
    if resolved.verb == "generate":
        return
    if config is None:
        yield f"no estimate: model={run.model} is not a folder here"
        return
    import torch

    from coterie.learners.estimate import estimate
    from coterie.runtime.device import choose_device, choose_threads

    device = choose_device(run.run.device)
    rl = resolved.verb == "train"
    rows: Any = None if rl else getattr(run, resolved.verb)
    prompt_tokens = _prompt_tokens(run.model, run.data) if rl else 1
    found = estimate(
        config,
        run.learner,
        device_kind="cuda" if device.type == "cuda" else "cpu",
        rows=run.engine.max_rows if rl else 1,
        prompt_tokens=prompt_tokens,
        max_tokens=run.rollout.max_tokens if rl else rows.max_tokens - 1,
        n=run.rollout.n if rl else 1 if resolved.verb == "sft" else 2,
        prompts_per_step=run.train.prompts_per_step if rl else rows.batch_size,
        needs_ref=reads_reference(run) if rl else getattr(rows, "reference", "") == "each_step",
        kv_gib=run.engine.kv_cache_gib if rl else 0.0,
        gflops=1.0,
    )
    yield f"peak memory of a step: {found.peak_bytes / GIB:.2f} GiB on {device}"
    largest = sorted(found.parts.items(), key=lambda part: -part[1])
    yield "  " + ", ".join(f"{name.replace('_', ' ')} {size / GIB:.2f}" for name, size in largest if size > GIB / 200)
    if not rl:
        yield f"  (sequences of {resolved.verb}.max_tokens={rows.max_tokens} tokens)"
        return
    if reads_values(run):
        more = 3 * found.parts["weights"] / GIB
        yield f"  (without the critic: {more:.2f} GiB more for its weights and optimizer when it has the policy's size)"
    torch.set_num_threads(choose_threads(run.run.threads, found.parts["weights"] // BYTES_PER_WEIGHT))
    speed = matmul_gflops(device)
    step = (found.seconds_per_step or 0.0) / speed
    yield f"time of a step: about {step:.1f} s, {step * run.train.steps / 60:.0f} min for train.steps={run.train.steps}"
    yield (
        f"  ({found.flops_per_step / 1e12:.2f} TFLOP at {speed:.0f} GFLOPS of this machine; prompts of {prompt_tokens} "
        f"tokens, completions of full length, {run.rollout.max_tokens}; rewards and evaluation aside)"
    )


def matmul_gflops(device: Any, size: int = 768, seconds: float = 0.3) -> float:
    """The best speed of a square float32 matrix product seen within `seconds`, in 10^9 operations a second."""
    import torch

    left = torch.randn(size, size, device=device)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        left @ left
        if left.is_cuda:
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start) / 1e9)
    return best


def _model_config(model: str) -> Any:
    """Transformers configuration of a model folder; None for a name that stands for none here."""
    from transformers import AutoConfig

    from coterie.errors import ModelError
    from coterie.learners.models import check_folder

    folder = Path(model).expanduser()
    if not folder.is_dir():
        if model.startswith((".", "/", "~")):
            raise ModelError(f"model folder {model!r} does not exist (looked at {folder.absolute()})")
        return None
    check_folder(folder)
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {model!r}: its config.json can't be used: {error}") from error


def _prompt_tokens(model: str, data: DataConfig) -> int:
    """Length that `LONG` of the first prompts don't pass; the limit where the data isn't on this machine."""
    if data.path.startswith("hub:"):
        return data.max_prompt_tokens or 512
    from coterie.data.chat import encode_prompt
    from coterie.data.sources import load_examples
    from coterie.learners.models import load_tokenizer

    few = min(data.max_examples or LOOKED_AT, LOOKED_AT)
    tokenizer = load_tokenizer(model)
    examples = load_examples(replace(data, max_examples=few), seed=0)
    lengths = [len(encode_prompt(tokenizer, e, config=data)) for e in examples]
    kept = [n for n in lengths if n <= data.max_prompt_tokens or not data.max_prompt_tokens]
    return int(np.quantile(kept or lengths, LONG, method="higher"))
