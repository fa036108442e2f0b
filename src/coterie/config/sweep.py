"""`-m`: every combination of the swept values is a run of its own; Hydra's launchers (joblib, Slurm) start them."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig

from coterie.config.compose import VERSION_BASE, compose
from coterie.config.overrides import Request, parse_overrides
from coterie.config.primary import PRIMARIES, Verb
from coterie.config.source import CONF, PieceSource
from coterie.errors import ConfigError

RUNNERS = MappingProxyType(
    {
        "train": "coterie.train.rl:run_rl",
        "sft": "coterie.train.sft:run_sft",
        "dpo": "coterie.train.preference:run_dpo",
        "rm": "coterie.train.reward_model:run_rm",
        "generate": "coterie.rollout.generate:run_generate",
    }
)
"""The function that does a verb's work, given a resolved configuration."""

SETTINGS = ("hydra.output_subdir=null", "hydra.job.chdir=false", "hydra/job_logging=disabled")
DEFAULT_DIR = "runs/${now:%Y-%m-%d_%H-%M-%S}_sweep"
RUN_DIR = "run.dir"


def runner(verb: Verb) -> Any:
    """The function of a verb, imported."""
    module, _, name = RUNNERS[verb].partition(":")
    return getattr(importlib.import_module(module), name)


def sweep(verb: Verb, overrides: Sequence[str]) -> None:
    """Run every combination, one after another or as `hydra/launcher=…` says; job k lives in `run.dir/k`.

    All combinations are composed and checked before the first one starts.

    Raises:
        ConfigError: when a combination is no valid configuration, or nothing is swept.
    """
    requests = parse_overrides(overrides, PRIMARIES[verb], sweep=True)
    if not any(r.sweep for r in requests):
        raise ConfigError("-m sweeps over several values, but every key has one; write like rollout.n=4,8")
    folders = [r.text.partition("=")[2] for r in requests if r.key == RUN_DIR]
    for job in combinations(requests):
        compose(verb, job)
    texts = [r.hydra for r in requests if r.key != RUN_DIR]
    folder = folders[-1] if folders else DEFAULT_DIR
    Plugins.instance().register(PieceSource)
    with _arguments(
        ["--multirun", *SETTINGS, f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=${hydra.job.num}", *texts]
    ):
        try:
            hydra.main(config_path=str(CONF), config_name=verb, version_base=VERSION_BASE)(_job)()
        except HydraException as error:
            raise ConfigError(f"the sweep can't be started: {error}") from error


def combinations(requests: Sequence[Request]) -> Iterator[list[str]]:
    """The overrides of each job, as far as they can be told before a sweeper chooses values."""
    options: list[list[str]] = []
    for request in requests:
        if request.hydra.startswith(("hydra.", "hydra/")):
            continue
        text = request.hydra.removeprefix("++")
        parsed = OverridesParser.create().parse_override(text)
        if not parsed.is_sweep_override():
            options.append([text])
        elif parsed.is_discrete_sweep():
            options.append([f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()])
    for chosen in itertools.product(*options):
        yield list(chosen)


def _job(config: DictConfig) -> Any:
    """One job, in whatever process the launcher chose: composed again in coterie's own way, then run."""
    job = HydraConfig.get()
    verb = next(v for v in PRIMARIES if v == job.job.config_name)
    overrides = [text.removeprefix("++") for text in job.overrides.task]
    folder = str(job.runtime.output_dir).replace("'", "\\'")
    return runner(verb)(compose(verb, [*overrides, f"{RUN_DIR}='{folder}'"]))


@contextmanager
def _arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Give Hydra its command line, and have it pass on exceptions instead of printing them."""
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
