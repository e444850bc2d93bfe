"""What waits for a person of the hospital, and what they decided: by whom, and when.

A run that was refused because nobody had approved it, or its pool, is written down here with its
terms, so that a person can see what it is before they decide. Whoever runs the node writes what is
asked; whoever sits at the command line decides. A lock keeps the two apart.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from party.errors import ApprovalError
from protocols.chained_log import write_file

SCHEMA_VERSION = 1
MOST_PENDING = 20
"""So that nobody can fill the disk: of what waits longer than these, nothing is kept."""

SHORTEST_DIGEST = 8
_OWNER_ONLY = 0o600
_DIGEST_BYTES = 32
_NAMES = {"subject", "digest", "state", "asked_at", "decided_at", "by", "terms", "seats"}


class Subject(StrEnum):
    """What can be approved."""

    POOL = "pool"
    RUN = "run"


class State(StrEnum):
    """Where an approval stands."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Approval:
    """Something that a person has to approve, or decided on.

    Attributes:
        subject: A pool or a run.
        digest: Of the pool, or `party.guard.run_digest`; 32 bytes.
        state: Where it stands.
        asked_at: When it was first asked, Unix time in seconds.
        terms: Terms of the run that asked, as they came; canonical CBOR.
        seats: Fingerprints of all parties of that run.
        decided_at: When it was decided; 0 if it was not.
        by: Who decided; empty if nobody did.
    """

    subject: Subject
    digest: bytes
    state: State
    asked_at: float
    terms: bytes
    seats: tuple[bytes, ...]
    decided_at: float = 0.0
    by: str = ""


@dataclass(frozen=True, slots=True)
class PauseState:
    """Whether the hospital is paused, and by whom since when.

    Attributes:
        is_paused: Whether nothing new may be answered.
        by: Who said so last; empty if nobody ever did.
        at: When, Unix time in seconds.
    """

    is_paused: bool = False
    by: str = ""
    at: float = 0.0


