"""Every message of a run, as a frozen value that is checked when it is made.

One run, in order (C the coordinator, P a party; `*` relayed between parties)::

    setup     C -> P  RunOffer            who calls, which form, until when
              P -> C  KeyStatement        identity, sealing key and nonce for this run
              C -> P  RunRecord           all statements; its digest is the run's id
              P -> C  EnvelopeBundle *    a sealed share of the pair root for each peer
              C -> P  EnvelopeBundle      those addressed to this party
              P -> C  Confirmations *     a MAC under the pair root for each peer
              C -> P  SetupClosing        those for this party, and what all parties sent
              P -> C  Ready               transcript head
    batch     C -> P  Plan                what is asked, under which terms
              P -> C  MaskedVector        y, or Refusal
              C -> P  Settlement          released, or void; travels with the next message
    masked    P -> C  ShareBundle *       before y: hashes and sealed shares of this batch's keys
              C -> P  Proposal            whose y's to open, or that the plan is to be closed
              P -> C  VerdictMacs *       the verdict below, for each peer
              P -> C  Verdict             the party agrees, once for each plan
              C -> P  VerdictMacs         those for this party; or a Certificate
              C -> P  ShareBundle         hashes of all survivors, shares for this party
              P -> C  Reveal              its shares of the keys still in the sum, of no others
    blame     C -> P  BlameRequest        which row of a void plan was wrong
              P -> C  StreamSums          the sum of each of its streams over that row
    closing   C -> P  Closing             the run is over
              P -> C  HeadStatement *     transcript head, signed
              C -> P  HeadBundle          everybody's heads, to compare
              P -> C  Ready

Fields carry their bounds in their type; `wire` gives the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from protocols.errors import MalformedMessageError
from protocols.party_names import MOST_LETTERS, is_party_name

PROTOCOL_VERSION = 2

KIB = 1024
MAX_PARTIES = 1024
MAX_WORDS = 2**26
MAX_TERMS_BYTES = 512 * KIB
MAX_RESULT_BYTES = 512 * KIB
MAX_CERTIFICATE_BYTES = 144 * KIB
VERDICT_MAC_BYTES = 16
MAX_COLUMN_BYTES = 36 * KIB
"""A share of every secret of a dealer among `MAX_PARTIES`, 34 bytes each, sealed."""


@dataclass(frozen=True, slots=True)
class Size:
    """Allowed length of bytes or text, or number of items of a tuple: `least` to `most`."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Letters(Size):
    """Name of a hospital or federation, of letters of any script; see `protocols.party_names`."""


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed integers: `least` to `most`."""

    least: int
    most: int


MOST_OPEN_RUNS = 256
"""Most names of runs in an answer about a membership."""

MOST_REFUSED = 2**17
"""Most items of an inquiry that a party names."""

DIGEST_BYTES = 32
Digest = Annotated[bytes, Size(DIGEST_BYTES, DIGEST_BYTES)]
Digests = Annotated[bytes, Size(DIGEST_BYTES, DIGEST_BYTES * MAX_PARTIES)]
Key = Annotated[bytes, Size(32, 32)]
SealingPublicKey = Annotated[bytes, Size(32, 2 * KIB)]  # how long exactly, the suite says
Nonce = Annotated[bytes, Size(32, 32)]
Mac = Annotated[bytes, Size(32, 32)]
Count = Annotated[int, Range(0, 2**32 - 1)]
UnixTime = Annotated[int, Range(0, 2**40)]
Name = Annotated[str, Size(1, 64)]
PartyName = Annotated[str, Letters(1, MOST_LETTERS)]
Frame = Annotated[bytes, Size(1, 4 * KIB)]
FrameOrNone = Annotated[bytes, Size(0, 4 * KIB)]
SmallFrame = Annotated[bytes, Size(1, 256)]
SmallFrameOrNone = Annotated[bytes, Size(0, 256)]
DigestOrNone = Annotated[bytes, Size(0, 32)]
Signature = Annotated[bytes, Size(64, 64)]


class Message:
    """Base of all messages.

    Class attributes:
        TYPE: Number on the wire.
        PURPOSE: What a signature over it is for; empty for a container of signed messages.
        MAX_BYTES: Largest frame that a receiver accepts.
    """

    TYPE: ClassVar[int]
    PURPOSE: ClassVar[str]
    MAX_BYTES: ClassVar[int] = 4 * KIB

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, allowed in _field_rules(type(self)):  # type: ignore[arg-type]
            _check(getattr(self, name), allowed, name)


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
        terms: What the run is for; canonical bytes that this library does not read.
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


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """One attempt at one batch (rule R1). Every signature and key of the attempt binds to it.

    Attributes:
        run_id: Run.
        epoch: Counter of attempts over the run: the pair roots move forward with it.
        batch: Number of the batch.
        attempt: Which try of this batch.
        phase: Which vector of this attempt.
        previous_head: Transcript head before this plan.
        words: Length of the vector.
        expires_at: After this, nobody sends for it.
        terms: What is asked; canonical bytes that this library does not read.
    """

    TYPE: ClassVar[int] = 9
    PURPOSE: ClassVar[str] = "plan"
    MAX_BYTES: ClassVar[int] = 1024 * KIB

    run_id: Digest
    epoch: Count
    batch: Count
    attempt: Count
    phase: Count
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

    def __repr__(self) -> str:
        return f"MaskedVector({len(self.body)} bytes)"


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
    """What became of a plan: released or void, and what every party sent.

    Attributes:
        run_id: Run.
        plan_digest: The plan that is settled.
        state: "released" or "void".
        words: Length of the plan's vector, for a party that the plan never reached.
        contributions: What each party signed for the plan (`rounds.contribution`), in seat order;
            empty where no y came.
        refusals: Signed `Refusal` frames of this plan, in seat order; none unless it is void.
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


