"""The command line: `commands` has the options, the other files what commands do."""

from longshort.lab.cli.commands import main

__all__ = ["main"]
