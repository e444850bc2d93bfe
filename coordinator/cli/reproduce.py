"""`reproduce`: a published experiment, repeated, its figures beside ours."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.terminal import RegistryChoice, single_threaded_kernels
from coordinator.errors import UsageError
from pate_fed.nodes.command_line import show

if TYPE_CHECKING:
    from pate_fed.lab.experiments.experiment import Result


def _experiments() -> Iterable[str]:
    from pate_fed.lab.experiments import EXPERIMENTS  # noqa: PLC0415 - takes seconds

    return EXPERIMENTS


def reproduce(
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
    table = {
        "experiment": name,
        "title": title,
        "seeds": list(range(first_seed, first_seed + seeds)),
        "results": [result.as_record() for result in results],
    }
    if out is not None:
        out.mkdir()
        (out / "results.json").write_text(json.dumps(table, indent=2) + "\n", "utf-8")
        picture = picture_of(results, title=title, axis=known.axis)
        (out / "results.svg").write_text(picture, "utf-8")
    show(table, [title, "", *map(_line, results)])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(one: Result) -> str:
    row = one.row
    spread = "" if one.spread is None else f" +- {one.spread:.4f}"
    published = f"; published: {row.published}" if row.published else ""
    epsilon = f"epsilon {row.epsilon:.3f}" if math.isfinite(row.epsilon) else "no epsilon holds"
    return (
        f"{row.protocol}; {row.student}; {epsilon if row.epsilon else 'no release'}: {row.measure} "
        f"{one.mean:.4f}{spread} (least {min(one.values):.4f}){published}"
    )
