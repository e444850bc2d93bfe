"""A run at a party: its seat, its keys, its journal and the history that it remembers."""

from __future__ import annotations

from protocols import wire
from protocols.identity import SigningIdentity
from protocols.messages import Ready, Refusal
from protocols.pair_keys import PairRoots
from protocols.rounds.journal import RoundJournal
from protocols.rounds.seating import LEAST_PARTIES, Seating
from protocols.transcript import Transcript


class SeatedRun:
    """State that all phases of a run share at a party.

    Args:
        identity: This party's identity.
        journal: Memory across restarts.
        least_survivors: Fewest parties whose sum this party helps to open.

    Attributes:
        identity: This party's identity.
        me: Its fingerprint.
        journal: Memory across restarts.
        floor: Fewest parties of a set that it serves, whatever the form.
        seating: The run as its record fixes it; None before the record came.
        roots: Roots of the pairs; none before the setup is finished.
        epoch: Highest epoch that this party moved to.
        transcript: Chain of the run as this party saw it.
    """

    def __init__(
        self, identity: SigningIdentity, *, journal: RoundJournal, least_survivors: int
    ) -> None:
        self.identity = identity
        self.me = identity.fingerprint
        self.journal = journal
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
