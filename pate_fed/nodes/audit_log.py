"""A node's audit log: an entry for each act, each bound to all before it.

An entry's link is SHA-256 of the link before it and the entry; the last link, the head, commits to
every entry and to their order. A writer of the database can also write a log anew, or cut its end.
Only a head that is kept elsewhere reveals that; `verify` compares.

An entry holds names, states, prices and digests: never a vote, a cell, a token or a key. It is
stored in the same transaction as its act.

Loaded by itself: `pate_fed.nodes` does not load SQLAlchemy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast

from sqlalchemy import Connection, Insert, LargeBinary, Select, Table, bindparam, insert, select
from sqlalchemy import cast as as_type
from sqlalchemy.orm import DeclarativeBase

from pate_fed.nodes.database import NodeDatabase
from protocols.errors import MalformedMessageError, ProtocolError
from protocols.values import decode_value, encode_value

Fact: TypeAlias = str | int | bytes
"""A price is written as text, so that reading gives the same text."""

Facts: TypeAlias = Mapping[str, Fact | Mapping[str, Fact]]
"""Facts of an act. Of `by`, `from`, `subject`, `before` and `after` people are told first."""

SEARCHED_AT_ONCE: Final = 2_500
"""Entries that one search looks at."""

_TOLD_FIRST: Final = ("by", "from", "subject", "before", "after")
_READ_AT_ONCE: Final = 1_000


class LogFault(Protocol):
    """Makes the error of a broken log."""

    def __call__(self, must: str, got: str = "", *, number: int) -> Exception:
        """Return it; `number` is the first entry that is wrong or missing."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry.

    Attributes:
        at: When, Unix time in milliseconds.
    """

    number: int
    at: int
    act: StrEnum
    facts: Facts = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return its canonical CBOR."""
        return encode_value([self.number, self.at, self.act.value, _plain(self.facts)])

    def table(self, link: bytes) -> dict[str, Any]:
        """Return it as a table of JSON, with its bytes and its link.

        What a node did by itself has an empty `by`.
        """
        known = {name: _shown(value) for name, value in self.facts.items()}
        return {
            "number": self.number,
            "at": datetime.fromtimestamp(self.at / 1000, UTC).isoformat(timespec="milliseconds"),
            "act": self.act.value,
            **{name: known.pop(name, "") for name in _TOLD_FIRST},
            "facts": known,
            "body": self.to_bytes().hex(),
            "link": link.hex(),
        }

    @classmethod
    def from_bytes(cls, body: bytes, acts: type[StrEnum]) -> AuditEntry:
        """Read the bytes of `to_bytes`; anything else is a MalformedMessageError."""
        match decode_value(body):
            case [int(number), int(at), str(act), dict(facts)] if is_plain(facts):
                if act in {each.value for each in acts}:
                    return cls(number, at, acts(act), facts)
        raise MalformedMessageError("an audit entry must be of a known kind")


