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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Insert, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.orm import Session

from party.errors import (
    JournalDamagedError,
    JournalStorageError,
    StorageDamagedError,
    StorageError,
)
from party.storage.engine import PartyDatabase
from party.storage.query_journal import Journal, KnownSketches, SketchedQueries
from party.storage.schema import (
    ClaimRow,
    JournalRow,
    PartyRunRow,
    PlanRow,
    SketchRow,
    VectorRow,
    WitnessRow,
)
from pate_fed.query_sketches import from_bytes, to_bytes
from protocols import wire
from protocols.errors import KeyReuseError, RestoredJournalError
from protocols.rounds import PlanClaim, RunNote, SetBound
from protocols.rounds.journal import MOST_UNSERVED

_KEY_BYTES = _SKETCH_KEY_BYTES = 32

_CHUNK = 500
"""Values in one statement: databases bound their number."""


class SqlJournal(Journal):
    """Both journals of a party, in its database. One process at a time may have it open.

    Args:
        database: The site's; this process becomes its node until that is closed.

    Raises:
        JournalLockedError: another process (or object) is the node.
        JournalStorageError: it cannot be written.
    """

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database
        with _as_journal():
            database.become_node()
        with self._transaction() as session:
            if session.get(JournalRow, 1) is None:
                key = secrets.token_bytes(_SKETCH_KEY_BYTES)
                session.add(JournalRow(number=1, counter=0, halted_at=0, sketch_key=key))
        self._forget_erased()

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        with self._transaction() as session:
            return _journal(session).counter

    @property
    def halted_at(self) -> int:
        """The counter that this party signed and that the journal never reached; 0 if none."""
        with self._transaction() as session:
            return _journal(session).halted_at

    def require_room(self, size: int) -> None:
        """See `RoundJournal.require_room`.

        Raises:
            JournalStorageError: the disk is full, or may not be written.
        """
        with _as_journal():
            self._database.require_room(size)

    # Plans ------------------------------------------------------------------------------------

    def enter(self, run: RunNote) -> None:
        """See `RoundJournal.enter`."""
        with self._transaction() as session:
            _require_whole(session)
            if session.get(PartyRunRow, run.run_id) is None:
                keys = b"".join(run.keys)
                session.add(
                    PartyRunRow(
                        run_id=run.run_id, coordinator=run.coordinator, form=run.form, keys=keys
                    )
                )
                _count(session)

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
            _require_whole(session)
            plan = _plan(session, plan_digest)
            last = session.scalar(select(func.max(PlanRow.epoch)).where(PlanRow.run_id == run_id))
            is_known = plan.epoch is not None or plan.is_abandoned or plan.verdict is not None
            if is_known or epoch <= (last or 0):
                raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")
            plan.run_id, plan.epoch = run_id, epoch
            _count(session)

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.abandon`."""
        with self._transaction() as session:
            _require_whole(session)
            plan = _plan(session, plan_digest)
            if plan.is_answered:
                raise KeyReuseError("a plan that is abandoned must have no y", "one that was kept")
            if plan.is_abandoned:
                return
            _note_unserved(session, plan, run_id)
            plan.is_abandoned, plan.claim = True, None
            session.execute(delete(ClaimRow).where(ClaimRow.plan_digest == plan_digest))
            _count(session)

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        with self._transaction() as session:
            plan = _plan(session, plan_digest)
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
            _count(session)

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
            _require_whole(session)
            plan = _plan(session, plan_digest)
            if plan.verdict not in (None, verdict_digest):
                raise KeyReuseError("a party must give one verdict on a plan", "another")
            if plan.verdict is None:
                _note_unserved(session, plan, run_id)
                plan.verdict = verdict_digest
                _count(session)

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
            _require_whole(session)
            plan = session.get(PlanRow, plan_digest)
            if plan is None or plan.claim is None:
                return
            known = _claim_of(plan.claim)
            if not known.is_free and known != known.learning(claim):
                plan.claim = _claim_bytes(known.learning(claim))
                _count(session)

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        self._erase(lambda row: row.plan_digest == plan_digest)

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""
        self._erase(lambda row: row.expires_at <= now)

    # Queries ----------------------------------------------------------------------------------

    @property
    def sketch_key(self) -> bytes:
        """See `QueryJournal.sketch_key`."""
        with self._transaction() as session:
            return _journal(session).sketch_key

    def claims_of(self, queries: Collection[bytes], *, but: bytes = b"") -> list[PlanClaim]:
        """See `QueryJournal.claims_of`."""
        with self._transaction() as session:
            found = {
                record
                for part in _parts(list(queries))
                for record in session.scalars(
                    select(PlanRow.claim)
                    .join(ClaimRow, ClaimRow.plan_digest == PlanRow.plan_digest)
                    .where(ClaimRow.query.in_(part), ClaimRow.plan_digest != but)
                    .distinct()
                )
            }
        return [_claim_of(record) for record in found if record is not None]

    def claim(
        self,
        batch: SketchedQueries,
        *,
        plan_digest: bytes,
        claim: PlanClaim,
        after: bytes = b"",
    ) -> None:
        """See `QueryJournal.claim`."""
        self.require_whole()
        self.bound_on(batch.queries, after=after)
        items = zip(batch.queries, to_bytes(batch.sketches), batch.near.tolist(), strict=True)
        with self._transaction() as session:
            plan = _plan(session, plan_digest)
            if plan.claim is not None or plan.is_abandoned or plan.verdict is not None:
                raise KeyReuseError("a plan must ask its queries once", "one that did")
            plan.claim = _claim_bytes(claim)
            session.flush()  # its queries name it
            claimed = _claimed_among(session, batch.queries)
            noted = upsert(SketchRow)
            _insert(
                session,
                noted.on_conflict_do_update(
                    index_elements=["query"],
                    set_={"sketch": noted.excluded.sketch, "is_near": noted.excluded.is_near},
                ),
                (
                    {"query": query, "sketch": data, "is_near": near}
                    for query, data, near in items
                    if query not in claimed
                ),
            )
            _insert(
                session,
                insert(ClaimRow),
                ({"query": query, "plan_digest": plan_digest} for query in batch.queries),
            )
            _count(session)

    def count(self) -> int:
        """See `QueryJournal.count`."""
        with self._transaction() as session:
            return session.scalar(select(func.count(ClaimRow.query.distinct()))) or 0

    def count_new(self, queries: Sequence[bytes]) -> int:
        """See `QueryJournal.count_new`."""
        with self._transaction() as session:
            return len(set(queries) - _claimed_among(session, queries))

    def known_sketches(self) -> KnownSketches:
        """See `QueryJournal.known_sketches`."""
        claimed = select(ClaimRow.query)
        kept = select(SketchRow.query, SketchRow.sketch, SketchRow.is_near)
        with self._transaction() as session:
            rows = session.execute(
                kept.where(SketchRow.query.in_(claimed)).order_by(SketchRow.number)
            ).all()
        sketches = from_bytes(b"".join(row.sketch for row in rows))
        return KnownSketches(
            tuple(row.query for row in rows), sketches, sum(row.is_near for row in rows)
        )

    # Other journals ---------------------------------------------------------------------------

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""
        with self._transaction() as session:
            known = {row.peer: row for row in session.scalars(select(WitnessRow))}
            news = {
                peer: count
                for peer, count in counters.items()
                if count > (known[peer].counter if peer in known else 0)
            }
            for peer, count in news.items():
                session.merge(WitnessRow(peer=peer, counter=count))
            if news:
                _count(session)

    def witnessed(self, peer: bytes) -> int:
        """See `RoundJournal.witnessed`."""
        with self._transaction() as session:
            row = session.get(WitnessRow, peer)
            return 0 if row is None else row.counter

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""
        with self._transaction() as session:
            journal = _journal(session)
            if counter > journal.halted_at:
                journal.halted_at = counter
                _count(session)

    def require_whole(self) -> None:
        """See `RoundJournal.require_whole`."""
        with self._transaction() as session:
            _require_whole(session)

    def __repr__(self) -> str:
        return f"SqlJournal({self._database!r})"

    # Helpers ----------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with _as_journal():
            if not self._database.is_node:
                raise StorageError("a journal must be open to be used", "one that is not")
            with self._database.transaction() as session:
                yield session

    def _erase(self, condition: Any) -> None:
        with self._transaction() as session:
            done = session.execute(
                delete(VectorRow).where(condition(VectorRow)).returning(VectorRow.plan_digest)
            )
            erased = len(set(done.scalars()))
            _count(session, times=erased)
        if erased:
            self._forget_erased()

    def _forget_erased(self) -> None:
        with _as_journal():
            self._database.forget_erased()


@contextmanager
def _as_journal() -> Iterator[None]:
    """Raise errors of the database as errors of the journal."""
    try:
        yield
    except StorageDamagedError as error:
        raise JournalDamagedError(error.must, error.got) from error
    except StorageError as error:
        raise JournalStorageError(error.must, error.got) from error


def _journal(session: Session) -> JournalRow:
    row = session.get(JournalRow, 1)
    if row is None:
        raise JournalDamagedError("a journal must have its counter", "none")
    return row


def _count(session: Session, *, times: int = 1) -> None:
    session.execute(update(JournalRow).values(counter=JournalRow.counter + times))


def _require_whole(session: Session) -> None:
    """Refuse if the journal was halted: records may be missing."""
    journal = _journal(session)
    if journal.halted_at:
        raise RestoredJournalError(shown=journal.halted_at, counter=journal.counter)


def _plan(session: Session, plan_digest: bytes) -> PlanRow:
    """Return a plan's row; a new one is stored only if the transaction is."""
    row = session.get(PlanRow, plan_digest)
    if row is None:
        row = PlanRow(plan_digest=plan_digest, is_answered=False, is_abandoned=False)
        session.add(row)
    return row


def _note_unserved(session: Session, plan: PlanRow, run_id: bytes) -> None:
    """Count a plan that was never begun here against its run."""
    if plan.run_id is not None:
        return
    of_run = select(func.count()).select_from(PlanRow).where(PlanRow.run_id == run_id)
    unserved = session.scalar(of_run.where(PlanRow.epoch.is_(None))) or 0
    if unserved >= MOST_UNSERVED:
        raise KeyReuseError(f"a run must have at most {MOST_UNSERVED} unserved plans", "more")
    plan.run_id = run_id


def _claimed_among(session: Session, queries: Sequence[bytes]) -> set[bytes]:
    """Return those of some queries that were claimed."""
    return {
        query
        for part in _parts(queries)
        for query in session.scalars(select(ClaimRow.query).where(ClaimRow.query.in_(part)))
    }


def _claim_bytes(claim: PlanClaim) -> bytes:
    bound = claim.openable
    allowed = None if bound is None or bound.allowed is None else sorted(bound.allowed)
    openable = None if bound is None else [sorted(bound.needed), allowed]
    return wire.encode_value([openable, claim.is_free, claim.task, claim.teachers])


def _claim_of(record: bytes) -> PlanClaim:
    openable, is_free, task, teachers = wire.decode_value(record)
    if openable is None:
        return PlanClaim(None, is_free, task, teachers)
    needed, allowed = openable
    bound = SetBound(frozenset(needed), None if allowed is None else frozenset(allowed))
    return PlanClaim(bound, is_free, task, teachers)


def _insert(session: Session, statement: Insert, rows: Iterable[dict[str, Any]]) -> None:
    """Write many rows past the object mapper: thousands of queries come at once."""
    listed = list(rows)
    if listed:
        session.connection().execute(statement, listed)


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
