"""Maths grader: share of wrong verdicts on tricky pairs, and verdicts a second, against math-verify alone.

    python benchmarks/grader.py
    python benchmarks/grader.py --pairs MY_PAIRS.jsonl --repeat 3 --workers 2
    python benchmarks/grader.py --gsm8k PATH/test.jsonl

Pairs are JSON lines with `gold`, `answer` and `correct` (and `kind`, for the table). math-verify alone runs in this
process as its documentation shows it: both sides in `$…$` or a box, its own time-outs on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from coterie.rewards.answers import Grader, Verdict

PAIRS = Path(__file__).parent.parent / "tests" / "golden" / "answer_pairs.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, default=PAIRS)
    parser.add_argument(
        "--gsm8k", type=Path, help="rows with `answer`; grades each solution against itself and the next"
    )
    parser.add_argument("--repeat", type=int, default=3, help="passes over the pairs; the median rate is reported")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip-math-verify", action="store_true")
    options = parser.parse_args()
    pairs = [json.loads(line) for line in options.pairs.read_text().splitlines()]
    asyncio.run(ours(pairs, options.workers, options.repeat))
    if not options.skip_math_verify:
        math_verify_alone(pairs)
    if options.gsm8k:
        asyncio.run(gsm8k(options.gsm8k, options.workers))


async def ours(pairs: list[dict], workers: int, repeat: int) -> None:
    with Grader(workers=workers, deadline_s=10.0) as grader:
        await grader.agrade(answer=r"\ln 2", gold=r"\ln 3")
        rates, verdicts = [], []
        for _ in range(repeat):
            started = time.perf_counter()
            verdicts = await asyncio.gather(*(grader.agrade(answer=p["answer"], gold=p["gold"]) for p in pairs))
            rates.append(len(pairs) / (time.perf_counter() - started))
        symbolic = [p for p, v in zip(pairs, verdicts, strict=True) if v.stage == "symbolic"]
        started = time.perf_counter()
        await asyncio.gather(*(grader.agrade(answer=p["answer"], gold=p["gold"]) for p in symbolic))
        symbolic_rate = len(symbolic) / (time.perf_counter() - started) if symbolic else float("nan")
    print(
        f"coterie ({workers} workers): {sorted(rates)[len(rates) // 2]:.0f} verdicts/s, "
        f"symbolic ones {symbolic_rate:.0f}/s"
    )
    print(f"  stages: {dict(Counter(v.stage for v in verdicts).most_common())}")
    report(pairs, verdicts)


def report(pairs: list[dict], verdicts: list[Verdict]) -> None:
    """Wrong verdicts in both directions, and per kind."""
    accepted = Counter(p["kind"] for p, v in zip(pairs, verdicts, strict=True) if v.correct and not p["correct"])
    denied = Counter(p["kind"] for p, v in zip(pairs, verdicts, strict=True) if not v.correct and p["correct"])
    wrong = accepted.total() + denied.total()
    print(
        f"  wrong: {wrong} of {len(pairs)} ({wrong / len(pairs):.1%}): {accepted.total()} accepted, "
        f"{denied.total()} denied"
    )
    for kind in sorted(set(accepted) | set(denied)):
        print(f"    {kind:45} {accepted[kind]:3} accepted {denied[kind]:3} denied")


def math_verify_alone(pairs: list[dict]) -> None:
    from math_verify import parse, verify

    verdicts = []
    started = time.perf_counter()
    for pair in pairs:
        gold, answer = (parse(f"\\boxed{{{text}}}") for text in (pair["gold"], pair["answer"]))
        verdicts.append(Verdict(bool(verify(gold, answer)), "", "math-verify"))
    rate = len(pairs) / (time.perf_counter() - started)
    print(f"math-verify alone (one process): {rate:.0f} verdicts/s")
    report(pairs, verdicts)


async def gsm8k(path: Path, workers: int) -> None:
    golds = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    with Grader(workers=workers) as grader:
        started = time.perf_counter()
        own = [await grader.agrade(response=g, gold=g) for g in golds]
        rate = len(golds) / (time.perf_counter() - started)
        others = [await grader.agrade(response=a, gold=g) for g, a in zip(golds, golds[1:] + golds[:1], strict=True)]
    print(f"GSM8K: {sum(bool(v.correct) for v in own)} of {len(golds)} solutions right, {rate:.0f} verdicts/s;")
    print(
        f"  {sum(bool(v.correct) for v in others)} of {len(golds)} right for the next problem's solution (same number)"
    )


if __name__ == "__main__":
    main()
