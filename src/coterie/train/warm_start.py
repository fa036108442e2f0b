"""The tiny model that `coterie quickstart` and `experiment=tiny_rl` start from: random weights, then SFT."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

from coterie.config.compose import compose
from coterie.config.paths import cache_dir
from coterie.config.primary import RLRun
from coterie.data.quickstart import CHARACTERS, WORDS, problems, warm_start_rows
from coterie.learners.tiny import build_tiny
from coterie.train.atomic import write_atomic
from coterie.train.checkpoint import Checkpoints
from coterie.train.sft import run_sft

TINY = "tiny"
"""`model=tiny` stands for this warm start, made once and kept in the cache."""

SHAPE = {"hidden": 192, "layers": 2, "heads": 6}
ROWS = 10_000
EVAL_SEED = 1_000_003
"""Seed of the held-out problems (`eval.data.seed` of `experiment=tiny_rl`); the warm start never sees them."""
HELD_OUT = 256


def warm_start(folder: Path, *, seed: int, overrides: tuple[str, ...] = ()) -> Path:
    """Build the random model in `folder/init`, write the SFT rows, train, and return the trained model's folder."""
    model = build_tiny(folder / "init", characters=CHARACTERS, words=WORDS, context=256, seed=seed, **SHAPE)
    rows = folder / "worked_solutions.jsonl"
    held_out = problems(size=HELD_OUT, seed=EVAL_SEED)
    lines = (json.dumps(row) for row in warm_start_rows(ROWS, seed=seed + 1, held_out=held_out))
    write_atomic(rows, "".join(line + "\n" for line in lines).encode())
    settings = [
        "experiment=tiny_sft",
        f"model={model}",
        f"data.path={rows}",
        f"run.dir={folder / 'sft'}",
        f"run.seed={seed}",
    ]
    run_sft(compose("sft", [*settings, *overrides]))
    latest = Checkpoints(folder / "sft" / "checkpoints").latest()
    assert latest is not None, "run_sft ends with a checkpoint"
    return latest.model


def with_model(run: RLRun) -> RLRun:
    """The run with `model=tiny` replaced by the cached warm start of its seed, which is made when it isn't there."""
    if run.model != TINY:
        return run
    key = hashlib.blake2b(json.dumps([SHAPE, ROWS, run.run.seed]).encode(), digest_size=6).hexdigest()
    final = cache_dir() / "warm_start" / f"{TINY}-{key}"
    if not final.exists():
        making = final.with_name(f".{final.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        model = warm_start(making / "work", seed=run.run.seed)
        model.rename(making / "model")
        shutil.rmtree(making / "work")
        (making / "model").rename(final)
        making.rmdir()
    return replace(run, model=str(final))
