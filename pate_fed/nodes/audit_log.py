"""A table of records, each bound to all before it: a hash chain.

A record's link is SHA-256 of the link before it and the record; the last link, the head, commits to
every record and to their order. A writer of the database can also write a chain anew, or cut its
end. Only a head that is kept elsewhere reveals that; `verify` compares.

Loaded by itself: `pate_fed.nodes` does not load SQLAlchemy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection, LargeBinary, Table, bindparam, cast, insert, select

from pate_fed.nodes.database import NodeDatabase

_READ_AT_ONCE = 1_000


class Numbered(Protocol):
    """A record that knows its place."""

    @property
    def number(self) -> int:
        """Its place, from 1."""

    def to_bytes(self) -> bytes:
        """Return its one canonical form."""


class ChainFault(Protocol):
    """Makes the error of a broken chain."""

    def __call__(self, must: str, got: object, *, number: int) -> Exception:
        """Return it; `number` is the first record that is wrong or missing."""


R = TypeVar("R", bound=Numbered)


class HashChain(Generic[R]):
    """How the records of one table are bound, read and checked.

    Args:
        table: Its table, with the columns `number`, `body` and `link`.
        domain: Separates its links from all other hashes.
        read: Reads the bytes of a record.
        unreadable: Raised by `read` for other bytes.
        fault: Makes the error of a broken chain.
    """

    def __init__(
        self,
        table: Table,
        *,
        domain: bytes,
        read: Callable[[bytes], R],
        unreadable: type[Exception],
        fault: ChainFault,
    ) -> None:
        self._domain = domain
        self._read_body = read
        self._unreadable = unreadable
        self._fault = fault
        number, body, link = table.c.number, table.c.body, table.c.link
        self._new = insert(table)
        self._newest = select(number, link).order_by(number.desc()).limit(1)
        self._link_of = select(link).where(number == bindparam("number"))
        self._part = (
            # As bytes, for any stored type: a difference is then named.
            select(
                number, cast(body, LargeBinary).label("body"), cast(link, LargeBinary).label("link")
            )
            .where(number >= bindparam("first"))
            .order_by(number)
            .limit(_READ_AT_ONCE)
        )

    def append(self, connection: Connection, make: Callable[[int], R]) -> R:
        """Add a record, in a transaction.

        Args:
            connection: The transaction.
            make: Returns the record of a number.
        """
        count, head = self.end(connection)
        record = make(count + 1)
        body = record.to_bytes()
        row = {"number": record.number, "body": body, "link": self._link(head, body)}
        connection.execute(self._new, row)
        return record

    def end(self, connection: Connection) -> tuple[int, bytes]:
        """Return the number of records, and the link of the last of them."""
        row = connection.execute(self._newest).one_or_none()
        return (0, self._first_link()) if row is None else (row.number, row.link)

    def goes_on_from(self, connection: Connection, count: int, head: bytes) -> bool:
        """Tell whether the chain goes on from the records of a head, by its links."""
        if count == 0:
            return head == self._first_link()
        return bool(connection.scalar(self._link_of, {"number": count}) == head)

    def records(self, database: NodeDatabase, *, first: int = 1) -> Iterator[tuple[R, bytes]]:
        """Return the records from one on with their links, in order, as they stand.

        Raises:
            Exception: the fault: one cannot be read.
        """
        for number, body, link in self._rows(database, first=first):
            yield self._read(number, body), link

    def verify(self, database: NodeDatabase, *, heads: Iterable[tuple[int, bytes]] = ()) -> int:
        """Check every record, and that the chain goes on from every head that is known.

        Args:
            database: The database of the table.
            heads: Numbers of records and links of the last of them, kept elsewhere.

        Returns:
            The number of records.

        Raises:
            Exception: the fault: a record is wrong or missing; `number` says which is the first.
        """
        wanted: dict[int, set[bytes]] = {}
        for known, head in heads:
            wanted.setdefault(known, set()).add(head)
        link, count = self._first_link(), 0
        self._require_head(wanted, count, link)
        for number, body, stored in self._rows(database, first=1):
            count += 1
            if number != count:
                raise self._fault("it must be there", "none", number=count)
            link = self._link(link, body)
            if stored != link:
                raise self._fault("it must be as it was written", "another", number=count)
            if self._read(count, body).number != count:
                raise self._fault("it must stand at its place", "another", number=count)
            self._require_head(wanted, count, link)
        if any(known > count for known in wanted):
            raise self._fault(
                f"there must be {max(wanted)}, as a head says", "none", number=count + 1
            )
        return count

    def _rows(self, database: NodeDatabase, *, first: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Read in parts, so that the node need not wait until all is read."""
        while True:
            with database.transaction() as connection:
                part = connection.execute(self._part, {"first": first}).all()
            if not part:
                return
            yield from ((row.number, row.body, row.link) for row in part)
            first = part[-1].number + 1

    def _read(self, number: int, body: bytes) -> R:
        try:
            return self._read_body(body)
        except self._unreadable as error:
            raise self._fault("it must be readable", "another", number=number) from error

    def _require_head(self, wanted: Mapping[int, set[bytes]], count: int, link: bytes) -> None:
        """A head that differs says that something up to here was written anew; not where."""
        if wanted.get(count, {link}) != {link}:
            raise self._fault(
                "it and those before it must be what a head vouches for", "others", number=count
            )

    def _first_link(self) -> bytes:
        return hashlib.sha256(self._domain + b"first").digest()

    def _link(self, before: bytes, body: bytes) -> bytes:
        return hashlib.sha256(self._domain + b"record\0" + before + body).digest()
