"""The operator's and the researcher's command line.

One handler prints every error as one line with a stable code. Tracebacks are off for good: they
show local variables, hence votes and keys.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import click
import typer

from coordinator.errors import (
    BrokenTranscriptError,
    CoordinatorError,
    InternalError,
    InvalidSettingError,
    PartyRefusedError,
    UsageError,
)
from pate_fed import __version__
from pate_fed.errors import (
    BudgetExhaustedError,
    DisjointnessError,
    InvalidDataError,
    InvalidParameterError,
    MissingExtraError,
    PateFedError,
    RunDirectoryError,
)
from protocols.envelope import DEFAULT_SUITE, SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.errors import ProtocolError, TooFewPartiesError

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_PEERS, EXIT_INPUT = range(6)
_INTERRUPTED: Final = 130  # what Typer returns after Ctrl-C, without a word
_INTERRUPT: Final = ("a run must go through to be kept", "an interrupt: nothing was kept")

_EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (UsageError, EXIT_USAGE),
    (InvalidSettingError, EXIT_USAGE),
    (RunDirectoryError, EXIT_USAGE),
    (MissingExtraError, EXIT_USAGE),
    (BudgetExhaustedError, EXIT_REFUSED),
    (TooFewPartiesError, EXIT_REFUSED),
    (PartyRefusedError, EXIT_REFUSED),
    (InvalidDataError, EXIT_INPUT),
    (DisjointnessError, EXIT_INPUT),
    (InvalidParameterError, EXIT_USAGE),
    (InternalError, EXIT_FAILED),
    (BrokenTranscriptError, EXIT_INPUT),
    (CoordinatorError, EXIT_PEERS),
    (ProtocolError, EXIT_PEERS),
)
"""First match decides."""

app = typer.Typer(
    name="pate-fed",
    help="Hospitals learn together without pooling records.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


transcript_app = typer.Typer(
    help="Check what a run left behind.", no_args_is_help=True, pretty_exceptions_enable=False
)
app.add_typer(transcript_app, name="transcript")

T = TypeVar("T")

CodedError = PateFedError | ProtocolError | CoordinatorError
"""Every error of ours: a stable code, what must hold, what came."""


class Format(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


def _choice(*names: str) -> Any:
    return click.Choice(names)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pate-fed {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Hospitals learn together without pooling records."""


_MECHANISMS: Final = (
    "confident",
    "gnmax",
    "lnmax",
    "interactive",
    "stable-gaussian",
    "stable-laplace",
    "immutable",
)

_DATA, _FEDERATION, _MECHANISM, _BUDGET, _RUN = (
    "Data",
    "Federation",
    "Questions and mechanism",
    "Privacy budget",
    "Run",
)


