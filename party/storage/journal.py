"""A party's journal in its database: no crash loses an entry.

A call is one transaction, which is on disk when the call returns (rule R4). Nothing is held in
memory: a call sees the stored state.

A y lies in the database, too, so that it and its record come and go together, and so that one lock
and one file hold all that must not be copied. Erased content is overwritten (`secure_delete`) and
the write-ahead log is emptied. That cannot reach blocks that the file system or the disk moved, nor
copies that somebody made of the file. A y looks uniform without the keys of its run, which are in
memory alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.sql.dml import ReturningDelete

from party.errors import JournalDamagedError
from party.storage.journal_rows import (
    as_journal,
    claim_of,
    count_write,
    note_plan,
    plan_in,
    record_of,
    require_whole,
    the_journal,
    transaction,
    write_many,
)
from party.storage.party_database import PartyDatabase
from party.storage.patient_votes import PatientVotes
from party.storage.query_journal import QueryJournal
from party.storage.site_schema import (
    ClaimRow,
    JournalRow,
    PartyRunRow,
    PlanRow,
    VectorRow,
    WitnessRow,
)
from pate_fed.nodes.database import put
from protocols.errors import KeyReuseError
from protocols.rounds import PlanClaim, RoundJournal, RunNote
from protocols.rounds.round_journal import MOST_UNSERVED

_KEY_BYTES = 32

_NEW_JOURNAL = upsert(JournalRow).values(number=1, counter=0, halted_at=0).on_conflict_do_nothing()
_HALT = update(JournalRow).values(halted_at=bindparam("shown"))
_RUN = select(PartyRunRow).where(PartyRunRow.run_id == bindparam("run"))
_NEW_RUN = upsert(PartyRunRow).on_conflict_do_nothing().returning(PartyRunRow.run_id)
_LAST_EPOCH = select(func.max(PlanRow.epoch)).where(PlanRow.run_id == bindparam("run"))
_UNSERVED = (
    select(func.count())
    .select_from(PlanRow)
    .where(PlanRow.run_id == bindparam("run"), PlanRow.epoch.is_(None))
)
_VERDICT_ON = select(PlanRow.verdict).where(PlanRow.plan_digest == bindparam("plan"))
_RUN_OF = select(PlanRow.run_id).where(PlanRow.plan_digest == bindparam("plan"))
_FREE = delete(ClaimRow).where(ClaimRow.plan_digest == bindparam("plan"))
_NEW_VECTOR = insert(VectorRow)
_KEPT = (
    select(VectorRow.frame, VectorRow.digest)
    .where(VectorRow.plan_digest == bindparam("plan"))
    .order_by(VectorRow.place)
)
_ERASE = (
    delete(VectorRow)
    .where(VectorRow.plan_digest == bindparam("plan"))
    .returning(VectorRow.plan_digest)
)
_SWEEP = (
    delete(VectorRow)
    .where(VectorRow.expires_at <= bindparam("now"))
    .returning(VectorRow.plan_digest)
)
_WITNESSED = select(WitnessRow.peer, WitnessRow.counter)


class Journal(RoundJournal):
    """A party's journal, in its database. One process at a time has it open: the site's node."""

    def __init__(self, database: PartyDatabase) -> None:
        self.queries = QueryJournal(database)
        self.patient_votes = PatientVotes(database)
        self._database = database
        with as_journal():
            database.become_node()
        with self._transaction() as connection:
            connection.execute(_NEW_JOURNAL)
        self._forget_erased()

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        with self._transaction() as connection:
            return int(the_journal(connection).counter)

    def require_room(self, size: int) -> None:
        """See `RoundJournal.require_room`; raises `JournalStorageError`."""
        with as_journal():
            self._database.require_room(size)

    # Plans ------------------------------------------------------------------------------------

    def enter(self, run: RunNote) -> None:
        """See `RoundJournal.enter`."""
        with self._transaction() as connection:
            require_whole(the_journal(connection))
            row = {
                "run_id": run.run_id,
                "coordinator": run.coordinator,
                "form": run.form,
                "keys": b"".join(run.keys),
            }
            if connection.scalar(_NEW_RUN, row) is not None:
                count_write(connection)

    def run(self, run_id: bytes) -> RunNote | None:
        """See `RoundJournal.run`."""
        with self._transaction() as connection:
            row = connection.execute(_RUN, {"run": run_id}).one_or_none()
        if row is None:
            return None
        size = _KEY_BYTES
        keys = tuple(row.keys[start : start + size] for start in range(0, len(row.keys), size))
        return RunNote(run_id, row.coordinator, row.form, keys)

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        with self._transaction() as connection:
            plan = plan_in(connection, plan_digest)
            require_whole(plan)
            last = connection.scalar(_LAST_EPOCH, {"run": run_id})
            is_known = plan.epoch is not None or plan.is_abandoned or plan.verdict is not None
            if is_known or epoch <= (last or 0):
                raise KeyReuseError("a plan must be new and its epoch ahead")
            note_plan(connection, plan_digest, run_id=run_id, epoch=epoch)

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.abandon`."""
        with self._transaction() as connection:
            plan = plan_in(connection, plan_digest)
            require_whole(plan)
            if plan.is_answered:
                raise KeyReuseError("a plan that is abandoned must have no y")
            if plan.is_abandoned:
                return
            counted = _run_that_counts(connection, plan, run_id)
            note_plan(connection, plan_digest, run_id=counted, is_abandoned=True, claim=None)
            connection.execute(_FREE, {"plan": plan_digest})

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        with self._transaction() as connection:
            plan = plan_in(connection, plan_digest)
            is_over = plan.is_answered or plan.is_abandoned or plan.verdict is not None
            if plan.epoch is None or is_over:
                raise KeyReuseError("a plan must be begun and answered once")
            note_plan(connection, plan_digest, is_answered=True)
            of_all = {"plan_digest": plan_digest, "expires_at": expires_at}
            rows = (
                {**of_all, "place": place, "frame": frame, "digest": hashlib.sha256(frame).digest()}
                for place, frame in enumerate(frames)
            )
            write_many(connection, _NEW_VECTOR, rows)

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """See `RoundJournal.find`; raises `JournalDamagedError` if the y was changed."""
        with self._transaction() as connection:
            rows = connection.execute(_KEPT, {"plan": plan_digest}).all()
        if any(hashlib.sha256(row.frame).digest() != row.digest for row in rows):
            raise JournalDamagedError("a y must be the one that was kept")
        return tuple(row.frame for row in rows) or None

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.decide`."""
        with self._transaction() as connection:
            plan = plan_in(connection, plan_digest)
            require_whole(plan)
            if plan.verdict not in (None, verdict_digest):
                raise KeyReuseError("a party must give one verdict on a plan")
            if plan.verdict is None:
                counted = _run_that_counts(connection, plan, run_id)
                note_plan(connection, plan_digest, run_id=counted, verdict=verdict_digest)

    def verdict_on(self, plan_digest: bytes) -> bytes:
        """See `RoundJournal.verdict_on`."""
        with self._transaction() as connection:
            return connection.scalar(_VERDICT_ON, {"plan": plan_digest}) or b""

    def run_of(self, plan_digest: bytes) -> bytes:
        """See `RoundJournal.run_of`."""
        with self._transaction() as connection:
            return connection.scalar(_RUN_OF, {"plan": plan_digest}) or b""

    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        """See `RoundJournal.resolve`."""
        with self._transaction() as connection:
            plan = plan_in(connection, plan_digest)
            require_whole(plan)
            if plan.claim is None:
                return
            known = claim_of(plan.claim)
            if not known.is_free and known != known.learning(claim):
                note_plan(connection, plan_digest, claim=record_of(known.learning(claim)))

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        self._erase(_ERASE, plan=plan_digest)

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""
        self._erase(_SWEEP, now=now)

    # Other journals ---------------------------------------------------------------------------

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""
        with self._transaction() as connection:
            known = _witnessed(connection)
            news = [
                {"peer": peer, "counter": count}
                for peer, count in counters.items()
                if count > known.get(peer, 0)
            ]
            if news:
                put(connection, WitnessRow, *news)
                count_write(connection)

    def witnessed(self) -> dict[bytes, int]:
        """See `RoundJournal.witnessed`."""
        with self._transaction() as connection:
            return _witnessed(connection)

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""
        with self._transaction() as connection:
            if counter > the_journal(connection).halted_at:
                connection.execute(_HALT, {"shown": counter})
                count_write(connection)

    def require_whole(self) -> None:
        """See `RoundJournal.require_whole`."""
        with self._transaction() as connection:
            require_whole(the_journal(connection))

    def __repr__(self) -> str:
        return f"Journal({self._database!r})"

    # Helpers ----------------------------------------------------------------------------------

    def _transaction(self) -> AbstractContextManager[Connection]:
        return transaction(self._database)

    def _erase(self, statement: ReturningDelete[bytes], **values: object) -> None:
        with self._transaction() as connection:
            erased = len(set(connection.scalars(statement, values)))
            if erased:
                count_write(connection, times=erased)
        if erased:
            self._forget_erased()

    def _forget_erased(self) -> None:
        with as_journal():
            self._database.forget_erased()


def _witnessed(connection: Connection) -> dict[bytes, int]:
    return {row.peer: row.counter for row in connection.execute(_WITNESSED)}


def _run_that_counts(connection: Connection, plan: Row[Any], run_id: bytes) -> bytes:
    """Return the run of a plan: a plan that was never begun here counts against its run."""
    if plan.run_id is not None:
        return bytes(plan.run_id)
    if connection.scalars(_UNSERVED, {"run": run_id}).one() >= MOST_UNSERVED:
        raise KeyReuseError(f"a run must have at most {MOST_UNSERVED} unserved plans")
    return run_id
