"""What the site decided and sent, one record after the other, each bound to all before it.

A record's link is SHA-256 of the link before it and the record; the last link, the head, commits to
every record and to their order. Whoever can write the database can also write a chain anew, or cut
its end: against that stand the heads that the site signed and gave away. The coordinator and the
other hospitals hold them, and `verify` compares.

A record holds codes, digests and prices: never a vote, a cell or a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from party.audit import Audit, AuditKind, Detail
from party.errors import BrokenAuditLogError
from party.storage import PartyDatabase
from party.storage.schema import AuditRow
from protocols import wire
from protocols.errors import MalformedMessageError, ProtocolError
from protocols.identity import PublicIdentity, SigningIdentity

HEAD_PURPOSE = "audit log head"
_DOMAIN = b"pate-fed/1/audit log\0"
_READ_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record.

    Attributes:
        number: From 1.
        at: When, Unix time in milliseconds.
        kind: What it is about.
        detail: What there is to say.
    """

    number: int
    at: int
    kind: AuditKind
    detail: Mapping[str, Detail] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return its canonical CBOR."""
        return wire.encode_value([self.number, self.at, self.kind.value, dict(self.detail)])

    @classmethod
    def from_bytes(cls, body: bytes) -> AuditRecord:
        """Read what `to_bytes` wrote.

        Raises:
            MalformedMessageError: it is no record.
        """
        match wire.decode_value(body):
            case [int(number), int(at), str(kind), dict(detail)] if _is_plain(detail):
                if kind in {each.value for each in AuditKind}:
                    return cls(number, at, AuditKind(kind), detail)
        raise MalformedMessageError("an audit record must be of a known kind", "another")


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A head that the site gave away, with its signature.

    Attributes:
        count: Records it commits to.
        head: Link of the last of them, 32 bytes.
        signature: Over both, by the site's identity.
    """

    count: int
    head: bytes
    signature: bytes

    def verify(self, identity: PublicIdentity) -> None:
        """Check the signature.

        Raises:
            BadSignatureError: it is not by this identity.
        """
        digest = _head_digest(self.count, self.head)
        identity.verify(purpose=HEAD_PURPOSE, digest=digest, signature=self.signature)

    def to_bytes(self) -> bytes:
        """Return it as canonical CBOR, to be handed over."""
        return wire.encode_value([self.count, self.head, self.signature])

    @classmethod
    def from_bytes(cls, data: bytes) -> SignedHead:
        """Read what `to_bytes` wrote.

        Raises:
            MalformedMessageError: it is no head.
        """
        match wire.decode_value(data):
            case [int(count), bytes(head), bytes(signature)] if count >= 0 and len(head) == 32:
                return cls(count, head, signature)
        raise MalformedMessageError("a signed head must have a count, a head, a signature", "none")


