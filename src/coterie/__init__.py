"""coterie post-trains language models with groups. Public names are loaded on first use (PEP 562)."""

from importlib import import_module
from typing import Any

_HOME = {
    "Batch": "coterie.core.batch",
    "Completion": "coterie.core.types",
    "Context": "coterie.core.protocols",
    "Example": "coterie.core.types",
    "Group": "coterie.core.types",
    "LossOutput": "coterie.core.protocols",
    "Outputs": "coterie.core.batch",
    "Request": "coterie.core.types",
    "Rollout": "coterie.core.types",
    "Sampling": "coterie.core.types",
    "Score": "coterie.core.types",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
