"""Stores in memory, for tests of something else."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Self

from sqlalchemy import select

from coordinator.database import Database, RunAttempt
from coordinator.runs.queue import RunQueue
from party.storage import Journal, PartyDatabase
from party.storage.site_schema import PlanRow
from pate_fed.nodes.database import NodeDatabase


def run_in_memory(database: Database | None = None) -> RunAttempt:
    """A new run of a coordinator, taken up."""
    runs = RunQueue(database or Database.in_memory(), clock=lambda: datetime.now(UTC))
    name = f"run {len(runs.all())}"
    runs.add(name, "{}")
    return runs.take_up(name)


def journal_in_memory() -> Journal:
    """A hospital's new journal."""
    return Journal(PartyDatabase.in_memory())


def plans_in(journal: Journal) -> list[bytes]:
    """Every plan that a journal knows of, in no order."""
    with journal._database.transaction() as connection:
        return list(connection.scalars(select(PlanRow.plan_digest)))


class _Copied(NodeDatabase):
    """A database in memory of which `copy.deepcopy` makes another."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = memo[id(self)] = type(self).in_memory()
        with (
            closing(self._engine.raw_connection()) as source,
            closing(other._engine.raw_connection()) as target,
        ):
            source.driver_connection.backup(target.driver_connection)  # type: ignore[union-attr]
        return other


class CopiedDatabase(_Copied, Database):
    """A coordinator's."""


class CopiedPartyDatabase(_Copied, PartyDatabase):
    """A party's."""
