"""Messages that tell who spoiled a row of a void plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocols.messages.fields import (
    KIB,
    MAX_PARTIES,
    MAX_WORDS,
    Count,
    Digest,
    Message,
    Range,
    Size,
)


@dataclass(frozen=True, slots=True)
class BlameRequest(Message):
    """The coordinator asks who spoiled a row of a void plan.

    How wide a row is, is not asked: each party knows it from the terms that it agreed to.

    Attributes:
        run_id: Run.
        plan_digest: The void plan, the last one.
        row: Which row of its vector, from 0.
    """

    TYPE: ClassVar[int] = 20
    PURPOSE: ClassVar[str] = "blame request"

    run_id: Digest
    plan_digest: Digest
    row: Annotated[int, Range(0, MAX_WORDS)]


@dataclass(frozen=True, slots=True)
class StreamSums(Message):
    """A party states the sum of each of its streams over one whole row of a void plan.

    Attributes:
        plan_digest: The plan.
        sender: Fingerprint of the party.
        row: Which row.
        sums: Modulo the ring, one for each seat in order; at the sender's own that of its self
            mask, 0 where the form has none.
    """

    TYPE: ClassVar[int] = 21
    PURPOSE: ClassVar[str] = "stream sums"
    MAX_BYTES: ClassVar[int] = 16 * KIB

    plan_digest: Digest
    sender: Digest
    row: Annotated[int, Range(0, MAX_WORDS)]
    sums: Annotated[tuple[Count, ...], Size(1, MAX_PARTIES)]