class AuditLog:
    """The audit log of a site, in its database. Records are added, and nothing else.

    Args:
        database: The site's.
    """

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    def append(
        self, kind: AuditKind, *, at: float, session: Session | None = None, **detail: Detail
    ) -> AuditRecord:
        """Add a record; it is on disk when this returns.

        Args:
            kind: What it is about.
            at: Unix time, in seconds.
            session: A transaction of the same database that the record is a part of: it is on disk
                together with what it is about.
            detail: What there is to say: no vote, no cell, no key.

        Raises:
            StorageError: it could not be stored.
        """
        return self.write(kind, detail, at=at, session=session)

    def write(
        self,
        kind: AuditKind,
        detail: Mapping[str, Detail],
        *,
        at: float,
        session: Session | None = None,
    ) -> AuditRecord:
        """Add a record whose details have names that are not known beforehand; see `append`."""
        if session is not None:
            return _append(session, kind, at=at, detail=detail)
        with self._database.transaction() as own:
            return _append(own, kind, at=at, detail=detail)

    @property
    def count(self) -> int:
        """Number of records."""
        return self._end()[0]

    @property
    def head(self) -> bytes:
        """Link of the last record, 32 bytes."""
        return self._end()[1]

    def sign_head(self, identity: SigningIdentity) -> SignedHead:
        """Sign where the log stands, to be given to coordinator and peers."""
        count, head = self._end()
        signature = identity.sign(purpose=HEAD_PURPOSE, digest=_head_digest(count, head))
        return SignedHead(count, head, signature)

    def records(self, *, first: int = 1) -> Iterator[AuditRecord]:
        """Return the records from one on, in order, as they stand; `verify` checks them.

        Raises:
            BrokenAuditLogError: one cannot be read.
        """
        for number, body, _ in self._rows(first=first):
            yield _read(number, body)

    def verify(
        self, *, identity: PublicIdentity | None = None, heads: Iterable[SignedHead] = ()
    ) -> int:
        """Check every record, and that the log goes on from every head that the site gave away.

        Args:
            identity: The site's, for heads; heads that it did not sign are refused.
            heads: As coordinator and peers hold them.

        Returns:
            The number of records.

        Raises:
            BrokenAuditLogError: a record is wrong or missing; `number` says which is the first.
            BadSignatureError: a head is not the site's.
        """
        wanted = _heads_by_count(identity, heads)
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
                f"there must be {max(wanted)}, as a signed head says", "none", number=count + 1
            )
        return count

    def __repr__(self) -> str:
        return f"AuditLog({self._database!r})"

    def _end(self) -> tuple[int, bytes]:
        with self._database.transaction() as session:
            return _end_of(session)

    def _rows(self, *, first: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Read in parts, so that the node need not wait until all is read."""
        while True:
            with self._database.transaction() as session:
                part = session.execute(
                    select(AuditRow.number, AuditRow.body, AuditRow.link)
                    .where(AuditRow.number >= first)
                    .order_by(AuditRow.number)
                    .limit(_READ_AT_ONCE)
                ).all()
            if not part:
                return
            yield from ((row.number, row.body, row.link) for row in part)
            first = part[-1].number + 1


class NodeAudit(Audit):
    """Writes what a node does into its site's audit log.

    Args:
        log: The site's.
        clock: Unix time, in seconds.
    """

    def __init__(self, log: AuditLog, *, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock

    def note(self, kind: AuditKind, **detail: Detail) -> None:
        """See `Audit.note`."""
        self._log.write(kind, detail, at=self._clock())


def _append(
    session: Session, kind: AuditKind, *, at: float, detail: Mapping[str, Detail]
) -> AuditRecord:
    assert _is_plain(detail)
    count, head = _end_of(session)
    record = AuditRecord(count + 1, round(at * 1000), kind, dict(detail))
    body = record.to_bytes()
    session.add(AuditRow(number=record.number, body=body, link=_link(head, body)))
    session.flush()
    return record


def _end_of(session: Session) -> tuple[int, bytes]:
    last = session.scalar(select(func.max(AuditRow.number)))
    row = None if last is None else session.get(AuditRow, last)
    return (0, _first_link()) if row is None else (row.number, row.link)


def _read(number: int, body: bytes) -> AuditRecord:
    try:
        return AuditRecord.from_bytes(body)
    except ProtocolError as error:
        raise BrokenAuditLogError("it must be readable", "another", number=number) from error


def _heads_by_count(
    identity: PublicIdentity | None, heads: Iterable[SignedHead]
) -> dict[int, set[bytes]]:
    wanted: dict[int, set[bytes]] = {}
    for each in heads:
        if identity is None:
            raise ValueError("heads are checked against the site's identity: none was given")
        each.verify(identity)
        wanted.setdefault(each.count, set()).add(each.head)
    return wanted


def _require_head(wanted: Mapping[int, set[bytes]], count: int, link: bytes) -> None:
    """A head that differs says that something up to here was written anew; not where."""
    if wanted.get(count, {link}) != {link}:
        raise BrokenAuditLogError(
            "it and those before it must be what a signed head vouches for", "others", number=count
        )


def _first_link() -> bytes:
    return hashlib.sha256(_DOMAIN + b"first").digest()


def _link(before: bytes, body: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + b"record\0" + before + body).digest()


def _head_digest(count: int, head: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + b"head\0" + count.to_bytes(8, "big") + head).digest()


def _is_plain(detail: Mapping[Any, Any]) -> bool:
    return all(
        type(name) is str and type(value) in (str, int, bytes) for name, value in detail.items()
    )