@dataclass(frozen=True, slots=True)
class Dealing(Message):
    """A dealer's hashes of what it shared in one attempt; see `dealing`.

    Attributes:
        plan_digest: Plan whose keys are shared.
        sender: Fingerprint of the dealer.
        salt: Fresh for each dealing; in every hash.
        secret_hashes: Of its self mask at its own seat, of its key with every other seat; 32 bytes
            each, one behind the other. A holder reads one of every party: in one piece.
        column_roots: Of the shares of each holder, in seat order; the same.
    """

    TYPE: ClassVar[int] = 16
    PURPOSE: ClassVar[str] = "dealing"
    MAX_BYTES: ClassVar[int] = 80 * KIB

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


@dataclass(frozen=True, slots=True)
class ShareBundle(Message):
    """Shares on their way: all of one dealer, or all for one holder.

    Attributes:
        plan_digest: Plan whose keys are shared.
        dealings: Signed `Dealing` frames: the sender's own, or in seat order those of all other
            survivors.
        envelopes: Sealed columns in seat order: to every other party, or from all other survivors.
    """

    TYPE: ClassVar[int] = 17
    PURPOSE: ClassVar[str] = ""
    MAX_BYTES: ClassVar[int] = MAX_PARTIES * (MAX_COLUMN_BYTES + 80 * KIB)

    plan_digest: Digest
    dealings: Annotated[
        tuple[Annotated[bytes, Size(1, Dealing.MAX_BYTES)], ...], Size(1, MAX_PARTIES)
    ]
    envelopes: Annotated[
        tuple[Annotated[bytes, Size(1, MAX_COLUMN_BYTES)], ...], Size(1, MAX_PARTIES)
    ]


@dataclass(frozen=True, slots=True)
class Proposal(Message):
    """The coordinator proposes what becomes of a plan: a set of parties to open, or none at all.

    Attributes:
        run_id: Run.
        plan_digest: The plan.
        survivors: Parties whose y's are to be opened, in seat order; empty to close the plan.
    """

    TYPE: ClassVar[int] = 18
    PURPOSE: ClassVar[str] = "proposal"
    MAX_BYTES: ClassVar[int] = 64 * KIB

    run_id: Digest
    plan_digest: Digest
    survivors: Annotated[tuple[Digest, ...], Size(0, MAX_PARTIES)]


