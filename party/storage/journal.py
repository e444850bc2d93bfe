"""A party's journal in its database: what it was told before it acted is there after any crash.

A call is one transaction, which is on disk when the call returns (rule R4). Nothing is held in
memory: what a call sees is what was stored.

A y lies in the database, too, so that it and its record come and go together, and so that one lock
and one file hold all that must not be copied. What is erased is overwritten (`secure_delete`) and
the write-ahead log is emptied. What that cannot reach is what any erased file leaves: blocks that
the file system or the disk moved, and copies that somebody made of the file. A y looks uniform
without the keys of its run, which are in memory alone.
"""

from __future__ import annotations

import hashlib
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
from party.journal import Journal, SketchedQueries
from party.storage.engine import PartyDatabase
from party.storage.schema import (
    ClaimRow,
    FreedRow,
    JournalRow,
    PlanRow,
    RetryRow,
    SketchRow,
    VectorRow,
    WitnessRow,
)
from pate_fed.query_sketches import Sketches, from_bytes, to_bytes
from protocols import wire
from protocols.errors import KeyReuseError, RestoredJournalError
from protocols.rounds import RetrySet

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
                session.add(JournalRow(number=1, counter=0, halted_at=0))
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

    # Plans ------------------------------------------------------------------------------------

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        with self._transaction() as session:
            _require_whole(session)
            plan = _plan(session, plan_digest)
            last = session.scalar(select(func.max(PlanRow.epoch)).where(PlanRow.run_id == run_id))
            if plan.run_id is not None or plan.is_given_up or epoch <= (last or 0):
                raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")
            plan.run_id, plan.epoch = run_id, epoch
            _count(session)

    def abandon(self, plan_digest: bytes) -> None:
        """See `RoundJournal.abandon`."""
        with self._transaction() as session:
            _require_whole(session)
            plan = _plan(session, plan_digest)
            if plan.is_answered:
                raise KeyReuseError("a plan that is abandoned must have no y", "one that was kept")
            if not plan.is_given_up:
                _give_up(session, plan)
                _count(session)

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        with self._transaction() as session:
            plan = _plan(session, plan_digest)
            if plan.run_id is None or plan.is_answered or plan.is_given_up:
                raise KeyReuseError("a plan must be begun and answered once", "not so")
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

    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """See `RoundJournal.fix_survivors`."""
        with self._transaction() as session:
            plan = _plan(session, plan_digest)
            is_open = plan.run_id is not None and not plan.is_given_up
            if not is_open or plan.survivors not in (None, survivors_digest):
                raise KeyReuseError("a plan must be begun and have one survivor set", "another")
            if plan.survivors is None:
                plan.survivors = survivors_digest
                _count(session)

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        self._erase(lambda row: row.plan_digest == plan_digest)

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""
        self._erase(lambda row: row.expires_at <= now)

    # Queries ----------------------------------------------------------------------------------

    def claim(
        self,
        queries: Sequence[bytes],
        *,
        plan_digest: bytes,
        seats: Collection[bytes] | None = None,
    ) -> None:
        """See `QueryJournal.claim`."""
        with self._transaction() as session:
            plan = _plan(session, plan_digest)
            if plan.is_claiming or plan.is_given_up:
                raise KeyReuseError("a plan must ask its queries once", "one that did")
            if _any_answered(session, queries, seats=seats):
                raise KeyReuseError("no query may be answered twice", "one that was")
            plan.is_claiming = True
            session.flush()  # its queries name it
            _insert(session, insert(ClaimRow), _of_plan(plan_digest, queries))
            _count(session)

    def release(self, plan_digest: bytes, retry: RetrySet) -> None:
        """See `QueryJournal.release`."""
        with self._transaction() as session:
            _require_whole(session)
            plan = session.get(PlanRow, plan_digest)
            if plan is not None and plan.survivors is not None:
                raise KeyReuseError(
                    "queries must be free of shares to be asked again", "revealed ones"
                )
            if plan is None or not plan.is_claiming:
                return
            claims = select(ClaimRow.query).where(ClaimRow.plan_digest == plan_digest)
            queries = list(session.scalars(claims))
            _give_up(session, plan)
            session.add(
                RetryRow(
                    plan_digest=plan_digest,
                    needed=wire.encode_value(sorted(retry.needed)),
                    allowed=wire.encode_value(sorted(retry.allowed)),
                )
            )
            session.flush()
            _insert(session, insert(FreedRow), _of_plan(plan_digest, queries))
            _count(session)

    def any_answered(
        self, queries: Sequence[bytes], *, seats: Collection[bytes] | None = None
    ) -> bool:
        """See `QueryJournal.any_answered`."""
        with self._transaction() as session:
            return _any_answered(session, queries, seats=seats)

    def count(self) -> int:
        """See `QueryJournal.count`."""
        with self._transaction() as session:
            return session.scalar(select(func.count()).select_from(ClaimRow)) or 0

    def keep_sketches(self, batch: SketchedQueries) -> None:
        """See `QueryJournal.keep_sketches`."""
        items = zip(batch.queries, to_bytes(batch.sketches), batch.near.tolist(), strict=True)
        rows = [{"query": q, "sketch": data, "is_near": near} for q, data, near in items]
        with self._transaction() as session:
            claimed = {
                query
                for part in _parts(batch.queries)
                for query in session.scalars(select(ClaimRow.query).where(ClaimRow.query.in_(part)))
            }
            noted = upsert(SketchRow)
            # What was answered keeps what was noted of it.
            _insert(
                session,
                noted.on_conflict_do_update(
                    index_elements=["query"],
                    set_={"sketch": noted.excluded.sketch, "is_near": noted.excluded.is_near},
                ),
                (row for row in rows if row["query"] not in claimed),
            )
            _count(session)

    def sketches(self) -> Sketches:
        """See `QueryJournal.sketches`."""
        with self._transaction() as session:
            kept = (
                select(SketchRow.sketch)
                .join(ClaimRow, ClaimRow.query == SketchRow.query)
                .order_by(SketchRow.number)
            )
            return from_bytes(b"".join(session.scalars(kept)))

    def count_near(self) -> int:
        """See `QueryJournal.count_near`."""
        with self._transaction() as session:
            near = (
                select(func.count())
                .select_from(SketchRow)
                .join(ClaimRow, ClaimRow.query == SketchRow.query)
                .where(SketchRow.is_near)
            )
            return session.scalar(near) or 0

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
    """A database that fails is, to a node, a journal that fails."""
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
    """A journal that misses records cannot promise what it did not do."""
    journal = _journal(session)
    if journal.halted_at:
        raise RestoredJournalError(shown=journal.halted_at, counter=journal.counter)


