"""What both aggregators' machines have in common: bytes in, bytes out, and a journal before.

The same message again gets the same answer, byte for byte. Another one in its place, and two ends
that accept other reports, stop the batch for ever: nothing of it leaves any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import (
    ConflictingMessageError,
    HistoryError,
    ProtocolError,
    TooFewPartiesError,
    UnexpectedMessageError,
    UnknownPeerError,
)
from protocols.fields import Message
from protocols.forms import Verified
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.verified.check_history import CheckHistory, CheckState
from protocols.verified.check_journal import (
    CheckJournal,
    CheckStep,
    CheckStopped,
    Exchanged,
    SecretsDrawn,
)
from protocols.verified.vote_report import VoteBatch
from protocols.verified.vote_side import (
    Decision,
    NoiseLaw,
    SideSecrets,
    VoteSide,
    coin_of,
    decide,
    parts_opened_by,
    read_sum_share,
)
from protocols.verified.vote_sum import open_noisy_sum
from protocols.vote_messages import Acceptance, SumShare, VoteAnswers
from protocols.wire import Signed


class CheckingEnd(ABC):
    """One aggregator's machine for one batch.

    Args:
        batch: Of the signed plan, with the votes of each hospital's signed enrollment.
        identity: This end's.
        key: For sealed parts; its public half stands in the batch.
        other: The other end's pinned identity.
        hospitals: Pinned identities, by fingerprint.
        least_parties: Fewest hospitals whose sum opens; at least `Verified.smallest`.
        journal: The plan's, with all steps until now.
        random_bytes: The operating system's randomness.
        draw_noise: The full amount.

    Raises:
        UnknownPeerError: an identity or the key is not the batch's.
        TooFewPartiesError: `least_parties` is too small.
        BrokenJournalError: the journal is of another batch or end, or contradicts itself.
    """

    is_tally: bool

    def __init__(
        self,
        batch: VoteBatch,
        *,
        identity: SigningIdentity,
        key: SealingKey,
        other: PublicIdentity,
        hospitals: Mapping[bytes, PublicIdentity],
        least_parties: int,
        journal: CheckJournal,
        random_bytes: Callable[[int], bytes],
        draw_noise: NoiseLaw,
    ) -> None:
        ends = (batch.coordinator, batch.tally)
        ours, theirs = ends[self.is_tally], ends[not self.is_tally]
        if (identity.fingerprint, key.public_bytes) != (ours.fingerprint, ours.sealing_key):
            raise UnknownPeerError("an aggregator must have the keys that its plan names")
        if other.fingerprint != theirs.fingerprint:
            raise UnknownPeerError("the other aggregator must be the one that the plan names")
        if least_parties < Verified.smallest:
            raise TooFewPartiesError(received=least_parties, threshold=Verified.smallest)
        self.batch = batch
        self._identity, self._key, self._other = identity, key, other
        self._hospitals, self._least = hospitals, least_parties
        self._journal, self._random_bytes, self._draw_noise = journal, random_bytes, draw_noise
        self._decision: Decision | None = None
        self._history = CheckHistory(batch, is_tally=self.is_tally)
        for step in journal.steps():
            self._history.apply(step)

    # Public facts -------------------------------------------------------------------------------

    @property
    def state(self) -> CheckState:
        """Where the batch is at this end."""
        return self._history.state

    @property
    def decision(self) -> Decision | None:
        """Which reports both ends' answers prove, once they are there."""
        return None if self._history.answer_to(VoteAnswers) is None else self._decided()

    @property
    def opened(self) -> NDArray[np.int64] | None:
        """The noisy sum, once it is open; shape (queries, columns)."""
        if self._history.answer_to(SumShare) is None:
            return None
        both = self._history.said_by_us(SumShare), self._history.said_by_other(SumShare)
        return open_noisy_sum(*(read_sum_share(self.batch, share) for share in both))

    def resend(self) -> bytes:
        """Return this end's last frame again; empty if it sent none, or stopped, or is done."""
        is_over = self.state in (CheckState.STOPPED, CheckState.OPENED)
        return b"" if is_over else self._history.last_sent

    # Messages -----------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> bytes:
        """Take a frame of the other end; return this end's next one, empty after the last.

        The same frame again gets the same bytes.

        Raises:
            RemoteProtocolError: it is malformed, not signed by the other end, of another plan, or
                not allowed in this state: nothing changed. A `ConflictingMessageError` and a
                `HistoryError` stop the batch.
            TooFewPartiesError: fewer hospitals are accepted than the plan wants: the batch is
                stopped.
        """
        signed = wire.decode(frame)
        signed.verify(self._other)
        message = signed.message
        self._history.require_ours(message)
        if getattr(message, "sender", self._other.fingerprint) != self._other.fingerprint:
            raise UnexpectedMessageError("a message must name its sender")
        if self.state is CheckState.STOPPED:
            raise UnexpectedMessageError("a batch must not be stopped")
        answered = self._history.answer_to(type(message))
        if answered is not None:
            before, answer = answered
            if wire.digest_of(before) != signed.digest:
                self._stop(
                    ConflictingMessageError(
                        "a message must have the same bytes each time",
                        f"another {type(message).__name__}",
                    ),
                    frame,
                )
            return answer
        self._history.next_state(message)
        return self._answer(signed, message)

    @abstractmethod
    def _answer(self, signed: Signed, message: Message) -> bytes:
        """Check a message that the state allows, note the exchange, return the answer."""

    @property
    @abstractmethod
    def _other_nonce(self) -> bytes:
        """The other end's half of the coin, once it was told."""

    # Steps --------------------------------------------------------------------------------------

    @property
    def _side(self) -> VoteSide:
        """This end, with secrets that its journal holds."""
        if self._history.secrets is None:
            secrets = SideSecrets.draw(self._random_bytes)
            self._note(SecretsDrawn(secrets.nonce, secrets.noise_seed))
        assert self._history.secrets is not None
        part_of = parts_opened_by(self._key, self.batch, is_tally=self.is_tally)
        return VoteSide(self.batch, self.is_tally, part_of, self._history.secrets, self._draw_noise)

    def _note(self, step: CheckStep) -> None:
        self._journal.append(step)
        self._history.apply(step)

    def _exchange(self, received: bytes, sent: Message) -> bytes:
        """Note an exchange, then return what is to be sent."""
        step = Exchanged(received, wire.sign(sent, self._identity).frame)
        self._note(step)
        return step.sent

    def _open_share(self, received: bytes) -> bytes:
        """Charge what opens and note this end's share, at once, before it is returned."""
        decision = self._decided()
        share = self._side.sum_share(self._history.listed, decision, self._coin)
        step = Exchanged(received, wire.sign(share, self._identity).frame)
        self._journal.append_charged(step, accepted=decision.accepted)
        self._history.apply(step)
        return step.sent

    def _stop(self, error: ProtocolError, frame: bytes = b"") -> NoReturn:
        """Stop the batch for ever, and say why."""
        self._note(CheckStopped(error.code.encode(), frame))
        raise error

    # What both decide ---------------------------------------------------------------------------

    def _coin_with(self, other_nonce: bytes) -> bytes:
        nonces = [self._side.secrets.nonce, other_nonce]
        first, second = reversed(nonces) if self.is_tally else nonces
        return coin_of(
            self.batch, self._history.listed, coordinator_nonce=first, tally_nonce=second
        )

    @property
    def _coin(self) -> bytes:
        return self._coin_with(self._other_nonce)

    def _decided(self) -> Decision:
        if self._decision is None:
            self._decision = self._decide(self._history.said_by_other(VoteAnswers))
        return self._decision

    def _decide(self, theirs: VoteAnswers) -> Decision:
        own = self._history.said_by_us(VoteAnswers)
        return decide(self.batch, self._history.listed, self._coin, (own, theirs))

    def _require_enough(self, decision: Decision) -> None:
        if len(decision.accepted) < self._least:
            self._stop(TooFewPartiesError(received=len(decision.accepted), threshold=self._least))

    def _require_equal(self, told: Acceptance, frame: bytes) -> None:
        own = self._side.acceptance(self._decided(), self._coin)
        if told.accepted != own.accepted:
            self._stop(HistoryError("both aggregators must accept the same reports"), frame)
