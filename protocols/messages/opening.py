"""Messages that open a sum of fewer than all parties: shares, verdicts and their proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocols.messages.fields import (
    DIGEST_BYTES,
    KIB,
    MAX_CERTIFICATE_BYTES,
    MAX_PARTIES,
    Digest,
    Digests,
    Message,
    Nonce,
    Signature,
    Size,
)

VERDICT_MAC_BYTES = 16
MAX_COLUMN_BYTES = 36 * KIB
"""A share of every secret of a dealer among `MAX_PARTIES`, 34 bytes each, sealed."""


@dataclass(frozen=True, slots=True)
class Dealing(Message):
    """A dealer's hashes of the shares of one attempt; see `dealing`.

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
    """The coordinator proposes the end of a plan: a set of parties to open, or none at all.

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
        disclosures: For each survivor in seat order, `dealing.disclose` of its shares; empty where
            its shares differed from its signed hashes.
    """

    TYPE: ClassVar[int] = 19
    PURPOSE: ClassVar[str] = "reveal"
    MAX_BYTES: ClassVar[int] = MAX_PARTIES * (MAX_COLUMN_BYTES + KIB)

    opening_digest: Digest
    sender: Digest
    disclosures: Annotated[
        tuple[Annotated[bytes, Size(0, MAX_COLUMN_BYTES)], ...], Size(1, MAX_PARTIES)
    ]
