"""The files of a run: `report`, `student`, `predict`, `export-student`, `transcript verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click
import typer

from coordinator.cli.tally import HeardOption, OutOption, PlanArgument, write_side
from coordinator.cli.terminal import (
    DEFAULT_HOME,
    LINE,
    Agreed,
    HomeOption,
    RegistryChoice,
    open_coordinator,
    single_threaded_kernels,
    students,
)
from coordinator.errors import UsageError
from pate_fed.errors import RunDirectoryError
from pate_fed.nodes.command_line import (
    EXIT_INPUT,
    EXIT_PEERS,
    Commands,
    print_json,
    prints_json,
    show,
)

transcript_app = Commands("Check a run's transcript.")


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the public edition into this new folder."),
    ] = None,
    agreed: Agreed = None,
) -> None:
    """Rewrite a finished run's report.html and annexes.html, and show its summary.

    The folder is private. With --out, write the public edition elsewhere: without any number that
    the stated epsilon does not cover.
    """
    import pate_fed.lab.mechanisms  # noqa: F401, PLC0415 - a simulation's report
    from pate_fed.report import (  # noqa: PLC0415 - keeps --help fast
        read_run,
        render_annexes,
        render_report,
        render_summary,
        replace_report,
        write_public_edition,
    )
    from pate_fed.run_folder import ANNEXES  # noqa: PLC0415 - keeps --help fast

    try:
        run = read_run(run_dir)
    except RunDirectoryError as error:
        LINE.fail(error, EXIT_INPUT)
    if out is not None:
        write_public_edition(run_dir, out, agreed=agreed or ())
        run_dir, run = out, read_run(out)
    elif agreed:
        raise UsageError("--agreed must come with --out")
    else:
        replace_report(run_dir, render_annexes(run), name=ANNEXES)
        replace_report(run_dir, render_report(run))
    metrics, privacy = run.metrics.as_json(), run.privacy.as_json()
    show(
        {"run_dir": str(run_dir), "metrics": metrics, "privacy": privacy},
        render_summary(run.metrics, run.privacy, run_dir).splitlines(),
    )


def predict(
    student_dir: Annotated[
        Path, typer.Argument(metavar="STUDENT_DIR", help="The folder `student` of a run.")
    ],
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS",
            help="A CSV or Parquet file with a row for each patient; for images a file, a folder, "
            "or a .npz archive.",
        ),
    ],
    separator: Annotated[str, typer.Option(metavar="CHARACTER", help="CSV: between cells.")] = ",",
    decimal: Annotated[
        str,
        typer.Option(
            click_type=click.Choice((".", ",")), help="CSV: before the decimals of numbers."
        ),
    ] = ".",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Table: column that goes along, such as an id; repeatable."
        ),
    ] = None,
) -> None:
    """Let a student label rows: the likeliest class, and the probability of every class.

    Text output is a CSV table on standard output.
    """
    from pate_fed.data.reading import Reading  # noqa: PLC0415 - keeps --help fast
    from pate_fed.students.prediction import predict_file  # noqa: PLC0415 - keeps --help fast

    reading = Reading(separator=separator, decimal=decimal)
    found = predict_file(student_dir, rows, reading=reading, keep=tuple(keep or ()))
    for note in found.notes:
        print(f"pate-fed: {note}", file=sys.stderr)
    if prints_json():
        print_json(found.as_json())
    else:
        print(found.as_csv(), end="")


def student(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of a run; or the directory of a simulation."),
    ],
    kind: Annotated[
        str, typer.Option(click_type=RegistryChoice(students), help="Kind of student.")
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Simulation: folder of its data set, where it had one."),
    ] = None,
    data_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Simulation: file of its records, where it had one."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Train another student from the stored labels of a run that has ended.

    Nobody is asked, and nothing is charged. It takes the place of an earlier student; model card,
    report and seal are new.
    """
    single_threaded_kernels()
    folder = Path(run)
    if (folder / "manifest.json").is_file():
        from coordinator.simulation.another_student import train_another  # noqa: PLC0415 - fast --help

        record, notes = train_another(folder, kind, data_dir=data_dir, data_file=data_file)
    else:
        from coordinator.lost_results import give_student_to  # noqa: PLC0415 - keeps --help fast

        if data_dir is not None or data_file is not None:
            raise UsageError("--data-dir and --data-file are for a simulation", "a run's name")
        coordinator = open_coordinator(home)
        record, notes = give_student_to(coordinator, run, kind)
        folder = coordinator.home.results(run)
    trained = record.metrics.student
    said = "no student" if trained is None else f"{trained.kind} in {folder / 'student'}"
    show(
        {"run_dir": str(folder), "student": trained and trained.as_json(), "notes": notes},
        (f"Student: {said}. The report is new, and nothing was charged.", *notes),
    )


