"""The hospital's command line."""

from party.cli.command import app, main

__all__ = ["app", "main"]
