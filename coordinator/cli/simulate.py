"""`simulate`: a whole federation on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from click.core import ParameterSource

from coordinator.cli.console import (
    RegistryChoice,
    choice,
    data_sources,
    numbers,
    progress,
    single_threaded_kernels,
    sum_forms,
)
from coordinator.cli.options import (
    BUDGET,
    FEDERATION,
    MECHANISM,
    RUN,
    WAYS,
    Colluders,
    Confidence,
    Delta,
    Epsilon,
    Noise,
    PartyEpsilons,
    Prevalence,
    Purpose,
    Sigma1,
    Sigma2,
    Student,
    Suite,
    TestDelta,
    Unit,
    VoteThreshold,
    Weights,
)
from coordinator.errors import UsageError
from pate_fed.errors import RunDirectoryError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import print_json
from pate_fed.regular_files import MOST_SETTINGS_BYTES, read_regular

_DATA = "Data"


def _mechanisms() -> Iterable[str]:
    """Name all mechanisms."""
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - keeps --help fast
    from pate_fed.mechanisms import SPECS  # noqa: PLC0415 - the same

    return SPECS


_FREE: Final = ("data", "seed", "teacher", "device", "student", "engine", "purpose")
"""Options from which no other setting of a run follows."""


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the settings of an earlier run as defaults, before other options are read."""
    if path is None:
        return None
    from pate_fed.record import Settings  # noqa: PLC0415 - keeps --help fast

    try:
        text = read_regular(path, most_bytes=MOST_SETTINGS_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError("--config must be a readable run.toml", type(error).__name__) from error
    try:
        found = Settings.of_toml(text)
    except RunDirectoryError as error:
        raise UsageError(f"--config must be a run.toml: {error.must}", error.got) from error
    if found.earlier or found.classes:
        raise UsageError(
            "--config must be of a first round of a simulation",
            "a run that stands on others: --after" if found.earlier else "a deployed run",
        )
    context.default_map = _as_options(found.as_json())
    return path


def _read_earlier(context: typer.Context, path: Path | None) -> Path | None:
    """Take what all rounds share as defaults, before other options are read."""
    if path is None:
        return None
    from coordinator.simulation.rounds import KEPT, simulation_record  # noqa: PLC0415 - fast --help

    found = simulation_record(path).settings.as_json()
    context.default_map = _as_options({key: found[key] for key in KEPT if key in found})
    return path


def _as_options(found: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a `run.toml` as they are typed; a file is where --data-file says."""
    return {
        name: ",".join(map(str, value))
        if isinstance(value, list) and name not in ("ignore", "evaluate_by")
        else value
        for name, value in found.items()
        if name != "file"
    }


def _is_typed(context: typer.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _require_same_run(context: typer.Context) -> None:
    """Refuse options that other settings of the file followed from, such as the noise."""
    from pate_fed.record import Settings  # noqa: PLC0415 - keeps --help fast

    for name in Settings.model_fields:
        if _is_typed(context, name) and name not in _FREE:
            raise UsageError(
                "--config repeats a run: beside it only data, seed, teacher, device, student, "
                "purpose and --out may be given",
                f"--{name.replace('_', '-')}",
            )


def _require_own_code_typed(context: typer.Context, teacher: str) -> None:
    """Refuse to run code that a file names: the file may be a stranger's."""
    if ":" in teacher and not _is_typed(context, "teacher"):
        raise UsageError(
            "code of your own must be named on the command line, never by a file: read it, then "
            "type --teacher MODULE:FUNCTION as the run had it",
            teacher,
        )


def simulate(  # noqa: PLR0917 - one argument per option
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            is_eager=True,
            callback=_read_config,
            help="run.toml of an earlier simulation: its settings are the defaults of this one.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            is_eager=True,
            callback=_read_earlier,
            help="Stand on a finished simulation: same hospitals, teachers and pool; its labels "
            "count, its queries are not asked again, and --epsilon is the budget of both together.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            click_type=RegistryChoice(data_sources),
            help="digits and breast-cancer are bundled; csv and images are yours; the others are "
            "published sets in --data-dir.",
            rich_help_panel=_DATA,
        ),
    ] = "digits",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of a published set; or of images, with a folder for each class.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    data_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="csv: a CSV file with a header, or a Parquet file; images: a .npz archive.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="CSV: column to predict.", rich_help_panel=_DATA),
    ] = None,
    patient_id: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="CSV: column of patient ids.", rich_help_panel=_DATA),
    ] = None,
    hospital: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="CSV: column of hospitals; each value becomes a hospital.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Table: column to leave out; repeatable.", rich_help_panel=_DATA
        ),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="Table: label to tell from all others; capitals do not matter.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    separator: Annotated[
        str,
        typer.Option(
            metavar="CHARACTER", help="CSV: character between cells.", rich_help_panel=_DATA
        ),
    ] = ",",
    decimal: Annotated[
        str,
        typer.Option(
            click_type=choice(".", ","),
            help="CSV: decimal sign of numbers.",
            rich_help_panel=_DATA,
        ),
    ] = ".",
    prevalence: Prevalence = None,
    patients: Annotated[
        int | None,
        typer.Option(
            help="Number of patients to use of each hospital. [default: all]",
            rich_help_panel=FEDERATION,
        ),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="Hospitals, at least 3.", rich_help_panel=FEDERATION)
    ] = None,
    teachers: Annotated[
        int | None, typer.Option(help="Teachers per hospital.", rich_help_panel=FEDERATION)
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            click_type=choice("iid", "dirichlet", "column"),
            help="Share out records evenly (iid), with skewed labels (dirichlet) or by "
            "--hospital (column).",
            rich_help_panel=FEDERATION,
        ),
    ] = None,
    teacher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Kind of teacher: auto, nearest, svm, forest, boosting, logistic, network or "
            "convolution; or MODULE:FUNCTION for your own.",
            rich_help_panel=FEDERATION,
        ),
    ] = "auto",
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="PyTorch's device for convolutional teachers and students, such as cuda.",
            rich_help_panel=FEDERATION,
        ),
    ] = "cpu",
    class_balance: Annotated[
        str,
        typer.Option(
            click_type=choice("auto", "natural", "equal"),
            help="Teachers vote as they predict (natural) or for each class equally often (equal). "
            "auto: equal on tables; but a teacher with many records votes for each class as often "
            "as it saw it.",
            rich_help_panel=FEDERATION,
        ),
    ] = "auto",
    form: Annotated[
        str,
        typer.Option(
            "--sum",
            click_type=RegistryChoice(sum_forms),
            help="How votes are summed: additive needs every hospital, masked survives lost ones; "
            "plain hides nothing, for comparison only.",
            rich_help_panel=FEDERATION,
        ),
    ] = "additive",
    suite: Suite = None,
    queries: Annotated[
        int | None,
        typer.Option(
            help="Number of public inputs to ask. [default: as many as the budget affords, at most "
            "100; 500 for tables]",
            rich_help_panel=MECHANISM,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            click_type=choice(
                "medoids", "cluster-votes", "spectral", "stratified", "random", "least-confident"
            ),
            help="Which inputs to ask. medoids: the middle of each cluster; cluster-votes: that, "
            "but each teacher votes for its majority there; spectral: as medoids, in the graph of "
            "similar inputs; stratified: one of each part of the pool; random; least-confident: "
            "those that the student is least sure of. [default: by data set]",
            rich_help_panel=MECHANISM,
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            click_type=RegistryChoice(_mechanisms),
            help=f"{WAYS}counts (a student distills them) is for research, immutable protects "
            "nobody: both for comparison only. "
            "[default: threshold for images; gnmax for tables]",
            rich_help_panel=MECHANISM,
        ),
    ] = None,
    vote_threshold: VoteThreshold = None,
    sigma1: Sigma1 = None,
    sigma2: Sigma2 = None,
    confidence: Confidence = None,
    test_delta: TestDelta = None,
    noise: Noise = "coordinator",
    colluders: Colluders = None,
    unit: Unit = None,
    epsilon: Epsilon = 5.0,
    party_epsilons: PartyEpsilons = None,
    weights: Weights = None,
    delta: Delta = 1e-5,
    max_answers: Annotated[
        int | None,
        typer.Option(
            help="End after this many answers; fixed before the run. [default: all]",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Queries per batch. [default: all]", rich_help_panel=BUDGET),
    ] = None,
    student: Student = "auto",
    evaluate: Annotated[
        str,
        typer.Option(
            click_type=choice("public", "private"),
            help="Score the student on public test records only, or (private) also on a fifth of "
            "each hospital's patients, who are kept back.",
            rich_help_panel=RUN,
        ),
    ] = "public",
    evaluation_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Epsilon of --evaluate private for a patient who is kept back. [default: 1]",
            rich_help_panel=RUN,
        ),
    ] = None,
    evaluate_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="With --evaluate private: score the groups of a column, too; repeatable.",
            rich_help_panel=RUN,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            click_type=choice("local", "ray"),
            help="Run in this process (local), or on Flower's Ray engine (ray; extra `ray`).",
            rich_help_panel=RUN,
        ),
    ] = "local",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeat labels, metrics and costs; keys are always new. The noise of a seed "
            "protects nobody.",
            rich_help_panel=RUN,
        ),
    ] = None,
    purpose: Purpose = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="New run directory. [default: runs/DATA-TIME]",
            rich_help_panel=RUN,
        ),
    ] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format.", rich_help_panel=RUN)
    ] = Format.TEXT,
) -> None:
    """Run a whole federation on this machine, on real records.

    Shares out the records to hospitals, trains teachers, sums their votes by secret sharing, adds
    noise, releases labels within the budget, trains a student and writes a report.
    """
    single_threaded_kernels()
    if config is not None:
        if after is not None:
            raise UsageError("--config must come without --after", "both")
        _require_same_run(context)
    _require_own_code_typed(context, teacher)
    if _is_typed(context, "epsilon") and not _is_typed(context, "party_epsilons"):
        party_epsilons = None  # those of the earlier round
    from coordinator.simulation import simulate as run  # noqa: PLC0415
    from pate_fed.data import DataSource  # noqa: PLC0415
    from pate_fed.planning import RunSettings, usual_mechanism  # noqa: PLC0415 - fast --help
    from pate_fed.rule import Caps, Rule  # noqa: PLC0415 - the same
    from protocols.suites import DEFAULT_SUITE  # noqa: PLC0415 - the same

    settings = RunSettings(
        data=DataSource(
            data,
            data_dir,
            data_file,
            label,
            patient_id,
            hospital,
            ignored_columns=tuple(ignore or ()),
            positive=positive,
            separator="\t" if separator == "\\t" else separator,
            decimal=decimal,
        ),
        parties=parties,
        teachers=teachers,
        partition=partition,  # type: ignore[arg-type]  # one of the choices above
        rule=Rule(
            mechanism or usual_mechanism(data, may_refuse=vote_threshold is not None),
            vote_threshold,
            sigma1,
            sigma2,
            confidence,
            test_delta,
            noise,  # type: ignore[arg-type]  # one of the choices above
            colluders,
        ),
        caps=Caps(queries, max_answers, batch_size),
        select=select,
        form=form,
        suite=suite or DEFAULT_SUITE,
        unit=unit,  # type: ignore[arg-type]  # the same
        weights=numbers("--weights", weights, int),
        delta=delta,
        epsilon=epsilon,
        party_epsilons=numbers("--party-epsilons", party_epsilons, float),
        teacher=teacher,
        device=device,
        class_balance=class_balance,
        prevalence=numbers("--prevalence", prevalence, float),
        patients=patients,
        student=student,
        evaluate=evaluate,
        evaluation_epsilon=evaluation_epsilon,
        evaluate_by=tuple(evaluate_by or ()),
        engine=engine,
        seed=seed,
        purpose=purpose,
    )
    target = out if out is not None else Path("runs") / f"{data}-{time.strftime('%Y%m%d-%H%M%S')}"
    with progress(shown=output_format is Format.TEXT) as shown:
        done = run(settings, target, progress=shown, tell=_tell_people(output_format), after=after)
    if output_format is Format.JSON:
        metrics, privacy = done.metrics.as_json(), done.privacy.as_json()
        print_json({"run_dir": str(done.run_dir), "metrics": metrics, "privacy": privacy})
    else:
        from pate_fed.report import render_summary  # noqa: PLC0415

        print(render_summary(done.metrics, done.privacy, done.run_dir))
    if done.stopped_by is not None:
        raise done.stopped_by


def _tell_people(output_format: Format) -> Callable[[str], None]:
    """Return a printer for a terminal; elsewhere, as for progress, nobody watches."""
    if output_format is Format.TEXT and sys.stderr.isatty():
        return partial(print, file=sys.stderr)
    return lambda _: None
