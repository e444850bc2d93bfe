"""An answered query is answered again from here: it costs its price one time.

The same query is the same public row (`docs/decisions/0015-what-a-question-is.md`) of the same
task, asked of the same parties, from any pool and in any way (noise, threshold, secure sum): a
release is public, and any use of it afterwards costs nothing more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import BindParameter, bindparam, func, select

from coordinator.database.federation_database import Database
from coordinator.database.federation_schema import AnswerRow, RunRow
from pate_fed.nodes.database import parts_of

_SOME: BindParameter[bytes] = bindparam("queries", expanding=True)
_ANSWERS = (
    select(
        AnswerRow.query_digest,
        AnswerRow.label,
        RunRow.name,
        AnswerRow.batch,
    )
    .join(RunRow, RunRow.number == AnswerRow.run)
    .where(AnswerRow.members_digest == bindparam("members"))
    .where(AnswerRow.task_digest == bindparam("task"), AnswerRow.query_digest.in_(_SOME))
    .order_by(AnswerRow.run, AnswerRow.batch, AnswerRow.place)
)
_OF_OTHER_TASKS = select(func.count(AnswerRow.query_digest.distinct())).where(
    AnswerRow.task_digest != bindparam("task"), AnswerRow.query_digest.in_(_SOME)
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The release of a query.

    Attributes:
        label: Its class; None for "no answer".
        run: Name of the run that asked it first.
    """

    label: int | None
    run: str
    batch: int


class ReleasedAnswers:
    """Every answer of every run."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self,
        queries: Sequence[bytes],
        *,
        task_digest: bytes,
        members: Collection[bytes],
    ) -> dict[bytes, Answer]:
        """Return the first answer of each query that has one.

        The queries are `QueryBatch.digests`; the members are fingerprints.
        """
        found: dict[bytes, Answer] = {}
        of = {"members": members_digest(members), "task": task_digest}
        with self._database.transaction() as connection:
            for part in parts_of(queries):
                for row in connection.execute(_ANSWERS, {**of, "queries": part}):
                    found.setdefault(
                        row.query_digest,
                        Answer(row.label, row.name, row.batch),
                    )
        return found

    def count_of_other_tasks(self, queries: Sequence[bytes], *, task_digest: bytes) -> int:
        """Return how many of these queries were released for another task.

        Hospitals know a query by its row, for any task, and vote on it once.
        """
        with self._database.transaction() as connection:
            return sum(
                connection.scalars(_OF_OTHER_TASKS, {"task": task_digest, "queries": part}).one()
                for part in parts_of(queries)
            )


def members_digest(members: Collection[bytes]) -> bytes:
    """Return one digest for a set of parties, in any order."""
    return hashlib.sha256(b"pate-fed members\n" + b"".join(sorted(set(members)))).digest()
