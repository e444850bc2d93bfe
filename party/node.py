"""A party without a network: packets in, packets out.

The node ties the pieces together in the order that the rules ask for: the protocol checks who
speaks and what came before, the guard decides, the charge is stored, the queries are journalled,
then the teachers vote and y is sent. Whatever goes wrong, only a stable code leaves the site.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from party.errors import Reason, RefusalError
from party.guard import Guard, mechanism_of
from party.journal import Journal
from pate_fed.accounting import PrivacyLedger
from pate_fed.errors import InvalidTermsError, PateFedError
from pate_fed.federation import RunTerms
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.releases import NoisyRelease
from pate_fed.votes import INVALID_VOTE_CLASS, VoteHistogram, count_votes
from protocols import wire
from protocols.errors import ProtocolError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Plan, Refusal, RunOffer, RunRecord, Settlement
from protocols.rounds import PartyRound, PartyState, Received
from protocols.secure_sum import SecureSum

MAX_PACKET_BYTES = 8 * 2**20
Vote = Callable[[QueryBatch], NDArray[np.int64]]
"""Teachers' votes on a batch: classes, shape (teachers, queries)."""

_log = logging.getLogger(__name__)


class LedgerStore(ABC):
    """Where a party keeps its ledger. Whoever keeps it on disk syncs before returning."""

    @abstractmethod
    def load(self) -> PrivacyLedger:
        """Return the newest ledger."""

    @abstractmethod
    def save(self, ledger: PrivacyLedger) -> None:
        """Replace the ledger, durably."""


class MemoryLedgerStore(LedgerStore):
    """A ledger in memory, for simulations and tests."""

    def __init__(self, ledger: PrivacyLedger) -> None:
        self._ledger = ledger

    def load(self) -> PrivacyLedger:
        """See `LedgerStore.load`."""
        return self._ledger

    def save(self, ledger: PrivacyLedger) -> None:
        """See `LedgerStore.save`."""
        self._ledger = ledger


@dataclass(frozen=True, slots=True)
class _Served:
    """The plan that a party is serving."""

    entry_id: str
    queries: int


