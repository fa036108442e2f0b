"""Where exceptions become messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from coterie.errors import CoterieError, UserError

MISTAKE, FAILURE, INTERRUPTED = 2, 1, 130
"""Exit codes: the person's mistake; something else went wrong; stopped by Ctrl-C."""


@contextmanager
def border() -> Iterator[None]:
    """Show what coterie raised on purpose without a traceback, and exit; anything else is a bug and keeps its own."""
    try:
        yield
    except CoterieError as error:
        show_error(str(error))
        raise typer.Exit(MISTAKE if isinstance(error, UserError) else FAILURE) from error
    except KeyboardInterrupt as error:
        show_error("stopped")
        raise typer.Exit(INTERRUPTED) from error


def show_error(message: str) -> None:
    """The message on stderr, in red where there are colours; paths and keys are never cut or highlighted."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    first, *others = message.splitlines() or [""]
    console.print(Text("error: ", style="bold red").append(first, style="red"))
    for line in others:
        console.print(Text(f"       {line}", style="red"))


def show_notes(notes: tuple[str, ...]) -> None:
    """Remarks on stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))


def is_terminal() -> bool:
    """Whether a person reads along."""
    return sys.stdout.isatty()