def export_student(
    student_dir: Annotated[
        Path, typer.Argument(metavar="STUDENT_DIR", help="The folder `student` of a run.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="New ONNX file.")],
) -> None:
    """Write a student as an ONNX file, for programs without Python (extra `onnx`).

    A table's file takes raw columns; an image student's takes features.
    """
    from pate_fed.students import load_student  # noqa: PLC0415 - keeps --help fast
    from pate_fed.students.onnx_export import export_onnx  # noqa: PLC0415

    student = load_student(student_dir)
    inputs = export_onnx(student, file)
    if student.kind == "image":
        more = (
            "How an image becomes features is no part of it: see inputs.json and "
            "inputs.safetensors beside the student."
        )
    else:
        more = (
            "Numbers without units, NaN where unknown; texts as inputs.json spells them, empty "
            "where unknown."
        )
    show(
        {"inputs": list(inputs), "class_names": list(student.class_names)},
        (f"{file}: takes {', '.join(inputs)}; gives label and chances.", more),
    )


@transcript_app.command()
def verify(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run.")],
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="Expected fingerprint of the coordinator."),
    ] = None,
    party: Annotated[
        list[str] | None,
        typer.Option(metavar="FINGERPRINT", help="Expected fingerprint of a party; once for each."),
    ] = None,
) -> None:
    """Check that a run's transcript and results are complete and unchanged.

    Compare the shown fingerprints with the ones you know, or pass those as options.
    `python -m protocols.transcript_verifier` does the same without the rest of this program.
    """
    from coordinator.runs import transcripts  # noqa: PLC0415 - keeps --help fast
    from protocols.transcript_verifier import render_check  # noqa: PLC0415

    try:
        verdict = transcripts.check_transcript(
            run_dir, coordinator=coordinator, parties=party or ()
        )
    except RunDirectoryError as error:
        LINE.fail(error, EXIT_INPUT)
    noise = (
        ["its noise is no part of it: `pate-fed transcript audit-side` checks either end's"]
        if transcripts.is_of_two_ends(run_dir)
        else []
    )
    show(transcripts.transcript_table(verdict), [*render_check(verdict).splitlines(), *noise])


@transcript_app.command()
def material(
    plan: PlanArgument,
    out: OutOption,
    heard: HeardOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write the coordinator's material of a verified batch for an auditor: secret.

    It holds the coordinator's parts and noise. Never give it to somebody who has the tally's, too.
    """
    from coordinator import operator  # noqa: PLC0415 - keeps --help fast

    write_side(operator.side_of_batch(open_coordinator(home), plan, is_secret=not heard), out)


@transcript_app.command()
def audit_side(
    material: Annotated[
        Path, typer.Argument(metavar="MATERIAL", help="The audited end's, secret.")
    ],
    heard: Annotated[
        Path, typer.Argument(metavar="HEARD", help="What the other end heard of the batch.")
    ],
) -> None:
    """Compute again all that one end of a verified batch told, its noise included.

    Compare the shown fingerprints with the ones you know. An end's wrong messages are named: exit
    code 4. Nobody may audit both ends of a batch.
    """
    from coordinator.tally.side_material import SideFile, audit_files  # noqa: PLC0415 - fast --help

    found = audit_files(SideFile.read(material), SideFile.read(heard))
    wrong, hospitals = found.findings.wrong, [one.hex() for one in found.findings.hospitals]
    unopened = [one.hex() for one in found.findings.unopened]
    said = (
        f"The {found.end} told what it had to, its noise included."
        if not wrong
        else f"The {found.end} told wrong: {', '.join(wrong)}."
    )
    show(
        {
            "end": found.end,
            "coordinator": found.ends[0].hex(),
            "tally": found.ends[1].hex(),
            "plan": found.plan_digest.hex(),
            "wrong": list(wrong),
            "hospitals": hospitals,
            "unopened": unopened,
        },
        (
            f"Coordinator {found.ends[0].hex()}",
            f"Tally       {found.ends[1].hex()}",
            f"Plan        {found.plan_digest.hex()}",
            said,
            *(f"Its answer about the report of hospital {one} is wrong." for one in hospitals),
            *(
                f"It shows no part of the report of hospital {one}: that one sealed none, or the "
                f"{found.end} left it out. Nobody else can tell which."
                for one in unopened
            ),
        ),
    )
    if wrong:
        raise typer.Exit(EXIT_PEERS)
