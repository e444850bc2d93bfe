"""Messages of a run's end: all parties compare the last head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocols.messages.fields import KIB, MAX_PARTIES, Count, Digest, FrameOrNone, Message, Size


@dataclass(frozen=True, slots=True)
class Closing(Message):
    """The run is over."""

    TYPE: ClassVar[int] = 13
    PURPOSE: ClassVar[str] = "closing"

    run_id: Digest
    head: Digest


@dataclass(frozen=True, slots=True)
class HeadStatement(Message):
    """The last transcript head that a party remembers, and the highest epoch that it served.

    Its journal's counter stands beside them, for all peers to remember (rule R4).
    """

    TYPE: ClassVar[int] = 14
    PURPOSE: ClassVar[str] = "head statement"

    run_id: Digest
    sender: Digest
    head: Digest
    epoch: Count
    journal_counter: Count


@dataclass(frozen=True, slots=True)
class HeadBundle(Message):
    """All parties' signed `HeadStatement` frames, in seat order; empty where none came."""

    TYPE: ClassVar[int] = 15
    PURPOSE: ClassVar[str] = ""
    MAX_BYTES: ClassVar[int] = 4 * 1024 * KIB

    run_id: Digest
    statements: Annotated[tuple[FrameOrNone, ...], Size(1, MAX_PARTIES)]
