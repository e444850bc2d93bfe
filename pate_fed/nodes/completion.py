"""Completion of commands and options in a shell, at Tab."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import FishComplete, completion_init
from typer._completion_shared import get_completion_script

from pate_fed.nodes.command_line import Commands
from pate_fed.nodes.terminal import one_line


class Shell(StrEnum):
    """A shell that can complete our commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class _FishComplete(FishComplete):
    """Keeps a candidate on one line: Typer's wraps a long text, and Fish offers each line."""

    def format_completion(self, item: CompletionItem) -> str:
        return "\t".join((item.value, one_line(item.help or "")))


def add_completion(app: Commands, program: str) -> None:
    """Add `completion`, the command that prints a shell's script, and answer such scripts."""
    completion_init()
    add_completion_class(_FishComplete)

    @app.command(shows=False)
    def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
        """Print a script for a shell: Tab completes commands and options."""
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        typer.echo(
            get_completion_script(prog_name=program, complete_var=variable, shell=shell.value)
        )
