"""The mathematics of post-training, usable alone: torch, numpy and jaxtyping. Names are loaded on first use (PEP 562).

Two kinds of names: pure functions over arrays (`ppo_clip`, `kl_estimate`, `grpo_advantages`…), and frozen dataclasses
whose fields are the hyper-parameters and whose call is the method (`PPOClip`, `GRPO`, `DPO`…).
"""

from importlib import import_module
from typing import Any

from coterie.algos.names import HOME

__all__ = sorted(HOME)


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'coterie.algos' has no attribute {name!r}")
    return getattr(import_module(f"coterie.algos.{HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
