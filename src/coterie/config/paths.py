"""Folders outside a run directory; the only place that reads them from the environment."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$COTERIE_CACHE`, else `$XDG_CACHE_HOME/coterie`, else `~/.cache/coterie`: things that can be made again."""
    if own := os.environ.get("COTERIE_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "coterie"
