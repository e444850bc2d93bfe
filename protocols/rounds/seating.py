"""A set-up run from one party's place, and the checks that each phase makes of a message first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from protocols import wire
from protocols.errors import BadSignatureError, TooFewHeadsError, UnexpectedMessageError
from protocols.identity import PublicIdentity
from protocols.messages import RunRecord
from protocols.rounds.journal import RunNote
from protocols.secure_sum import SecureSum
from protocols.wire import Signed

COORDINATOR = "coordinator"
"""How errors name the coordinator."""
LEAST_PARTIES = 3
"""Floor of every set that a party serves (rule R2): a policy may raise it, nothing lowers it."""


@dataclass(frozen=True)
class Seating:
    """A run as its record fixes it, from one party's place.

    Attributes:
        run_id: Digest of the record.
        record: The record.
        form: Secure sum of the run.
        identities: All parties in seat order, by fingerprint.
        me: Fingerprint of this party.
    """

    run_id: bytes
    record: RunRecord
    form: SecureSum
    identities: Mapping[bytes, PublicIdentity]
    me: bytes

    @cached_property
    def fingerprints(self) -> tuple[bytes, ...]:
        """All parties, in seat order."""
        return tuple(self.identities)

    @cached_property
    def peers(self) -> tuple[bytes, ...]:
        """All other parties, in seat order."""
        return tuple(peer for peer in self.fingerprints if peer != self.me)

    @property
    def seat(self) -> int:
        """This party's place."""
        return self.fingerprints.index(self.me)

    @property
    def threshold(self) -> int:
        """Fewest parties whose sum opens."""
        return self.form.threshold(len(self.identities))

    @property
    def note(self) -> RunNote:
        """The journal's note of the run."""
        keys = tuple(identity.key for identity in self.identities.values())
        return RunNote(self.run_id, self.record.coordinator, self.form.name, keys)


def verify_handed_over(signed: Signed, signer: PublicIdentity) -> None:
    """Verify a message from the coordinator, its own or a peer's: it checks all that it relays.

    Raises:
        BadSignatureError: names the coordinator.
    """
    try:
        signed.verify(signer)
    except BadSignatureError as error:
        raise error.from_peer(COORDINATOR) from error


def require_fresh(expires_at: int, *, now: float) -> None:
    """Refuse a message that has expired.

    Raises:
        UnexpectedMessageError: it has.
    """
    if now >= expires_at:
        raise UnexpectedMessageError("a message must not have expired", "one that has")


def require_run(run_id: bytes, wanted: bytes) -> None:
    """Refuse a message of another run.

    Raises:
        UnexpectedMessageError: it is.
    """
    if run_id != wanted:
        raise UnexpectedMessageError("a message must be of this run", "another")


def least_heads(form: SecureSum, *, parties: int) -> int:
    """Fewest parties whose heads must agree at the end of a run.

    More than half, or the form's threshold where it survives drop-outs; never fewer than
    `LEAST_PARTIES`.
    """
    most_of_them = form.threshold(parties) if form.survives_dropouts else parties // 2 + 1
    return max(most_of_them, LEAST_PARTIES)


def require_enough_heads(heads: Sequence[bytes], form: SecureSum) -> None:
    """Check that enough heads came to tell one history from two.

    Raises:
        TooFewHeadsError: too few.
    """
    came, least = sum(map(bool, heads)), least_heads(form, parties=len(heads))
    if came < least:
        raise TooFewHeadsError(received=came, threshold=least)


def setup_digest(confirmation_digests: Sequence[bytes]) -> bytes:
    """Digest of all parties' confirmations, in seat order: the transcript's "setup" entry."""
    return wire.digest_of_values("setup", list(confirmation_digests))
