"""People of the console: added by an administrator, set up by themselves, locked after failures.

Nobody gets a password from somebody else: a person is added with a setup code, good once, and with
it chooses a password and takes a key for one-time codes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session as OrmSession

from coordinator.database import Database, FederationAct
from coordinator.database.federation_schema import ApiTokenRow, PersonRow, SessionRow
from coordinator.errors import PersonError
from coordinator.people import one_time_codes, passwords
from pate_fed.nodes.audit_log import Fact
from protocols.party_names import NAME_RULE, is_party_name, normalized

SETUP_LIFETIME: Final = timedelta(days=1)
LOCKED_FOR: Final = timedelta(minutes=15)
MOST_FAILURES: Final = 5
MOST_SUBJECT_LETTERS: Final = 255
_SETUP_BYTES: Final = 15

Tell: TypeAlias = Callable[[FederationAct, str, Mapping[str, Fact], Mapping[str, Fact]], None]
"""Writes an audit entry: act, subject, facts before and after."""


class Role(StrEnum):
    """A person's role; `coordinator.console.access` says which page it opens."""

    ADMINISTRATOR = "administrator"
    OPERATOR = "operator"
    PRIVACY_OFFICER = "privacy officer"
    AUDITOR = "auditor"

    @property
    def words(self) -> str:
        """Its rights, in one sentence."""
        return _WORDS[self]


_WORDS: Final = {
    Role.ADMINISTRATOR: "May do everything, and decides who may use the console.",
    Role.OPERATOR: "Invites and suspends hospitals, runs the labeling, may propose a budget.",
    Role.PRIVACY_OFFICER: "Reads everything; may pause or stop a run, suspend a hospital, and "
    "agree to a higher budget.",
    Role.AUDITOR: "Reads everything, and changes nothing.",
}


@dataclass(frozen=True, slots=True)
class Person:
    """A person who may use the console.

    Attributes:
        is_set_up: Whether they have chosen a password and have one-time codes.
        is_locked: Whether nobody can sign in under their name now.
        subject: Issuer and subject of their account at an OpenID provider; empty without one.
    """

    name: str
    role: Role
    is_set_up: bool
    is_locked: bool
    made_at: datetime
    subject: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class SetupCode:
    """A code with which a person sets up their account, once. Secret."""

    person: str
    text: str
    until: datetime


