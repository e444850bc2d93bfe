"""Every message of a run, as a frozen value that is checked when it is made.

The flow of a run is in docs/reference/messages.md: who sends which message when. `membership` has
the messages outside a run, `fields` the types of the fields, which carry their bounds; `wire` gives
the bytes. Parties are named by fingerprint (`sender`, `coordinator`), a run, a plan and the subject
of an answer by their digest.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from protocols.errors import MalformedMessageError
from protocols.fields import (
    DIGEST_BYTES,
    KIB,
    MAX_CERTIFICATE_BYTES,
    MAX_PARTIES,
    MAX_TERMS_BYTES,
    MAX_WORDS,
    MOST_WORDS_LETTERS,
    Between,
    Count,
    Digest,
    DigestOrNone,
    Digests,
    Frame,
    FrameOrNone,
    Key,
    Length,
    Line,
    Mac,
    Message,
    Name,
    Nonce,
    SealingPublicKey,
    SealingPublicKeyOrNone,
    Signature,
    SmallFrame,
    UnixTime,
    VerdictMacOrNone,
    message,
)

# Setup


@message(33, "run inquiry", most_bytes=1024 * KIB)
class RunInquiry(Message):
    """The coordinator asks, before an offer, whether a party would take part.

    It goes to each party that can be reached, whether or not the others can. It charges nothing and
    enters no run; a party that has not decided asks its people. `seats` are fingerprints,
    ascending, `tally` is that of the second aggregator, empty where the form has none; the rest is
    as in the `RunRecord` that would follow.
    """

    coordinator: Digest
    seats: Annotated[tuple[Digest, ...], Length(1, MAX_PARTIES)]
    form: Name
    ring_bits: Annotated[int, Between(8, 32)]
    suite: Name
    threshold: Count
    colluders: Count
    dropouts: Count
    simulated: bool
    tally: DigestOrNone
    terms: Annotated[bytes, Length(0, MAX_TERMS_BYTES)]


@message(34, "run readiness")
class RunReadiness(Message):
    """A party's answer to a `RunInquiry`, from its rules and decisions: no promise.

    Attributes:
        reason: Public code of a refusal; empty if it would take part.
        at: When its people decided, or were first asked where they have not; 0 where nobody is
            asked.
        words: What its people wrote for the operator; may be empty.
    """

    subject: Digest
    sender: Digest
    reason: Annotated[str, Length(0, 64)]
    at: UnixTime
    words: Annotated[str, Line(0, MOST_WORDS_LETTERS)]


@message(1, "run offer")
class RunOffer(Message):
    """The coordinator offers a run; the party has pinned `coordinator_key`."""

    coordinator_key: Key
    nonce: Nonce
    form: Name
    ring_bits: Annotated[int, Between(8, 32)]
    suite: Name
    expires_at: UnixTime
    simulated: bool


@message(2, "key statement")
class KeyStatement(Message):
    """A party's keys for one run, or the tally's, signed by its identity.

    Attributes:
        offer_digest, expires_at: Of the offer that it answers.
        sealing_key: Key of the run's suite, for envelopes of this run.
        role: "party" or "tally".
        journal_counter: Counter of the party's journal: it never goes back (rule R4); 0 of a tally.
    """

    offer_digest: Digest
    identity_key: Key
    sealing_key: SealingPublicKey
    nonce: Nonce
    role: Name
    expires_at: UnixTime
    journal_counter: Count


@message(3, "run record", most_bytes=2048 * KIB)  # a thousand hybrid keys, and terms
class RunRecord(Message):
    """Everything that is fixed for a run; the digest of this message is the run's id.

    Attributes:
        offer_digest, form, ring_bits, suite, expires_at, simulated: Of the offer that it follows.
        statements: Signed `KeyStatement` frames, in the order of the parties' fingerprints. With
            the `absent` ones, a party's place in that order is its seat, and decides the sign of
            its shares.
        threshold: Parties needed to open the sum.
        colluders: Parties that may collude with the coordinator.
        dropouts: Parties that may be lost.
        sealing_key: The coordinator's key for its parts of reports; empty where the form has none.
        tally: Signed `KeyStatement` frame of the second aggregator; empty where there is none.
        absent: Fingerprints of the parties that stated no keys in time, ascending: they have their
            seats, and send nothing in this setup. None where the form has pair keys.
        terms: Canonical bytes that this library does not read.
    """

    offer_digest: Digest
    coordinator: Digest
    statements: Annotated[tuple[Frame, ...], Length(1, MAX_PARTIES)]
    form: Name
    ring_bits: Annotated[int, Between(8, 32)]
    suite: Name
    threshold: Count
    colluders: Count
    dropouts: Count
    expires_at: UnixTime
    simulated: bool
    sealing_key: SealingPublicKeyOrNone
    tally: FrameOrNone
    absent: Annotated[tuple[Digest, ...], Length(0, MAX_PARTIES)]
    terms: Annotated[bytes, Length(0, MAX_TERMS_BYTES)]


@message(4, "envelope")
class Envelope(Message):
    """A sealed half of a pair root, signed by its sender."""

    run_id: Digest
    sender: Digest
    receiver: Digest
    sealed: Annotated[bytes, Length(1, 2 * KIB)]


@message(5, most_bytes=4096 * KIB)
class EnvelopeBundle(Message):
    """Signed `Envelope` frames: all of one sender, or all for one receiver."""

    run_id: Digest
    envelopes: Annotated[tuple[Frame, ...], Length(1, MAX_PARTIES)]


@message(6, "confirmations", most_bytes=64 * KIB)
class Confirmations(Message):
    """A MAC under each pair root, one per peer in seat order (one's own seat left out)."""

    run_id: Digest
    sender: Digest
    macs: Annotated[tuple[Mac, ...], Length(1, MAX_PARTIES)]


@message(7, "setup closing", most_bytes=128 * KIB)
class SetupClosing(Message):
    """The MACs for one party, and the digests of all parties' `Confirmations`, in seat order."""

    run_id: Digest
    macs: Annotated[tuple[Mac, ...], Length(1, MAX_PARTIES)]
    confirmation_digests: Annotated[tuple[Digest, ...], Length(1, MAX_PARTIES)]


@message(8, "ready")
class Ready(Message):
    """A party is done with a stage, and remembers `head`; its journal stands at a counter."""

    run_id: Digest
    sender: Digest
    stage: Name
    head: Digest
    journal_counter: Count


# Batch


MAX_RESULT_BYTES = 512 * KIB
MOST_REFUSED = 2**12
"""Most items of an inquiry that a party names."""


@message(30, "inquiry", most_bytes=1024 * KIB)
class Inquiry(Message):
    """The coordinator asks, before a plan of these terms, whether a party would serve it.

    Nothing is charged.
    """

    run_id: Digest
    terms: Annotated[bytes, Length(1, MAX_TERMS_BYTES)]


@message(31, "readiness", most_bytes=1024 * KIB)
class Readiness(Message):
    """A party has keys and budget for the plan of an inquiry, but for some of its items.

    It is no promise: an answer meanwhile, in another federation, may change it. `refused` are
    places of items in the inquiry's terms, ascending.
    """

    subject: Digest
    sender: Digest
    refused: Annotated[tuple[Count, ...], Length(0, MOST_REFUSED)]


@message(9, "plan", most_bytes=1024 * KIB)
class Plan(Message):
    """One attempt at one batch (rule R1). Every signature and key of the attempt binds to it.

    Attributes:
        epoch: Counter of attempts over the run: the pair roots move forward with it.
        previous_head: Transcript head before this plan.
        expires_at: After this, nobody sends for it.
        terms: The plan's terms; canonical bytes that this library does not read.
    """

    run_id: Digest
    epoch: Count
    batch: Count
    previous_head: Digest
    words: Annotated[int, Between(1, MAX_WORDS)]
    expires_at: UnixTime
    terms: Annotated[bytes, Length(0, MAX_TERMS_BYTES)]


@message(10, "masked vector", most_bytes=4 * MAX_WORDS + 4 * KIB)
class MaskedVector(Message):
    """y: a party's vector under its pair keys. Looks uniform to the coordinator.

    `body` has ring elements, little-endian. One that came is a view into its frame: it may have
    many megabytes, and is copied nowhere.
    """

    plan_digest: Digest
    sender: Digest
    body: Annotated[bytes | memoryview, Length(1, 4 * MAX_WORDS)]

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if type(self.body) is memoryview and not (self.body.readonly and self.body.format == "B"):
            raise MalformedMessageError("a view of a body must be of bytes")

    @property
    def head(self) -> VectorHead:
        """The signed part of this y."""
        body_digest = hashlib.sha256(self.body).digest()
        return VectorHead(self.plan_digest, self.sender, len(self.body), body_digest)

    def __repr__(self) -> str:
        return f"MaskedVector({len(self.body)} bytes)"


@message(35, MaskedVector.PURPOSE, most_bytes=256)
class VectorHead(Message):
    """The signed part of a y: its length, and SHA-256 of its body in place of the ring elements.

    The signature of a `MaskedVector` is that of its head. So whoever has a y of a wrong length can
    prove its sender's fault to everybody, in two hundred bytes.
    """

    plan_digest: Digest
    sender: Digest
    size: Annotated[int, Between(1, 4 * MAX_WORDS)]
    body_digest: Digest


@message(11, "refusal")
class Refusal(Message):
    """A party will not take part; `reason` is a stable public code, never a text.

    Of a plan it is a promise (rule R3): the party has not sent y for it and never will.
    """

    subject: Digest
    sender: Digest
    reason: Name


@message(12, "settlement", most_bytes=1024 * KIB + MAX_CERTIFICATE_BYTES)
class Settlement(Message):
    """The end of a plan: released or void, with every party's contribution.

    Attributes:
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

    run_id: Digest
    plan_digest: Digest
    state: Name
    words: Annotated[int, Between(1, MAX_WORDS)]
    contributions: Annotated[tuple[Annotated[bytes, Length(0, 32)], ...], Length(1, MAX_PARTIES)]
    refusals: Annotated[tuple[SmallFrame, ...], Length(0, MAX_PARTIES)]
    certificate: Annotated[bytes, Length(0, MAX_CERTIFICATE_BYTES)]
    result: Annotated[bytes, Length(0, MAX_RESULT_BYTES)]


# Opening


MAX_COLUMN_BYTES = 36 * KIB
"""A share of every secret of a dealer among `MAX_PARTIES`, 34 bytes each, sealed."""


@message(16, "dealing", most_bytes=80 * KIB)
class Dealing(Message):
    """A dealer's hashes of the shares of one attempt; see `dealing`.

    Attributes:
        salt: Fresh for each dealing; in every hash.
        secret_hashes: Of its self mask at its own seat, of its key with every other seat; 32 bytes
            each, one behind the other. A holder reads one of every party: in one piece.
        column_roots: Of the shares of each holder, in seat order; the same.
    """

    plan_digest: Digest
    sender: Digest
    salt: Nonce
    secret_hashes: Digests
    column_roots: Digests

    def is_among(self, parties: int) -> bool:
        """Whether it has a hash and a root for each of so many parties."""
        return len(self.secret_hashes) == len(self.column_roots) == DIGEST_BYTES * parties

    @property
    def parties(self) -> int:
        """How many roots it has."""
        return len(self.column_roots) // DIGEST_BYTES

    def secret_hash(self, place: int) -> bytes:
        """Hash of the secret at a place."""
        return self.secret_hashes[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]

    def column_root(self, holder: int) -> bytes:
        """Root of a holder's shares."""
        return self.column_roots[DIGEST_BYTES * holder : DIGEST_BYTES * (holder + 1)]


@message(17, most_bytes=MAX_PARTIES * (MAX_COLUMN_BYTES + 80 * KIB))
class ShareBundle(Message):
    """Shares on their way: all of one dealer, or all for one holder.

    `dealings` are signed `Dealing` frames, `envelopes` sealed columns: the sender's own dealing and
    a column for every other party, or those of all other survivors, in seat order.
    """

    plan_digest: Digest
    dealings: Annotated[
        tuple[Annotated[bytes, Length(1, Dealing.MAX_BYTES)], ...], Length(1, MAX_PARTIES)
    ]
    envelopes: Annotated[
        tuple[Annotated[bytes, Length(1, MAX_COLUMN_BYTES)], ...], Length(1, MAX_PARTIES)
    ]


@message(18, "proposal", most_bytes=64 * KIB)
class SetProposal(Message):
    """The coordinator proposes the end of a plan: `survivors` to open, or none to close it."""

    run_id: Digest
    plan_digest: Digest
    survivors: Annotated[tuple[Digest, ...], Length(0, MAX_PARTIES)]


@message(27, "verdict", most_bytes=64 * KIB)
class Verdict(Message):
    """A party's one word on a plan: this set opens, or the plan is closed and nothing ever opens.

    It names no sender: equal verdicts of all parties are the same bytes but for the signature.
    `survivors` are in seat order; none close the plan.
    """

    plan_digest: Digest
    survivors: Annotated[tuple[Digest, ...], Length(0, MAX_PARTIES)]


@message(28, most_bytes=MAX_CERTIFICATE_BYTES)
class Certificate(Message):
    """Enough equal verdicts on one plan, so that no other verdict can have as many.

    `signers` are the fingerprints of the parties that gave them, in seat order, `signatures` theirs
    over the `Verdict`, in the same order.
    """

    plan_digest: Digest
    survivors: Annotated[tuple[Digest, ...], Length(0, MAX_PARTIES)]
    signers: Annotated[tuple[Digest, ...], Length(1, MAX_PARTIES)]
    signatures: Annotated[tuple[Signature, ...], Length(1, MAX_PARTIES)]

    @property
    def verdict(self) -> Verdict:
        """The verdict that the signers gave."""
        return Verdict(self.plan_digest, self.survivors)


@message(29, most_bytes=32 * KIB)
class VerdictMacs(Message):
    """A verdict authenticated between each two parties: by one party to all, or by all to one.

    A party checks a hundred of these in the time of two signatures. The signatures go into the
    settlement's `Certificate`, for parties that were not there and for the transcript. `macs` are
    in seat order, under the pairs' keys of the plan; empty where there is none.
    """

    plan_digest: Digest
    macs: Annotated[tuple[VerdictMacOrNone, ...], Length(1, MAX_PARTIES)]


@message(19, "reveal", most_bytes=MAX_PARTIES * (MAX_COLUMN_BYTES + KIB))
class Reveal(Message):
    """A holder's shares of the keys that are still in the sum of a certified set.

    `opening_digest` (`rounds.contribution`) binds the verdict, and the dealings that the shares
    were held against. `disclosures` are `dealing.disclose` for each survivor in seat order; empty
    where the shares differed from the signed hashes.
    """

    opening_digest: Digest
    sender: Digest
    disclosures: Annotated[
        tuple[Annotated[bytes, Length(0, MAX_COLUMN_BYTES)], ...], Length(1, MAX_PARTIES)
    ]


# Blame


@message(20, "blame request")
class BlameRequest(Message):
    """The coordinator asks who spoiled a row of a void plan, the last one.

    How wide a row is, is not asked: each party knows it from the terms that it agreed to. Rows
    count from 0.
    """

    run_id: Digest
    plan_digest: Digest
    row: Annotated[int, Between(0, MAX_WORDS)]


@message(21, "stream sums", most_bytes=16 * KIB)
class StreamSums(Message):
    """A party states the sum of each of its streams over one whole row of a void plan.

    `sums` are modulo the ring, one for each seat in order; at the sender's own that of its self
    mask, 0 where the form has none.
    """

    plan_digest: Digest
    sender: Digest
    row: Annotated[int, Between(0, MAX_WORDS)]
    sums: Annotated[tuple[Count, ...], Length(1, MAX_PARTIES)]


# Closing


@message(13, "closing")
class Closing(Message):
    """The run is over."""

    run_id: Digest
    head: Digest


@message(14, "head statement")
class HeadStatement(Message):
    """The last transcript head that a party remembers, and the highest epoch that it served.

    Its journal's counter stands beside them, for all peers to remember (rule R4).
    """

    run_id: Digest
    sender: Digest
    head: Digest
    epoch: Count
    journal_counter: Count


@message(15, most_bytes=4096 * KIB)
class HeadBundle(Message):
    """All parties' signed `HeadStatement` frames, in seat order; empty where none came."""

    run_id: Digest
    statements: Annotated[tuple[FrameOrNone, ...], Length(1, MAX_PARTIES)]