@app.command()
def simulate(  # noqa: PLR0917 - one argument per option
    data: Annotated[
        str,
        typer.Option(
            click_type=_choice("digits", "breast-cancer", "mnist", "csv"),
            help="digits and breast-cancer are bundled.",
            rich_help_panel=_DATA,
        ),
    ] = "digits",
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of MNIST's .gz files.", rich_help_panel=_DATA),
    ] = None,
    data_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV file with a header.", rich_help_panel=_DATA),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="CSV: what to predict.", rich_help_panel=_DATA),
    ] = None,
    patient_id: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="CSV: whose record a row is.", rich_help_panel=_DATA),
    ] = None,
    hospital: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="CSV: where a row comes from; each value becomes a party.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="Hospitals, at least 3.", rich_help_panel=_FEDERATION)
    ] = None,
    teachers: Annotated[
        int | None, typer.Option(help="Teachers per hospital.", rich_help_panel=_FEDERATION)
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            click_type=_choice("iid", "dirichlet", "column"),
            help="How records are dealt: evenly, with skewed labels, or by --hospital.",
            rich_help_panel=_FEDERATION,
        ),
    ] = None,
    teacher: Annotated[
        str,
        typer.Option(
            click_type=_choice("auto", "nearest", "svm", "forest", "logistic", "network"),
            help="Kind of teacher.",
            rich_help_panel=_FEDERATION,
        ),
    ] = "auto",
    form: Annotated[
        str,
        typer.Option(
            "--sum",
            click_type=_choice("additive", "masked", "plain"),
            help="How votes are summed; masked goes on without lost hospitals, plain hides nothing "
            "and is for comparison only.",
            rich_help_panel=_FEDERATION,
        ),
    ] = "additive",
    suite: Annotated[
        str,
        typer.Option(
            click_type=_choice(SUITE_MLKEM768_X25519, SUITE_X25519),
            help="How hospitals seal what the coordinator relays between them; the first stays "
            "closed even to a quantum computer.",
            rich_help_panel=_FEDERATION,
        ),
    ] = DEFAULT_SUITE,
    queries: Annotated[
        int | None,
        typer.Option(
            help="Public inputs to ask about. [default: what the budget affords, at most 100]",
            rich_help_panel=_MECHANISM,
        ),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            click_type=_choice("medoids", "random"),
            help="Which: centers of clusters, or any.",
            rich_help_panel=_MECHANISM,
        ),
    ] = "medoids",
    mechanism: Annotated[
        str | None,
        typer.Option(
            click_type=_choice(*_MECHANISMS),
            help="From votes to labels: refuse where teachers disagree (confident), answer always "
            "(gnmax, lnmax), ask for what the student does not know (interactive), test for a "
            "stable winner (stable-*); immutable protects nobody and is for comparison. "
            "[default: confident; with --noise parties gnmax]",
            rich_help_panel=_MECHANISM,
        ),
    ] = None,
    vote_threshold: Annotated[
        float | None,
        typer.Option(
            help="Noisy top count from which to answer, in votes.", rich_help_panel=_MECHANISM
        ),
    ] = None,
    sigma1: Annotated[
        float | None,
        typer.Option(help="Noise of that check, in votes.", rich_help_panel=_MECHANISM),
    ] = None,
    sigma2: Annotated[
        float | None,
        typer.Option(help="Noise of each count, in votes.", rich_help_panel=_MECHANISM),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Interactive: from which chance the student keeps its own label.",
            rich_help_panel=_MECHANISM,
        ),
    ] = None,
    test_delta: Annotated[
        float | None,
        typer.Option(
            help="Stable: chance that one test answers though nothing is stable.",
            rich_help_panel=_MECHANISM,
        ),
    ] = None,
    noise: Annotated[
        str,
        typer.Option(
            click_type=_choice("coordinator", "parties"),
            help="Who adds it; with parties the coordinator sees noisy counts only.",
            rich_help_panel=_MECHANISM,
        ),
    ] = "coordinator",
    colluders: Annotated[
        int | None,
        typer.Option(
            help="With --noise parties: hospitals whose noise an attacker may know. [default: 1]",
            rich_help_panel=_MECHANISM,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            click_type=_choice("record", "party"),
            help="What is protected: a patient's records, or a whole hospital's.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    epsilon: Annotated[
        float, typer.Option(help="Budget; the run keeps it.", rich_help_panel=_BUDGET)
    ] = 5.0,
    party_epsilons: Annotated[
        str | None,
        typer.Option(
            metavar="E,E,...",
            help="Budgets of the hospitals one by one, in the data's order.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,...",
            help="Votes that each teacher of a hospital casts, hospital by hospital. [default: 1]",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    pricing: Annotated[
        str,
        typer.Option(
            click_type=_choice("auto", "gdp", "label", "joint", "renyi"),
            help="How refusals and answers are charged; auto: the cheapest that holds.",
            rich_help_panel=_BUDGET,
        ),
    ] = "auto",
    valid_votes: Annotated[
        bool,
        typer.Option(
            "--valid-votes/--unchecked-votes",
            help="Whether all hospitals trust all to send valid vote rows (the joint price).",
            rich_help_panel=_BUDGET,
        ),
    ] = True,
    delta: Annotated[
        float, typer.Option(help="Chance that it may fail.", rich_help_panel=_BUDGET)
    ] = 1e-5,
    max_answers: Annotated[
        int | None,
        typer.Option(
            help="End after so many; fixed before the run. [default: all]",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    max_refusals: Annotated[
        int | None,
        typer.Option(
            help="End after so many; fixed before the run. [default: what simulated votes suggest]",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Queries per batch. [default: all]", rich_help_panel=_BUDGET),
    ] = None,
    student: Annotated[
        str,
        typer.Option(
            click_type=_choice("auto", "propagation", "supervised", "network"),
            help="Kind of student.",
            rich_help_panel=_RUN,
        ),
    ] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            click_type=_choice("local", "ray"),
            help="In this process, or on Flower's Ray engine (extra `ray`).",
            rich_help_panel=_RUN,
        ),
    ] = "local",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Make labels, metrics and costs repeatable; keys are always fresh.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Run directory to make. [default: runs/DATA-TIME]",
            rich_help_panel=_RUN,
        ),
    ] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="What to print.", rich_help_panel=_RUN)
    ] = Format.TEXT,
) -> None:
    """Run a whole federation on this machine, on real records.

    Splits the records over hospitals, trains teachers, lets them vote under additive secret
    sharing, adds noise, releases labels within the budget, trains a student and writes a report.
    """
    _single_threaded_kernels()
    from coordinator.config import SimulationSettings, usual_mechanism  # noqa: PLC0415 - fast --help
    from coordinator.simulation import simulate as run  # noqa: PLC0415
    from pate_fed.data import DataSource  # noqa: PLC0415

    settings = SimulationSettings(
        data=DataSource(data, data_dir, data_file, label, patient_id, hospital),
        parties=parties,
        teachers=teachers,
        partition=partition,  # type: ignore[arg-type]  # one of the choices above
        queries=queries,
        select=select,
        mechanism=mechanism or usual_mechanism(noise),
        vote_threshold=vote_threshold,
        sigma1=sigma1,
        sigma2=sigma2,
        confidence=confidence,
        test_delta=test_delta,
        noise=noise,
        colluders=colluders,
        form=form,
        suite=suite,
        unit=unit,
        weights=_numbers("--weights", weights, int),
        delta=delta,
        epsilon=epsilon,
        party_epsilons=_numbers("--party-epsilons", party_epsilons, float),
        pricing=pricing,
        valid_votes=valid_votes,
        max_answers=max_answers,
        max_refusals=max_refusals,
        batch_size=batch_size,
        teacher_model=teacher,
        student=student,
        engine=engine,
        seed=seed,
    )
    target = out if out is not None else Path("runs") / f"{data}-{time.strftime('%Y%m%d-%H%M%S')}"
    with _progress(shown=output_format is Format.TEXT) as progress:
        done = run(settings, target, progress=progress)
    if output_format is Format.JSON:
        _print_json(
            {"run_dir": str(done.run_dir), "metrics": done.metrics, "privacy": done.privacy}
        )
    else:
        from pate_fed.report import render_summary  # noqa: PLC0415

        print(render_summary(done.metrics, done.privacy, done.run_dir))
    if done.stopped_by is not None:
        raise done.stopped_by


