"""Labeling runs: `serve`, `run`, `status`, `pause`, `resume`, `stop`, `export`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from coordinator.cli.options import Detach, Given, Patience, takes
from coordinator.cli.people import kept_console
from coordinator.cli.terminal import (
    DEFAULT_HOME,
    Agreed,
    HomeOption,
    one_line_at_a_time,
    open_coordinator,
    single_threaded_kernels,
)
from coordinator.errors import RunEndedError, UsageError
from coordinator.runs.run_options import DEPLOYED_OPTIONS, QUERIES
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import read_settings, write_logs
from pate_fed.nodes.command_line import show
from pate_fed.options import RUN
from pate_fed.wording import epsilon_text, percent, plural

if TYPE_CHECKING:
    from coordinator.operator import Coordinator
    from coordinator.runs.queue import Progress, Run
    from pate_fed.data.task_facts import TaskFacts

_PACKAGE = "coordinator"
_SCHEMA_VERSION = 1
_log = logging.getLogger(__name__)


def followed(coordinator: Coordinator, name: str) -> Run:
    """Watch a run until it ends or rests, with its progress on standard error.

    Ctrl-C ends only the watching.
    """
    from coordinator.cli.following import follow  # noqa: PLC0415 - keeps --help fast
    from coordinator.operator import standings  # noqa: PLC0415 - the same

    try:
        with one_line_at_a_time(sys.stderr) as say:
            return follow(
                coordinator.queue,
                name,
                tell=lambda run: say(progress_line(run)),
                look=lambda run: standings(coordinator, [run])[run.name],
                tell_of=lambda one: say(f"{one.hospital}: {one.said}", stays=True),
            )
    except KeyboardInterrupt:
        print(f"pate-fed: {name} goes on; `pate-fed status` shows it", file=sys.stderr)
        return coordinator.queue.find(name)


RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]


def serve(
    home: HomeOption = DEFAULT_HOME,
    console: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Keep the console running too, here, as `pate-fed console` serves it.",
        ),
    ] = None,
) -> None:
    """Serve hospitals and work on queued runs. Logs are JSON lines.

    After any end, the next start continues every open run.
    """
    kept = None if console is None else kept_console(home, console)
    write_logs(_PACKAGE)
    os.umask(0o077)  # its files and its SuperLink's are for their owner alone
    single_threaded_kernels()
    from coordinator import service  # noqa: PLC0415 - keeps --help fast
    from coordinator.operator import Coordinator  # noqa: PLC0415

    write_logs(_PACKAGE)  # once more: Flower, which is loaded now, has a handler of its own
    Coordinator.open(home, upgrades=True).close()

    def tell(started: service.Service) -> None:
        settings = started.home.settings
        _log.info("%s is served at %s", settings.name, settings.address)
        if kept is not None:  # only now: its thread must not be one that signals end
            kept.start()

    try:
        service.serve(home, on_ready=tell)
    finally:
        if kept is not None:
            kept.stop()


@takes(*DEPLOYED_OPTIONS.values())
def run(  # noqa: PLR0917 - one argument per option
    file: Annotated[
        Path,
        typer.Option(
            "--queries",
            metavar="FILE",
            help="Public inputs, which everybody may see: a CSV file with one a row; or images, in "
            "a folder, a .zip or a .npz archive.",
            rich_help_panel=QUERIES,
        ),
    ],
    label: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column to predict in the hospitals' tables.",
            rich_help_panel=QUERIES,
        ),
    ],
    classes: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="Values of that column.", rich_help_panel=QUERIES),
    ],
    name: Annotated[str, typer.Option(help="Name of the run.", rich_help_panel=RUN)],
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column that is not a feature; repeatable.",
            rich_help_panel=QUERIES,
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Units, ranges and categories of columns, spellings of classes, and the data set "
            "that hospitals are asked for.",
            rich_help_panel=QUERIES,
        ),
    ] = None,
    separator: Annotated[
        str,
        typer.Option(
            metavar="CHARACTER", help="Between cells of the queries.", rich_help_panel=QUERIES
        ),
    ] = ",",
    decimal: Annotated[
        str,
        typer.Option(
            click_type=click.Choice((".", ",")),
            help="Before the decimals of their numbers.",
            rich_help_panel=QUERIES,
        ),
    ] = ".",
    missing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN=]VALUE",
            help="Cell of the queries that stands for “not known”; repeatable.",
            rich_help_panel=QUERIES,
        ),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(("medoids", "spectral", "stratified", "random", "all")),
            help="Ask the middle of clusters, of clusters in the graph of similar inputs, one "
            "input of each part of the pool, random ones, or all in order.",
            rich_help_panel=QUERIES,
        ),
    ] = "medoids",
    *,
    given: Given,
    patience: Patience = 24.0,
    detach: Detach = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Ask the members to label public queries, and follow the run.

    Ctrl-C ends only the following: `pate-fed status` shows the run, `pate-fed stop` ends it.
    """
    single_threaded_kernels()
    from coordinator.federation.readiness import readiness, what_is_missing  # noqa: PLC0415
    from coordinator.operator import changed_votes  # noqa: PLC0415
    from coordinator.runs.request import MOST_PATIENCE_S  # noqa: PLC0415
    from coordinator.runs.run_price import price_line  # noqa: PLC0415
    from pate_fed.data.image_schema import ImageSchema  # noqa: PLC0415
    from pate_fed.data.new_task import NO_FACTS  # noqa: PLC0415
    from pate_fed.data.reading import Reading  # noqa: PLC0415

    if not 0 < patience * 3600 <= MOST_PATIENCE_S:
        raise InvalidSettingError("--patience must be above 0, and at most a year", patience)
    coordinator = open_coordinator(home)
    task = coordinator.read_queries(
        file,
        label=label,
        classes=[one.strip() for one in classes.split(",")],
        ignored=ignore or (),
        reading=Reading(separator=separator, decimal=decimal, missing=tuple(missing or ())),
        facts=NO_FACTS if schema is None else _read_facts(schema),
    )
    settings = coordinator.settings_of(given, source=file.name, label=label, kind=task.kind)
    state = "known" if coordinator.knows(task) else "new, so hospitals train teachers for it"
    request = coordinator.draft(
        name,
        task,
        settings,
        source=file.name,
        select=select,
        patience_s=patience * 3600,
    )
    if isinstance(task.schema, ImageSchema):
        read = f"its images are read as {task.schema.reading.words}"
    else:
        read = f"its columns are {', '.join(task.columns)}"
    print(f"pate-fed: the task of {task.name} is {state}; {read}", file=sys.stderr)
    for said in task.told:
        print(f"pate-fed: {said}", file=sys.stderr)
    before = changed_votes(coordinator, request)
    for one in request.parties:
        if one.name in before:
            said = f"{plural(one.teachers, 'vote')}, and had {before[one.name]} in its last run"
            print(f"pate-fed: {one.name} has {said}", file=sys.stderr)
    print(f"pate-fed: {price_line(request)}", file=sys.stderr)
    queued = coordinator.enqueue(request, task)
    ended = queued
    if not detach:
        # On standard error: standard output is for the result.
        for line in what_is_missing(readiness(coordinator.home)):
            print(f"pate-fed: {line}", file=sys.stderr)
        ended = followed(coordinator, name)
    _print_run(ended)
    if ended.has_failed:
        raise RunEndedError(f"run {name} must go through", ended.reason)


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Name of the run. [default: all]")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Show the state of runs with the reason, and obstacles to the service.

    Of a run that is open, or named, each hospital's standing: offline, undecided, approved,
    rejected, with the time.
    """
    from coordinator.federation.readiness import readiness, what_is_missing  # noqa: PLC0415 - see `serve`
    from coordinator.operator import standings  # noqa: PLC0415 - the same

    coordinator = open_coordinator(home)
    queue = coordinator.queue
    found = queue.all() if name is None else [queue.find(name)]
    # Where nothing can be stored, no run can store that as its reason.
    is_open = any(not one.is_ended for one in found)
    missing = what_is_missing(readiness(coordinator.home)) if is_open else []
    known = standings(coordinator, found)
    lines = []
    for one in found:
        lines += _lines(one)
        if name is not None or not one.is_ended:
            lines += [f"{'':24} {each.hospital}: {each.said}" for each in known[one.name]]
    tables = [
        {**one.as_table(), "hospitals": [each.as_table() for each in known[one.name]]}
        for one in found
    ]
    nothing = [] if found else ["No run was asked for yet."]
    show({"runs": tables, "missing": missing}, (*lines, *missing, *nothing))


def pause(name: RunName, home: HomeOption = DEFAULT_HOME) -> None:
    """Pause a run after its current batch."""
    _print_run(open_coordinator(home).pause(name))


def resume(name: RunName, home: HomeOption = DEFAULT_HOME) -> None:
    """Continue a paused run."""
    _print_run(open_coordinator(home).resume(name))


def stop(name: RunName, home: HomeOption = DEFAULT_HOME) -> None:
    """End a run after its current batch; keep and report its releases."""
    _print_run(open_coordinator(home).stop(name))


def export(
    name: RunName,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder to copy to.")],
    private: Annotated[
        bool,
        typer.Option(
            "--private/--public",
            help="All files, for the federation and its auditors; or the public edition, without "
            "any number that the stated epsilon does not cover.",
        ),
    ] = False,
    agreed: Agreed = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Copy a run's results into a new folder: its public edition, or all of it.

    A lost run directory, as after a restore, is first rewritten from the database.
    """
    single_threaded_kernels()
    from coordinator.lost_results import WHAT_IS_LOST, write_anew  # noqa: PLC0415 - see `serve`

    if private and agreed:
        raise UsageError("--agreed is for the public edition", "--private")
    coordinator = open_coordinator(home)
    is_anew = write_anew(coordinator, name)
    parts = coordinator.export(name, out, private=private, agreed=agreed or ())
    edition = "Private edition, do not publish" if private else "Public edition"
    show(
        {
            "out": str(out),
            "edition": "private" if private else "public",
            "parts": parts,
            "written_anew": is_anew,
        },
        (
            f"{edition}: {out} has {', '.join(parts)}.",
            *((WHAT_IS_LOST,) if is_anew else ()),
        ),
    )


