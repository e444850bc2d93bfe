"""Rows of a journal that its plans and its queries share, and transactions on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, CursorResult, Insert, Row, bindparam, outerjoin, select, update

from party.errors import JournalDamagedError, JournalStorageError, StorageDamagedError, StorageError
from party.storage.party_database import PartyDatabase
from party.storage.site_schema import JournalRow, PlanRow
from pate_fed.nodes.database import put
from protocols.errors import RestoredJournalError
from protocols.rounds import PlanClaim, SetBound
from protocols.values import decode_value, encode_value

_THE_JOURNAL = select(JournalRow.counter, JournalRow.halted_at)
_PLAN = select(JournalRow.counter, JournalRow.halted_at, *PlanRow.__table__.columns).select_from(
    outerjoin(JournalRow, PlanRow, PlanRow.plan_digest == bindparam("plan"))
)
_COUNT = update(JournalRow).values(counter=JournalRow.counter + bindparam("times"))


@contextmanager
def transaction(database: PartyDatabase) -> Iterator[Connection]:
    """Run the body at the node as a whole, as `PartyDatabase.transaction` does."""
    with as_journal():
        if not database.is_node:
            raise StorageError("a journal must be open to be used")
        with database.transaction() as connection:
            yield connection


@contextmanager
def as_journal() -> Iterator[None]:
    """Raise errors of the database as errors of the journal."""
    try:
        yield
    except StorageDamagedError as error:
        raise JournalDamagedError(error.must, error.got) from error
    except StorageError as error:
        raise JournalStorageError(error.must, error.got) from error


def the_journal(connection: Connection) -> Row[Any]:
    """Return the row of the journal as a whole."""
    return _found(connection.execute(_THE_JOURNAL))


def plan_in(connection: Connection, plan_digest: bytes) -> Row[Any]:
    """Return a plan's row, beside `halted_at` and `counter`; its columns are None if it is new."""
    return _found(connection.execute(_PLAN, {"plan": plan_digest}))


def require_whole(journal: Row[Any]) -> None:
    """Refuse if the journal was halted: records may be missing."""
    if journal.halted_at:
        raise RestoredJournalError(shown=journal.halted_at, counter=journal.counter)


def count_write(connection: Connection, *, times: int = 1) -> None:
    """Count that the journal was written to."""
    connection.execute(_COUNT, {"times": times})


def note_plan(connection: Connection, plan_digest: bytes, **columns: object) -> None:
    """Change these columns of a plan, new or known, and count it."""
    put(connection, PlanRow, {"plan_digest": plan_digest, **columns})
    count_write(connection)


def write_many(connection: Connection, statement: Insert, rows: Iterable[dict[str, Any]]) -> None:
    """Write many rows: thousands of queries come at once."""
    listed = list(rows)
    if listed:
        connection.execute(statement, listed)


def _found(result: CursorResult[Any]) -> Row[Any]:
    row = result.one_or_none()
    if row is None:
        raise JournalDamagedError("a journal must have its counter")
    return row


def record_of(claim: PlanClaim) -> bytes:
    """Return a claim as it is stored: canonical CBOR."""
    bound = claim.openable
    allowed = None if bound is None or bound.allowed is None else sorted(bound.allowed)
    openable = None if bound is None else [sorted(bound.needed), allowed]
    return encode_value([openable, claim.is_free, claim.task, claim.teachers])


def claim_of(record: bytes) -> PlanClaim:
    """Read a claim that was stored."""
    openable, is_free, task, teachers = decode_value(record)
    if openable is None:
        return PlanClaim(None, is_free, task, teachers)
    needed, allowed = openable
    bound = SetBound(frozenset(needed), None if allowed is None else frozenset(allowed))
    return PlanClaim(bound, is_free, task, teachers)
