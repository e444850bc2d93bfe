"""Tokens of the API: each acts for one person, within its scopes and that person's role."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy import delete, select

from coordinator.database import Database, FederationAct
from coordinator.database.federation_schema import ApiTokenRow, PersonRow
from coordinator.errors import PersonError
from coordinator.people.people import Role, Tell
from protocols.party_names import NAME_RULE, is_party_name, normalized

MOST_DAYS: Final = 366
USUAL_DAYS: Final = 90
PREFIX: Final = "pate_fed_"
"""Of every token: scanners of leaked secrets find it."""

_BYTES: Final = 32


class Scope(StrEnum):
    """A right that a token may carry."""

    READ_RUNS = "runs:read"
    READ_HOSPITALS = "hospitals:read"
    READ_PRIVACY = "privacy:read"
    READ_RESULTS = "results:read"
    READ_AUDIT = "audit:read"
    READ_HEALTH = "health:read"
    START_RUNS = "runs:start"
    STOP_RUNS = "runs:stop"


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token, without its secret.

    Attributes:
        person: Acts under it are theirs.
        role: Theirs now.
        used: How many requests came with it, refused ones among them.
    """

    name: str
    person: str
    role: Role
    scopes: frozenset[Scope]
    ends_at: datetime
    used: int
    used_at: datetime | None


class ApiTokens:
    """All tokens of the API. Each refusal is a `PersonError`."""

    def __init__(
        self,
        database: Database,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], datetime],
        tell: Tell,
    ) -> None:
        self._database = database
        self._random_bytes = random_bytes
        self._clock = clock
        self._tell = tell

    def all(self) -> list[ApiToken]:
        """Return every token that was not revoked, by name; ended ones as well."""
        found = select(ApiTokenRow, PersonRow.role).join(PersonRow).order_by(ApiTokenRow.name)
        with self._database.session() as session:
            return [_token(row, role) for row, role in session.execute(found)]

    def make(
        self, name: str, *, person: str, scopes: Collection[Scope], days: float = USUAL_DAYS
    ) -> str:
        """Make a token for a person; return its text, a secret that nobody can read again."""
        name, person = normalized(name.strip()), normalized(person.strip())
        if not is_party_name(name):
            raise PersonError(f"a token's name must be {NAME_RULE}", ascii(name))
        if not scopes:
            raise PersonError("a token must have a scope", "none")
        if not 0 < days <= MOST_DAYS:
            raise PersonError(f"a token's days must be above 0, and {MOST_DAYS} at most", days)
        text, now = PREFIX + self._random_bytes(_BYTES).hex(), self._clock()
        with self._database.as_one(), self._database.session() as session:
            if session.get(PersonRow, person) is None:
                raise PersonError("there must be a person of this name", "nobody")
            if session.scalar(select(ApiTokenRow).where(ApiTokenRow.name == name)) is not None:
                raise PersonError("a token must have a name of its own", f"{name} again")
            row = ApiTokenRow(
                digest=_digest(text),
                name=name,
                person=person,
                scopes=" ".join(sorted(set(scopes))),
                ends_at=now + timedelta(days=days),
                used=0,
            )
            session.add(row)
            session.flush()
            facts = {"for": person, "scopes": row.scopes, "until": f"{row.ends_at:%Y-%m-%d}"}
            self._tell(FederationAct.API_OPENED, name, {}, facts)
        return text

    def revoke(self, name: str) -> None:
        """Let a token end now."""
        name = normalized(name.strip())
        with self._database.as_one(), self._database.session() as session:
            row = session.scalar(select(ApiTokenRow).where(ApiTokenRow.name == name))
            if row is None:
                raise PersonError("there must be a token of this name", "none")
            before = {"for": row.person, "scopes": row.scopes}
            session.execute(delete(ApiTokenRow).where(ApiTokenRow.name == name))
            self._tell(FederationAct.API_CLOSED, name, before, {})

    def find(self, text: str) -> ApiToken | None:
        """Return the token of a text, and count this use; None if there is none, or it ended."""
        now = self._clock()
        with self._database.session() as session:
            row = session.get(ApiTokenRow, _digest(text), with_for_update=True)
            if row is None or now >= row.ends_at:
                return None
            row.used, row.used_at = row.used + 1, now
            return _token(row, session.get_one(PersonRow, row.person).role)


def _token(row: ApiTokenRow, role: str) -> ApiToken:
    scopes = frozenset(map(Scope, row.scopes.split()))
    return ApiToken(row.name, row.person, Role(role), scopes, row.ends_at, row.used, row.used_at)


def _digest(text: str) -> bytes:
    return hashlib.sha256(b"pate-fed api token\n" + text.encode(errors="replace")).digest()