@dataclass(frozen=True, slots=True)
class Verdict(Message):
    """A party's one word on a plan: this set opens, or the plan is closed and nothing ever opens.

    It names no sender: equal verdicts of all parties are the same bytes but for the signature.

    Attributes:
        plan_digest: The plan.
        survivors: Parties whose y's open, in seat order; empty: the plan is closed.
    """

    TYPE: ClassVar[int] = 27
    PURPOSE: ClassVar[str] = "verdict"
    MAX_BYTES: ClassVar[int] = 64 * KIB

    plan_digest: Digest
    survivors: Annotated[tuple[Digest, ...], Size(0, MAX_PARTIES)]


@dataclass(frozen=True, slots=True)
class Certificate(Message):
    """Enough equal verdicts on one plan, so that no other verdict can have as many.

    Attributes:
        plan_digest: As in the verdicts.
        survivors: As in the verdicts.
        signers: Fingerprints of the parties that gave them, in seat order.
        signatures: Each signer's signature over the `Verdict`, in the same order.
    """

    TYPE: ClassVar[int] = 28
    PURPOSE: ClassVar[str] = ""
    MAX_BYTES: ClassVar[int] = MAX_CERTIFICATE_BYTES

    plan_digest: Digest
    survivors: Annotated[tuple[Digest, ...], Size(0, MAX_PARTIES)]
    signers: Annotated[tuple[Digest, ...], Size(1, MAX_PARTIES)]
    signatures: Annotated[tuple[Signature, ...], Size(1, MAX_PARTIES)]

    @property
    def verdict(self) -> Verdict:
        """The verdict that the signers gave."""
        return Verdict(self.plan_digest, self.survivors)


@dataclass(frozen=True, slots=True)
class VerdictMacs(Message):
    """A verdict authenticated between each two parties: by one party to all, or by all to one.

    A party checks a hundred of these in the time of two signatures. The signatures go into the
    settlement's `Certificate`, for parties that were not there and for the transcript.

    Attributes:
        plan_digest: The plan.
        macs: One for each other party in seat order, under the pair's keys of the plan; empty where
            there is none.
    """

    TYPE: ClassVar[int] = 29
    PURPOSE: ClassVar[str] = ""
    MAX_BYTES: ClassVar[int] = 32 * KIB

    plan_digest: Digest
    macs: Annotated[tuple[Annotated[bytes, Size(0, VERDICT_MAC_BYTES)], ...], Size(1, MAX_PARTIES)]


@dataclass(frozen=True, slots=True)
class Reveal(Message):
    """A holder's shares of the keys that are still in the sum of a certified set.

    Attributes:
        opening_digest: Which verdict it follows, and which dealings it was held against:
            `rounds.contribution.opening_digest`.
        sender: Fingerprint of the holder.
        disclosures: For each survivor in seat order, `dealing.disclose` of its shares; empty
            where what came as its shares was not what it signed.
    """

    TYPE: ClassVar[int] = 19
    PURPOSE: ClassVar[str] = "reveal"
    MAX_BYTES: ClassVar[int] = MAX_PARTIES * (MAX_COLUMN_BYTES + KIB)

    opening_digest: Digest
    sender: Digest
    disclosures: Annotated[
        tuple[Annotated[bytes, Size(0, MAX_COLUMN_BYTES)], ...], Size(1, MAX_PARTIES)
    ]


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


@dataclass(frozen=True, slots=True, repr=False)
class JoinRequest(Message):
    """A hospital asks to join a federation; the operator approves it after a telephone call.

    Attributes:
        coordinator: Fingerprint of the coordinator that invited it.
        token: What the invitation holds, good for one request.
        party_name: What people call the hospital; the invitation's.
        identity_key: Its Ed25519 key: what is compared by telephone.
        node_key: Its EC key for Flower, PEM: bound under the identity by this signature.
        asked_at: When.
    """

    TYPE: ClassVar[int] = 22
    PURPOSE: ClassVar[str] = "join request"

    coordinator: Digest
    token: Annotated[bytes, Size(16, 16)]
    party_name: PartyName
    identity_key: Key
    node_key: Annotated[bytes, Size(1, KIB)]
    asked_at: UnixTime

    def __repr__(self) -> str:
        return f"JoinRequest({self.party_name})"


