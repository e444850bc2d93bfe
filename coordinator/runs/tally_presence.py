"""Whether the tally answers, as the coordinator's calls found it."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.orm import Session

from coordinator.database import Database
from coordinator.database.federation_schema import TallyPresenceRow
from coordinator.tally.heads import FIRST, Head, HeadMemory

_TURNS: Final = defaultdict[bytes, threading.Lock](threading.Lock)
"""Of each tally: one run at a time calls it."""


@dataclass(frozen=True, slots=True)
class TallyContact:
    """What the last calls found.

    Attributes:
        answered_at: When it answered last; None if it never did.
        away_since: The first call in a row that it did not answer; None while it answers.
        code: Of the last call's fault; "" while it answers.
    """

    answered_at: datetime | None = None
    away_since: datetime | None = None
    code: str = ""


class TallyPresence:
    """Whether a federation's tally answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def standing(self, tally: bytes) -> TallyContact:
        """Return what the last calls of a tally found, by its fingerprint."""
        with self._database.session() as session:
            row = session.get(TallyPresenceRow, tally)
            if row is None:
                return TallyContact()
            return TallyContact(row.answered_at, row.away_since, row.code)

    def note(self, tally: bytes, *, code: str, now: datetime) -> None:
        """Note the code of a call's fault; "" where the tally answered."""
        with self._database.session() as session:
            row = _row_of(session, tally)
            row.code = code
            if code:
                row.away_since = row.away_since or now
            else:
                row.answered_at, row.away_since = now, None

    def heads(self, tally: bytes) -> HeadMemory:
        """Return what is remembered of where a tally stands."""

        def read() -> Head:
            with self._database.session() as session:
                row = session.get(TallyPresenceRow, tally)
                return (row and Head.of_bytes(row.head)) or FIRST

        def keep(head: Head) -> None:
            with self._database.session() as session:
                row = _row_of(session, tally)
                known = Head.of_bytes(row.head) or FIRST
                if head.number > known.number:  # another process may have heard a newer one
                    row.head = head.to_bytes()

        return HeadMemory(read, keep, _TURNS[tally])


def _row_of(session: Session, tally: bytes) -> TallyPresenceRow:
    row = session.get(TallyPresenceRow, tally)
    if row is None:
        row = TallyPresenceRow(fingerprint=tally, code="", head=b"")
        session.add(row)
    return row
