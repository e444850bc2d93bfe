"""The operator's and the researcher's command line."""

from coordinator.cli.command import app, main

__all__ = ["app", "main"]
