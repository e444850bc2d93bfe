"""`reproduce`: a published experiment, repeated, its figures beside ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.console import RegistryChoice, single_threaded_kernels
from coordinator.errors import UsageError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import print_json


def _experiments() -> Iterable[str]:
    from pate_fed.lab.experiments import EXPERIMENTS  # noqa: PLC0415 - takes seconds

    return EXPERIMENTS


def reproduce(  # noqa: PLR0917 - one argument per option
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", click_type=RegistryChoice(_experiments), help="The experiment."
        ),
    ],
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the folders of the data sets.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with a seed.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first; then one more.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder for results.json and its plot, results.svg."),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Repeat a published experiment, and show its figures beside ours.

    Takes minutes; progress goes to standard error.
    """
    single_threaded_kernels()
    from pate_fed.lab.experiments import EXPERIMENTS, picture_of  # noqa: PLC0415 - takes seconds
    from pate_fed.lab.experiments import reproduce as run  # noqa: PLC0415

    if out is not None and out.exists():
        raise UsageError("--out must be a new folder", str(out))
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError("--out must be in a folder that is there", str(out.parent))
    known = EXPERIMENTS[name]
    title = known.title
    results = list(run(name, data_dir, range(first_seed, first_seed + seeds), _tell))
    found = [result.as_record() for result in results]
    table = {
        "experiment": name,
        "title": title,
        "seeds": list(range(first_seed, first_seed + seeds)),
        "results": found,
    }
    if out is not None:
        out.mkdir()
        (out / "results.json").write_text(json.dumps(table, indent=2) + "\n", "utf-8")
        picture = picture_of(results, title=title, axis=known.axis)
        (out / "results.svg").write_text(picture, "utf-8")
    if output_format is Format.JSON:
        print_json(table)
    else:
        print("\n".join([title, "", *(_line(row) for row in found)]))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(row: dict[str, Any]) -> str:
    spread = "" if row["spread"] is None else f" +- {row['spread']:.4f}"
    published = f"; published: {row['published']}" if row["published"] else ""
    epsilon = "no release" if row["epsilon"] == 0 else "no epsilon holds"
    if row["epsilon"]:
        epsilon = f"epsilon {row['epsilon']:.3f}"
    return (
        f"{row['protocol']}; {row['student']}; {epsilon}: {row['measure']} "
        f"{row['mean']:.4f}{spread} (least {row['least']:.4f}){published}"
    )
