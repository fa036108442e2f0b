"""What works on this machine: versions, optional packages, devices, engines, learners, memory, disk, threads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch
from packaging.requirements import Requirement

from coterie.config.paths import cache_dir
from coterie.config.pieces import find_piece
from coterie.config.slots import SLOTS
from coterie.runtime.device import SMALL_MODEL_PARAMETERS, choose_threads

Status = Literal["ok", "missing", "problem"]

PYTHONS = ((3, 11), (3, 12))
GIB = 2**30
LEAST_DISK_GIB = 5.0

PURPOSES = {
    "reasoning-gym": "procedural tasks: data.path=gym:…, reward=gym",
    "gguf": "coterie model import of GGUF files",
    "datasets": "data.path=hub:owner/name",
    "tensorboard": "log.sinks=[tensorboard]",
    "wandb": "log.sinks=[wandb]",
    "trackio": "log.sinks=[trackio]",
    "hydra-joblib-launcher": "-m hydra/launcher=joblib: runs of a sweep side by side",
    "hydra-submitit-launcher": "-m hydra/launcher=submitit_slurm: runs of a sweep on Slurm",
}
"""What optional packages switch on."""


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        area: "versions", "packages", "devices", "engines", "learners" or "machine".
        name: what was looked at.
        status: "ok", "missing" (optional and not there) or "problem".
        detail: what was found.
        remedy: what to do about it; empty when nothing.
    """

    area: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


def report(folder: Path | None = None) -> list[Check]:
    """Every finding; nothing is downloaded and no model is loaded.

    Args:
        folder: where runs will be written; the current folder by default.
    """
    return [*_versions(), *_packages(), *_devices(), *_slots(), *_machine(folder or Path.cwd())]


def _versions() -> Iterator[Check]:
    found = sys.version_info[:2]
    remedy = "" if PYTHONS[0] <= found <= PYTHONS[-1] else "use Python 3.11 or 3.12"
    yield Check("versions", "python", "problem" if remedy else "ok", platform.python_version(), remedy)
    for requirement in _requirements():
        if requirement.marker is not None:
            continue
        version = _installed(requirement.name)
        fits = version is not None and requirement.specifier.contains(version.partition("+")[0], prereleases=True)
        remedy = "" if fits else f"pip install '{requirement.name}{requirement.specifier}'"
        yield Check("versions", requirement.name, "ok" if fits else "problem", version or "not installed", remedy)


def _packages() -> Iterator[Check]:
    extras = {r.name: str(r.marker).partition("==")[2].strip(" \"'") for r in _requirements() if r.marker is not None}
    for name, purpose in PURPOSES.items():
        version = _installed(name)
        if version is None:
            install = f"pip install 'coterie[{extras[name]}]'" if name in extras else f"pip install {name}"
            yield Check("packages", name, "missing", f"not installed; for {purpose}", install)
        else:
            yield Check("packages", name, "ok", f"{version}; for {purpose}")


def _devices() -> Iterator[Check]:
    cores = psutil.cpu_count(logical=False) or 0
    yield Check("devices", "cpu", "ok", f"{_processor()}, {cores} cores, {psutil.cpu_count()} hardware threads")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory, capability = properties.total_memory / GIB, f"{properties.major}.{properties.minor}"
            detail = f"{properties.name}, {memory:.0f} GiB, capability {capability}"
            yield Check("devices", f"cuda:{index}", "ok", detail)
    else:
        built = torch.version.cuda is not None
        why = "no GPU or driver is seen" if built else f"torch {torch.__version__} is a build without CUDA"
        yield Check("devices", "cuda", "missing", why, "" if built else "install the CUDA build of torch to use a GPU")
    if torch.backends.mps.is_available():
        yield Check("devices", "mps", "ok", "Metal")


def _slots() -> Iterator[Check]:
    """Engines and learners that the configuration offers, and whether their settings load here."""
    for area, slot in (("engines", SLOTS["engine"]), ("learners", SLOTS["learner"])):
        for choice in slot.choices:
            try:
                piece = find_piece(slot, choice)
            except ImportError as error:
                yield Check(area, choice, "missing", f"{slot.name}={choice} can't be loaded: {error}")
            else:
                doc = (piece.target.__doc__ or "").splitlines()[0]
                yield Check(area, choice, "ok", doc.removeprefix(f"`{slot.name}={choice}`: "))


def _machine(folder: Path) -> Iterator[Check]:
    memory = psutil.virtual_memory()
    yield Check("machine", "memory", "ok", f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free")
    for name, place in (("runs", folder), ("cache", cache_dir())):
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free / GIB
        status: Status = "ok" if free >= LEAST_DISK_GIB and os.access(place, os.W_OK) else "problem"
        remedy = "" if status == "ok" else f"free space or choose another folder; a run wants {LEAST_DISK_GIB:.0f} GiB"
        yield Check("machine", f"disk for {name}", status, f"{free:.1f} GiB free", remedy)
    small, large = choose_threads(0, 0), choose_threads(0, SMALL_MODEL_PARAMETERS)
    detail = (
        f"{small} for a model below {SMALL_MODEL_PARAMETERS // 10**6} M parameters, else {large} (run.threads sets it)"
    )
    yield Check("machine", "threads", "ok", detail)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> list[Requirement]:
    """What coterie's own package metadata asks for."""
    return [Requirement(text) for text in importlib.metadata.requires("coterie") or ()]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
