"""A run at one of its parties, and the checks that each phase makes of a message first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from protocols import wire
from protocols.envelope import require_key_of
from protocols.errors import BadSignatureError, SuiteError, TooFewHeadsError, UnexpectedMessageError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import KeyStatement, Ready, Refusal, RunRecord
from protocols.pair_keys import PairRoots
from protocols.rounds.round_journal import RoundJournal, RunNote
from protocols.secure_sum import RoundForm
from protocols.transcript import Transcript
from protocols.values import digest_of_values
from protocols.wire import Signed

COORDINATOR = "coordinator"
"""How errors name the coordinator."""
ROLE_PARTY, ROLE_TALLY = "party", "tally"
LEAST_PARTIES = 3
"""Floor of every set that a party serves (rule R2): a policy may raise it, nothing lowers it."""


@dataclass(frozen=True)
class Seating:
    """A run as its record fixes it, from one party's place; the parties are in seat order."""

    run_id: bytes
    record: RunRecord
    form: RoundForm
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


class SeatedRun:
    """State that all phases of a run share at a party.

    Attributes:
        floor: Fewest parties of a set that it serves, whatever the form.
        seating: The run as its record fixes it; None before the record came.
        roots: Roots of the pairs; none before the setup is finished.
        epoch: Highest epoch that this party moved to.
        transcript: Chain of the run as this party saw it.
    """

    def __init__(
        self,
        identity: SigningIdentity,
        *,
        coordinator: PublicIdentity,
        journal: RoundJournal,
        random_bytes: Callable[[int], bytes],
        least_survivors: int,
    ) -> None:
        self.identity = identity
        self.me = identity.fingerprint
        self.coordinator = coordinator
        self.journal = journal
        self.random_bytes = random_bytes
        self.floor = max(LEAST_PARTIES, least_survivors)
        self.seating: Seating | None = None
        self.roots = PairRoots(self.me, {})
        self.epoch = 0
        self.transcript = Transcript()

    @property
    def known(self) -> Seating:
        """The run as its record fixes it, which came."""
        assert self.seating is not None
        return self.seating

    @property
    def run_id(self) -> bytes:
        """Digest of the run record; empty before it came."""
        return b"" if self.seating is None else self.seating.run_id

    @property
    def least_survivors(self) -> int:
        """Fewest parties whose sum may open, by the form and by this party's own floor."""
        return max(self.known.threshold, self.floor)

    def extend(self, kind: str, digest: bytes) -> None:
        """Add to the transcript."""
        self.transcript = self.transcript.append(kind, digest)

    def move_to(self, epoch: int) -> None:
        """Move to an epoch. A refused plan has moved the roots beyond it already."""
        if epoch > self.roots.epoch:
            self.roots.advance(epoch)
        self.epoch = max(self.epoch, epoch)

    def refusal(self, subject: bytes, reason: str) -> bytes:
        """Return the frame that refuses a subject, by its digest."""
        return wire.sign(Refusal(subject, self.me, reason), self.identity).frame

    def ready(self, stage: str) -> bytes:
        """Return the frame that says that this party is done with a stage."""
        head, counter = self.transcript.head, self.journal.counter
        return wire.sign(Ready(self.run_id, self.me, stage, head, counter), self.identity).frame


def verify_handed_over(signed: Signed, signer: PublicIdentity) -> None:
    """Verify a message from the coordinator, its own or a peer's: it checks all that it relays.

    The error names the coordinator.
    """
    try:
        signed.verify(signer)
    except BadSignatureError as error:
        raise error.from_peer(COORDINATOR) from error


def require_fresh(expires_at: int, *, now: float) -> None:
    """Refuse a message that has expired."""
    if now >= expires_at:
        raise UnexpectedMessageError("a message must not have expired", expires_at)


def require_run(run_id: bytes, wanted: bytes) -> None:
    """Refuse a message of another run."""
    if run_id != wanted:
        raise UnexpectedMessageError("a message must be of this run")


def require_statement(
    statement: KeyStatement,
    sender: bytes,
    *,
    offer_digest: bytes,
    suite: str,
    expires_at: int,
    role: str = ROLE_PARTY,
) -> None:
    """Check that an end's keys, which it signed, are for this offer and of its suite."""
    said = (statement.offer_digest, statement.role, statement.expires_at)
    if said != (offer_digest, role, expires_at):
        raise UnexpectedMessageError("a key statement must be for this offer")
    try:
        require_key_of(suite, statement.sealing_key)
    except SuiteError as error:
        raise error.from_peer(sender.hex()) from error


def require_enough_heads(
    heads: Sequence[bytes], form: RoundForm, *, floor: int = LEAST_PARTIES
) -> None:
    """Refuse, with `TooFewHeadsError`, heads too few to tell one history from two.

    A head is empty where none came. The form's quorum; never fewer than `floor`.
    """
    came = sum(map(bool, heads))
    least = max(form.quorum(len(heads)), floor)
    if came < least:
        raise TooFewHeadsError(received=came, threshold=least)


def seats_of(record: RunRecord) -> tuple[bytes, ...]:
    """Return the fingerprints of a run's parties, in seat order; nothing is verified."""
    stated = (wire.expect(wire.decode(frame), KeyStatement) for frame in record.statements)
    present = (PublicIdentity(each.identity_key).fingerprint for each in stated)
    return tuple(sorted((*present, *record.absent)))


def setup_digest(confirmation_digests: Sequence[bytes]) -> bytes:
    """Digest of all parties' confirmations, in seat order: the transcript's "setup" entry."""
    return digest_of_values("setup", list(confirmation_digests))
