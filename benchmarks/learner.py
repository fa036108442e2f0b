"""Training speed of the local learner as a share of the machine's matrix-multiply ceiling, measured in the same run.

    python benchmarks/learner.py --threads 2                         # random weights of SmolLM2-135M's shape
    python benchmarks/learner.py --model FOLDER --share-prefix
    python benchmarks/learner.py --layers 6 --prompts 2 --repeats 1  # a quick look
    python benchmarks/learner.py --device cuda --dtype bfloat16 --prompts 64 --tokens 512

A pass is one optimizer step: forward, backward, AdamW on `prompts` x `n` completions. The share counts the operations
that the mathematics needs (forward and backward of every linear layer and of attention on the tokens computed, LM head
on action tokens; no padding, nothing recomputed). The ceiling is `torch.mm` on the model's own shapes and the size of
its micro-batches, best of several, measured between the passes. With other work on the machine, compare the shares of
CPU time. The target is 0.8.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch
from coterie.core.protocols import LossOutput
from coterie.core.types import Example, Group, Rollout
from coterie.learners.local import LocalLearner


class PolicyGradient:
    """-sum(A logprob) / action tokens."""

    needs: frozenset[str] = frozenset()
    wants: frozenset[str] = frozenset()

    def __call__(self, outputs: Any, batch: Batch) -> LossOutput:
        return LossOutput(-(outputs.logprobs * batch.advantages).sum() / batch.counts.action_tokens)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="plain Hugging Face folder; without it random weights of SmolLM2-135M's shape")
    parser.add_argument("--layers", type=int, default=30, help="layers of the random model")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--n", type=int, default=8, help="completions a prompt")
    parser.add_argument("--prompt-tokens", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--ragged", action="store_true", help="completions of 8 to --tokens tokens")
    parser.add_argument("--share-prefix", action="store_true")
    parser.add_argument("--micro-batch-tokens", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print the operators of the last pass")
    parser.add_argument("--out", help="JSON file for the result")
    return parser.parse_args()


def model_of(args: argparse.Namespace) -> Any:
    if args.model:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    torch.manual_seed(0)
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=49152, num_hidden_layers=args.layers, tie_word_embeddings=True, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def batch_of(args: argparse.Namespace, vocabulary: int) -> Batch:
    rng = np.random.default_rng(0)
    groups = []
    for g in range(args.prompts):
        prompt = rng.integers(3, vocabulary, args.prompt_tokens)
        rollouts = []
        for _ in range(args.n):
            length = int(rng.integers(8, args.tokens + 1)) if args.ragged else args.tokens
            tokens = np.concatenate([prompt, rng.integers(3, vocabulary, length)])
            rollouts.append(Rollout(tokens, np.arange(len(prompt), len(tokens)), "", "length"))
        group = Group(Example(str(g), ()), tuple(rollouts))
        groups.append(group.with_advantages(list(rng.normal(size=args.n))))
    return Batch.from_groups(groups)


def linear_shapes(model: Any) -> list[tuple[int, int]]:
    """(out, in) of every linear layer of the body."""
    found = [m for m in model.get_decoder().modules() if isinstance(m, torch.nn.Linear)]
    return [tuple(m.weight.shape) for m in found]  # type: ignore[misc]


def needed_flops(learner: LocalLearner, batch: Batch) -> float:
    """Operations that one forward and backward pass can't do without."""
    config = learner.module.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = positions = 0
    for part, layout in learner.forward.micro_batches(batch):
        positions += layout.real
        shared = {}
        for size, prefix, place in zip(part.lengths - 1, layout.prefix, layout.shared_place, strict=True):
            pairs += int(size * (size + 1) - prefix * (prefix + 1)) // 2
            shared[int(place)] = int(prefix * (prefix + 1)) // 2
        pairs += sum(shared.values())
    linear = sum(a * b for a, b in linear_shapes(learner.module))
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * width * pairs
    head = 6 * batch.num_actions * config.hidden_size * config.vocab_size
    return 6 * linear * positions + attention + head


