"""What a hospital decided and sent, one record after the other, each bound to all before it.

The file is a `ChainedLog`. Its head commits to every record and to their order. Whoever can write
the file can write the chain anew, or cut its end: against that stand the signed heads that the
hospital printed or gave away, and `verify` compares with them. A record holds codes, digests and
prices: never a vote, a cell or a key.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from party.errors import AuditLogError
from protocols import wire
from protocols.chained_log import ChainedLog, LogFaults, LogFormat
from protocols.identity import PublicIdentity, SigningIdentity

FORMAT = LogFormat(b"pate-fed audit log 1\n", b"pate-fed/1/audit log\0")
HEAD_PURPOSE = "audit log head"
_HEAD_DOMAIN = b"pate-fed/1/audit log head\0"
_FAULTS = LogFaults(AuditLogError, AuditLogError, AuditLogError)

Detail: TypeAlias = str | int | bytes
"""What a record may hold; a price is written as text."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record.

    Attributes:
        number: From 1.
        at_ms: When, Unix time in milliseconds.
        kind: What it is about.
        detail: What there is to say.
    """

    number: int
    at_ms: int
    kind: str
    detail: Mapping[str, Detail]


@dataclass(frozen=True, slots=True)
class SignedHead:
    """Where a log stands, signed.

    Attributes:
        count: Number of records.
        head: Link of the last of them, 32 bytes.
        signature: Over both, by the hospital's identity.
    """

    count: int
    head: bytes
    signature: bytes

    @classmethod
    def sign(cls, count: int, head: bytes, identity: SigningIdentity) -> SignedHead:
        """Sign where a log stands."""
        digest = _head_digest(count, head)
        return cls(count, head, identity.sign(purpose=HEAD_PURPOSE, digest=digest))

    def verify(self, identity: PublicIdentity) -> None:
        """Check the signature.

        Raises:
            BadSignatureError: it is not by this identity.
        """
        digest = _head_digest(self.count, self.head)
        identity.verify(purpose=HEAD_PURPOSE, digest=digest, signature=self.signature)


class AuditFile:
    """The audit log of one hospital, open in one process. Records are added, and nothing else.

    Args:
        path: The file; made if it is missing, its folder must be there.

    Raises:
        AuditLogError: another process has it open, it does not fit itself, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._log = ChainedLog(path, form=FORMAT, faults=_FAULTS)
        self._count = 0
        self._last: dict[str, bytes] = {}
        self._noted: set[bytes] = set()
        try:
            for record in _records(self._log):
                self._remember(record.number, record.kind, record.detail)
        except BaseException:
            self._log.close()
            raise

    @property
    def count(self) -> int:
        """Number of records."""
        return self._count

    @property
    def head(self) -> bytes:
        """Link of the last record, 32 bytes."""
        return self._log.head

    def append(self, kind: str, *, at: float, **detail: Detail) -> None:
        """Add a record; it is on disk when this returns.

        Args:
            kind: What it is about.
            at: Unix time, in seconds.
            detail: What there is to say: no vote, no cell, no key.

        Raises:
            AuditLogError: it could not be written.
        """
        number = self._count + 1
        self._log.append([number, round(at * 1000), kind, detail])
        self._remember(number, kind, detail)

    def append_once(self, kind: str, *, at: float, **detail: Detail) -> None:
        """Add a record unless there is one of the same kind and detail; see `append`."""
        if _key(kind, detail) not in self._noted:
            self.append(kind, at=at, **detail)

    def append_if_changed(self, kind: str, *, at: float, **detail: Detail) -> None:
        """Add a record unless the last one of its kind says the same; see `append`."""
        if self._last.get(kind) != _key(kind, detail):
            self.append(kind, at=at, **detail)

    def close(self) -> None:
        """Let go of the file; nothing more can be written."""
        self._log.close()

    def _remember(self, number: int, kind: str, detail: Mapping[str, Detail]) -> None:
        self._count = number
        self._last[kind] = _key(kind, detail)
        if not kind.startswith("batch"):  # people decide seldom
            self._noted.add(_key(kind, detail))

    def __repr__(self) -> str:
        return f"AuditFile(records={self._count})"


def read_verified(path: Path, *, heads: Mapping[int, bytes] | None = None) -> list[AuditRecord]:
    """Check every record of a log, whoever has it open, and that it goes on from known heads.

    A copy is read: the log itself stays as it is.

    Args:
        path: The file.
        heads: Heads that are known from before, by number of records.

    Returns:
        All records. Their head is `head_of` the same call's file.

    Raises:
        AuditLogError: a record was changed, put elsewhere or taken away.
    """
    return _verified(path, heads or {})[0]


def head_of(path: Path, *, heads: Mapping[int, bytes] | None = None) -> tuple[int, bytes]:
    """Check a log as `read_verified` does; return the number of its records and its head."""
    records, head = _verified(path, heads or {})
    return len(records), head


def _verified(path: Path, heads: Mapping[int, bytes]) -> tuple[list[AuditRecord], bytes]:
    if not path.exists():
        raise AuditLogError("an audit log must be there: the first start makes it", "none")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        try:
            shutil.copyfile(path, copy)
        except OSError as error:
            raise AuditLogError("an audit log must be readable", error.strerror) from error
        log = ChainedLog(copy, form=FORMAT, faults=_FAULTS)
        try:
            found, records = {0: log.head}, []
            for record in _records(log):
                records.append(record)
                found[record.number] = log.head
        finally:
            log.close()
    for count, head in heads.items():
        if found.get(count) != head:
            raise AuditLogError(
                f"the log must go on from the head of {count} records that was given",
                "another" if count in found else f"only {len(records)} records",
            )
    return records, found[len(records)]


def _records(log: ChainedLog) -> Iterator[AuditRecord]:
    for count, body in enumerate(log.replay(), start=1):
        match body:
            case [int(number), int(at_ms), str(kind), dict(detail)] if number == count:
                yield AuditRecord(number, at_ms, kind, detail)
            case _:
                raise AuditLogError("a record must be as it was written, at its place", "another")


def _key(kind: str, detail: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(wire.encode_value([kind, dict(detail)])).digest()


def _head_digest(count: int, head: bytes) -> bytes:
    return hashlib.sha256(_HEAD_DOMAIN + count.to_bytes(8, "big") + head).digest()