class AuditLog:
    """A node's audit log, in its database. Entries are added, and nothing else."""

    rows: ClassVar[type[DeclarativeBase]]
    """The table of `AuditColumns`."""

    domain: ClassVar[bytes]
    """Separates its links from all other hashes."""

    acts: ClassVar[type[StrEnum]]
    fault: ClassVar[LogFault]

    _new: ClassVar[Insert]
    _newest: ClassVar[Select[Any]]
    _link_of: ClassVar[Select[Any]]
    _part: ClassVar[Select[Any]]

    def __init_subclass__(cls) -> None:
        """Make the statements of a node's table."""
        table = cast(Table, cls.rows.__table__)
        number, body, link = table.c.number, table.c.body, table.c.link
        cls._new = insert(table)
        cls._newest = select(number, link).order_by(number.desc()).limit(1)
        cls._link_of = select(link).where(number == bindparam("number"))
        cls._part = (
            # As bytes, for any stored type: a difference is then named.
            select(
                number,
                as_type(body, LargeBinary).label("body"),
                as_type(link, LargeBinary).label("link"),
            )
            .where(number >= bindparam("first"))
            .order_by(number)
            .limit(_READ_AT_ONCE)
        )

    def __init__(self, database: NodeDatabase) -> None:
        self._database = database

    def append(
        self, act: StrEnum, facts: Facts, *, at: float, connection: Connection | None = None
    ) -> AuditEntry:
        """Add an entry; it is on disk when this returns.

        Args:
            connection: A transaction of the same database that the entry is a part of: it is on
                disk together with its subject.

        Raises:
            Exception: the database's fault: it could not be stored.
        """
        assert is_plain(facts)
        own = self._database.transaction() if connection is None else nullcontext(connection)
        with own as opened:
            count, head = self._end(opened)
            entry = AuditEntry(count + 1, round(at * 1000), act, dict(facts))
            body = entry.to_bytes()
            row = {"number": entry.number, "body": body, "link": self.link(head, body)}
            opened.execute(self._new, row)
        return entry

    @property
    def end(self) -> tuple[int, bytes]:
        """Number of entries, and link of the last of them: the head."""
        with self._database.transaction() as connection:
            return self._end(connection)

    def goes_on_from(self, count: int, head: bytes) -> bool:
        """Tell whether the log goes on from the entries of a head, by its links."""
        if count == 0:
            return head == self._first_link()
        with self._database.transaction() as connection:
            return bool(connection.scalar(self._link_of, {"number": count}) == head)

    def entries(self, *, first: int = 1) -> Iterator[AuditEntry]:
        """Return the entries from one on, as they stand; raise the `fault` of an unreadable one."""
        return (self._read(number, body) for number, body, _ in self._rows(first=first))

    def tables(self, *, first: int = 1) -> Iterator[dict[str, Any]]:
        """Return the entries from one on as tables of JSON; raises as `entries` does."""
        return (self._read(number, body).table(link) for number, body, link in self._rows(first))

    def newest(
        self, *, words: Sequence[str] = (), before: int | None = None, most: int = 50
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return the newest entries that hold all of some words, as tables, newest first.

        Args:
            words: Parts of texts, in any letters; none for all entries.

        Returns:
            Those of the newest `SEARCHED_AT_ONCE`; and the number before which older ones were not
            looked at, None if there are none.

        Raises:
            Exception: the `fault`: one cannot be read.
        """
        last = self.end[0] if before is None else max(0, min(before - 1, self.end[0]))
        first = max(1, last + 1 - (SEARCHED_AT_ONCE if words else most))
        wanted = [word.casefold() for word in words]
        looked_at = list(islice(self.tables(first=first), last + 1 - first))
        found = [one for one in reversed(looked_at) if _holds(one, wanted)]
        rest = found[most - 1]["number"] if len(found) > most else first
        return found[:most], rest if rest > 1 else None

    def verify(self, *, heads: Iterable[tuple[int, bytes]] = ()) -> int:
        """Check every entry, and that the log goes on from every head that is known.

        Args:
            heads: Numbers of entries and links of the last of them, kept elsewhere. Without one,
                a cut end, a log written anew, or a restored backup does not show.

        Raises:
            Exception: the `fault`: an entry is wrong or missing; `number` says which is the first.
        """
        wanted: dict[int, set[bytes]] = {}
        for known, head in heads:
            wanted.setdefault(known, set()).add(head)
        link, count = self._first_link(), 0
        self._require_head(wanted, count, link)
        for number, body, stored in self._rows():
            count += 1
            if number != count:
                raise self.fault("it must be there", "none", number=count)
            link = self.link(link, body)
            if stored != link:
                raise self.fault("it must be as it was written", "another", number=count)
            if self._read(count, body).number != count:
                raise self.fault("it must stand at its place", "another", number=count)
            self._require_head(wanted, count, link)
        if any(known > count for known in wanted):
            raise self.fault(
                f"there must be {max(wanted)}, as a head says", "none", number=count + 1
            )
        return count

    @classmethod
    def link(cls, before: bytes, body: bytes) -> bytes:
        """Return the link of an entry, given the link before it and its bytes."""
        return hashlib.sha256(cls.domain + b"record\0" + before + body).digest()

    def _end(self, connection: Connection) -> tuple[int, bytes]:
        row = connection.execute(self._newest).one_or_none()
        return (0, self._first_link()) if row is None else (row.number, row.link)

    def _rows(self, first: int = 1) -> Iterator[tuple[int, bytes, bytes]]:
        """Read in parts, so that the node need not wait until all is read."""
        while True:
            with self._database.transaction() as connection:
                part = connection.execute(self._part, {"first": first}).all()
            if not part:
                return
            yield from ((row.number, row.body, row.link) for row in part)
            first = part[-1].number + 1

    def _read(self, number: int, body: bytes) -> AuditEntry:
        try:
            return AuditEntry.from_bytes(body, self.acts)
        except ProtocolError as error:
            raise self.fault("it must be readable", "another", number=number) from error

    def _require_head(self, wanted: Mapping[int, set[bytes]], count: int, link: bytes) -> None:
        """A head that differs says that something up to here was written anew; not where."""
        if wanted.get(count, {link}) != {link}:
            raise self.fault(
                "it and those before it must be what a head vouches for", "others", number=count
            )

    def _first_link(self) -> bytes:
        return hashlib.sha256(self.domain + b"first").digest()


def is_plain(facts: Mapping[Any, Any]) -> bool:
    """Tell whether an entry may hold this."""
    return all(
        type(name) is str
        and (type(value) in (str, int, bytes) or (type(value) is dict and _is_flat(value)))
        for name, value in facts.items()
    )


def said_of(table: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return when an entry was made, by whom, and its facts: for people."""
    at = f"{table['at'][:19].replace('T', ' ')} UTC"
    who = f"{table['by']}, {table['from']}" if table["by"] else "the node"
    sides = {name: table[name] for name in ("before", "after")}
    facts = [
        f"{name}: {_one_line_of(value)}"
        for name, value in {**sides, **table["facts"]}.items()
        if value not in ("", {})
    ]
    return at, who, facts


def _holds(table: Mapping[str, Any], words: Sequence[str]) -> bool:
    if not words:
        return True
    at, who, facts = said_of(table)
    texts = (str(table["number"]), at, table["act"], str(table["subject"]), who, *facts)
    text = " ".join(texts).casefold()
    return all(word in text for word in words)


def _is_flat(facts: Mapping[Any, Any]) -> bool:
    return is_plain(facts) and not any(type(value) is dict for value in facts.values())


def _plain(facts: Facts) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in facts.items()
    }


def _shown(value: Fact | Mapping[str, Fact]) -> Any:
    if isinstance(value, Mapping):
        return {name: _shown(one) for name, one in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def _one_line_of(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)
