"""Messages of a batch: its queries, each party's answer, and its outcome."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocols.errors import MalformedMessageError
from protocols.messages.fields import (
    KIB,
    MAX_CERTIFICATE_BYTES,
    MAX_PARTIES,
    MAX_TERMS_BYTES,
    MAX_WORDS,
    Count,
    Digest,
    Message,
    Name,
    Range,
    Size,
    SmallFrame,
    UnixTime,
)

MAX_RESULT_BYTES = 512 * KIB
MOST_REFUSED = 2**12
"""Most items of an inquiry that a party names."""


@dataclass(frozen=True, slots=True)
class Inquiry(Message):
    """The coordinator asks, before a plan, whether a party would serve it. Nothing is charged.

    Attributes:
        run_id: Run.
        terms: The terms of the plan, as `Plan.terms`.
    """

    TYPE: ClassVar[int] = 30
    PURPOSE: ClassVar[str] = "inquiry"
    MAX_BYTES: ClassVar[int] = 1024 * KIB

    run_id: Digest
    terms: Annotated[bytes, Size(1, MAX_TERMS_BYTES)]


@dataclass(frozen=True, slots=True)
class Readiness(Message):
    """A party has keys and budget for the plan of an inquiry, but for some of its items.

    It is no promise: an answer meanwhile, in another federation, may change it.

    Attributes:
        subject: Digest of the inquiry.
        sender: Fingerprint of the party.
        refused: Places of the items that it would refuse, ascending, in the inquiry's terms.
    """

    TYPE: ClassVar[int] = 31
    PURPOSE: ClassVar[str] = "readiness"
    MAX_BYTES: ClassVar[int] = 1024 * KIB

    subject: Digest
    sender: Digest
    refused: Annotated[tuple[Count, ...], Size(0, MOST_REFUSED)]


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """One attempt at one batch (rule R1). Every signature and key of the attempt binds to it.

    Attributes:
        run_id: Run.
        epoch: Counter of attempts over the run: the pair roots move forward with it.
        batch: Number of the batch.
        previous_head: Transcript head before this plan.
        words: Length of the vector.
        expires_at: After this, nobody sends for it.
        terms: The plan's terms; canonical bytes that this library does not read.
    """

    TYPE: ClassVar[int] = 9
    PURPOSE: ClassVar[str] = "plan"
    MAX_BYTES: ClassVar[int] = 1024 * KIB

    run_id: Digest
    epoch: Count
    batch: Count
    previous_head: Digest
    words: Annotated[int, Range(1, MAX_WORDS)]
    expires_at: UnixTime
    terms: Annotated[bytes, Size(0, MAX_TERMS_BYTES)]


@dataclass(frozen=True, slots=True, repr=False)
class MaskedVector(Message):
    """y: a party's vector under its pair keys. Looks uniform to the coordinator.

    Attributes:
        plan_digest: Plan that it answers.
        sender: Fingerprint of the party.
        body: Ring elements, little-endian. One that came is a view into its frame: it may have many
            megabytes, and is copied nowhere.
    """

    TYPE: ClassVar[int] = 10
    PURPOSE: ClassVar[str] = "masked vector"
    MAX_BYTES: ClassVar[int] = 4 * MAX_WORDS + 4 * KIB

    plan_digest: Digest
    sender: Digest
    body: Annotated[bytes | memoryview, Size(1, 4 * MAX_WORDS)]

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if type(self.body) is memoryview and not (self.body.readonly and self.body.format == "B"):
            raise MalformedMessageError("a view of a body must be of bytes", "another")

    @property
    def head(self) -> VectorHead:
        """The signed part of this y."""
        body_digest = hashlib.sha256(self.body).digest()
        return VectorHead(self.plan_digest, self.sender, len(self.body), body_digest)

    def __repr__(self) -> str:
        return f"MaskedVector({len(self.body)} bytes)"


@dataclass(frozen=True, slots=True)
class VectorHead(Message):
    """The signed part of a y: its length, and a digest in place of its ring elements.

    The signature of a `MaskedVector` is that of its head. So whoever has a y of a wrong length can
    prove its sender's fault to everybody, in two hundred bytes.

    Attributes:
        plan_digest: Plan that the y answers.
        sender: Fingerprint of the party.
        size: Bytes of the y's body.
        body_digest: SHA-256 of the body.
    """

    TYPE: ClassVar[int] = 35
    PURPOSE: ClassVar[str] = MaskedVector.PURPOSE
    MAX_BYTES: ClassVar[int] = 256

    plan_digest: Digest
    sender: Digest
    size: Annotated[int, Range(1, 4 * MAX_WORDS)]
    body_digest: Digest


def require_vector_size(size: int) -> None:
    """Check the length of a `MaskedVector`'s body, before there is one.

    Raises:
        MalformedMessageError: out of bounds.
    """
    if not 1 <= size <= 4 * MAX_WORDS:
        raise MalformedMessageError(f"body must have length 1 to {4 * MAX_WORDS}", size)


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """A party will not take part; `reason` is a stable public code, never a text.

    Where the subject is a plan it is a promise (rule R3): the party has not sent y for that plan
    and never will.
    """

    TYPE: ClassVar[int] = 11
    PURPOSE: ClassVar[str] = "refusal"

    subject: Digest
    sender: Digest
    reason: Name


@dataclass(frozen=True, slots=True)
class Settlement(Message):
    """The end of a plan: released or void, with every party's contribution.

    Attributes:
        run_id: Run.
        plan_digest: The plan that is settled.
        state: "released" or "void".
        words: Length of the plan's vector, for a party that the plan never reached.
        contributions: Each party's signed contribution to the plan (`rounds.contribution`), in seat
            order; empty where no y came.
        refusals: Signed frames of parties without a y in the sum, in seat order, none unless it is
            void: their `Refusal`s of this plan, or `VectorHead`s of another length than the plan's.
        certificate: Frame of the plan's `Certificate`, where the form survives drop-outs; empty if
            there is none. A release needs one.
        result: The released result; canonical bytes that this library does not read.
    """

    TYPE: ClassVar[int] = 12
    PURPOSE: ClassVar[str] = "settlement"
    MAX_BYTES: ClassVar[int] = 1024 * KIB + MAX_CERTIFICATE_BYTES

    run_id: Digest
    plan_digest: Digest
    state: Name
    words: Annotated[int, Range(1, MAX_WORDS)]
    contributions: Annotated[tuple[Annotated[bytes, Size(0, 32)], ...], Size(1, MAX_PARTIES)]
    refusals: Annotated[tuple[SmallFrame, ...], Size(0, MAX_PARTIES)]
    certificate: Annotated[bytes, Size(0, MAX_CERTIFICATE_BYTES)]
    result: Annotated[bytes, Size(0, MAX_RESULT_BYTES)]