@app.command()
def account(  # noqa: PLR0917 - one argument per option
    votes: Annotated[Path, typer.Argument(metavar="VOTES.npy", help="Vote counts per query.")],
    mechanism: Annotated[
        str,
        typer.Option(
            click_type=_choice(
                *("confident", "gnmax", "interactive", "lnmax"),
                *("stable-gaussian", "stable-laplace", "immutable"),
            ),
            help="How they are asked.",
        ),
    ] = "confident",
    vote_threshold: Annotated[
        float | None, typer.Option(help="Noisy top count from which to answer, in votes.")
    ] = None,
    sigma1: Annotated[
        float | None,
        typer.Option(help="Noise of that check, in votes; of a test of stability, in units."),
    ] = None,
    sigma2: Annotated[
        float | None,
        typer.Option(help="Noise of each count, in votes: standard deviation, whatever its law."),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="interactive: the student's chance of each class per query."
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="interactive: chance from which the student keeps its own. [default: 0.9]"
        ),
    ] = None,
    test_delta: Annotated[
        float | None, typer.Option(help="stable-*: chance that one test fails.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Chance that a guarantee may fail.")] = 1e-5,
    rows: Annotated[
        str | None, typer.Option(metavar="A:B", help="Rows A to B - 1 only. [default: all]")
    ] = None,
    max_answers: Annotated[
        float | None, typer.Option(help="Cap on answers; real numbers reproduce papers.")
    ] = None,
    max_refusals: Annotated[
        float | None, typer.Option(help="Cap on refusals; real numbers reproduce papers.")
    ] = None,
    unit_votes: Annotated[
        int, typer.Option(help="Votes that one privacy unit can move.", min=1)
    ] = 1,
    unit: Annotated[
        str | None,
        typer.Option(
            click_type=_choice("record", "party"),
            help="Privacy unit. [default: record where --unit-votes is 1, else party]",
        ),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
) -> None:
    """Say what votes would cost, by every method side by side.

    Formal numbers hold for all votes. Per-instance numbers depend on these votes: they are
    private, for the operator only.
    """
    _single_threaded_kernels()
    from coordinator import account as pricing  # noqa: PLC0415 - keeps --help fast

    found = pricing.account(
        pricing.AccountRequest(
            votes=votes,
            rows=_rows(rows),
            mechanism=mechanism,
            delta=delta,
            vote_threshold=vote_threshold,
            sigma1=sigma1,
            sigma2=sigma2,
            predictions=predictions,
            confidence=confidence,
            test_delta=test_delta,
            max_answers=max_answers,
            max_refusals=max_refusals,
            unit_votes=unit_votes,
            unit=unit,  # type: ignore[arg-type]  # one of the choices above
        )
    )
    if output_format is Format.JSON:
        _print_json(found)
    else:
        print(pricing.render_account(found))


