"""`python -m coterie.cli`."""

from coterie.cli.app import main

main()
