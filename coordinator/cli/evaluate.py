"""`evaluate`: how good a run's student is, on patients whom hospitals held out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import Detach, Given, Patience, takes
from coordinator.cli.runs import RunName, followed, progress_line
from coordinator.cli.terminal import (
    DEFAULT_HOME,
    HomeOption,
    open_coordinator,
    single_threaded_kernels,
)
from coordinator.errors import RunEndedError
from pate_fed import wording
from pate_fed.nodes.command_line import show
from pate_fed.options import BUDGET, OPTIONS, RUN

if TYPE_CHECKING:
    from coordinator.operator import Coordinator
    from coordinator.runs.queue import Run
    from pate_fed.record import Metrics, Privacy


@takes(OPTIONS["epsilon"].but(help="Most that it may cost one unit.", usual=1.0), "delta", "unit")
def evaluate(
    run: RunName,
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Count by the groups of a column, too, where every owner agreed; repeatable.",
            rich_help_panel=RUN,
        ),
    ] = None,
    given: Given,
    places: Annotated[
        int,
        typer.Option(
            help="Most held-out patients of a hospital that are counted; public.",
            rich_help_panel=BUDGET,
        ),
    ] = 2000,
    colluders: Annotated[
        int,
        typer.Option(help="Hospitals that may tell their noise to others.", rich_help_panel=BUDGET),
    ] = 1,
    name: Annotated[
        str,
        typer.Option(help="Name of its run. [default: RUN.evaluation]", rich_help_panel=RUN),
    ] = "",
    patience: Patience = 24.0,
    detach: Detach = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Ask the hospitals how good a run's student is, on patients who taught no teacher.

    The price comes first. Hospitals add the noise, so nobody sees a count without it. The same
    student in the same groups is counted once: asked again, the stored answer is shown.
    """
    single_threaded_kernels()
    from coordinator import operator  # noqa: PLC0415 - keeps --help fast
    from coordinator.runs.request import MOST_PATIENCE_S  # noqa: PLC0415 - the same
    from pate_fed.errors import InvalidSettingError  # noqa: PLC0415
    from pate_fed.planning.evaluation_settings import EvaluationSettings  # noqa: PLC0415

    if not 0 < patience * 3600 <= MOST_PATIENCE_S:
        raise InvalidSettingError("--patience must be above 0, and at most a year", patience)
    coordinator = open_coordinator(home)
    settings = EvaluationSettings(
        epsilon=given["epsilon"],
        delta=given["delta"],
        unit=given["unit"] or "record",
        places=places,
        colluders=colluders,
    )
    asked = operator.evaluation_of(
        coordinator, run, settings, by=by or (), name=name, patience_s=patience * 3600
    )
    print(f"pate-fed: {asked.price_line}", file=sys.stderr)
    ended = operator.evaluate(coordinator, asked)
    if ended.is_ended or ended.name != asked.request.name:
        print(f"pate-fed: {ended.name} asked this before: no new noise, no charge", file=sys.stderr)
    if not detach:
        ended = followed(coordinator, ended.name)
    _print(coordinator, ended)
    if ended.has_failed:
        raise RunEndedError(f"evaluation {ended.name} must go through", ended.reason)


def _print(coordinator: Coordinator, run: Run) -> None:
    from pate_fed.report import read_run  # noqa: PLC0415 - the same

    folder = coordinator.home.results(run.name)
    table, lines = run.as_table(), [progress_line(run)]
    if folder.is_dir():
        record = read_run(folder)
        metrics, privacy = record.metrics, record.privacy
        if metrics.evaluation and privacy.evaluation:
            table["evaluation"] = metrics.evaluation.as_json()
            table["price"] = privacy.evaluation.as_json()
        lines += [*_lines(metrics, privacy), f"Report: {folder / 'report.html'}"]
    show(table, lines)


def _lines(metrics: Metrics, privacy: Privacy) -> list[str]:
    from pate_fed.report.quality_words import held_out_text  # noqa: PLC0415 - keeps --help fast

    lines = [held_out_text(metrics, privacy)]
    for name, rows in (metrics.evaluation.tables if metrics.evaluation else {}).items():
        lines.append(f"{name}:")
        for group, row in rows.items():
            low, high = row.interval
            lines.append(
                f"  {group:24} right on {wording.percent(row.right)} "
                f"(95 %: {100 * low:.1f} to {wording.percent(high)})"
            )
    return lines