class People:
    """All people of the console. Each refusal is a `PersonError`, and tells the broken rule."""

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

    def all(self) -> list[Person]:
        """Return everybody, by name."""
        with self._database.session() as session:
            rows = session.scalars(select(PersonRow).order_by(PersonRow.name)).all()
            return [self._person(row) for row in rows]

    # An administrator -------------------------------------------------------------------------

    def add(self, name: str, role: Role) -> SetupCode:
        """Add a person."""
        name = normalized(name.strip())
        if not is_party_name(name):
            raise PersonError(f"a person's name must be {NAME_RULE}", ascii(name))
        with self._database.as_one(), self._database.session() as session:
            known = {one.casefold() for one in session.scalars(select(PersonRow.name))}
            if name.casefold() in known:
                raise PersonError("a person must have a name of their own", f"{name} again")
            row = PersonRow(
                name=name, role=role.value, code_step=0, failures=0, made_at=self._clock()
            )
            row.changed_at = row.made_at
            session.add(row)
            code = self._new_setup_code(row)
            session.flush()
            self._tell(FederationAct.PERSON_ADDED, name, {}, {"role": role.value})
        return code

    def give_role(self, name: str, role: Role) -> None:
        """Give a person another role from their next request on; not to the last administrator."""
        with self._database.as_one(), self._database.session() as session:
            row = _row(session, name)
            before = {"role": row.role}
            self._require_administrator(session, row, without=role is not Role.ADMINISTRATOR)
            row.role, row.changed_at = role.value, self._clock()
            session.flush()
            self._tell(FederationAct.PERSON_CHANGED, row.name, before, {"role": role.value})

    def give_subject(self, name: str, subject: str, *, issuer: str) -> None:
        """Let a person sign in by their account at the OpenID provider; with no subject no more."""
        if not issuer or len(subject) > MOST_SUBJECT_LETTERS or not subject.isprintable():
            raise PersonError(
                "a subject must be a line of an OpenID provider that `federation.toml` names",
                "another text" if issuer else "no provider",
            )
        whole = f"{issuer} {subject}" if subject else None
        with self._database.as_one(), self._database.session() as session:
            row = _row(session, name)
            owner = session.scalar(select(PersonRow.name).where(PersonRow.subject == whole))
            if whole is not None and owner not in (None, row.name):
                raise PersonError("an account must be one person's", f"that of {owner}")
            before = {"subject": row.subject or ""}
            row.subject, row.changed_at = whole, self._clock()
            session.flush()
            self._tell(FederationAct.PERSON_CHANGED, row.name, before, {"subject": whole or ""})

    def reset(self, name: str) -> SetupCode:
        """Let a person choose a password and take codes anew; their sessions and tokens end."""
        with self._database.as_one(), self._database.session() as session:
            row = _row(session, name)
            row.password, row.code_key = None, None
            row.failures, row.locked_until, row.changed_at = 0, None, self._clock()
            code = self._new_setup_code(row)
            _end_access(session, row)
            session.flush()
            self._tell(FederationAct.PERSON_CHANGED, row.name, {}, {"access": "to be set up anew"})
        return code

    def remove(self, name: str) -> None:
        """Remove a person, never the last administrator; their audit entries stay."""
        with self._database.as_one(), self._database.session() as session:
            row = _row(session, name)
            self._require_administrator(session, row, without=True)
            _end_access(session, row)
            session.delete(row)
            session.flush()
            self._tell(FederationAct.PERSON_REMOVED, row.name, {"role": row.role}, {})

    # The person -------------------------------------------------------------------------------

    def choose_password(self, name: str, *, setup_code: str, password: str) -> bytes:
        """Take a new person's password, for a setup code that is good; return a secret.

        It is the key of their one-time codes: they set it up, and `finish_setup` proves it.
        """
        self.require_setup_code(name, setup_code)
        stored = passwords.hashed(password, name=name)
        key = self._random_bytes(one_time_codes.KEY_BYTES)
        with self._database.session() as session:
            row = _row(session, name)
            row.password, row.code_key, row.code_step = stored, key, 0
        return key

    def key_to_prove(self, name: str, *, setup_code: str) -> bytes:
        """Return the key of `choose_password` again, while no code has proven it."""
        self.require_setup_code(name, setup_code)
        with self._database.session() as session:
            key = _row(session, name).code_key
        if key is None:
            raise PersonError("a password must be chosen first")
        return key

    def finish_setup(self, name: str, *, setup_code: str, code: str) -> Person:
        """Take a new person's first one-time code, which signs them in."""
        self.require_setup_code(name, setup_code)
        with self._database.as_one(), self._database.session() as session:
            row = _row(session, name)
            step = self._step_of(row, code)
            if step is None:
                raise PersonError("the one-time code must be the one that your app shows now")
            row.code_step, row.setup_digest, row.setup_until = step, None, None
            row.changed_at = self._clock()
            row.failures, row.locked_until = 0, None
            session.flush()
            self._tell(FederationAct.SIGNED_IN, row.name, {}, {})
            return self._person(row)

    def sign_in(self, name: str, *, password: str, code: str) -> Person:
        """Return the person who proves to be of this name.

        Every fault gets the same answer. After `MOST_FAILURES` in a row nobody gets in for
        `LOCKED_FOR`, not with the right password either.
        """
        name = normalized(name.strip())
        with self._database.session() as session:
            known = session.get(PersonRow, name)
            stored = None if known is None or known.setup_digest is not None else known.password
        is_right = passwords.is_right(password, stored)
        with self._database.as_one(), self._database.session() as session:
            row = session.get(PersonRow, name, with_for_update=True)
            step = None if row is None else self._step_of(row, code)
            if row is not None and is_right and step is not None and not self._is_locked(row):
                row.code_step, row.failures, row.locked_until = step, 0, None
                session.flush()
                self._tell(FederationAct.SIGNED_IN, row.name, {}, {})
                return self._person(row)
            if row is not None:
                self._note_failure(session, row)
        raise PersonError(
            "name, password and one-time code must be right. After "
            f"{MOST_FAILURES} failures a name is locked for "
            f"{LOCKED_FOR.seconds // 60} minutes. A code is good once: wait for the next one",
        )

    def of_subject(self, subject: str, *, issuer: str) -> Person:
        """Return the person whose account at the OpenID provider an administrator said this is."""
        with self._database.session() as session:
            found = select(PersonRow).where(PersonRow.subject == f"{issuer} {subject}")
            row = session.scalars(found).first()
            if row is None:
                raise PersonError(
                    "an administrator must have given this account to a person of the console",
                    f"the subject {subject!r}, of nobody",
                )
            return self._person(row)

    def note_sign_in(self, person: Person, *, by: str) -> None:
        """Put on record that a person signed in by an OpenID provider."""
        self._tell(FederationAct.SIGNED_IN, person.name, {}, {"by": by})

    # Helpers ----------------------------------------------------------------------------------

    def _note_failure(self, session: OrmSession, row: PersonRow) -> None:
        if self._is_locked(row):
            return
        row.failures += 1
        if row.failures >= MOST_FAILURES:
            row.failures, row.locked_until = 0, self._clock() + LOCKED_FOR
            session.flush()
            self._tell(FederationAct.LOCKED_OUT, row.name, {}, {"failures": MOST_FAILURES})

    def _is_locked(self, row: PersonRow) -> bool:
        return row.locked_until is not None and row.locked_until > self._clock()

    def _step_of(self, row: PersonRow, code: str) -> int | None:
        if row.code_key is None:
            return None
        now = self._clock().timestamp()
        return one_time_codes.step_of(row.code_key, code, now=now, after=row.code_step)

    def _new_setup_code(self, row: PersonRow) -> SetupCode:
        drawn = self._random_bytes(_SETUP_BYTES).hex()
        text = "-".join(drawn[place : place + 5] for place in range(0, len(drawn), 5))
        until = self._clock() + SETUP_LIFETIME
        row.setup_digest, row.setup_until = _setup_digest(text), until
        return SetupCode(row.name, text, until)

    def require_setup_code(self, name: str, setup_code: str) -> None:
        """Refuse a name and a setup code that are not good together, now."""
        with self._database.session() as session:
            row = session.get(PersonRow, normalized(name.strip()))
            kept = b"" if row is None or row.setup_digest is None else row.setup_digest
            until = None if row is None else row.setup_until
        is_same = hmac.compare_digest(_setup_digest(setup_code), kept or bytes(32))
        if not kept or not is_same or until is None or until <= self._clock():
            raise PersonError(
                "name and setup code must be the given ones; a code is good once, and "
                f"for {SETUP_LIFETIME.days} day. Ask an administrator for another",
            )

    def _person(self, row: PersonRow) -> Person:
        has_password = row.password is not None and row.setup_digest is None
        return Person(
            row.name,
            Role(row.role),
            has_password or row.subject is not None,
            self._is_locked(row),
            row.made_at,
            row.subject or "",
        )

    @staticmethod
    def _require_administrator(session: OrmSession, row: PersonRow, *, without: bool) -> None:
        """Refuse to lose the last administrator."""
        if not without or row.role != Role.ADMINISTRATOR.value:
            return
        others = select(func.count()).where(
            PersonRow.role == Role.ADMINISTRATOR.value, PersonRow.name != row.name
        )
        if not session.scalar(others):
            raise PersonError("somebody must be an administrator", f"{row.name} is the last one")


def _row(session: OrmSession, name: str) -> PersonRow:
    row = session.get(PersonRow, normalized(name.strip()), with_for_update=True)
    if row is None:
        raise PersonError("there must be a person of this name", "nobody")
    return row


def _end_access(session: OrmSession, row: PersonRow) -> None:
    """End a person's sessions and tokens."""
    session.execute(delete(SessionRow).where(SessionRow.person == row.name))
    session.execute(delete(ApiTokenRow).where(ApiTokenRow.person == row.name))


def _setup_digest(text: str) -> bytes:
    typed = "".join(one for one in text.lower() if one.isalnum())
    return hashlib.sha256(b"pate-fed setup code\n" + typed.encode()).digest()
