"""Where a tally's database stands: each of its steps has a number and a random link.

Each call of the coordinator carries the last head that it was told, each answer the newest one. So
an older copy of a database in the place of either one is noticed with the next call.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from sqlalchemy import Connection, delete, func, insert, select

from coordinator.errors import CoordinatorBehindError, TallyBehindError, TallyUnreachableError
from coordinator.tally.tally_database import TallyDatabase
from coordinator.tally.tally_schema import TallyHeadRow
from protocols.fields import DIGEST_BYTES

HEAD_KEY: Final = "pate-fed-head-bin"
"""Where a call's metadata carry a head, both ways."""

_NUMBER_BYTES: Final = 8
_MOST_STEPS: Final = 2**62  # a database's integers end there
_RESTORE: Final = "or, once both talked, `pate-fed tally restored"


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The state after a step: its number from 0, and 32 random bytes that no other copy drew."""

    number: int
    link: bytes = field(repr=False)

    @classmethod
    def of_bytes(cls, content: bytes) -> Self | None:
        """Read what was carried; None if it is no head."""
        number = int.from_bytes(content[:_NUMBER_BYTES])
        if len(content) != _NUMBER_BYTES + DIGEST_BYTES or number > _MOST_STEPS:
            return None
        return cls(number, content[_NUMBER_BYTES:])

    def to_bytes(self) -> bytes:
        """Return what is carried."""
        return self.number.to_bytes(_NUMBER_BYTES) + self.link


FIRST: Final = Head(0, bytes(DIGEST_BYTES))
"""Of a tally that was just made, and of a coordinator that never heard of it."""


@dataclass
class HeadMemory:
    """What a coordinator remembers of a tally, and the right to call it: one call at a time.

    A call that was overtaken by another one's answer would carry an older head than is known.

    Attributes:
        read: Returns the last head that it was told.
        keep: Keeps one durably, unless a newer one is known.
    """

    read: Callable[[], Head]
    keep: Callable[[Head], None]
    turn: threading.Lock

    @classmethod
    def volatile(cls) -> HeadMemory:
        """Remember the last one that was kept, in memory, for one process."""
        told = [FIRST]
        return cls(lambda: told[-1], told.append, threading.Lock())

    def take(self, carried: Head, answer: bytes) -> None:
        """Keep the head of an answer to a call that carried one.

        Raises:
            TallyBehindError: the tally forgot what it told.
            TallyUnreachableError: there is none.
        """
        head = Head.of_bytes(answer)
        if head is None:
            raise TallyUnreachableError("the tally must say where it stands", "no head")
        if head.number < carried.number or (head.number == carried.number and head != carried):
            raise tally_behind()
        if head != carried:
            self.keep(head)


def tally_behind() -> TallyBehindError:
    """The error of a tally that forgot what it told."""
    must = f"the tally's people must put the newest tally.db back, {_RESTORE} tally`"
    return TallyBehindError(must, "an older one")


def coordinator_behind() -> CoordinatorBehindError:
    """The error of a coordinator that forgot what it was told."""
    must = f"the coordinator's newest database must be put back, {_RESTORE} coordinator` there"
    return CoordinatorBehindError(must, "an older one")


def extend_head(connection: Connection) -> None:
    """Count a step, in its own transaction."""
    newest = newest_head(connection)
    row = {"number": newest.number + 1, "link": secrets.token_bytes(DIGEST_BYTES)}
    connection.execute(insert(TallyHeadRow), row)


def newest_head(connection: Connection) -> Head:
    """Return where the database stands."""
    found = connection.execute(
        select(TallyHeadRow.number, TallyHeadRow.link).order_by(TallyHeadRow.number.desc()).limit(1)
    ).one_or_none()
    return FIRST if found is None else Head(*found)


def hear_head(connection: Connection, carried: Head) -> None:
    """Take the head that a call carries; older ones are known no more, as no call has them.

    Raises:
        TallyBehindError: this database never had it.
        CoordinatorBehindError: a later one was carried before.
    """
    oldest = connection.scalar(select(func.min(TallyHeadRow.number)))
    if oldest is None:  # people said that a copy was put back: the coordinator's memory counts
        connection.execute(insert(TallyHeadRow), {"number": carried.number, "link": carried.link})
        return
    if carried.number < oldest:
        raise coordinator_behind()
    link = connection.scalar(select(TallyHeadRow.link).where(TallyHeadRow.number == carried.number))
    if link != carried.link:
        raise tally_behind()
    connection.execute(delete(TallyHeadRow).where(TallyHeadRow.number < carried.number))


def begin_heads(database: TallyDatabase) -> None:
    """Begin to count, in a new database."""
    with database.transaction() as connection:
        connection.execute(insert(TallyHeadRow), {"number": FIRST.number, "link": FIRST.link})


def forget_heads(connection: Connection) -> None:
    """Forget all of it: the next call's head counts."""
    connection.execute(delete(TallyHeadRow))