@app.command()
def plan(  # noqa: PLR0917 - one argument per option
    parties: Annotated[int, typer.Option(help="Hospitals.")] = 50,
    teachers: Annotated[int, typer.Option(help="Teachers per hospital.")] = 1,
    classes: Annotated[int, typer.Option(help="Classes.")] = 10,
    epsilon: Annotated[float, typer.Option(help="Budget.")] = 5.0,
    delta: Annotated[float, typer.Option(help="Chance that it may fail.")] = 1e-5,
    unit: Annotated[
        str | None, typer.Option(click_type=_choice("record", "party"), help="What is protected.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(help="Queries wanted. [default: what the budget affords]")
    ] = None,
    vote_threshold: Annotated[
        float | None, typer.Option(help="Threshold, in votes. [default: choose]")
    ] = None,
    sigma1: Annotated[
        float | None, typer.Option(help="Noise of the check, in votes. [default: choose]")
    ] = None,
    sigma2: Annotated[
        float | None, typer.Option(help="Noise of each count, in votes. [default: choose]")
    ] = None,
    teacher_accuracy: Annotated[
        float, typer.Option(help="Assumed; the votes are simulated with it.")
    ] = 0.7,
    valid_votes: Annotated[
        bool,
        typer.Option(
            "--valid-votes/--unchecked-votes",
            help="Whether all parties are trusted to send valid vote rows (the joint price).",
        ),
    ] = True,
    party_epsilons: Annotated[
        str | None,
        typer.Option(metavar="E,E,...", help="Budgets of the hospitals one by one."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,...",
            help="Votes that each teacher of a hospital casts, hospital by hospital. [default: 1]",
        ),
    ] = None,
    expected_dropouts: Annotated[
        int, typer.Option(help="Hospitals that may be lost in a batch, at the worst.")
    ] = 0,
    form: Annotated[
        str | None,
        typer.Option(
            "--sum",
            click_type=_choice("additive", "masked"),
            help="Secure sum. [default: what fits the hospitals that may be lost]",
        ),
    ] = None,
    noise: Annotated[
        str,
        typer.Option(
            click_type=_choice("coordinator", "parties"),
            help="Who adds it; with parties the coordinator sees noisy counts only.",
        ),
    ] = "coordinator",
    colluders: Annotated[
        int | None,
        typer.Option(
            help="With --noise parties: hospitals whose noise an attacker may know. [default: 1]"
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw epsilon over answers; must not exist."),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
) -> None:
    """Say what a budget buys, before anything is spent.

    Works from public numbers and simulated votes alone.
    """
    _single_threaded_kernels()
    from coordinator import plan_words, planning, planning_at_parties  # noqa: PLC0415 - fast --help

    if noise == "parties" and plot is not None:
        raise InvalidSettingError("--plot is for --noise coordinator", noise)
    if noise == "coordinator" and colluders is not None:
        raise InvalidSettingError("--colluders is for --noise parties", noise)
    request = planning.PlanRequest(
        parties=parties,
        teachers=teachers,
        classes=classes,
        epsilon=epsilon,
        delta=delta,
        unit=unit or ("party" if teachers == 1 else "record"),
        queries=queries,
        vote_threshold=vote_threshold,
        sigma1=sigma1,
        sigma2=sigma2,
        teacher_accuracy=teacher_accuracy,
        votes_are_valid=valid_votes,
        expected_dropouts=expected_dropouts,
        form=form,
        colluders=colluders,
        party_epsilons=_numbers("--party-epsilons", party_epsilons, float),
        weights=_numbers("--weights", weights, int),
    )
    if noise == "parties":
        found = planning_at_parties.plan_at_parties(request)
        text = plan_words.render_plan_at_parties
    else:
        found, text = planning.plan(request), planning.render_plan
    if plot is not None:
        _write_new(plot, planning.draw_plan(found))
    if output_format is Format.JSON:
        _print_json(found)
    else:
        print(text(found))


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run.")],
    output_format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
) -> None:
    """Write report.html of a finished run anew, and show its summary."""
    from pate_fed.report import (  # noqa: PLC0415 - keeps --help fast
        read_run,
        render_report,
        render_summary,
        replace_report,
    )

    try:
        run = read_run(run_dir)
    except RunDirectoryError as error:
        _fail(error, EXIT_INPUT)
    replace_report(run_dir, render_report(run))
    if output_format is Format.JSON:
        _print_json({"run_dir": str(run_dir), "metrics": run.metrics, "privacy": run.privacy})
    else:
        print(render_summary(run.metrics, run.privacy, run_dir))


@transcript_app.command()
def verify(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run.")],
    coordinator: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Whose run it must be.")
    ] = None,
    party: Annotated[
        list[str] | None,
        typer.Option(metavar="FINGERPRINT", help="One of all parties; give each of them."),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
) -> None:
    """Check that a run's transcript is whole: nothing edited, moved, dropped or cut off.

    Its keys stand in it: compare the fingerprints that are shown with those that you know, or give
    them. `python -m protocols.transcript_verifier` does the same without the rest of this program.
    """
    from coordinator import transcripts  # noqa: PLC0415 - keeps --help fast
    from protocols.transcript_verifier import render_verdict  # noqa: PLC0415

    try:
        verdict = transcripts.check_transcript(
            run_dir, coordinator=coordinator, parties=party or ()
        )
    except RunDirectoryError as error:
        _fail(error, EXIT_INPUT)
    if output_format is Format.JSON:
        _print_json(transcripts.transcript_table(verdict))
    else:
        print(render_verdict(verdict))


def main() -> None:
    """Run the command line; every way out is one line with a code, and a stable exit code."""
    try:
        ended = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if ended == _INTERRUPTED:
            _fail(InternalError(*_INTERRUPT))
        sys.exit(ended or EXIT_DONE)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.UsageError as error:
        _fail(UsageError("the command line must be right", _one_line(error.format_message())))
    except (click.Abort, KeyboardInterrupt):
        _fail(InternalError(*_INTERRUPT))
    except (PateFedError, ProtocolError, CoordinatorError) as error:
        _fail(error)
    except Exception as error:
        _fail(InternalError("this program must not fail", _place_of(error)))


def _fail(error: CodedError, exit_code: int | None = None) -> NoReturn:
    """Print one line and leave."""
    if _wants_json():
        line = json.dumps({"code": error.code, "must": error.must, "got": error.got})
    else:
        line = f"pate-fed: {error.code}: {_one_line(error.must)}, got {_one_line(error.got)}"
    print(line, file=sys.stderr)
    sys.exit(_exit_code(error) if exit_code is None else exit_code)


def _exit_code(error: object) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_FAILED)


def _wants_json() -> bool:
    """Look at the raw arguments: they may be what is wrong."""
    arguments = sys.argv[1:]
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(
        one == "--format=json" or (one == "--format" and other == "json") for one, other in pairs
    )


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _place_of(error: Exception) -> str:
    """Name an error's kind and place, never its text or values."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    return f"a {type(error).__name__} at {place}"


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, sort_keys=True, allow_nan=False))


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidSettingError("--plot must name a new file", type(error).__name__) from error


def _numbers(option: str, text: str | None, kind: Callable[[str], T]) -> tuple[T, ...] | None:
    """Read numbers between commas."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        numbers = "whole numbers" if kind is int else "numbers"
        raise InvalidSettingError(f"{option} must be {numbers} between commas", text) from None


def _rows(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, separator, stop = text.partition(":")
    if not (separator and start.isdecimal() and stop.isdecimal()):
        raise UsageError("--rows must be A:B, two whole numbers", repr(text))
    return int(start), int(stop)


def _single_threaded_kernels() -> None:
    """Parties already run side by side: more threads below them would only fight."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show bars on a terminal, on standard error; elsewhere nothing."""
    if not shown or not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield update


def _silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
