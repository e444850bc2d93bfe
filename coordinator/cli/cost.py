"""The cost of privacy: `account` for existing votes, `plan` before anything is spent."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from coordinator.cli.options import Given, takes
from coordinator.cli.terminal import RegistryChoice, single_threaded_kernels
from coordinator.errors import UsageError
from coordinator.runs.run_options import DEPLOYED_OPTIONS
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import print_json
from pate_fed.options import OPTIONS, fields_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pate_fed.planning.plan import Outlook, QueryPlan


def _accounted_mechanisms() -> Iterable[str]:
    """Name the mechanisms whose labels are priced: all but those that release more."""
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - keeps --help fast
    from pate_fed.mechanisms import SPECS  # noqa: PLC0415 - the same

    return (name for name, spec in SPECS.items() if not spec.shows_counts)


@takes(
    OPTIONS["mechanism"].but(
        choices=_accounted_mechanisms, help="Mechanism of the votes.", usual="threshold", panel=""
    ),
    *("vote_threshold", "sigma1", "sigma2", "confidence", "test_delta", "delta"),
)
def account(
    votes: Annotated[Path, typer.Argument(metavar="VOTES.npy", help="Vote counts per query.")],
    *,
    given: Given,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            help="interactive*: the student's probability of each class, query by query.",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="A:B", help="Rows A to B - 1 only. [default: all]")
    ] = None,
    max_answers: Annotated[
        float | None, typer.Option(help="Cap on answers; real numbers reproduce papers.")
    ] = None,
    unit_votes: Annotated[
        int, typer.Option(help="Votes that one privacy unit can move.", min=1)
    ] = 1,
    unit: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice(("record", "party")),
            help="Privacy unit. [default: record if --unit-votes is 1, otherwise party]",
        ),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Compute the cost of votes by every method, side by side.

    Formal numbers hold for all votes. Per-instance numbers depend on these votes: they are
    private, for the operator only.
    """
    single_threaded_kernels()
    from coordinator.cli import account as account_module  # noqa: PLC0415 - keeps --help fast
    from pate_fed.lab.compare import render_comparison  # noqa: PLC0415 - the same
    from pate_fed.rule import Rule  # noqa: PLC0415 - the same

    found = account_module.account(
        account_module.AccountRequest(
            votes=votes,
            rows=_rows(rows),
            rule=Rule(**fields_of("rule", given)),
            delta=given["delta"],
            predictions=predictions,
            answers=max_answers,
            unit_votes=unit_votes,
            unit=unit,  # type: ignore[arg-type]  # one of the choices above
        )
    )
    if output_format is Format.JSON:
        print_json(found)
    else:
        print(render_comparison(found))


def planned_forms() -> Iterable[str]:
    """Name the forms of the secure sum that hide votes, those of simulations last."""
    from protocols.forms import FORMS  # noqa: PLC0415 - keeps --help fast

    return (name for name, form in FORMS.items() if form.hides_vectors)


def planned_mechanisms() -> Iterable[str]:
    """Name the mechanisms whose answers can be forecast: those that learn from no label."""
    from pate_fed.mechanisms import DEPLOYED_MECHANISMS, SPECS  # noqa: PLC0415 - keeps --help fast

    return (name for name in DEPLOYED_MECHANISMS if not SPECS[name].learns)