def ceiling(model: Any, rows: int, actions: int, args: argparse.Namespace) -> tuple[float, float]:
    """Operations a second of torch.mm on the model's shapes, by the clock and by CPU time a thread; best of three."""
    counted: dict[tuple[int, int, int], int] = {}
    for out, inner in linear_shapes(model):
        counted[rows, out, inner] = counted.get((rows, out, inner), 0) + 1
    head = (min(actions, 512), model.config.vocab_size, model.config.hidden_size)
    counted[head] = max(1, round(actions / head[0]))
    dtype, device = getattr(torch, args.dtype), args.device
    totals = np.zeros(3)
    for (m, out, inner), count in counted.items():
        x, w, g = (torch.randn(a, b, dtype=dtype, device=device) for a, b in ((m, inner), (out, inner), (m, out)))
        results = (torch.empty(m, out), torch.empty(m, inner), torch.empty(out, inner))
        y, dx, dw = (r.to(device=device, dtype=dtype) for r in results)
        for left, right, target in ((x, w.T, y), (g, w, dx), (g.T, x, dw)):
            timed = [clocked(lambda a=left, b=right, o=target: torch.mm(a, b, out=o), args) for _ in range(4)]
            best = np.min([t[:2] for t in timed[1:]], axis=0)
            totals += count * np.array([2 * m * out * inner, *best])
    return totals[0] / totals[1], totals[0] / totals[2]


def clocked(work: Callable[[], Any], args: argparse.Namespace) -> tuple[float, float, Any]:
    """Seconds by the clock, CPU seconds a thread, and what `work` returned."""
    if args.device != "cpu":
        torch.cuda.synchronize()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = work()
    if args.device != "cpu":
        torch.cuda.synchronize()
    threads = args.threads if args.device == "cpu" else 1
    return time.perf_counter() - begin, (time.process_time() - begin_cpu) / threads, result


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    config = LocalLearnerConfig(
        dtype=args.dtype,
        micro_batch_tokens=args.micro_batch_tokens,
        share_prefix=args.share_prefix,
        gradient_checkpointing=args.checkpointing,
    )
    learner = LocalLearner(
        model_of(args), None, config, OptimConfig(lr=1e-6), device=torch.device(args.device), total_steps=1000
    )
    batch = batch_of(args, learner.module.config.vocab_size)
    parts = learner.forward.micro_batches(batch)
    rows = parts[0][1].input_ids.numel()
    flops = needed_flops(learner, batch)

    async def one_pass() -> None:
        await learner.forward_backward(batch, PolicyGradient())
        await learner.step()

    asyncio.run(one_pass())  # warm-up: optimizer state and heap
    ceilings, passes = [], []
    for repeat in range(args.repeats):
        ceilings.append(ceiling(learner.module, rows, parts[0][0].num_actions, args))
        last = args.profile and repeat == args.repeats - 1
        with torch.profiler.profile() if last else torch.autograd.profiler.record_function("pass") as profile:
            passes.append(clocked(lambda: asyncio.run(one_pass()), args)[:2])
        if last:
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))  # type: ignore[union-attr]
        print(
            f"pass {repeat + 1}: {passes[-1][0]:.2f} s, {passes[-1][1]:.2f} CPU-s a thread; "
            f"ceiling {ceilings[-1][0] / 1e9:.0f} / {ceilings[-1][1] / 1e9:.0f} GFLOPS",
            flush=True,
        )
    top = np.max(ceilings, axis=0)
    wall, cpu = (statistics.median(p[i] for p in passes) for i in range(2))
    result = {
        "machine": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "torch": torch.__version__,
        **{k: v for k, v in vars(args).items() if k not in ("out", "profile")},
        "micro_batches": [layout.input_ids.numel() for _, layout in parts],
        "needed_gflop": round(flops / 1e9, 1),
        "pass_s": round(wall, 3),
        "pass_cpu_s_per_thread": round(cpu, 3),
        "tokens_per_s": round(int(batch.lengths.sum()) / wall, 1),
        "action_tokens_per_s": round(batch.num_actions / wall, 1),
        "ceiling_gflops": round(top[0] / 1e9, 1),
        "share": round(flops / wall / top[0], 3),
        "share_cpu": round(flops / cpu / top[1], 3) if args.device == "cpu" else None,
    }
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    if args.out:
        Path(args.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
