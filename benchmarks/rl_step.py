"""One whole on-policy GRPO step (sample, score, update) against TRL's GRPOTrainer, interleaved on the same machine.

    python benchmarks/rl_step.py --model FOLDER --data gsm8k/train.jsonl --trl-python TRL_VENV/bin/python

Each side is a process of its own that does one step when told to, so the two take turns: nothing else runs meanwhile.
The TRL side needs `pip install torch==2.13.0 trl==1.16.0` in its own environment. Both sides use the same prompts,
temperature 1, fp32, no reference model, the same number of threads. Prints medians and the ratio of samples a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="plain Hugging Face folder, e.g. SmolLM2-135M-Instruct")
    parser.add_argument("--data", required=True, help="GSM8K JSONL with `question` and `answer`")
    parser.add_argument("--trl-python", help="python of an environment with TRL; without it only coterie is timed")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--n", type=int, default=8, help="completions a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--override", action="append", default=[], help="extra coterie override")
    parser.add_argument("--out", help="JSON file for the result")
    parser.add_argument("--role", choices=("coterie", "trl"), help=argparse.SUPPRESS)
    return parser.parse_args()


def prompts(path: str, count: int) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(count), lines, strict=False)]


def say(**fields: object) -> None:
    sys.stdout.write("@@" + json.dumps(fields) + "\n")
    sys.stdout.flush()


def coterie_worker(args: argparse.Namespace) -> None:
    """Steps of the real loop (`train.rl.train_step`), one a line of standard input."""
    import asyncio
    import tempfile

    import torch

    from coterie.config.compose import compose
    from coterie.runtime.local import LocalRuntime
    from coterie.runtime.parts import build_parts
    from coterie.train.rl import train_step
    from coterie.train.state import LoopState

    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        rows.write_text("".join(json.dumps(r) + "\n" for r in prompts(args.data, args.prompts)), encoding="utf-8")
        run = compose(
            "train",
            [
                "experiment=gsm8k_smollm2",
                f"model={args.model}",
                f"data.path={rows}",
                "data.shuffle=false",
                "data.template='{prompt}'",
                "filters=[]",
                f"train.prompts_per_step={args.prompts}",
                f"rollout.n={args.n}",
                f"rollout.max_tokens={args.tokens}",
                f"run.threads={args.threads}",
                "eval.every=0",
                "eval.data={}",
                *args.override,
            ],
        ).run
        parts = build_parts(run, LocalRuntime())
    torch.set_num_threads(args.threads)
    state = LoopState.fresh(run)
    say(ready=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        state, metrics, groups = asyncio.run(train_step(run, parts, state))
        seconds = time.perf_counter() - begin
        tokens = sum(r.num_actions for g in groups for r in g.rollouts)
        phases = {n: round(s.value, 2) for n, s in metrics.items() if n.startswith("time/")}
        say(seconds=seconds, tokens=tokens, phases=phases)


def trl_worker(args: argparse.Namespace) -> None:
    """GRPOTrainer with a callback that waits for its turn before every step."""
    import tempfile

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    seen: dict[str, float] = {}

    class TakeTurns(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            if "announced" not in seen:
                seen["announced"] = 1
                say(ready=True)
            if not sys.stdin.readline():
                sys.exit(0)
            seen["begin"] = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            say(seconds=time.perf_counter() - seen["begin"], tokens=int(seen.get("tokens", 0)), phases={})

    def reward(completion_ids: list[list[int]], answer: list[str], completions: list, **_: object) -> list[float]:
        seen["tokens"] = sum(map(len, completion_ids))
        golds = [a.split("####")[-1].strip() for a in answer]
        return [float(gold in c[0]["content"]) for gold, c in zip(golds, completions, strict=True)]

    rows = [
        {"prompt": [{"role": "user", "content": r["question"]}], "answer": r["answer"]}
        for r in prompts(args.data, args.prompts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=args.prompts * args.n,
            num_generations=args.n,
            max_completion_length=args.tokens,
            temperature=1.0,
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_steps=args.repeats + 1,
            save_strategy="no",
            report_to=[],
            learning_rate=1e-6,
            disable_tqdm=True,
        )
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(args.model),
            callbacks=[TakeTurns()],
        )
        trainer.train()


def start(role: str, python: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": str(ARGS.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, str(HERE / "rl_step.py"), "--role", role, *sys.argv[1:]]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def answer(process: subprocess.Popen[str]) -> dict:
    for line in process.stdout:
        if line.startswith("@@"):
            return json.loads(line[2:])
    raise SystemExit(f"a worker ended early with exit code {process.wait()}: {process.args}")


def main() -> None:
    workers = {"coterie": start("coterie", sys.executable)}
    answer(workers["coterie"])
    if ARGS.trl_python:
        workers["trl"] = start("trl", ARGS.trl_python)
        answer(workers["trl"])
    times: dict[str, list[dict]] = {name: [] for name in workers}
    for turn in range(ARGS.repeats + 1):
        for name, process in workers.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            result = answer(process)
            print(f"turn {turn} {name:8} {result['seconds']:7.2f} s  {result['tokens']} tokens  {result['phases']}")
            if turn:  # the first turn warms caches
                times[name].append(result)
    for process in workers.values():
        process.stdin.close()
        process.terminate()
    samples = ARGS.prompts * ARGS.n
    medians = {n: statistics.median(r["seconds"] for r in rows) for n, rows in times.items()}
    result = {
        "command": "python benchmarks/rl_step.py " + " ".join(sys.argv[1:]),
        "shape": {"prompts": ARGS.prompts, "n": ARGS.n, "tokens": ARGS.tokens, "threads": ARGS.threads},
        "step_s": medians,
        "samples_per_s": {n: samples / s for n, s in medians.items()},
        "runs": times,
    }
    if "trl" in medians:
        result["ratio"] = medians["trl"] / medians["coterie"]
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in medians.items())
        print(f"{seconds}: {result['ratio']:.2f} times TRL's samples a second")
    if ARGS.out:
        Path(ARGS.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    ARGS = arguments()
    if ARGS.role:
        {"coterie": coterie_worker, "trl": trl_worker}[ARGS.role](ARGS)
    else:
        main()
