"""Wall-clock, throughput and memory metrics of a step; all under prefixes that may differ between equal runs."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coterie.core.metrics import Stat, gauge, maximum


class Clock:
    """Times the named phases of one step."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of the block to `time/<phase>_s`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - begin

    def metrics(self, *, rollouts: int, tokens: int) -> dict[str, Stat]:
        """Seconds by phase, rollouts and sampled tokens per second, peak memory in GiB."""
        whole = time.perf_counter() - self.started
        out = {f"time/{name}_s": gauge(seconds) for name, seconds in self.phases.items()}
        out["time/step_s"] = gauge(whole)
        out["throughput/rollouts_per_s"] = gauge(rollouts / whole)
        if self.phases.get("sample"):
            out["throughput/sampled_tokens_per_s"] = gauge(tokens / self.phases["sample"])
        out["memory/peak_rss_gib"] = maximum(peak_rss_bytes() / 2**30)
        if torch.cuda.is_available():
            out["memory/peak_gpu_gib"] = maximum(torch.cuda.max_memory_allocated() / 2**30)
        return out


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
