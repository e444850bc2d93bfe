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

from coordinator.cli.options import Given, takes
from coordinator.cli.terminal import progress, single_threaded_kernels
from coordinator.errors import UsageError
from pate_fed.errors import RunDirectoryError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import print_json
from pate_fed.options import DATA, OPTIONS, RUN, option_of
from pate_fed.regular_files import MOST_SETTINGS_BYTES, read_regular


def _mechanisms() -> Iterable[str]:
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
        raise UsageError("--config must be a readable run.toml", path) from error
    try:
        found = Settings.of_toml(text)
    except RunDirectoryError as error:
        raise UsageError(f"--config must be a run.toml: {error.must}", error.got) from error
    if found.earlier or found.classes:
        raise UsageError(
            "--config must be of the first run of a series",
            "a run that stands on others: --after" if found.earlier else "a deployed run",
        )
    context.default_map = _as_options(found.as_json())
    return path


def _read_earlier(context: typer.Context, path: Path | None) -> Path | None:
    """Take what a series shares as defaults, before other options are read."""
    if path is None:
        return None
    from coordinator.simulation.earlier_runs import KEPT, simulation_record  # noqa: PLC0415 - fast --help

    found = simulation_record(path).settings.as_json()
    context.default_map = _as_options({key: found[key] for key in KEPT if key in found})
    return path


def _as_options(found: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a `run.toml` as they are typed; a file is where --data-file says."""
    return {
        name: _as_typed(_SETTINGS[name].kind, value)
        for name, value in found.items()
        if name != "file"
    }


def _as_typed(kind: object, value: object) -> object:
    if kind == list[str]:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value


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
                option_of(name),
            )


def _require_own_code_typed(context: typer.Context, teacher: str) -> None:
    """Refuse to run code that a file names: the file may be a stranger's."""
    if ":" in teacher and not _is_typed(context, "teacher"):
        raise UsageError(
            "code of your own must be named on the command line, never by a file: read it, then "
            "type --teacher MODULE:FUNCTION as the run had it",
            teacher,
        )


_SETTINGS: Final = {
    **OPTIONS,
    "label": OPTIONS["label"].but(kind=list[str]),
    "mechanism": OPTIONS["mechanism"].but(
        choices=_mechanisms,
        help=f"{OPTIONS['mechanism'].help}counts (a student distills them) is for research, "
        "immutable protects nobody: both for comparison only. "
        "[default: threshold for images; gnmax for tables]",
    ),
}


@takes(*_SETTINGS.values())
def simulate(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            is_eager=True,
            callback=_read_config,
            help="run.toml of an earlier simulation: its settings are the defaults of this one.",
            rich_help_panel=DATA,
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
            rich_help_panel=DATA,
        ),
    ] = None,
    given: Given,
    ignore_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Table: file with columns to leave out, one name a line.",
            rich_help_panel=DATA,
        ),
    ] = None,
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
            raise UsageError("--config must come without --after")
        _require_same_run(context)
    _require_own_code_typed(context, given["teacher"])
    if _is_typed(context, "epsilon") and not _is_typed(context, "party_epsilons"):
        given = {**given, "party_epsilons": None}  # those of the earlier run
    from coordinator.simulation import simulate as run  # noqa: PLC0415
    from pate_fed.planning import RunSettings  # noqa: PLC0415 - fast --help
    from protocols.suites import DEFAULT_SUITE  # noqa: PLC0415 - the same

    if ignore_file is not None:
        from pate_fed.data.reading import names_in  # noqa: PLC0415 - fast --help

        given = {**given, "ignore": (*given["ignore"], *names_in(ignore_file))}
    data, labels = given["data"], given["label"]
    settings = RunSettings.of({
        **given,
        "label": (labels or (None,))[0] if len(labels) < 2 else labels,
        "suite": given["suite"] or DEFAULT_SUITE,
    })  # fmt: skip
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
