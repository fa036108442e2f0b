"""The console of a training run: live board, one plain line a step, or nothing. Writes to standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from coterie.core.types import Group
from coterie.train.board import Board, choose_sample, plain_line

Kind = Literal["auto", "live", "plain", "off"]


class RunConsole(Protocol):
    """What the loop tells a person."""

    def update(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """The record of a step, and its rollouts to show one of now and then."""
        ...

    def note(self, text: str) -> None:
        """Something worth a sentence."""
        ...

    def close(self) -> None:
        """Give the terminal back."""
        ...


def make_console(
    kind: Kind, *, total_steps: int, sample_every: int, title: str = "coterie", console: Console | None = None
) -> RunConsole:
    """The console of that kind; "auto" is live on a terminal, else plain.

    Args:
        kind: `log.console`.
        total_steps: steps of the whole run.
        sample_every: steps between completions shown; 0 for none.
        title: name of the run.
        console: where to draw; standard error by default.
    """
    console = console or Console(stderr=True, highlight=False)
    if kind == "off":
        return OffConsole()
    board = Board(title, total_steps)
    if kind == "live" or (kind == "auto" and console.is_terminal):
        return LiveConsole(board, sample_every, console)
    return PlainConsole(board, sample_every, console)


class OffConsole:
    """Says nothing."""

    def update(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


LINES = 100
"""About how many step lines a plain console prints over a whole run, besides evaluations."""


class PlainConsole:
    """Lines, good for log files: one a step in a short run, `LINES` in a long one, and one an evaluation."""

    def __init__(
        self, board: Board, sample_every: int, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.board = board
        self.sample_every = sample_every
        self.console = console
        self._pace = _Pace(now)

    def update(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Print the line of the step, and a completion when one is due."""
        self.board.update(step, metrics)
        self.board.seconds_per_step = self._pace(step, metrics)
        last = self.board.total_steps
        evaluated = any(name.startswith("eval/") for name in metrics)
        if evaluated or step in (1, last) or step % max(1, last // LINES) == 0:
            self._say(plain_line(self.board, metrics))
        sample = choose_sample(step, groups) if self.sample_every and step % self.sample_every == 0 else None
        if sample is not None:
            self._say(f"  sample ({sample.note}): {_one_line(sample.prompt)!r} → {_one_line(sample.completion)!r}")

    def note(self, text: str) -> None:
        """Print a line that starts with "!"."""
        self._say(f"! {text}")

    def close(self) -> None:
        """Nothing is held."""

    def _say(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)


class LiveConsole:
    """Redraws a board in place; notes stay above it in the terminal's history."""

    def __init__(
        self, board: Board, sample_every: int, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.board = board
        self.sample_every = sample_every
        self._console = console
        self._now = now
        self._last = now()
        self._pace = _Pace(now)
        self._lock = threading.Lock()  # rich draws in a thread of its own
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=2)
        self._live.start()

    def update(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Redraw with the record of the step."""
        with self._lock:
            self._last = self._now()
            self.board.update(step, metrics)
            self.board.seconds_per_step = self._pace(step, metrics)
            if self.sample_every and step % self.sample_every == 0:
                self.board.sample = choose_sample(step, groups) or self.board.sample
        self._live.refresh()

    def note(self, text: str) -> None:
        """Print a sentence above the board."""
        self._console.print(Text(f"! {text}", style="yellow"))

    def close(self) -> None:
        """Leave the last picture and stop redrawing."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        with self._lock:
            self.board.waited_s = self._now() - self._last
            return self.board.render(self._console.width)


class _Pace:
    """Seconds a step since the first update, evaluations and checkpoints included."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._first: tuple[int, float] | None = None

    def __call__(self, step: int, metrics: Mapping[str, float]) -> float | None:
        if self._first is None or step <= self._first[0]:
            self._first = (step, self._now())
            return metrics.get("time/step_s")
        return (self._now() - self._first[1]) / (step - self._first[0])


def _one_line(text: str, width: int = 160) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
