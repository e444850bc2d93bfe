"""Every message that left the site: when, to whom, what kind, how many bytes, and its digest.

The content is not kept. A message that left again is counted in its row. A coordinator that asks
without end fills no disk: beyond `MOST_A_DAY` messages of a kind the rest of the day is one row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.dialects.sqlite import insert

from party.storage.party_database import PartyDatabase
from party.storage.site_schema import SentRow
from protocols import wire
from protocols.membership_messages import PoolQuery, ResultsQuery

MOST_A_DAY: Final = 500
"""Rows of one day, kind and coordinator before the rest is counted in one."""

_DAY_S: Final = 86_400

_NEW = insert(SentRow)
_PUT = _NEW.on_conflict_do_update(
    index_elements=["name"],
    set_={
        "times": SentRow.times + 1,
        "size": SentRow.size + _NEW.excluded.size,
        "digest": _NEW.excluded.digest,
        "last_at": _NEW.excluded.last_at,
    },
)
_IS_KNOWN = select(SentRow.number).where(SentRow.name == bindparam("name"))
_OF_DAY = (
    select(func.count())
    .select_from(SentRow)
    .where(
        SentRow.coordinator == bindparam("to"),
        SentRow.kind == bindparam("kind"),
        SentRow.first_at >= bindparam("midnight"),
    )
)
_NEWEST = select(SentRow).order_by(SentRow.number.desc())
_TOTAL = select(func.count(), func.sum(SentRow.times), func.sum(SentRow.size))


class SentLog:
    """What left a site, in its database."""

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    def note_answer(self, frames: Sequence[bytes], *, to: bytes, run: bytes, at: float) -> None:
        """Note the frames of an answer to a coordinator, before it leaves."""
        with self._database.transaction() as connection:
            for frame in frames:
                digest = hashlib.sha256(frame).digest()
                kind = type(wire.decode(frame).message).__name__
                name = digest.hex()
                if _is_full(connection, name, to=to, kind=kind, at=at):
                    name = f"more {kind} {to.hex()[:32]} {_day(at)}"
                row = _row(name, frame, digest, to=to, kind=kind, run=run, at=at)
                connection.execute(_PUT, row)

    def note_request(self, frame: bytes, *, to: bytes, at: float) -> None:
        """Note a request outside of runs; those of one day about one thing are one row."""
        message: Any = wire.decode(frame).message
        kind, thing, run = type(message).__name__, "", b""
        match message:
            case PoolQuery():
                thing = message.pool.hex()
            case ResultsQuery():
                thing, run = message.run.hex(), message.run
        name = f"{kind} {to.hex()[:32]} {_day(at)} {thing}"
        digest = hashlib.sha256(frame).digest()
        with self._database.transaction() as connection:
            row = _row(name, frame, digest, to=to, kind=kind, run=run, at=at)
            connection.execute(_PUT, row)

    def newest(self, most: int, *, skip: int = 0) -> tuple[SentRow, ...]:
        """Return the newest messages, newest first, but for the first `skip`."""
        with self._database.transaction() as connection:
            rows = connection.execute(_NEWEST.limit(most).offset(skip)).all()
        return tuple(SentRow(**row._mapping) for row in rows)

    def total(self) -> tuple[int, int, int]:
        """Return the number of rows, of messages with all repetitions, and of their bytes."""
        with self._database.transaction() as connection:
            rows, times, size = connection.execute(_TOTAL).one()
        return rows, times or 0, size or 0


def _is_full(connection: Connection, name: str, *, to: bytes, kind: str, at: float) -> bool:
    """Tell whether a new message of this kind goes to the row of the day's rest."""
    if connection.scalar(_IS_KNOWN, {"name": name}) is not None:
        return False
    midnight = at - at % _DAY_S
    of_day = {"to": to, "kind": kind, "midnight": midnight}
    return connection.scalars(_OF_DAY, of_day).one() >= MOST_A_DAY


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _row(
    name: str, frame: bytes, digest: bytes, *, to: bytes, kind: str, run: bytes, at: float
) -> dict[str, object]:
    return {
        "name": name,
        "coordinator": to,
        "kind": kind,
        "run_id": run,
        "times": 1,
        "size": len(frame),
        "digest": digest,
        "first_at": at,
        "last_at": at,
    }
