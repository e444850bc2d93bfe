"""Messages of the setup: who takes part in a run, under which keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocols.messages.fields import (
    KIB,
    MAX_PARTIES,
    MAX_TERMS_BYTES,
    MOST_WORDS_LETTERS,
    Count,
    Digest,
    Frame,
    Key,
    Line,
    Mac,
    Message,
    Name,
    Nonce,
    Range,
    SealingPublicKey,
    Size,
    UnixTime,
)


@dataclass(frozen=True, slots=True)
class RunInquiry(Message):
    """The coordinator asks, before an offer, whether a party would take part.

    It goes to each party that can be reached, whether or not the others can. It charges nothing and
    enters no run; a party that has not decided asks its people.

    Attributes:
        coordinator: Fingerprint of the coordinator.
        seats: Fingerprints of all parties, ascending.
        form, ring_bits, suite, threshold, colluders, dropouts, simulated, terms: As in the
            `RunRecord` that would follow.
    """

    TYPE: ClassVar[int] = 33
    PURPOSE: ClassVar[str] = "run inquiry"
    MAX_BYTES: ClassVar[int] = 1024 * KIB

    coordinator: Digest
    seats: Annotated[tuple[Digest, ...], Size(1, MAX_PARTIES)]
    form: Name
    ring_bits: Annotated[int, Range(8, 32)]
    suite: Name
    threshold: Count
    colluders: Count
    dropouts: Count
    simulated: bool
    terms: Annotated[bytes, Size(0, MAX_TERMS_BYTES)]


@dataclass(frozen=True, slots=True)
class RunReadiness(Message):
    """A party's answer to a `RunInquiry`, from its rules and decisions: no promise.

    Attributes:
        subject: Digest of the inquiry.
        sender: Fingerprint of the party.
        reason: Public code of a refusal; empty if it would take part.
        at: When its people decided, or were first asked where they have not; 0 where nobody is
            asked.
        words: What its people wrote for the operator; may be empty.
    """

    TYPE: ClassVar[int] = 34
    PURPOSE: ClassVar[str] = "run readiness"

    subject: Digest
    sender: Digest
    reason: Annotated[str, Size(0, 64)]
    at: UnixTime
    words: Annotated[str, Line(0, MOST_WORDS_LETTERS)]


@dataclass(frozen=True, slots=True)
class RunOffer(Message):
    """The coordinator offers a run; the party has pinned `coordinator_key`."""

    TYPE: ClassVar[int] = 1
    PURPOSE: ClassVar[str] = "run offer"

    coordinator_key: Key
    nonce: Nonce
    form: Name
    ring_bits: Annotated[int, Range(8, 32)]
    suite: Name
    expires_at: UnixTime
    simulated: bool


@dataclass(frozen=True, slots=True)
class KeyStatement(Message):
    """A party's keys for one run, signed by its identity.

    Attributes:
        offer_digest: The offer that it answers.
        identity_key: Ed25519 key of the party.
        sealing_key: Key of the run's suite, for envelopes of this run.
        nonce: Fresh random bytes.
        role: "party".
        expires_at: As in the offer.
        journal_counter: Counter of the party's journal: it never goes back (rule R4).
    """

    TYPE: ClassVar[int] = 2
    PURPOSE: ClassVar[str] = "key statement"

    offer_digest: Digest
    identity_key: Key
    sealing_key: SealingPublicKey
    nonce: Nonce
    role: Name
    expires_at: UnixTime
    journal_counter: Count


@dataclass(frozen=True, slots=True)
class RunRecord(Message):
    """Everything that is fixed for a run; the digest of this message is the run's id.

    Attributes:
        offer_digest: The offer that it follows.
        coordinator: Fingerprint of the coordinator.
        statements: Signed `KeyStatement` frames, in the order of the parties' fingerprints: a
            party's place is its seat, and decides the sign of its shares.
        form, ring_bits, suite, expires_at, simulated: As in the offer.
        threshold: Parties needed to open the sum.
        colluders: Parties that may collude with the coordinator.
        dropouts: Parties that may be lost.
        terms: The run's terms; canonical bytes that this library does not read.
    """

    TYPE: ClassVar[int] = 3
    PURPOSE: ClassVar[str] = "run record"
    MAX_BYTES: ClassVar[int] = 2 * 1024 * KIB  # a thousand statements with hybrid keys, and terms

    offer_digest: Digest
    coordinator: Digest
    statements: Annotated[tuple[Frame, ...], Size(1, MAX_PARTIES)]
    form: Name
    ring_bits: Annotated[int, Range(8, 32)]
    suite: Name
    threshold: Count
    colluders: Count
    dropouts: Count
    expires_at: UnixTime
    simulated: bool
    terms: Annotated[bytes, Size(0, MAX_TERMS_BYTES)]


@dataclass(frozen=True, slots=True)
class Envelope(Message):
    """A sealed half of a pair root, signed by its sender."""

    TYPE: ClassVar[int] = 4
    PURPOSE: ClassVar[str] = "envelope"

    run_id: Digest
    sender: Digest
    receiver: Digest
    sealed: Annotated[bytes, Size(1, 2 * KIB)]


@dataclass(frozen=True, slots=True)
class EnvelopeBundle(Message):
    """Signed `Envelope` frames: all of one sender, or all for one receiver."""

    TYPE: ClassVar[int] = 5
    PURPOSE: ClassVar[str] = ""
    MAX_BYTES: ClassVar[int] = 4 * 1024 * KIB

    run_id: Digest
    envelopes: Annotated[tuple[Frame, ...], Size(1, MAX_PARTIES)]


@dataclass(frozen=True, slots=True)
class Confirmations(Message):
    """A MAC under each pair root, one per peer in seat order (one's own seat left out)."""

    TYPE: ClassVar[int] = 6
    PURPOSE: ClassVar[str] = "confirmations"
    MAX_BYTES: ClassVar[int] = 64 * KIB

    run_id: Digest
    sender: Digest
    macs: Annotated[tuple[Mac, ...], Size(1, MAX_PARTIES)]


@dataclass(frozen=True, slots=True)
class SetupClosing(Message):
    """The MACs for one party, and the digests of all parties' `Confirmations`, in seat order."""

    TYPE: ClassVar[int] = 7
    PURPOSE: ClassVar[str] = "setup closing"
    MAX_BYTES: ClassVar[int] = 128 * KIB

    run_id: Digest
    macs: Annotated[tuple[Mac, ...], Size(1, MAX_PARTIES)]
    confirmation_digests: Annotated[tuple[Digest, ...], Size(1, MAX_PARTIES)]


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """A party is done with a stage, and remembers `head`; its journal stands at a counter."""

    TYPE: ClassVar[int] = 8
    PURPOSE: ClassVar[str] = "ready"

    run_id: Digest
    sender: Digest
    stage: Name
    head: Digest
    journal_counter: Count
