"""The audit log in a site's database: each record is bound to all before it.

A record's link is SHA-256 of the link before it and the record; the last link, the head, commits to
every record and to their order. A writer of the database can also write a chain anew, or cut its
end: against that stand the heads that the site signed and gave away. The coordinator holds the
newest, people may have written one down, and `verify` compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import Connection, LargeBinary, bindparam, cast, insert, select

from party.errors import BrokenAuditLogError
from party.storage.audit import AuditKind, AuditRecord, Detail, is_plain
from party.storage.engine import PartyDatabase
from party.storage.schema import AuditRow
from protocols.errors import ProtocolError

_DOMAIN = b"pate-fed/1/audit log\0"
_READ_AT_ONCE = 1_000

_NEW_RECORD = insert(AuditRow)
_NEWEST = select(AuditRow.number, AuditRow.link).order_by(AuditRow.number.desc()).limit(1)
_LINK = select(AuditRow.link).where(AuditRow.number == bindparam("number"))
_PART = (
    # As bytes, for any stored type: a difference is then named.
    select(
        AuditRow.number,
        cast(AuditRow.body, LargeBinary).label("body"),
        cast(AuditRow.link, LargeBinary).label("link"),
    )
    .where(AuditRow.number >= bindparam("first"))
    .order_by(AuditRow.number)
    .limit(_READ_AT_ONCE)
)


class AuditLog:
    """The audit log of a site, in its database. Records are added, and nothing else.

    Args:
        database: The site's.
    """

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    def append(
        self,
        kind: AuditKind,
        detail: Mapping[str, Detail],
        *,
        at: float,
        connection: Connection | None = None,
    ) -> AuditRecord:
        """Add a record; it is on disk when this returns.

        Args:
            kind: Its kind.
            detail: Its facts: no vote, no cell, no key.
            at: Unix time, in seconds.
            connection: A transaction of the same database that the record is a part of: it is on
                disk together with its subject.

        Raises:
            StorageError: it could not be stored.
        """
        if connection is not None:
            return _append(connection, kind, at=at, detail=detail)
        with self._database.transaction() as own:
            return _append(own, kind, at=at, detail=detail)

    @property
    def end(self) -> tuple[int, bytes]:
        """Number of records, and link of the last of them."""
        with self._database.transaction() as connection:
            return _end_of(connection)

    def goes_on_from(self, count: int, head: bytes) -> bool:
        """Tell whether the log goes on from the records of a head, by its links."""
        with self._database.transaction() as connection:
            if count == 0:
                return head == _first_link()
            return connection.scalar(_LINK, {"number": count}) == head

    def records(self, *, first: int = 1) -> Iterator[AuditRecord]:
        """Return the records from one on, in order, as they stand; `verify` checks them.

        Raises:
            BrokenAuditLogError: one cannot be read.
        """
        for number, body, _ in self._rows(first=first):
            yield _read(number, body)

    def verify(self, *, heads: Iterable[tuple[int, bytes]] = ()) -> int:
        """Check every record, and that the log goes on from every head that is known.

        Args:
            heads: Numbers of records and links of the last of them: as the coordinator holds them
                (`protocols.enrollment.read_audit_head`), or as our own people wrote them down.

        Returns:
            The number of records.

        Raises:
            BrokenAuditLogError: a record is wrong or missing; `number` says which is the first.
        """
        wanted: dict[int, set[bytes]] = {}
        for known, head in heads:
            wanted.setdefault(known, set()).add(head)
        link, count = _first_link(), 0
        _require_head(wanted, count, link)
        for number, body, stored in self._rows(first=1):
            count += 1
            if number != count:
                raise BrokenAuditLogError("it must be there", "none", number=count)
            link = _link(link, body)
            if stored != link:
                raise BrokenAuditLogError("it must be as it was written", "another", number=count)
            if _read(count, body).number != count:
                raise BrokenAuditLogError("it must stand at its place", "another", number=count)
            _require_head(wanted, count, link)
        if any(known > count for known in wanted):
            raise BrokenAuditLogError(
                f"there must be {max(wanted)}, as a head says", "none", number=count + 1
            )
        return count

    def __repr__(self) -> str:
        return f"AuditLog({self._database!r})"

    def _rows(self, *, first: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Read in parts, so that the node need not wait until all is read."""
        while True:
            with self._database.transaction() as connection:
                part = connection.execute(_PART, {"first": first}).all()
            if not part:
                return
            yield from ((row.number, row.body, row.link) for row in part)
            first = part[-1].number + 1


def _append(
    connection: Connection, kind: AuditKind, *, at: float, detail: Mapping[str, Detail]
) -> AuditRecord:
    assert is_plain(detail)
    count, head = _end_of(connection)
    record = AuditRecord(count + 1, round(at * 1000), kind, dict(detail))
    body = record.to_bytes()
    row = {"number": record.number, "body": body, "link": _link(head, body)}
    connection.execute(_NEW_RECORD, row)
    return record


def _end_of(connection: Connection) -> tuple[int, bytes]:
    row = connection.execute(_NEWEST).one_or_none()
    return (0, _first_link()) if row is None else (row.number, row.link)


def _read(number: int, body: bytes) -> AuditRecord:
    try:
        return AuditRecord.from_bytes(body)
    except ProtocolError as error:
        raise BrokenAuditLogError("it must be readable", "another", number=number) from error


def _require_head(wanted: Mapping[int, set[bytes]], count: int, link: bytes) -> None:
    """A head that differs says that something up to here was written anew; not where."""
    if wanted.get(count, {link}) != {link}:
        raise BrokenAuditLogError(
            "it and those before it must be what a head vouches for", "others", number=count
        )


def _first_link() -> bytes:
    return hashlib.sha256(_DOMAIN + b"first").digest()


def _link(before: bytes, body: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + b"record\0" + before + body).digest()