class Approvals:
    """The approvals of one hospital, in a file that is read anew at every call.

    Args:
        path: The file; absent where nothing was ever asked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Approval, ...]:
        """Return all, in the order in which they were asked.

        Raises:
            ApprovalError: the file cannot be read, or is not as it was written.
        """
        return _read(self._path)

    def approved(self, subject: Subject) -> frozenset[bytes]:
        """Return the digests of what was approved; see `all`."""
        return frozenset(
            one.digest
            for one in self.all()
            if one.subject is subject and one.state is State.APPROVED
        )

    def pending(self) -> tuple[Approval, ...]:
        """Return what waits; see `all`."""
        return tuple(one for one in self.all() if one.state is State.PENDING)

    def ask(
        self,
        subject: Subject,
        digest: bytes,
        *,
        terms: bytes,
        seats: tuple[bytes, ...],
        at: float,
    ) -> Approval:
        """Note that something waits for a person, unless it was noted before.

        Returns:
            Where it stands.

        Raises:
            ApprovalError: the file cannot be read or written.
        """
        with self._alone():
            known = self.all()
            for one in known:
                if (one.subject, one.digest) == (subject, digest):
                    return one
            asked = Approval(subject, digest, State.PENDING, at, terms, seats)
            self._keep(_without_oldest((*known, asked)))
        return asked

    def decide(self, approval: Approval, state: State, *, by: str, at: float) -> Approval:
        """Write down what a person decided; they may change their mind later.

        Raises:
            ApprovalError: it is not there, nobody is named, or the file cannot be written.
        """
        if not (by.strip() and by.isprintable()):
            raise ApprovalError("a decision must be somebody's", "nobody's")
        with self._alone():
            known = self.all()
            key = approval.subject, approval.digest
            if not any((one.subject, one.digest) == key for one in known):
                raise ApprovalError("a decision must be about something that was asked", "another")
            decided = replace(approval, state=state, by=by, decided_at=at)
            self._keep(tuple(decided if (one.subject, one.digest) == key else one for one in known))
        return decided

    def find(self, digits: str) -> Approval:
        """Return what a person means by the first digits of a digest.

        Raises:
            ApprovalError: they mean nothing here, or more than one thing.
        """
        prefix = digits.strip().lower()
        found = [one for one in self.all() if one.digest.hex().startswith(prefix)]
        if len(prefix) < SHORTEST_DIGEST or len(found) != 1:
            raise ApprovalError(
                f"a digest must be one of those listed, at least its first {SHORTEST_DIGEST} "
                "digits",
                f"{len(found)} that begin so",
            )
        return found[0]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock: the node and a person may write at the same time."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            lock = os.open(self._path.with_suffix(".lock"), flags, _OWNER_ONLY)
        except OSError as error:
            raise ApprovalError("approvals must be writable", error.strerror) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _keep(self, approvals: tuple[Approval, ...]) -> None:
        document = {
            "schema_version": SCHEMA_VERSION,
            "approvals": [_record(one) for one in approvals],
        }
        _write(self._path, document)


class Pause:
    """Whether a hospital is paused, in a file that is read anew at every call.

    Args:
        path: The file; absent where nobody ever paused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def state(self) -> PauseState:
        """Return how it stands.

        Raises:
            ApprovalError: the file cannot be read, or is not as it was written.
        """
        match _document(self._path):
            case None:
                return PauseState()
            case {"paused": bool(paused), "by": str(by), "at": float(at)}:
                return PauseState(paused, by, at)
        raise ApprovalError(f"{self._path.name} must be as it was written", "another")

    def set(self, is_paused: bool, *, by: str, at: float) -> PauseState:
        """Pause, or go on.

        Raises:
            ApprovalError: it cannot be written.
        """
        _write(
            self._path,
            {"schema_version": SCHEMA_VERSION, "paused": is_paused, "by": by, "at": float(at)},
        )
        return PauseState(is_paused, by, at)


def _without_oldest(approvals: tuple[Approval, ...]) -> tuple[Approval, ...]:
    pending = [one for one in approvals if one.state is State.PENDING]
    dropped = {(one.subject, one.digest) for one in pending[:-MOST_PENDING]}
    return tuple(one for one in approvals if (one.subject, one.digest) not in dropped)


def _record(one: Approval) -> dict[str, Any]:
    return {
        "subject": one.subject.value,
        "digest": one.digest.hex(),
        "state": one.state.value,
        "asked_at": float(one.asked_at),
        "decided_at": float(one.decided_at),
        "by": one.by,
        "terms": one.terms.hex(),
        "seats": [seat.hex() for seat in one.seats],
    }


def _read(path: Path) -> tuple[Approval, ...]:
    document = _document(path)
    if document is None:
        return ()
    try:
        return tuple(_approval(record) for record in document["approvals"])
    except (LookupError, TypeError, ValueError) as error:
        raise ApprovalError(f"{path.name} must be as it was written", "another") from error


def _approval(record: Any) -> Approval:
    if set(record) != _NAMES:
        raise ValueError
    digest = bytes.fromhex(record["digest"])
    times = record["asked_at"], record["decided_at"]
    if len(digest) != _DIGEST_BYTES or not all(type(time) is float for time in times):
        raise ValueError
    return Approval(
        Subject(record["subject"]),
        digest,
        State(record["state"]),
        record["asked_at"],
        bytes.fromhex(record["terms"]),
        tuple(bytes.fromhex(seat) for seat in record["seats"]),
        record["decided_at"],
        str(record["by"]),
    )


def _document(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ApprovalError(f"{path.name} must be readable", type(error).__name__) from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise ApprovalError(f"{path.name} must be of version {SCHEMA_VERSION}", "another")
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        write_file(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise ApprovalError(f"{path.name} must be writable", error.strerror) from error
