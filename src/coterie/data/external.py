"""Rows that other libraries make: Hugging Face data sets (`hub:`) and reasoning-gym tasks (`gym:`)."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from typing import Any

from coterie.core.keys import seed_of
from coterie.data.rows import Row
from coterie.errors import ConfigError, DataError


def read_hub(name: str, split: str, options: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of a data set `owner/name[:config]` on the Hugging Face hub (or in its cache).

    Raises:
        DataError: when `datasets` is not installed, or the data set, its config or its split can't be had.
    """
    if importlib.util.find_spec("datasets") is None:
        raise DataError(f"data.path=hub:{name} needs the package 'datasets': pip install 'coterie[hub]'")
    import datasets

    repository, _, config = name.partition(":")
    try:
        table = datasets.load_dataset(repository, config or None, split=split, **options)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"data.path=hub:{name}, data.split={split}: can't be had from the hub or its cache "
            f"({type(error).__name__}: {reason[:200]}). Check the name, the split and the connection, or give the path "
            "of a downloaded .parquet or .jsonl file"
        ) from error
    for number, values in enumerate(table):
        yield Row(values, f"hub:{name} [{split}], row {number}", repository, number)


def read_gym(task: str, size: int, seed: int, options: Mapping[str, Any]) -> Iterator[Row]:
    """Problems of a reasoning-gym task: columns `prompt`, `reference`, `gym` (for the verifier) and its metadata.

    The library makes problem i of seed s from `s + i`, so neighbouring seeds share nearly all problems. Here the task's
    seed is a hash of `seed`: data sets of different seeds are different. `options["seed"]` sets it literally.

    Raises:
        DataError: when reasoning-gym is not installed.
        ConfigError: for an unknown task, an unknown option, or a value the task refuses.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise DataError(f"data.path=gym:{task} needs the package 'reasoning-gym': pip install 'coterie[gym]'")
    import reasoning_gym  # fills the registry
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        close = difflib.get_close_matches(task, list(DATASETS), n=3, cutoff=0.4)
        guess = f"; nearest: {', '.join(close)}" if close else ""
        raise ConfigError(f"data.path=gym:{task}: reasoning-gym has no task {task!r}{guess}")
    known = sorted(field.name for field in dataclasses.fields(DATASETS[task][1]))
    for key in options:
        if key == "size":
            raise ConfigError("data.options.size has no effect: set data.size")
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"data.options.{key}: gym:{task} has no such option (options: {', '.join(known)}){guess}")
    settings = {"seed": seed_of("gym", task, seed) % 2**31, **options}
    try:
        problems = reasoning_gym.create_dataset(task, size=size, **settings)
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(f"data.options for gym:{task} are refused: {error} (options: {dict(options)})") from error
    for number in range(size):
        entry = _plain(problems[number])
        values = {
            **entry["metadata"],
            "prompt": entry["question"],
            "reference": entry["answer"],
            "gym": {"task": task, "entry": entry},
            "id": f"{task}-{settings['seed']}-{number}",
        }
        yield Row(values, f"gym:{task}, problem {number}", task, number)


def _plain(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry, if JSON can hold it. It is not sent through JSON: a few verifiers (arc_agi) tell tuples from lists."""
    try:
        json.dumps(entry)
    except TypeError as error:
        task = entry["metadata"].get("source_dataset", "?")
        raise DataError(f"gym:{task}: a problem holds values that can't be written to records ({error})") from error
    return entry
