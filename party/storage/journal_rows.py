"""Rows of a journal that its plans and its queries share, and transactions on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Insert, update
from sqlalchemy.orm import Session

from party.errors import (
    JournalDamagedError,
    JournalStorageError,
    StorageDamagedError,
    StorageError,
)
from party.storage.engine import PartyDatabase
from party.storage.schema import JournalRow, PlanRow
from protocols import wire
from protocols.errors import RestoredJournalError
from protocols.rounds import PlanClaim, SetBound


@contextmanager
def transaction(database: PartyDatabase) -> Iterator[Session]:
    """Run the body as a whole, as `PartyDatabase.transaction` does.

    Raises:
        JournalDamagedError: the database does not fit itself.
        JournalStorageError: nothing was stored; or this process is not the node.
    """
    with as_journal():
        if not database.is_node:
            raise StorageError("a journal must be open to be used", "one that is not")
        with database.transaction() as session:
            yield session


@contextmanager
def as_journal() -> Iterator[None]:
    """Raise errors of the database as errors of the journal."""
    try:
        yield
    except StorageDamagedError as error:
        raise JournalDamagedError(error.must, error.got) from error
    except StorageError as error:
        raise JournalStorageError(error.must, error.got) from error


def the_journal(session: Session) -> JournalRow:
    """Return the row of the journal as a whole."""
    row = session.get(JournalRow, 1)
    if row is None:
        raise JournalDamagedError("a journal must have its counter", "none")
    return row


def require_whole(session: Session) -> None:
    """Refuse if the journal was halted: records may be missing."""
    journal = the_journal(session)
    if journal.halted_at:
        raise RestoredJournalError(shown=journal.halted_at, counter=journal.counter)


def count_write(session: Session, *, times: int = 1) -> None:
    """Count that the journal was written to."""
    session.execute(update(JournalRow).values(counter=JournalRow.counter + times))


def plan_row(session: Session, plan_digest: bytes) -> PlanRow:
    """Return a plan's row; a new one is stored only if the transaction is."""
    row = session.get(PlanRow, plan_digest)
    if row is None:
        row = PlanRow(plan_digest=plan_digest, is_answered=False, is_abandoned=False)
        session.add(row)
    return row


def write_many(session: Session, statement: Insert, rows: Iterable[dict[str, Any]]) -> None:
    """Write many rows past the object mapper: thousands of queries come at once."""
    listed = list(rows)
    if listed:
        session.connection().execute(statement, listed)


def record_of(claim: PlanClaim) -> bytes:
    """Return a claim as it is stored: canonical CBOR."""
    bound = claim.openable
    allowed = None if bound is None or bound.allowed is None else sorted(bound.allowed)
    openable = None if bound is None else [sorted(bound.needed), allowed]
    return wire.encode_value([openable, claim.is_free, claim.task, claim.teachers])


def claim_of(record: bytes) -> PlanClaim:
    """Read a claim that was stored."""
    openable, is_free, task, teachers = wire.decode_value(record)
    if openable is None:
        return PlanClaim(None, is_free, task, teachers)
    needed, allowed = openable
    bound = SetBound(frozenset(needed), None if allowed is None else frozenset(allowed))
    return PlanClaim(bound, is_free, task, teachers)