class PartyNode:
    """One hospital's node.

    Args:
        identity: Its identity.
        coordinator: The pinned coordinator.
        pins: Pinned peers by fingerprint.
        guard: Its veto.
        pool: The public queries that its owner approved.
        vote: Its teachers.
        forms: Secure sums that it knows, by name.
        journal: What it remembers of plans and queries.
        ledger: Where it keeps what it was charged.
        random_bytes: Cryptographic random numbers.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity,
        coordinator: PublicIdentity,
        pins: Mapping[bytes, PublicIdentity],
        guard: Guard,
        pool: QueryPool,
        vote: Vote,
        forms: Mapping[str, SecureSum],
        journal: Journal,
        ledger: LedgerStore,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
    ) -> None:
        self._identity = identity
        self._coordinator = coordinator
        self._pins = dict(pins)
        self._guard = guard
        self._pool = pool
        self._vote = vote
        self._forms = dict(forms)
        self._journal = journal
        self._ledger = ledger
        self._random_bytes = random_bytes
        self._clock = clock
        self._round = self._new_round()
        self._terms: RunTerms | None = None
        self._run_ledger = self._ledger.load()
        self._answers_left = self._refusals_left = self._void_batches = 0
        self._served: _Served | None = None

    @property
    def ledger(self) -> PrivacyLedger:
        """What this party was charged."""
        return self._ledger.load()

    @property
    def state(self) -> PartyState:
        """Where the party is in its run."""
        return self._round.state

    @property
    def transcript_head(self) -> bytes:
        """Head of the run's chain as this party saw it."""
        return self._round.transcript.head

    def receive(self, packet: bytes) -> bytes:
        """Answer one packet. Never raises: whatever goes wrong becomes a coded refusal."""
        replies: list[bytes] = []
        try:
            for frame in wire.unpack(packet, max_bytes=MAX_PACKET_BYTES):
                replies.extend(self._take(frame))
        except (ProtocolError, PateFedError) as error:
            _log.warning("a message was refused: %s", error.code)
            replies.append(self._refusal(error.code))
        except Exception as error:
            _log.error("something unexpected went wrong: %s", type(error).__name__)
            replies.append(self._refusal(Reason.FAULT.value))
        return wire.pack(replies)

    def _take(self, frame: bytes) -> tuple[bytes, ...]:
        received = self._receive(frame)
        match received.event:
            case RunRecord():
                return self._judge_run(received.event)
            case Plan():
                return self._judge_plan(received.event)
            case Settlement():
                self._settle(received.event)
        return received.replies

    def _receive(self, frame: bytes) -> Received:
        """Hand a frame to its run. A finished run makes room for another that is truly offered."""
        is_over = self._round.state in (PartyState.DONE, PartyState.STOPPED)
        if not (is_over and isinstance(wire.decode(frame).message, RunOffer)):
            return self._round.receive(frame, now=self._clock())
        fresh = self._new_round()
        received = fresh.receive(frame, now=self._clock())
        self._round = fresh
        self._terms = self._served = None
        return received

    def _new_round(self) -> PartyRound:
        return PartyRound(
            identity=self._identity,
            coordinator=self._coordinator,
            pins=self._pins,
            forms=self._forms,
            journal=self._journal,
            random_bytes=self._random_bytes,
            suites=self._guard.policy.suites,
        )

    def _judge_run(self, record: RunRecord) -> tuple[bytes, ...]:
        try:
            terms = self._guard.review_run(
                record, seats=self._round.seat_fingerprints, me=self._identity.fingerprint
            )
        except Exception as error:
            return self._round.refuse(_reason_of(error).value)
        self._terms = terms
        self._run_ledger = PrivacyLedger(terms.epsilon, terms.delta)
        self._void_batches = 0
        self._answers_left, self._refusals_left = terms.max_answers, terms.max_refusals
        return self._round.accept_run()

    def _judge_plan(self, plan: Plan) -> tuple[bytes, ...]:
        assert self._terms is not None
        try:
            batch, event = self._guard.review_batch(
                plan,
                run_terms=self._terms,
                answers_left=self._answers_left,
                refusals_left=self._refusals_left,
                void_batches=self._void_batches,
                pool=self._pool,
                queries=self._journal,
                ledger=self._ledger.load(),
                run_ledger=self._run_ledger,
            )
        except Exception as error:
            return self._round.refuse(_reason_of(error).value)
        # From here on the party sends or is silent: nothing may depend on a vote (rule R12).
        entry_id = wire.digest_of(plan).hex()
        self._run_ledger = self._run_ledger.reserve(entry_id, event)
        self._ledger.save(self._ledger.load().reserve(entry_id, event))
        self._journal.claim(batch.digests)
        self._served = _Served(entry_id, len(batch))
        try:
            vector = self._count(batch).counts.ravel()
            if self._clock() >= plan.expires_at:
                _log.error("the teachers took longer than the plan allows")
                return ()
            return self._round.contribute(vector)
        except Exception as error:
            _log.error("a vote could not be sent: %s", type(error).__name__)
            return ()

    def _count(self, batch: QueryBatch) -> VoteHistogram:
        assert self._terms is not None
        shape = (self._guard.teachers, len(batch))
        try:
            # What is no number fails here, and not where the failure could be seen from outside.
            votes = np.asarray(self._vote(batch), dtype=np.float64)
        except Exception as error:
            _log.error("teachers could not vote: %s", type(error).__name__)
            votes = np.full(shape, float(INVALID_VOTE_CLASS))
        if votes.shape != shape:
            _log.error("teachers voted in the wrong shape")
            votes = np.full(shape, float(INVALID_VOTE_CLASS))
        return count_votes(votes, classes=self._terms.classes)

    def _settle(self, settlement: Settlement) -> None:
        """Charge what was released, or all that was reserved; free nothing on a mere claim."""
        served, self._served = self._served, None
        self._void_batches += settlement.state != "released"
        if served is None:  # it was refused: nothing had been charged
            return
        ledger = self._ledger.load()
        if settlement.state != "released":
            self._run_ledger = self._run_ledger.forfeit(served.entry_id)
            self._ledger.save(ledger.forfeit(served.entry_id))
            return
        assert self._terms is not None
        release = NoisyRelease.from_record(wire.decode_value(settlement.result))
        self._require_possible(release, served)
        spent = mechanism_of(self._terms).event(
            release.asked, release.answered, weight=float(self._terms.unit_votes)
        )
        self._run_ledger = self._run_ledger.commit(served.entry_id, spent, release.digest)
        self._ledger.save(ledger.commit(served.entry_id, spent, release.digest))
        self._answers_left -= release.answered
        self._refusals_left -= release.refused

    def _require_possible(self, release: NoisyRelease, served: _Served) -> None:
        """Refuse an outcome list that no run under these terms can have."""
        assert self._terms is not None
        if len(release) != served.queries:
            raise InvalidTermsError(f"a release must cover {served.queries} queries", len(release))
        if (release.labels >= self._terms.classes).any():
            raise InvalidTermsError("labels must be classes of the run", "another")
        # Else a coordinator could look at everything and have all of it refunded.
        cap_reached = (
            release.answered == self._answers_left or release.refused == self._refusals_left > 0
        )
        if release.asked < len(release) and not cap_reached:
            raise InvalidTermsError("only a cap may leave a query unasked", "no cap reached")

    def _refusal(self, reason: str) -> bytes:
        subject = self._round.run_id or bytes(32)
        message = Refusal(subject, self._identity.fingerprint, reason)
        return wire.sign(message, self._identity).frame

    def __repr__(self) -> str:
        return f"PartyNode({self._identity.fingerprint.hex()[:16]}, {self.state.value})"


def _reason_of(error: Exception) -> Reason:
    """Turn whatever stopped a review into a refusal: any doubt is one (rule R14)."""
    if isinstance(error, RefusalError):
        return error.reason
    _log.error("a review failed: %s", type(error).__name__)
    return Reason.FAULT
