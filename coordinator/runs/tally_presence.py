"""Whether the tally answers, as the coordinator's calls found it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from coordinator.database import Database
from coordinator.database.federation_schema import TallyPresenceRow


@dataclass(frozen=True, slots=True)
class TallyContact:
    """What the last calls found.

    Attributes:
        answered_at: When it answered last; None if it never did.
        away_since: The first call in a row that it did not answer; None while it answers.
    """

    answered_at: datetime | None = None
    away_since: datetime | None = None


class TallyPresence:
    """Whether a federation's tally answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def standing(self, tally: bytes) -> TallyContact:
        """Return what the last calls of a tally found, by its fingerprint."""
        with self._database.session() as session:
            row = session.scalars(
                select(TallyPresenceRow).where(TallyPresenceRow.fingerprint == tally)
            ).one_or_none()
            return TallyContact() if row is None else TallyContact(row.answered_at, row.away_since)

    def note(self, tally: bytes, *, answered: bool, now: datetime) -> None:
        """Note whether a tally answered a call."""
        with self._database.session() as session:
            row = session.get(TallyPresenceRow, tally)
            if row is None:
                row = TallyPresenceRow(fingerprint=tally)
                session.add(row)
            if answered:
                row.answered_at, row.away_since = now, None
            else:
                row.away_since = row.away_since or now
