"""`demo`: a whole federation of services on this machine."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from coordinator.errors import UsageError


def demo(
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder; usually runs/demo-DATE-TIME."),
    ] = None,
) -> None:
    """Play a federation of coordinator, tally and three hospitals, as services on this machine.

    Every command is typed and shown; everything that was started is stopped in the end.
    """
    from coordinator.demo import play  # noqa: PLC0415 - takes seconds

    folder = out or Path("runs", f"demo-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005 - a name
    if folder.exists():
        raise UsageError("--out must be a new folder", str(folder))
    play(folder)
