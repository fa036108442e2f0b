"""`coterie quickstart`: the whole life of a tiny model in minutes: build, SFT warm start, GRPO, held-out evaluation."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config.compose import compose
from coterie.core.types import Group
from coterie.errors import RunDirectoryError
from coterie.evals.stats import bootstrap_ci, paired_difference
from coterie.train.atomic import write_json
from coterie.train.records import read_rollouts
from coterie.train.rl import run_rl
from coterie.train.warm_start import warm_start


def quickstart(folder: Path, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Build and warm-start a tiny model, train it with GRPO, and compare held-out accuracy before and after.

    Args:
        folder: where everything goes; an earlier quickstart there is replaced.
        seed: of model, data and sampling.
        overrides: further overrides of `experiment=tiny_rl`.

    Returns:
        What is in `summary.json`: `eval_before`, `eval_after`, `difference`, `difference_ci95`, `wall_s`, `seed`, …
    """
    begin = time.perf_counter()
    if folder.exists():
        if any(folder.iterdir()) and not (folder / "rl").exists() and not (folder / "warm_start").exists():
            raise RunDirectoryError(f"{folder} exists and is not an earlier quickstart; choose another folder")
        shutil.rmtree(folder)
    model = warm_start(folder / "warm_start", seed=seed)
    rl_dir = folder / "rl"
    resolved = compose(
        "train", ["experiment=tiny_rl", f"model={model}", f"run.dir={rl_dir}", f"run.seed={seed}", *overrides]
    )
    trained = run_rl(resolved)
    steps = resolved.run.train.steps
    before, after = (problem_scores(read_rollouts(eval_file(rl_dir, step))) for step in (0, steps))
    names = sorted(before)
    if names != sorted(after):
        raise RunDirectoryError(f"{rl_dir}: the evaluations before and after are of different problems")
    first, last = ([found[name] for name in names] for found in (before, after))
    start, end = bootstrap_ci(first, seed=seed), bootstrap_ci(last, seed=seed)
    difference = paired_difference(first, last, seed=seed)
    summary = {
        "eval_before": start.value,
        "eval_before_ci95": [start.low, start.high],
        "eval_after": end.value,
        "eval_after_ci95": [end.low, end.high],
        "difference": difference.value,
        "difference_ci95": [difference.low, difference.high],
        "problems": difference.clusters,
        "steps": trained["steps"],
        "seed": seed,
        "wall_s": round(time.perf_counter() - begin, 1),
        "warm_start": str(model),
        "run_dir": str(rl_dir),
        "model": str(rl_dir / "checkpoints" / f"step_{steps:06d}" / "model"),
    }
    write_json(folder / "summary.json", summary)
    return summary


def eval_file(run_dir: Path, step: int) -> Path:
    """The held-out rollouts recorded at `step`."""
    return run_dir / "rollouts" / f"eval_step_{step:06d}.parquet"


def problem_scores(groups: list[Group]) -> dict[str, float]:
    """Mean score of each held-out problem, by example id; NaN when it is missing."""
    return {g.example.id: float(np.mean(g.scores())) for g in groups}
