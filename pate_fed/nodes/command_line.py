"""A node's command line: every end is one line with a code, and a stable exit code.

Loaded by itself: `pate_fed.nodes` does not load Typer. Tracebacks are off for good: they show local
variables, hence votes and keys.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn, TypeVar

import click
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from pate_fed.errors import CodedError, said
from pate_fed.nodes.logs import log_line
from pate_fed.nodes.terminal import (
    Format,
    error_line,
    one_line,
    place_of,
    printable,
    wants_json,
)
from pate_fed.version import __version__
from protocols.errors import ProtocolError

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_PEERS, EXIT_INPUT = range(6)

_INTERRUPTED: Final = 130  # Typer's return value after Ctrl-C, without a word

Fault = Callable[[str, str], CodedError | ProtocolError]
"""Makes an error from a rule and the value that broke it."""

F = TypeVar("F", bound=Callable[..., Any])

FORMAT: Final = "pate_fed.format"
"""Where a command's context has its `--format`."""


class _Showing(TyperCommand):
    """A command that takes `--format`, by which `show` prints its result."""

    def __init__(self, name: str | None, *, params: list[click.Parameter], **others: Any) -> None:
        chosen = TyperOption(
            param_decls=["--format"],
            type=click.Choice([one.value for one in Format]),
            default=Format.TEXT.value,
            show_default=True,
            help="Output format.",
            expose_value=False,
            callback=lambda context, _, value: context.meta.update({FORMAT: value}),
        )
        is_there = any("--format" in one.opts for one in params)
        super().__init__(name, params=params if is_there else [*params, chosen], **others)


class Commands(typer.Typer):
    """Commands under one name."""

    def __init__(self, about: str, **settings: Any) -> None:
        super().__init__(
            help=about,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            suggest_commands=False,  # Click suggests them, too
            **settings,
        )
        if not settings:  # without a callback a group of one command would lose its name
            self.callback(help=about)(lambda: None)

    def command(  # type: ignore[override]  # ours take no other options of Typer's
        self, name: str | None = None, *, shows: bool = True
    ) -> Callable[[F], F]:
        """Add a command.

        One that calls `show` takes `--format` for it.
        """
        return super().command(name, cls=_Showing if shows else TyperCommand)


class _CommandList(TyperGroup):
    """Lists a program's commands without Rich, which takes as long to load as everything else."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write it as Click does."""
        click.Group.format_help(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's first sentence, whole: Click would cut it to a line."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(limit=sys.maxsize))
                    for name, command in self.commands.items()
                ]
            )


class CommandLine:
    """A program of commands.

    Args:
        service: The serving command: it prints nothing but its log.
        exit_codes: Exit code of each kind; the first match decides.
        usage: Makes the error of a command line that cannot be read.
        internal: Makes the error of a fault of this program, or of an interrupt.
        interrupt: Rule and value of the error after Ctrl-C.
    """

    def __init__(
        self,
        program: str,
        *,
        about: str,
        service: str,
        errors: tuple[type[Exception], ...],
        exit_codes: Sequence[tuple[type[Exception], int]],
        usage: Fault,
        internal: Fault,
        interrupt: tuple[str, str],
        code_of: Callable[[Any], str] = lambda error: str(error.code),
    ) -> None:
        self._program = program
        self._service = service
        self._errors = errors
        self._exit_codes = tuple(exit_codes)
        self._usage = usage
        self._internal = internal
        self._interrupt = interrupt
        self._code_of = code_of
        self.app = Commands(
            about,
            name=program,
            cls=_CommandList,
            rich_markup_mode="markdown",  # "rich" hides text in brackets, such as defaults
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        version_option = typer.Option(
            False, "--version", callback=self._show_version, is_eager=True, help="Show the version."
        )

        @self.app.callback(help=about)
        def root(version: bool = version_option) -> None:
            """Take the options that stand before any command."""
            del version

    def main(self) -> None:
        """Run a command, and leave."""
        try:
            ended = self._command(
                sys.argv[1:] or ["--help"], prog_name=self._program, standalone_mode=False
            )
            if ended == _INTERRUPTED:
                self.fail(self._internal(*self._interrupt))
            sys.exit(ended or EXIT_DONE)
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)
        except click.UsageError as error:
            self.fail(self._usage("the command line must be right", one_line(_said_once(error))))
        except (click.Abort, KeyboardInterrupt):
            self.fail(self._internal(*self._interrupt))
        except self._errors as error:
            self.fail(error)  # type: ignore[arg-type]  # ours are coded
        except Exception as error:
            self.fail(self._internal("this program must not fail", place_of(error)))

    def fail(self, error: CodedError | ProtocolError, exit_code: int | None = None) -> NoReturn:
        """Print one line and leave."""
        code, as_json = self._code_of(error), wants_json(sys.argv[1:])
        line = error_line(error, program=self._program, code=code, as_json=as_json)
        if sys.argv[1:2] == [self._service]:
            line = one_line(said(error.must, error.got))
            line = log_line(f"[{code}] {line}", level=logging.ERROR, code=code)
        typer.echo(line, err=True)
        sys.exit(self.exit_code_of(error) if exit_code is None else exit_code)

    def exit_code_of(self, error: object) -> int:
        """Return the exit code of an error."""
        found = (code for kind, code in self._exit_codes if isinstance(error, kind))
        return next(found, EXIT_FAILED)

    @cached_property
    def _command(self) -> click.Command:
        return typer.main.get_command(self.app)

    def _show_version(self, wanted: bool) -> None:
        if wanted:
            typer.echo(f"{self._program} {__version__}")
            raise typer.Exit


def show(content: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a command's result: one JSON object, or lines for people."""
    if prints_json():
        print_json(content)
    else:
        print_lines(lines)


def ask(question: str) -> bool:
    """Ask a person yes or no; without a terminal the answer is no."""
    try:
        return typer.confirm(question, default=False, err=True)
    except click.Abort:
        return False
    finally:
        if not sys.stdin.isatty():
            typer.echo(err=True)  # nobody pressed Enter: the next line is not the question's


def prints_json() -> bool:
    """Tell whether the running command was told to print JSON."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(FORMAT) == Format.JSON


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    typer.echo(json.dumps(content, sort_keys=True, allow_nan=False))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people, without characters that steer the terminal."""
    for line in lines:
        typer.echo(printable(line))


def _said_once(error: click.UsageError) -> str:
    """Return the fault. Typer and Click both suggest a name: one suggestion is enough."""
    has_guess = "Did you mean" in error.message
    return error.message if has_guess else error.format_message()