def _plan(session: Session, plan_digest: bytes) -> PlanRow:
    """Return a plan's row; a new one is stored only if the transaction is."""
    row = session.get(PlanRow, plan_digest)
    if row is None:
        row = PlanRow(
            plan_digest=plan_digest, is_answered=False, is_given_up=False, is_claiming=False
        )
        session.add(row)
    return row


def _give_up(session: Session, plan: PlanRow) -> None:
    plan.is_given_up, plan.is_claiming = True, False
    session.execute(delete(ClaimRow).where(ClaimRow.plan_digest == plan.plan_digest))


def _any_answered(
    session: Session, queries: Sequence[bytes], *, seats: Collection[bytes] | None
) -> bool:
    if len(set(queries)) != len(queries):
        return True
    was_freed = session.scalar(select(FreedRow.query).limit(1)) is not None  # of all, seldom any
    return any(
        session.scalar(select(ClaimRow.query).where(ClaimRow.query.in_(part)).limit(1)) is not None
        or (
            was_freed
            and any(seats is None or not retry.allows(seats) for retry in _retries(session, part))
        )
        for part in _parts(queries)
    )


def _retries(session: Session, queries: Sequence[bytes]) -> list[RetrySet]:
    of_these = select(FreedRow.plan_digest).where(FreedRow.query.in_(queries))
    rows = session.scalars(select(RetryRow).where(RetryRow.plan_digest.in_(of_these)))
    return [
        RetrySet(
            frozenset(wire.decode_value(row.needed)), frozenset(wire.decode_value(row.allowed))
        )
        for row in rows
    ]


def _of_plan(plan_digest: bytes, queries: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    return ({"query": query, "plan_digest": plan_digest} for query in queries)


def _insert(session: Session, statement: Insert, rows: Iterable[dict[str, Any]]) -> None:
    """Write many rows past the object mapper: thousands of queries come at once."""
    listed = list(rows)
    if listed:
        session.connection().execute(statement, listed)


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