@takes(
    OPTIONS["data"].but(
        help="Data whose defaults apply: csv is any table, images are any images.",
        usual="csv",
        panel="",
    ),
    OPTIONS["parties"].but(help="Hospitals. [default: by --data]", panel=""),
    OPTIONS["teachers"].but(panel=""),
    OPTIONS["records_per_teacher"].but(panel=""),
    DEPLOYED_OPTIONS["teacher"].but(panel=""),
    OPTIONS["mechanism"].but(choices=planned_mechanisms, panel=""),
    *("epsilon", "delta", "unit", "vote_threshold", "sigma2"),
    *("party_epsilons", "weights", "noise", "colluders", "label_cap", "patient_votes"),
)
def plan(
    *,
    given: Given,
    classes: Annotated[int, typer.Option(help="Classes.")] = 2,
    labels: Annotated[
        int | None, typer.Option(help="Labels of yes and no, if each input has several.")
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(help="Queries wanted. [default: as many as a run asks and can afford]"),
    ] = None,
    teacher_accuracy: Annotated[
        float, typer.Option(help="Assumed accuracy of an average teacher.")
    ] = 0.7,
    expected_dropouts: Annotated[
        int, typer.Option(help="Most hospitals that may be lost in a batch.")
    ] = 0,
    form: Annotated[
        str | None,
        typer.Option(
            "--sum",
            click_type=RegistryChoice(planned_forms),
            help="Secure sum. [default: by the hospitals that may be lost]",
        ),
    ] = None,
    pool: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Table of public inputs, CSV or Parquet, without the label: says whether a "
            "student is likely to beat a hospital's own model.",
        ),
    ] = None,
    records: Annotated[
        int,
        typer.Option(min=1, help="Patients (or records) of an average hospital."),
    ] = 400,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="New SVG file with epsilon over answers."),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Forecast the queries that a budget affords.

    Works from public numbers and simulated votes alone.
    """
    single_threaded_kernels()
    import numpy as np  # noqa: PLC0415 - keeps --help fast

    from pate_fed import planning  # noqa: PLC0415 - keeps --help fast
    from pate_fed.report import plan_words  # noqa: PLC0415 - the same
    from protocols.forms import DEPLOYED_FORMS, FORMS  # noqa: PLC0415 - the same
    from protocols.suites import DEFAULT_SUITE  # noqa: PLC0415 - the same

    inputs = None
    if pool is not None:  # before a plan is computed for seconds
        from pate_fed.data import read_public_inputs  # noqa: PLC0415 - takes a second

        inputs = read_public_inputs(pool)
    request = planning.PlanRequest.of(
        {**given, "suite": DEFAULT_SUITE, "queries": queries},
        classes=classes,
        records=records,
        labels=labels,
        pool=None if inputs is None else len(np.unique(inputs, axis=0)),
        teacher_accuracy=teacher_accuracy,
        expected_dropouts=expected_dropouts,
        form=form,
    )
    # Only a person who names it is advised a form that needs a tally, or that no deployment has.
    usual = {name: each for name, each in DEPLOYED_FORMS.items() if not each.adds_noise}
    sums = usual if form is None else {**usual, form: FORMS[form]}
    found = planning.plan(request, sums=sums)
    if inputs is not None:
        found["outlook"] = _outlook(inputs, found, records=records)
    if plot is not None:
        _write_new(plot, plan_words.draw_plan(found))
    if output_format is Format.JSON:
        print_json(found)
    else:
        print(plan_words.render_plan(found))
        if inputs is not None:
            print(f"\n{textwrap.fill(found['outlook']['says'], 80)}")


def _outlook(inputs: NDArray[np.float64], found: QueryPlan, *, records: int) -> Outlook:
    from pate_fed.planning.outlook import evidence, outlook  # noqa: PLC0415

    best = found["forecast"]
    answers = max(1, round(best["expected_answered"]))
    alone, share = best["mechanism"]["sigma2"], best["noise_share"]
    measured = evidence(
        inputs,
        votes=found["votes"],
        queries=answers,
        sigma=float(alone or 0.0) if share is None else share["sum_sigma"],
        classes=found["classes"],
    )
    return {"evidence": measured, "says": outlook(measured, queries=answers, records=records)}


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidSettingError("--plot must name a new file", type(error).__name__) from error


def _rows(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, separator, stop = text.partition(":")
    if not (separator and start.isdecimal() and stop.isdecimal()):
        raise UsageError("--rows must be A:B, two whole numbers", repr(text))
    return int(start), int(stop)