@dataclass(frozen=True, slots=True)
class MembershipQuery(Message):
    """A hospital asks what became of its request, and who else takes part.

    Attributes:
        coordinator: Fingerprint of the coordinator that it joined.
        sender: Its own.
        asked_at: When.
        audit_head: Frame of its `AuditHead`, to be kept; empty if it has none to give.
        goes_on_from: SHA-256 of the frame that it was given back and found in its log; empty if
            there is none. A head that is kept gives way to nobody who did not find it.
    """

    TYPE: ClassVar[int] = 23
    PURPOSE: ClassVar[str] = "membership query"

    coordinator: Digest
    sender: Digest
    asked_at: UnixTime
    audit_head: SmallFrameOrNone
    goes_on_from: DigestOrNone


@dataclass(frozen=True, slots=True)
class Membership(Message):
    """The coordinator's answer to a request or a query.

    Attributes:
        party: Fingerprint of the hospital that it is for.
        federation: Name of the federation.
        state: "requested", "member" or "revoked".
        teachers: With how many teachers it was approved; 0 until it is a member.
        answered_at: When.
        peer_names: The other members. Their keys are checked by nobody until the hospital's own
            people did.
        peer_keys: Their Ed25519 keys, in the same order.
        audit_head: Frame of the `AuditHead` of the hospital that is kept; empty if it gave none.
        open_runs: Names of the runs that have not ended: what waits for people of another run waits
            in vain.
    """

    TYPE: ClassVar[int] = 24
    PURPOSE: ClassVar[str] = "membership"
    MAX_BYTES: ClassVar[int] = 384 * KIB  # a letter takes up to 4 bytes

    party: Digest
    federation: PartyName
    state: Name
    teachers: Count
    answered_at: UnixTime
    peer_names: Annotated[tuple[PartyName, ...], Size(0, MAX_PARTIES)]
    peer_keys: Annotated[tuple[Key, ...], Size(0, MAX_PARTIES)]
    audit_head: SmallFrameOrNone
    open_runs: Annotated[tuple[Name, ...], Size(0, MOST_OPEN_RUNS)]


@dataclass(frozen=True, slots=True)
class PoolQuery(Message):
    """A hospital asks for a part of a pool of public queries.

    Attributes:
        pool: Digest of the pool.
        offset: First byte that is wanted.
    """

    TYPE: ClassVar[int] = 25
    PURPOSE: ClassVar[str] = "pool query"

    coordinator: Digest
    sender: Digest
    pool: Digest
    offset: Annotated[int, Range(0, 2**40)]
    asked_at: UnixTime


@dataclass(frozen=True, slots=True)
class AuditHead(Message):
    """Where a hospital's audit log stands, given away so that its end cannot be cut unnoticed.

    Attributes:
        party: Fingerprint of the hospital.
        records: How many there are.
        head: Link of the last of them: it commits to all.
    """

    TYPE: ClassVar[int] = 26
    PURPOSE: ClassVar[str] = "audit head"
    MAX_BYTES: ClassVar[int] = 256

    party: Digest
    records: Annotated[int, Range(0, 2**40)]
    head: Digest


@dataclass(frozen=True, slots=True)
class Inquiry(Message):
    """The coordinator asks, before a plan, whether a party would serve it. Nothing is charged.

    Attributes:
        run_id: Run.
        terms: What the plan would ask, as `Plan.terms`.
    """

    TYPE: ClassVar[int] = 30
    PURPOSE: ClassVar[str] = "inquiry"
    MAX_BYTES: ClassVar[int] = 1024 * KIB

    run_id: Digest
    terms: Annotated[bytes, Size(1, MAX_TERMS_BYTES)]


