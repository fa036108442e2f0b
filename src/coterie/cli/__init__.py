"""The command line: `coterie VERB OVERRIDES`. The only place that writes to the terminal on its own account."""

from coterie.cli.app import main

__all__ = ["main"]
