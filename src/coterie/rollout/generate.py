"""`coterie generate`: prompts in, completions with logprobs out (Parquet or JSONL)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from coterie.config.primary import GenerateRun
from coterie.core.types import Group, Sampling
from coterie.engines.embedded import TransformersEngine
from coterie.errors import ConfigError
from coterie.learners.models import load_model, load_tokenizer
from coterie.rollout.single_turn import sample_groups
from coterie.runtime.device import choose_device, choose_threads
from coterie.runtime.parts import load_prompts
from coterie.train.atomic import write_atomic


def run_generate(resolved: Any) -> dict[str, Any]:
    """Sample `rollout.n` completions of every prompt and write them to `out`, whole or not at all.

    Returns:
        Numbers for the command line: prompts, completions, tokens, out.
    """
    run: GenerateRun = resolved.run
    out = Path(run.out)
    kind = run.format if run.format != "auto" else out.suffix.lstrip(".")
    if kind not in ("jsonl", "parquet"):
        raise ConfigError(f"out={run.out}: the format can't be told from the name; use .jsonl or .parquet, or format=…")
    if out.exists() and not run.force:
        raise ConfigError(f"out={run.out} exists; choose another file or add force=true")
    device = choose_device(run.run.device)
    tokenizer = load_tokenizer(run.model)
    examples, _, encode = load_prompts(run.data, tokenizer, run.run.seed)
    module = load_model(run.model, kwargs=run.model_kwargs, device=device)
    torch.set_num_threads(choose_threads(run.run.threads, sum(p.numel() for p in module.parameters())))
    engine = TransformersEngine(module, tokenizer, run.engine, device=device)
    r = run.rollout
    sampling = Sampling(r.temperature, r.top_p, r.top_k, r.min_p, r.max_tokens, tuple(r.stop))
    groups = asyncio.run(
        sample_groups(examples, engine, encode, n=r.n, sampling=sampling, seed=run.run.seed, step=0, purpose="generate")
    )
    write_completions(groups, out, kind)
    rollouts = [x for g in groups for x in g.rollouts]
    return {
        "prompts": len(groups),
        "completions": len(rollouts),
        "tokens": sum(x.num_actions for x in rollouts),
        "out": str(out),
    }


def completion_rows(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """One row a completion: id, index, prompt, completion, finish_reason, tokens, logprobs, reference, source."""
    for group in groups:
        for rollout in group.rollouts:
            reference = group.example.reference
            yield {
                "id": group.example.id,
                "index": rollout.index,
                "prompt": [dict(m) for m in group.example.prompt],
                "completion": rollout.text,
                "finish_reason": rollout.finish_reason,
                "tokens": rollout.tokens[rollout.action_index].tolist(),
                "logprobs": rollout.streams["sampler_logprobs"].tolist(),
                "reference": reference if isinstance(reference, str) or reference is None else json.dumps(reference),
                "source": group.example.source,
            }


def write_completions(groups: Sequence[Group], out: Path, kind: str) -> None:
    """Write the rows atomically."""
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = list(completion_rows(groups))
    if kind == "jsonl":
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        write_atomic(out, "".join(line + "\n" for line in lines).encode())
        return
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    write_atomic(out, sink.getvalue().to_pybytes())
