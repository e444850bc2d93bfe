"""The operator's audit log: an entry for each act, each bound to all before it.

An entry holds names, states and digests: never a vote, a token or a key. It is stored in the same
transaction as its act.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias, cast

from sqlalchemy import (
    ColumnElement,
    Integer,
    LargeBinary,
    Table,
    func,
    literal,
    select,
    type_coerce,
)

from coordinator.database.engine import Database
from coordinator.database.schema import AuditRow
from coordinator.errors import BrokenAuditLogError
from pate_fed.nodes.hash_chain import HashChain
from protocols import wire
from protocols.errors import MalformedMessageError, ProtocolError

Fact: TypeAlias = str | int


class Act(StrEnum):
    """The kind of an act."""

    INVITED = "hospital invited"
    APPROVED = "hospital approved"
    REVOKED = "hospital revoked"
    SUSPENDED = "hospital suspended"
    REINSTATED = "hospital reinstated"
    BUDGET_SET = "budget set"
    BUDGET_PROPOSED = "budget proposed"
    BUDGET_AGREED = "budget agreed"
    BUDGET_WITHDRAWN = "budget withdrawn"
    ASKED = "run asked"
    PAUSED = "run paused"
    RESUMED = "run resumed"
    STOPPED = "run stopped"
    EXPORTED = "results exported"
    STUDENT_GIVEN = "student given"
    PERSON_ADDED = "person added"
    PERSON_CHANGED = "person changed"
    PERSON_REMOVED = "person removed"
    SIGNED_IN = "person signed in"
    LOCKED_OUT = "person locked out"


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, and the place of their act.

    Attributes:
        name: Their name or login.
        origin: The place: "command line", or another door.
    """

    name: str
    origin: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry.

    Attributes:
        number: From 1.
        at: When, Unix time in milliseconds.
        act: Its kind.
        actor: Who, and from where.
        subject: Name of the hospital or run.
        before: Facts of the subject before the act.
        after: Facts after it.
    """

    number: int
    at: int
    act: Act
    actor: Actor
    subject: str
    before: Mapping[str, Fact] = field(default_factory=dict)
    after: Mapping[str, Fact] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return its canonical CBOR."""
        who = [self.actor.name, self.actor.origin]
        facts = [dict(self.before), dict(self.after)]
        return wire.encode_value([self.number, self.at, self.act.value, *who, self.subject, *facts])

    def table(self, link: bytes) -> dict[str, Any]:
        """Return it as a table of JSON, with its bytes and its link."""
        moment = datetime.fromtimestamp(self.at / 1000, UTC)
        return {
            "number": self.number,
            "at": moment.isoformat(timespec="milliseconds"),
            "act": self.act.value,
            "by": self.actor.name,
            "from": self.actor.origin,
            "subject": self.subject,
            "before": dict(self.before),
            "after": dict(self.after),
            "body": self.to_bytes().hex(),
            "link": link.hex(),
        }

    @classmethod
    def from_bytes(cls, body: bytes) -> AuditEntry:
        """Read the bytes of `to_bytes`.

        Raises:
            MalformedMessageError: it is no entry.
        """
        match wire.decode_value(body):
            case [
                int(number),
                int(at),
                str(act),
                str(name),
                str(origin),
                str(subject),
                dict(before),
                dict(after),
            ] if act in {each.value for each in Act} and _is_plain(before) and _is_plain(after):
                return cls(number, at, Act(act), Actor(name, origin), subject, before, after)
        raise MalformedMessageError("an audit entry must be of a known kind", "another")


_CHAIN = HashChain(
    cast(Table, AuditRow.__table__),
    domain=b"pate-fed/1/operator audit log\0",
    read=AuditEntry.from_bytes,
    unreadable=ProtocolError,
    fault=BrokenAuditLogError,
)


class AuditLog:
    """The operator's audit log. Entries are added, and nothing else.

    Args:
        database: The coordinator's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self,
        act: Act,
        subject: str,
        *,
        actor: Actor,
        at: float,
        before: Mapping[str, Fact],
        after: Mapping[str, Fact],
    ) -> AuditEntry:
        """Add an entry, as a part of the open transaction if there is one.

        Raises:
            DatabaseError: it could not be stored.
        """
        with self._database.transaction() as connection:
            return _CHAIN.append(
                connection,
                lambda number: AuditEntry(
                    number, round(at * 1000), act, actor, subject, dict(before), dict(after)
                ),
            )

    @property
    def end(self) -> tuple[int, bytes]:
        """Number of entries, and link of the last of them: the head."""
        with self._database.transaction() as connection:
            return _CHAIN.end(connection)

    def goes_on_from(self, count: int, head: bytes) -> bool:
        """Tell whether the log goes on from the entries of a head, by its links."""
        with self._database.transaction() as connection:
            return _CHAIN.goes_on_from(connection, count, head)

    def tables(self, *, first: int = 1) -> Iterator[dict[str, Any]]:
        """Return the entries from one on as tables of JSON; raises as `entries` does."""
        return (entry.table(link) for entry, link in self.entries(first=first))

    def entries(self, *, first: int = 1) -> Iterator[tuple[AuditEntry, bytes]]:
        """Return the entries from one on with their links, as they stand; `verify` checks them.

        Raises:
            BrokenAuditLogError: one cannot be read.
        """
        return _CHAIN.records(self._database, first=first)

    @property
    def acts(self) -> tuple[Act, ...]:
        """All kinds of acts."""
        return tuple(Act)

    def search(
        self, *, words: Sequence[str] = (), before: int | None = None, most: int = 50
    ) -> list[AuditEntry]:
        """Return the newest entries that hold all of some words, newest first.

        Words are found as they are written, capitals included, in acts, people, subjects and facts.

        Args:
            words: Parts of texts; none for all entries.
            before: Only entries before this number; None for all.
            most: Most entries.

        Raises:
            BrokenAuditLogError: one cannot be read.
        """
        body = AuditRow.body
        found = select(AuditRow.number, body).order_by(AuditRow.number.desc()).limit(most)
        if before is not None:
            found = found.where(AuditRow.number < before)
        with self._database.transaction() as connection:
            # A canonical text stands in the bytes as it is, in UTF-8.
            at = func.instr if connection.dialect.name == "sqlite" else _position
            for word in words:
                found = found.where(at(body, word.encode()) > 0)
            rows = connection.execute(found).all()
        return [_read(row.number, row.body) for row in rows]

    def verify(self, *, heads: Iterable[tuple[int, bytes]] = ()) -> int:
        """Check every entry, and that the log goes on from every head that was kept elsewhere.

        Without such a head it cannot reveal a cut end, a log written anew, or a restored backup.

        Returns:
            The number of entries.

        Raises:
            BrokenAuditLogError: an entry is wrong or missing; `number` says which is the first.
        """
        return _CHAIN.verify(self._database, heads=heads)

    def __repr__(self) -> str:
        return f"AuditLog({self._database!r})"


def _position(body: Any, word: bytes) -> ColumnElement[int]:
    """Return the place of some bytes in others, in PostgreSQL; 0 if they are not in there."""
    part = literal(word, LargeBinary)
    return type_coerce(func.position(part.op("IN")(body)), Integer)


def _read(number: int, body: bytes) -> AuditEntry:
    try:
        return AuditEntry.from_bytes(body)
    except ProtocolError as error:
        raise BrokenAuditLogError("it must be readable", "another", number=number) from error


def _is_plain(facts: Mapping[Any, Any]) -> bool:
    return all(type(name) is str and type(value) in (str, int) for name, value in facts.items())