def progress_line(run: Run) -> str:
    """Describe a run's progress in one line, and name the party that it waits for."""
    pausing = " (is being paused)" if run.wanted else ""
    why = f": {run.reason}" if run.reason else ""
    done = run.progress
    if not done.queries:
        return f"run {run.name}: {run.state.value}{pausing}{why}"
    void = f" ({done.void} void)" if done.void else ""
    return (
        f"run {run.name}: {run.state.value}{pausing}, {done.batches} batches{void}, "
        f"{done.answered} answered and {done.refused} without an answer of "
        f"{done.queries} queries, "
        f"{_charged(done)}{why}"
    )


def _print_run(run: Run) -> None:
    show(run.as_table(), _lines(run))


def _lines(run: Run) -> list[str]:
    pausing = " (is being paused)" if run.wanted else ""
    why = f": {run.reason}" if run.reason else ""
    lines = [f"{run.name:24} {run.state.value}{pausing}{why}"]
    done = run.progress
    if done.queries:
        lines.append(
            f"{'':24} {done.answered} answered, {done.refused} without an answer, of "
            f"{done.queries}; {done.batches} batches, {done.void} void; "
            f"{_charged(done)}"
        )
    return lines


def _charged(done: Progress) -> str:
    by_tests = done.tests_delta
    tests = f", delta {by_tests:.3g} by tests of stability" if by_tests else ""
    epsilon = epsilon_text(done.epsilon)
    return f"epsilon {epsilon} at most, {percent(done.share)} of its queries charged{tests}"


def _read_facts(path: Path) -> TaskFacts:
    """Read what an operator writes of a task's columns and classes."""
    from pate_fed.data.task_facts import TaskFacts  # noqa: PLC0415 - keeps --help fast
    from pate_fed.errors import InvalidTaskError  # noqa: PLC0415 - the same

    return read_settings(
        path,
        TaskFacts,
        version=_SCHEMA_VERSION,
        advice=f"{path.name} must be there, for --schema",
        fault=InvalidTaskError,
    )
