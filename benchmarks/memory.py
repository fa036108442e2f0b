"""Predicted against measured peak memory of a training step.

    python benchmarks/memory.py                      # small cases, a minute
    python benchmarks/memory.py --cases all          # with SmolLM2-135M's dimensions too
    python benchmarks/memory.py --device cuda

Each case is a process of its own: random weights, two steps of sampling (embedded engine), forward, backward and AdamW
on full-length completions, then the largest resident memory (allocated memory on a GPU) against
`learners.estimate.estimate`. The target is a ratio within 0.8 to 1.2.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

SMOL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
TINY = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
SHORT = {"prompts_per_step": 4, "n": 8, "prompt_tokens": 120, "max_tokens": 32}
CASES: dict[str, dict[str, Any]] = {
    "tiny": {"kind": "qwen3", "model": TINY, "work": {**SHORT, "max_tokens": 64}},
    "tiny_large_batch": {
        "kind": "qwen3",
        "model": TINY,
        "work": {"prompts_per_step": 32, "n": 8, "prompt_tokens": 40, "max_tokens": 40},
    },
    "smol_6_layers": {"kind": "llama", "model": {**SMOL, "num_hidden_layers": 6}, "work": SHORT},
    "smol_6_layers_ref": {"kind": "llama", "model": {**SMOL, "num_hidden_layers": 6}, "work": SHORT, "ref": True},
    "smol_6_layers_checkpointing": {
        "kind": "llama",
        "model": {**SMOL, "num_hidden_layers": 6},
        "work": SHORT,
        "learner": {"gradient_checkpointing": True},
    },
    "smol": {"kind": "llama", "model": {**SMOL, "num_hidden_layers": 30}, "work": SHORT},
    "smol_shared": {
        "kind": "llama",
        "model": {**SMOL, "num_hidden_layers": 30},
        "work": SHORT,
        "learner": {"share_prefix": True},
    },
}


def configuration(case: dict[str, Any]) -> Any:
    """The transformers configuration of a case."""
    from transformers import LlamaConfig, Qwen3Config

    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[case["kind"]](**case["model"])


class Digits:
    """A tokenizer that only decodes."""

    eos_token_id = None
    all_special_ids: tuple[int, ...] = ()

    def decode(self, tokens: Any, **_: Any) -> str:
        return " ".join(str(int(t)) for t in tokens)


def measure(case: dict[str, Any], device: str, threads: int) -> dict[str, float]:
    """Run the case here: measured and predicted bytes."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from coterie.config.schema import LocalLearnerConfig, OptimConfig, TransformersEngineConfig
    from coterie.core.batch import Batch
    from coterie.core.protocols import LossOutput
    from coterie.core.types import Example, Group, Request, Rollout, Sampling
    from coterie.engines.embedded import TransformersEngine
    from coterie.learners.local import LocalLearner

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    work, where = case["work"], torch.device(device)
    config = configuration(case)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    learner = LocalLearner(
        module, None, LocalLearnerConfig(**case.get("learner", {})), OptimConfig(), device=where, total_steps=2,
        load_reference=lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32),
    )  # fmt: skip
    engine = TransformersEngine(module, Digits(), TransformersEngineConfig(), device=where, dtype=learner.dtype)

    class Likelihood:
        needs = frozenset({"ref_logprobs"} if case.get("ref") else ())
        wants: frozenset[str] = frozenset()

        def __call__(self, outputs: Any, batch: Any) -> LossOutput:
            return LossOutput(-outputs.logprobs.sum() / batch.counts.action_tokens)

    async def step(number: int) -> None:
        rng = np.random.default_rng(number)
        sampling = Sampling(max_tokens=work["max_tokens"], ignore_eos=True)
        requests = [
            Request(tuple(rng.integers(3, 1000, work["prompt_tokens"]).tolist()), tuple(range(work["n"])), sampling)
            for _ in range(work["prompts_per_step"])
        ]
        groups = []
        for i, (request, found) in enumerate(zip(requests, await engine.generate(requests), strict=True)):
            size = len(request.prompt_tokens)
            rollouts = []
            for completion in found:
                tokens = np.concatenate([request.prompt_tokens, completion.tokens]).astype(np.int64)
                rollouts.append(Rollout(tokens, np.arange(size, len(tokens)), completion.text, "length"))
            groups.append(Group(Example(str(i), ()), tuple(rollouts)))
        batch = Batch.from_groups(groups)
        if case.get("ref"):
            batch = batch.with_streams(await learner.score(batch, ["ref_logprobs"]))
        await learner.forward_backward(batch, Likelihood())
        await learner.step()

    for number in range(2):
        asyncio.run(step(number))
    if where.type == "cuda":
        return {"measured": torch.cuda.max_memory_allocated(where)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"measured": peak if sys.platform == "darwin" else peak * 1024}


def predict(case: dict[str, Any], device: str) -> dict[str, Any]:
    """What `coterie check` would say."""
    from coterie.config.schema import LocalLearnerConfig
    from coterie.learners.estimate import estimate

    found = estimate(
        configuration(case), LocalLearnerConfig(**case.get("learner", {})), device_kind=device,  # type: ignore[arg-type]
        rows=64, needs_ref=bool(case.get("ref")), kv_gib=0, **case["work"],
    )  # fmt: skip
    return {"predicted": found.peak_bytes, "parts_mib": {k: round(v / 2**20) for k, v in found.parts.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = [name for name, case in CASES.items() if case["model"]["num_hidden_layers"] < 30]
    parser.add_argument("--cases", nargs="*", default=small, help=f"of {', '.join(CASES)}, or all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="JSON file for the result")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        sys.stdout.write("@@" + json.dumps(measure(CASES[args.measure], args.device, args.threads)) + "\n")
        return
    results = []
    for name in CASES if args.cases == ["all"] else args.cases:
        command = [sys.executable, __file__, "--measure", name, "--device", args.device, "--threads", str(args.threads)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        measured = json.loads(said.rpartition("@@")[2])
        result = {"case": name, **predict(CASES[name], args.device), **measured}
        result["ratio"] = round(result["predicted"] / result["measured"], 3)
        results.append(result)
        measured_mib, predicted_mib = result["measured"] / 2**20, result["predicted"] / 2**20
        print(
            f"{name:30} measured {measured_mib:7.0f} MiB   predicted {predicted_mib:7.0f} MiB   "
            f"ratio {result['ratio']:.2f}   {result['parts_mib']}",
            flush=True,
        )
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
