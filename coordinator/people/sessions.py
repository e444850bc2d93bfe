"""Sessions: the signed-in people, and the end of each session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete

from coordinator.database import Database
from coordinator.database.federation_schema import PersonRow, SessionRow
from coordinator.people.people import Role

IDLE: Final = timedelta(minutes=30)
"""A session ends after so long without a request."""

ABSOLUTE: Final = timedelta(hours=12)
"""A session ends so long after its sign-in."""

TOKEN_BYTES: Final = 32
_NOTED_EVERY: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Session:
    """A person who is signed in; without another request until `ends_at`."""

    person: str
    role: Role
    ends_at: datetime


class Sessions:
    """All sessions."""

    def __init__(
        self,
        database: Database,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._random_bytes = random_bytes
        self._clock = clock

    def open(self, person: str) -> str:
        """Open a session for somebody who has signed in; return its token, a secret."""
        now, token = self._clock(), self._random_bytes(TOKEN_BYTES).hex()
        with self._database.session() as session:
            session.execute(delete(SessionRow).where(SessionRow.made_at < now - ABSOLUTE))
            row = SessionRow(token_digest=_digest(token), person=person, made_at=now, seen_at=now)
            session.add(row)
        return token

    def find(self, token: str, *, is_request: bool = True) -> Session | None:
        """Return the session of a token; None if there is none, or it has ended.

        A page that updates itself is no request.
        """
        now = self._clock()
        with self._database.session() as session:
            row = session.get(SessionRow, _digest(token))
            if row is None:
                return None
            made_at, seen_at = row.made_at, row.seen_at
            if now >= min(seen_at + IDLE, made_at + ABSOLUTE):
                session.delete(row)
                return None
            if is_request and now - seen_at >= _NOTED_EVERY:
                row.seen_at = seen_at = now
            person = session.get_one(PersonRow, row.person)
            return Session(person.name, Role(person.role), min(seen_at + IDLE, made_at + ABSOLUTE))

    def close(self, token: str) -> None:
        """End a session."""
        with self._database.session() as session:
            session.execute(delete(SessionRow).where(SessionRow.token_digest == _digest(token)))


def _digest(token: str) -> bytes:
    return hashlib.sha256(b"pate-fed session\n" + token.encode(errors="replace")).digest()
