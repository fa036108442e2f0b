import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.learners.tiny import build_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random model small enough for many runs."""
    return build_tiny(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, heads=2, context=128)


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """Environment of a command under test: one thread, offline, its own cache."""
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COTERIE_CACHE": str(cache), "NO_COLOR": "1"}


@pytest.fixture
def coterie(environment, tmp_path):
    """Run the command line in an empty folder; returns the finished process."""

    def run(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coterie.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=tmp_path, env=environment)

    return run
