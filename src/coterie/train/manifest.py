"""Facts about a run that are not settings: versions, commit, host, file hashes."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "coterie",
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "pyarrow",
    "hydra-core",
    "math-verify",
)
"""Whose versions are recorded unless others are named."""


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Version of Python and of each package that is installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> dict[str, Any] | None:
    """Commit of the git repository that holds the folder, and whether files differ from it; None outside of one."""
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        status = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": head.stdout.strip(), "changed_files": len(status.stdout.splitlines())}


def host(device: str) -> dict[str, Any]:
    """The machine: what may explain a different speed or a different last bit."""
    facts: dict[str, Any] = {
        "name": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "device": device,
    }
    if device.startswith("cuda"):
        import torch

        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """sha256 of each file, by its path as given."""
    return {str(path): hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files}


def facts(device: str, packages: Iterable[str], file_hashes: Mapping[str, str]) -> dict[str, Any]:
    """All of the above, and the command line."""
    return {
        "versions": versions(packages),
        "git": {"working_folder": commit(Path.cwd()), "coterie": commit(Path(__file__).parent)},
        "host": host(device),
        "files": dict(file_hashes),
        "command": sys.argv,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
