"""Which device, and how many threads."""

from __future__ import annotations

import os

import torch

from coterie.errors import ConfigError

SMALL_MODEL_PARAMETERS = 20_000_000
"""Below this size one thread is fastest: the matrices are too small to share (docs/performance.md)."""


def choose_device(name: str) -> torch.device:
    """The device of `run.device`.

    Raises:
        ConfigError: when it was asked for and isn't there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"run.device={name}: not a device; use auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"run.device={name}: this torch ({torch.__version__}) sees no GPU; use run.device=cpu or auto"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"run.device={name}: only {torch.cuda.device_count()} GPUs here, numbered from 0")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"run.device={name}: no Metal device here; use run.device=cpu or auto")
    return device


def choose_threads(configured: int, num_parameters: int) -> int:
    """Compute threads: the setting, else one for a small model and every core of this process for a larger one."""
    if configured:
        return configured
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if num_parameters < SMALL_MODEL_PARAMETERS else cores
