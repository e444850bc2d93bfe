"""Shared by all commands: options, printing, and one line with a code for every fault."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TextIO, TypeVar

import click
import typer

from coordinator.errors import (
    AlteredResultsError,
    BrokenAuditLogError,
    BrokenTranscriptError,
    BudgetRuleError,
    CertificateError,
    CoordinatorError,
    DatabaseError,
    EnrollmentError,
    HomeError,
    InternalError,
    PartyRefusedError,
    PersonError,
    RunQueueError,
    RunRequestError,
    TallySetupError,
    UsageError,
)
from pate_fed.errors import (
    BudgetExhaustedError,
    DisjointnessError,
    InvalidAnswersError,
    InvalidDataError,
    InvalidParameterError,
    InvalidSettingError,
    MissingExtraError,
    PateFedError,
    RunDirectoryError,
)
from pate_fed.nodes import printable
from pate_fed.nodes.command_line import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_PEERS,
    EXIT_REFUSED,
    EXIT_USAGE,
    CommandLine,
)
from protocols.errors import ProtocolError, TooFewPartiesError

if TYPE_CHECKING:
    from coordinator.operator import Coordinator

_EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (UsageError, EXIT_USAGE),
    (InvalidSettingError, EXIT_USAGE),
    (RunDirectoryError, EXIT_USAGE),
    (MissingExtraError, EXIT_USAGE),
    (BudgetExhaustedError, EXIT_REFUSED),
    (TooFewPartiesError, EXIT_REFUSED),
    (PartyRefusedError, EXIT_REFUSED),
    (InvalidAnswersError, EXIT_INPUT),
    (InvalidDataError, EXIT_INPUT),
    (DisjointnessError, EXIT_INPUT),
    (InvalidParameterError, EXIT_USAGE),
    (InternalError, EXIT_FAILED),
    (DatabaseError, EXIT_FAILED),
    (RunRequestError, EXIT_USAGE),
    (RunQueueError, EXIT_USAGE),
    (EnrollmentError, EXIT_REFUSED),
    (PersonError, EXIT_REFUSED),
    (BudgetRuleError, EXIT_REFUSED),
    (CertificateError, EXIT_INPUT),
    (HomeError, EXIT_INPUT),
    (TallySetupError, EXIT_INPUT),
    (BrokenTranscriptError, EXIT_INPUT),
    (BrokenAuditLogError, EXIT_INPUT),
    (AlteredResultsError, EXIT_INPUT),
    (CoordinatorError, EXIT_PEERS),
    (ProtocolError, EXIT_PEERS),
)

LINE: Final = CommandLine(
    "pate-fed",
    about="Hospitals learn together without pooling records.",
    service="serve",
    errors=(PateFedError, ProtocolError, CoordinatorError),
    exit_codes=_EXIT_CODES,
    usage=UsageError,
    internal=InternalError,
    interrupt=("a run must go through to be kept", "an interrupt: nothing was kept"),
)

T = TypeVar("T")

_TAKE_BACK: Final = "\r\x1b[K"
"""Goes to the beginning of a terminal's line, and clears it."""

HomeOption = Annotated[
    Path, typer.Option("--home", metavar="DIR", help="The federation's folder.", show_default=True)
]
DEFAULT_HOME: Final = Path("federation")
Agreed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOSPITAL",
        help="Public edition: a hospital that agreed to be named; repeatable. Others get numbers.",
    ),
]


def open_coordinator(home: Path) -> Coordinator:
    """Open a federation for one command; it is closed when the command ends."""
    from coordinator.operator import Coordinator  # noqa: PLC0415 - keeps --help fast

    opened = Coordinator.open(home)
    click.get_current_context().call_on_close(opened.close)
    return opened


class RegistryChoice(click.Choice[str]):
    """The type of an option that names an entry of a registry, which is loaded when it is read."""

    def __init__(self, load: Callable[[], Iterable[str]]) -> None:
        self._load = load
        super().__init__(())

    @property
    def choices(self) -> tuple[str, ...]:
        """The names."""
        return tuple(self._load())

    @choices.setter
    def choices(self, _: object) -> None:
        """Keep them: the base class would fix them when the command line is built."""


def data_sources() -> Iterable[str]:
    """Name all data sets that a simulation knows."""
    from pate_fed.data import SOURCE_NAMES  # noqa: PLC0415 - keeps --help fast

    return SOURCE_NAMES


def students() -> Iterable[str]:
    """Name all students."""
    from pate_fed.students import STUDENTS  # noqa: PLC0415 - keeps --help fast

    return ("auto", *STUDENTS)


def sum_forms() -> Iterable[str]:
    """Name all forms of the secure sum."""
    from protocols.forms import FORMS  # noqa: PLC0415 - keeps --help fast

    return FORMS


def suites() -> Iterable[str]:
    """Name all suites of sealed envelopes, the default first."""
    from protocols.suites import SUITES  # noqa: PLC0415 - keeps --help fast

    return SUITES


def require_new_invitation(path: Path) -> None:
    """Refuse an existing file, before any of its content is made."""
    if os.path.lexists(path):
        raise InvalidSettingError(
            "the invitation's file must be new: move the old one, or choose --out", str(path)
        )


def numbers(option: str, text: str | None, kind: Callable[[str], T]) -> tuple[T, ...] | None:
    """Read numbers between commas."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        numbers = "whole numbers" if kind is int else "numbers"
        raise InvalidSettingError(
            f"{option} must be {numbers} between commas", text or "''"
        ) from None


def single_threaded_kernels() -> None:
    """Parties already run side by side: more threads below them would only fight."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show bars on a terminal, on standard error; elsewhere nothing."""
    if not shown or not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield update


class Say(Protocol):
    """Prints one line of progress; see `one_line_at_a_time`."""

    def __call__(self, line: str, *, stays: bool = False) -> None:
        """Print it."""


@contextmanager
def one_line_at_a_time(stream: TextIO) -> Iterator[Say]:
    """Yield a printer of progress: one line that changes on a terminal.

    Elsewhere it is a line for each change. It never repeats a line. A line that stays is above it.
    """
    is_terminal, last = _is_terminal(stream), ""

    def put(line: str) -> None:
        if not is_terminal:
            print(line, file=stream, flush=True)
            return
        columns = shutil.get_terminal_size().columns
        # A line broken in two could not be cleared.
        fits = line if len(line) < columns else f"{line[: columns - 2]}…"
        print(f"{_TAKE_BACK}{fits}", end="", file=stream, flush=True)

    def say(line: str, *, stays: bool = False) -> None:
        nonlocal last
        line = printable(line)
        if stays:
            print(f"{_TAKE_BACK if is_terminal else ''}{line}", file=stream, flush=True)
            if is_terminal and last:
                put(last)
        elif line != last:
            last = line
            put(line)

    try:
        yield say
    finally:
        if is_terminal and last:
            print(file=stream, flush=True)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def _silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
