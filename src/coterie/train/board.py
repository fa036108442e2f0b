"""What a person sees of a run: progress with time left, the metrics that matter, a sampled completion, notes.

The live console and `coterie watch` draw the same board; one is fed by the loop, the other from the run directory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.core.types import Group

HEADLINES = (
    "eval/accuracy",
    "eval/loss",
    "reward/reward",
    "reward/missing_rate",
    "group/zero_variance_frac",
    "policy/loss",
    "sft/nll",
    "preference/accuracy",
    "preference/margin",
    "reward_model/accuracy",
    "policy/entropy",
    "policy/clip_frac",
    "kl/sampler_k3",
    "kl/ref_k3",
    "optim/grad_norm",
    "optim/lr",
    "rollout/tokens_mean",
    "rollout/truncated_frac",
    "time/step_s",
    "throughput/sampled_tokens_per_s",
    "memory/peak_rss_gib",
    "memory/peak_gpu_gib",
)
"""Shown when the run has them, in this order; for the plain line see `PLAIN`."""

PLAIN = (
    "eval/accuracy",
    "eval/loss",
    "reward/reward",
    "policy/loss",
    "sft/nll",
    "preference/accuracy",
    "reward_model/accuracy",
    "policy/entropy",
    "kl/sampler_k3",
    "optim/grad_norm",
    "rollout/tokens_mean",
    "time/step_s",
)

_BARS = "▁▂▃▄▅▆▇█"
_TREND = 24


@dataclass(frozen=True)
class Sample:
    """One completion to look at."""

    step: int
    prompt: str
    completion: str
    note: str


@dataclass
class Board:
    """The state behind the picture.

    Attributes:
        title: name of the run.
        total_steps: steps of the whole run; 0 when unknown.
        step: last step recorded; -1 before any.
        latest: the last value of every metric seen (evaluations come only now and then).
        seconds_per_step: pace, for the time left; None when unknown.
        waited_s: seconds since the last record.
        status: one word on the process ("running", "finished", "stopped").
    """

    title: str
    total_steps: int
    step: int = -1
    latest: dict[str, float] = field(default_factory=dict)
    trends: dict[str, deque[float]] = field(default_factory=dict)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    sample: Sample | None = None
    seconds_per_step: float | None = None
    waited_s: float = 0.0
    status: str = "running"

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the record of a step."""
        self.step = step
        self.waited_s = 0.0
        self.latest.update(metrics)
        for name in HEADLINES:
            if name in metrics:
                self.trends.setdefault(name, deque(maxlen=_TREND)).append(metrics[name])

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the time to the last step."""
        if self.seconds_per_step is None or not self.total_steps:
            return None
        remaining = max(0, self.total_steps - max(0, self.step))
        return max(0.0, self.seconds_per_step * remaining - min(self.waited_s, self.seconds_per_step))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.render(options.max_width)

    def render(self, width: int) -> RenderableType:
        """The picture as it is now, for so many columns; later changes don't reach it."""
        parts: list[RenderableType] = [self._progress(), self._table(width)]
        if self.sample is not None:
            parts.append(_panel(self.sample))
        parts += [Text(f"! {note}", style="yellow") for note in self.notes]
        return Stack(*parts)

    def _progress(self) -> RenderableType:
        line = Table.grid(padding=(0, 1))
        done = max(0, self.step)
        cells: list[RenderableType] = [Text(self.title, style="bold"), Text(self.status), Text(progress_text(self))]
        if self.total_steps:
            cells.insert(2, ProgressBar(total=self.total_steps, completed=done, width=24))
        if self.seconds_left is not None and self.status == "running":
            cells.append(Text(f"{clock_text(self.seconds_left)} left", style="cyan"))
        line.add_row(*cells)
        return line

    def _table(self, width: int) -> RenderableType:
        columns = 2 if width >= 118 else 1
        points = 12 if 118 <= width < 144 else _TREND
        shown = [name for name in HEADLINES if name in self.latest]
        table = Table.grid(padding=(0, 1, 0, 0))
        rows = math.ceil(len(shown) / columns)
        for i in range(rows):
            row: list[Text] = []
            for name in shown[i::rows]:
                row += [
                    Text(name, style="dim", no_wrap=True),
                    Text(value_text(name, self.latest), justify="right", no_wrap=True),
                    Text(sparkline([*self.trends.get(name, ())][-points:]), style="green", no_wrap=True),
                ]
            table.add_row(*row)
        return table


def choose_sample(step: int, groups: Sequence[Group]) -> Sample | None:
    """One rollout of the step, another place each time; None when there is none."""
    filled = [g for g in groups if g.rollouts]
    if not filled:
        return None
    group = filled[step % len(filled)]
    rollout = group.rollouts[(step // len(filled)) % len(group.rollouts)]
    reward = rollout.scores.get("reward")
    facts = [f"{rollout.num_actions} tokens", rollout.finish_reason]
    if reward is not None:
        facts.append("no reward: " + reward.reason if reward.value is None else f"reward {short(reward.value)}")
    prompt = str(group.example.prompt[-1].get("content", "")) if group.example.prompt else ""
    return Sample(step, prompt, rollout.text, ", ".join(facts))


def progress_text(board: Board) -> str:
    """`step 3/100`."""
    return f"step {max(0, board.step)}" + (f"/{board.total_steps}" if board.total_steps else "")


def plain_line(board: Board, metrics: Mapping[str, float]) -> str:
    """The record of one step on one line."""
    parts = [progress_text(board), *(f"{n} {value_text(n, metrics)}" for n in PLAIN if n in metrics)]
    if board.seconds_left is not None:
        parts.append(f"{clock_text(board.seconds_left)} left")
    return "  ".join(parts)


def value_text(name: str, metrics: Mapping[str, float]) -> str:
    """A value, with its 95 % interval where the record has one."""
    low, high = metrics.get(f"{name}_ci95_low"), metrics.get(f"{name}_ci95_high")
    if low is None or high is None:
        return short(metrics[name])
    return f"{short(metrics[name])} [{short(low)}, {short(high)}]"


def short(value: float) -> str:
    """Three significant digits; whole numbers as they are."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def clock_text(seconds: float) -> str:
    """`3:07`, `1:02:09`, `2 d 4 h`."""
    whole = round(seconds)
    if whole >= 2 * 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def sparkline(values: Sequence[float]) -> str:
    """The course in block characters, lowest to highest; a line when all are equal, nothing for fewer than two."""
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    if low == high:
        return "─" * len(values)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(_BARS[round((v - low) * scale)] if math.isfinite(v) else "×" for v in values)


def _panel(sample: Sample) -> RenderableType:
    body = Text(_clip(sample.prompt, 4), style="dim")
    body.append("\n")
    body.append(Text(_clip(sample.completion, 8), style="default"))
    return Panel(body, title=f"sample, step {sample.step}: {sample.note}", title_align="left", border_style="dim")


def _clip(text: str, lines: int, width: int = 400) -> str:
    kept = [line[:width] for line in text.strip().splitlines()]
    return "\n".join(kept if len(kept) <= lines else [*kept[: lines - 1], "…"])
