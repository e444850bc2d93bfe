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
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.orm import Session

from party.errors import JournalDamagedError
from party.storage.engine import PartyDatabase
from party.storage.journal_rows import (
    as_journal,
    claim_of,
    count_write,
    plan_row,
    record_of,
    require_whole,
    the_journal,
    transaction,
    write_many,
)
from party.storage.query_journal import QueryJournal
from party.storage.schema import (
    ClaimRow,
    JournalRow,
    PartyRunRow,
    PlanRow,
    VectorRow,
    WitnessRow,
)
from protocols.errors import KeyReuseError
from protocols.rounds import PlanClaim, RoundJournal, RunNote
from protocols.rounds.journal import MOST_UNSERVED

_KEY_BYTES = _SKETCH_KEY_BYTES = 32


class Journal(RoundJournal):
    """A party's journal, in its database. One process at a time may have it open.

    Attributes:
        queries: The queries of its plans.

    Args:
        database: The site's; this process becomes its node until that is closed.
        sketch_key: Key of the sketches of a new journal, so that a simulation can be repeated; None
            to draw it afresh.

    Raises:
        JournalLockedError: another process (or object) is the node.
        JournalStorageError: it cannot be written.
    """

    def __init__(self, database: PartyDatabase, *, sketch_key: bytes | None = None) -> None:
        self.queries = QueryJournal(database)
        self._database = database
        with as_journal():
            database.become_node()
        with self._transaction() as session:
            if session.get(JournalRow, 1) is None:
                key = secrets.token_bytes(_SKETCH_KEY_BYTES) if sketch_key is None else sketch_key
                session.add(JournalRow(number=1, counter=0, halted_at=0, sketch_key=key))
        self._forget_erased()

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        with self._transaction() as session:
            return the_journal(session).counter

    def require_room(self, size: int) -> None:
        """See `RoundJournal.require_room`.

        Raises:
            JournalStorageError: the disk is full, or may not be written.
        """
        with as_journal():
            self._database.require_room(size)

    # Plans ------------------------------------------------------------------------------------

    def enter(self, run: RunNote) -> None:
        """See `RoundJournal.enter`."""
        with self._transaction() as session:
            require_whole(session)
            if session.get(PartyRunRow, run.run_id) is None:
                keys = b"".join(run.keys)
                session.add(
                    PartyRunRow(
                        run_id=run.run_id, coordinator=run.coordinator, form=run.form, keys=keys
                    )
                )
                count_write(session)

    def run(self, run_id: bytes) -> RunNote | None:
        """See `RoundJournal.run`."""
        with self._transaction() as session:
            row = session.get(PartyRunRow, run_id)
        if row is None:
            return None
        size = _KEY_BYTES
        keys = tuple(row.keys[start : start + size] for start in range(0, len(row.keys), size))
        return RunNote(run_id, row.coordinator, row.form, keys)

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        with self._transaction() as session:
            require_whole(session)
            plan = plan_row(session, plan_digest)
            last = session.scalar(select(func.max(PlanRow.epoch)).where(PlanRow.run_id == run_id))
            is_known = plan.epoch is not None or plan.is_abandoned or plan.verdict is not None
            if is_known or epoch <= (last or 0):
                raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")
            plan.run_id, plan.epoch = run_id, epoch
            count_write(session)

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.abandon`."""
        with self._transaction() as session:
            require_whole(session)
            plan = plan_row(session, plan_digest)
            if plan.is_answered:
                raise KeyReuseError("a plan that is abandoned must have no y", "one that was kept")
            if plan.is_abandoned:
                return
            _note_unserved(session, plan, run_id)
            plan.is_abandoned, plan.claim = True, None
            session.execute(delete(ClaimRow).where(ClaimRow.plan_digest == plan_digest))
            count_write(session)

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        with self._transaction() as session:
            plan = plan_row(session, plan_digest)
            is_over = plan.is_answered or plan.is_abandoned or plan.verdict is not None
            if plan.epoch is None or is_over:
                raise KeyReuseError(
                    "a plan must be begun and answered once", "one that is over or unknown"
                )
            plan.is_answered = True
            session.add_all(
                VectorRow(
                    plan_digest=plan_digest,
                    place=place,
                    frame=frame,
                    digest=hashlib.sha256(frame).digest(),
                    expires_at=expires_at,
                )
                for place, frame in enumerate(frames)
            )
            count_write(session)

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """See `RoundJournal.find`; raises `JournalDamagedError` if the y was changed."""
        kept = select(VectorRow).where(VectorRow.plan_digest == plan_digest)
        with self._transaction() as session:
            rows = session.scalars(kept.order_by(VectorRow.place)).all()
        if any(hashlib.sha256(row.frame).digest() != row.digest for row in rows):
            raise JournalDamagedError("a y must be the one that was kept", "another")
        return tuple(row.frame for row in rows) or None

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.decide`."""
        with self._transaction() as session:
            require_whole(session)
            plan = plan_row(session, plan_digest)
            if plan.verdict not in (None, verdict_digest):
                raise KeyReuseError("a party must give one verdict on a plan", "another")
            if plan.verdict is None:
                _note_unserved(session, plan, run_id)
                plan.verdict = verdict_digest
                count_write(session)

    def verdict_on(self, plan_digest: bytes) -> bytes:
        """See `RoundJournal.verdict_on`."""
        with self._transaction() as session:
            plan = session.get(PlanRow, plan_digest)
            return b"" if plan is None or plan.verdict is None else plan.verdict

    def run_of(self, plan_digest: bytes) -> bytes:
        """See `RoundJournal.run_of`."""
        with self._transaction() as session:
            plan = session.get(PlanRow, plan_digest)
            return b"" if plan is None or plan.run_id is None else plan.run_id

    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        """See `RoundJournal.resolve`."""
        with self._transaction() as session:
            require_whole(session)
            plan = session.get(PlanRow, plan_digest)
            if plan is None or plan.claim is None:
                return
            known = claim_of(plan.claim)
            if not known.is_free and known != known.learning(claim):
                plan.claim = record_of(known.learning(claim))
                count_write(session)

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        self._erase(lambda row: row.plan_digest == plan_digest)

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""
        self._erase(lambda row: row.expires_at <= now)

    # Other journals ---------------------------------------------------------------------------

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""
        with self._transaction() as session:
            known = _witnessed(session)
            news = [
                {"peer": peer, "counter": count}
                for peer, count in counters.items()
                if count > known.get(peer, 0)
            ]
            if news:
                noted = upsert(WitnessRow)
                write_many(
                    session,
                    noted.on_conflict_do_update(
                        index_elements=["peer"], set_={"counter": noted.excluded.counter}
                    ),
                    news,
                )
                count_write(session)

    def witnessed(self) -> dict[bytes, int]:
        """See `RoundJournal.witnessed`."""
        with self._transaction() as session:
            return _witnessed(session)

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""
        with self._transaction() as session:
            journal = the_journal(session)
            if counter > journal.halted_at:
                journal.halted_at = counter
                count_write(session)

    def require_whole(self) -> None:
        """See `RoundJournal.require_whole`."""
        with self._transaction() as session:
            require_whole(session)

    def __repr__(self) -> str:
        return f"Journal({self._database!r})"

    # Helpers ----------------------------------------------------------------------------------

    def _transaction(self) -> AbstractContextManager[Session]:
        return transaction(self._database)

    def _erase(self, condition: Any) -> None:
        with self._transaction() as session:
            done = session.execute(
                delete(VectorRow).where(condition(VectorRow)).returning(VectorRow.plan_digest)
            )
            erased = len(set(done.scalars()))
            if erased:
                count_write(session, times=erased)
        if erased:
            self._forget_erased()

    def _forget_erased(self) -> None:
        with as_journal():
            self._database.forget_erased()


def _witnessed(session: Session) -> dict[bytes, int]:
    rows = session.execute(select(WitnessRow.peer, WitnessRow.counter))
    return {row.peer: row.counter for row in rows}


def _note_unserved(session: Session, plan: PlanRow, run_id: bytes) -> None:
    """Count a plan that was never begun here against its run."""
    if plan.run_id is not None:
        return
    of_run = select(func.count()).select_from(PlanRow).where(PlanRow.run_id == run_id)
    unserved = session.scalar(of_run.where(PlanRow.epoch.is_(None))) or 0
    if unserved >= MOST_UNSERVED:
        raise KeyReuseError(f"a run must have at most {MOST_UNSERVED} unserved plans", "more")
    plan.run_id = run_id
