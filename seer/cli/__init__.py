"""The command line. `main` returns the exit code; one module per command."""

from seer.cli.main import main

__all__ = ["main"]
