"""`audit.json`: an attack on made-up votes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pate_fed.record.base import About, Count, File, Number, RecordTable, Share
from pate_fed.run_folder import AUDIT


class Way(RecordTable):
    """An attacker."""

    way: Annotated[str, About("its name", "yes")]
    asks: Annotated[Count, About("answers that it gets", "yes")]
    mean_error: Annotated[Share, About("share of votes in a wrong class", "yes")]
    epsilon: Annotated[Number | None, About("with the run's cap", "yes")] = None


class Step(RecordTable):
    """A point of the curve."""

    asks: Annotated[int, Field(ge=1), About("answers", "yes")]
    errors: Annotated[
        tuple[Share, ...], Field(min_length=1), About("mean error on each row", "yes")
    ]

    @property
    def mean_error(self) -> float:
        """Mean over the rows."""
        return sum(self.errors) / len(self.errors)


class Audit(File):
    """Content of `audit.json`."""

    FILE = AUDIT

    rows: Annotated[Count, About("of the made-up votes", "yes")]
    teachers: Annotated[Count, About("votes on each", "yes")]
    classes: Annotated[Count, About("classes", "yes")]
    error: Annotated[Share, About("error that counts as a leak", "yes")]
    ways: Annotated[tuple[Way, ...], About("attackers", "yes")]
    curve: Annotated[tuple[Step, ...], Field(min_length=1), About("errors over answers", "yes")]
    asks_for_error: Annotated[
        tuple[Count | None, ...],
        About("answers for that error on each row; null beyond a million", "yes"),
    ]
    median: Annotated[Count | None, About("answers for that error on half of the rows", "yes")]
    repeated_contents: Annotated[
        Count | None,
        About("of a simulation, as in the manifest, which was checked; otherwise null", "yes"),
    ]