@dataclass(frozen=True, slots=True)
class Readiness(Message):
    """A party has keys and budget for what an inquiry asks, but for some of its items.

    It is no promise: what a party answers meanwhile, in another federation, may change it.

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
class ResultsQuery(Message):
    """A hospital that took part in a run asks for a part of one file of its results.

    Attributes:
        run: Id of the run.
        file: Path of the file in the run's directory, one of a fixed list.
        offset: First byte that is wanted.
    """

    TYPE: ClassVar[int] = 32
    PURPOSE: ClassVar[str] = "results query"

    coordinator: Digest
    sender: Digest
    run: Digest
    file: Name
    offset: Annotated[int, Range(0, 2**40)]
    asked_at: UnixTime


MESSAGE_TYPES: dict[int, type[Message]] = {
    message.TYPE: message
    for message in (
        RunOffer,
        KeyStatement,
        RunRecord,
        Envelope,
        EnvelopeBundle,
        Confirmations,
        SetupClosing,
        Ready,
        Plan,
        MaskedVector,
        Refusal,
        Settlement,
        Closing,
        HeadStatement,
        HeadBundle,
        Dealing,
        ShareBundle,
        Proposal,
        Reveal,
        BlameRequest,
        StreamSums,
        JoinRequest,
        MembershipQuery,
        Membership,
        PoolQuery,
        AuditHead,
        Verdict,
        Certificate,
        VerdictMacs,
        Inquiry,
        Readiness,
        ResultsQuery,
    )
}


@cache
def field_types(message_type: type[Message]) -> dict[str, Any]:
    """Return the annotated type of each field, in order."""
    hints = get_type_hints(message_type, include_extras=True)
    return {field.name: hints[field.name] for field in fields(message_type)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A field's type taken apart: its classes, its bound, and the same of a tuple's items."""

    bases: tuple[type, ...]
    bound: Size | Range | None
    item: _Allowed | None


@cache
def _field_rules(message_type: type[Message]) -> tuple[tuple[str, _Allowed], ...]:
    return tuple((name, _allowed(hint)) for name, hint in field_types(message_type).items())  # type: ignore[arg-type]


def _allowed(hint: Any) -> _Allowed:
    base, bound, item = hint, None, None
    if get_origin(hint) is Annotated:
        base, bound = get_args(hint)[:2]
    if get_origin(base) is tuple:
        base, item = tuple, _allowed(get_args(base)[0])
    bases = get_args(base) if isinstance(base, UnionType) else (base,)
    return _Allowed(bases, bound, item)


def _check(value: object, allowed: _Allowed, name: str) -> None:
    """Check a value against a field's type: exact types only, no subclass, no bool for int."""
    bases, bound, item = allowed.bases, allowed.bound, allowed.item
    if type(value) not in bases:
        raise MalformedMessageError(f"{name} must be {bases[0].__name__}", type(value).__name__)
    if (
        isinstance(bound, Size)
        and isinstance(value, bytes | memoryview | str | tuple)
        and not bound.least <= len(value) <= bound.most
    ):
        raise MalformedMessageError(
            f"{name} must have length {bound.least} to {bound.most}", len(value)
        )
    if isinstance(bound, Letters):
        if isinstance(value, str) and not is_party_name(value):
            raise MalformedMessageError(
                f"{name} must be a name of letters of any script", "another text"
            )
    elif isinstance(value, str) and not (value.isascii() and value.isprintable()):
        # A name reaches logs and screens: no control characters, no letters that look alike.
        raise MalformedMessageError(f"{name} must be printable ASCII", "another character")
    if (
        isinstance(bound, Range)
        and isinstance(value, int)
        and not bound.least <= value <= bound.most
    ):
        raise MalformedMessageError(
            f"{name} must be between {bound.least} and {bound.most}", "a number outside"
        )
    if item is not None and isinstance(value, tuple) and not _are_bytes_that_fit(value, item):
        for element in value:
            _check(element, item, name)


def _are_bytes_that_fit(items: tuple[object, ...], allowed: _Allowed) -> bool:
    """Check many byte strings at once: there may be thousands in a message."""
    bound = allowed.bound
    if allowed.bases != (bytes,) or not isinstance(bound, Size) or set(map(type, items)) != {bytes}:
        return False
    sizes = set(map(len, items))  # type: ignore[arg-type]  # all are bytes
    return bound.least <= min(sizes) and max(sizes) <= bound.most
