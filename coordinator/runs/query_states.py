"""The state of each query of a run: drawn, lost, or refused by hospitals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, select

from coordinator.database import Database
from coordinator.database.federation_schema import RunBatchRow, RunRow, SkippedRow
from coordinator.database.run_store import BatchState
from coordinator.runs.open_run import earlier_answers
from coordinator.runs.request import RunRequest
from pate_fed.data.task import LearningTask
from pate_fed.releases import NoisyRelease, Outcome


class QueryState(StrEnum):
    """The state of a query."""

    ANSWERED = "answered"
    NO_ANSWER = "no answer"
    REFUSED = "refused"  # hospitals answered it before
    LOST = "lost"  # its batch is void, and hospitals that may have sent do not vote on it again
    OPEN = "not asked"


@dataclass(frozen=True, slots=True)
class AskedQuery:
    """One query that a run is to ask.

    Attributes:
        query_id: Its position in the pool, from 0, as in `labels.csv`.
        drawn_in: Name of the run that drew it; empty if none did.
        refused_by: Names of hospitals.
    """

    query_id: int
    state: QueryState
    label: str = ""
    drawn_in: str = ""
    refused_by: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Its state in words, with the reason."""
        match self.state:
            case QueryState.ANSWERED | QueryState.NO_ANSWER:
                return f"{self.label or self.state.value} (drawn in {self.drawn_in})"
            case QueryState.REFUSED:
                names = ", ".join(self.refused_by)
                return f"refused: {names} answered it before"
            case QueryState.LOST:
                return "lost: its batch is void, and a hospital that may have sent votes once only"
            case QueryState.OPEN:
                return "not asked yet"


def query_states(
    database: Database, request: RunRequest, *, task: LearningTask
) -> list[AskedQuery]:
    """Return the state of each query of a run, in the order of the pool."""
    known = {place: AskedQuery(place, QueryState.OPEN) for place in request.queries}
    for place, answer in earlier_answers(request, task.pool, database).items():
        known[place] = _drawn(place, answer.label, run=answer.run, names=request.class_names)
    with database.transaction() as connection:
        number = connection.scalar(select(RunRow.number).where(RunRow.name == request.name))
        for row in connection.execute(select(SkippedRow).where(SkippedRow.run == number)):
            names = tuple(json.loads(row.parties))
            known[row.place] = AskedQuery(row.place, QueryState.REFUSED, refused_by=names)
        for asked in _of_batches(connection, number, request):
            known[asked.query_id] = asked
    return [known[place] for place in sorted(known)]


def _of_batches(
    connection: Connection, number: int | None, request: RunRequest
) -> list[AskedQuery]:
    found = []
    batches = select(RunBatchRow).where(RunBatchRow.run == number).order_by(RunBatchRow.number)
    for row in connection.execute(batches):
        indices = json.loads(row.record)["indices"]
        if row.state == BatchState.VOID.value:
            found += [AskedQuery(place, QueryState.LOST) for place in indices]
        if row.release is None:
            continue
        release = NoisyRelease.from_record(json.loads(row.release))
        for place, label, outcome in zip(indices, release.labels, release.outcomes, strict=True):
            found.append(
                _drawn(
                    place,
                    int(label) if outcome == Outcome.ANSWERED else None,
                    run=request.name,
                    names=request.class_names,
                )
            )
    return found


def _drawn(place: int, label: int | None, *, run: str, names: tuple[str, ...]) -> AskedQuery:
    if label is None:
        return AskedQuery(place, QueryState.NO_ANSWER, drawn_in=run)
    return AskedQuery(place, QueryState.ANSWERED, names[label], run)
