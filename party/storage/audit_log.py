"""The audit log in a site's database: a hash chain.

A writer of the database can also write a chain anew, or cut its end: against that stand the heads
that the site signed and gave away. The coordinator holds the newest, people may have written one
down, and `verify` compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from sqlalchemy import Connection, Table

from party.errors import BrokenAuditLogError
from party.storage.audit import AuditKind, AuditRecord, Detail, is_plain
from party.storage.engine import PartyDatabase
from party.storage.schema import AuditRow
from pate_fed.nodes.hash_chain import HashChain
from protocols.errors import ProtocolError

_CHAIN = HashChain(
    cast(Table, AuditRow.__table__),
    domain=b"pate-fed/1/audit log\0",
    read=AuditRecord.from_bytes,
    unreadable=ProtocolError,
    fault=BrokenAuditLogError,
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
        assert is_plain(detail)

        def make(number: int) -> AuditRecord:
            return AuditRecord(number, round(at * 1000), kind, dict(detail))

        if connection is not None:
            return _CHAIN.append(connection, make)
        with self._database.transaction() as own:
            return _CHAIN.append(own, make)

    @property
    def end(self) -> tuple[int, bytes]:
        """Number of records, and link of the last of them."""
        with self._database.transaction() as connection:
            return _CHAIN.end(connection)

    def goes_on_from(self, count: int, head: bytes) -> bool:
        """Tell whether the log goes on from the records of a head, by its links."""
        with self._database.transaction() as connection:
            return _CHAIN.goes_on_from(connection, count, head)

    def records(self, *, first: int = 1) -> Iterator[AuditRecord]:
        """Return the records from one on, in order, as they stand; `verify` checks them.

        Raises:
            BrokenAuditLogError: one cannot be read.
        """
        return (record for record, _ in _CHAIN.records(self._database, first=first))

    def tables(self, *, first: int = 1) -> Iterator[dict[str, Any]]:
        """Return the records from one on as tables of JSON; raises as `records` does."""
        return (record.table(link) for record, link in _CHAIN.records(self._database, first=first))

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
        return _CHAIN.verify(self._database, heads=heads)

    def __repr__(self) -> str:
        return f"AuditLog({self._database!r})"
