"""A party's end of a run.

Everything that is decided elsewhere arrives as an argument: the pinned identities, the clock, the
random numbers, the journal, and the verdict of the party's own guard. The coordinator is not
trusted: what it relays is checked against signatures of pinned peers, what it plans against the
history that this party remembers.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import DEFAULT_SUITE, SealingKey, require_key_of, seal
from protocols.errors import (
    BadSignatureError,
    BlameError,
    BrokenEnvelopeError,
    ConflictingMessageError,
    FalseRefusalError,
    HistoryError,
    InvalidVectorError,
    KeyConfirmationError,
    KeyReuseError,
    KeysGoneError,
    MalformedMessageError,
    ProtocolError,
    RemoteProtocolError,
    RestoredJournalError,
    SuiteError,
    TooFewSharesError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongStateError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import (
    DIGEST_BYTES,
    BlameRequest,
    Closing,
    Confirmations,
    Envelope,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    KeyStatement,
    Message,
    Plan,
    Ready,
    Refusal,
    RunOffer,
    RunRecord,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    SurvivorSet,
)
from protocols.pair_keys import MAX_SKIPPED_EPOCHS, Pair, PairRoots, confirmation, make_root
from protocols.rounds.blame import RowWitness
from protocols.rounds.contribution import Contribution
from protocols.rounds.holding import COORDINATOR, ShareHolder
from protocols.rounds.journal import RoundJournal
from protocols.rounds.retry import RetrySet
from protocols.rounds.states import PARTY_TRANSITIONS, PartyState, next_state
from protocols.secure_sum import SecureSum
from protocols.transcript import Transcript
from protocols.wire import Signed

ROLE_PARTY = "party"
LEAST_PARTIES = 3
"""Floor of every set that a party serves (rule R2): a policy may raise it, nothing lowers it."""
_UNSIGNED: tuple[type[Message], ...] = (EnvelopeBundle, HeadBundle, ShareBundle)
_HALF_BYTES = 32
_SELF_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Received:
    """What came of a message.

    Attributes:
        replies: Frames to send back.
        event: Something that the node must act upon: a `RunRecord` (then `accept_run` or
            `refuse`), a `Plan` (then `contribute` or `refuse`), a `Settlement` (then refunds), a
            `BlameRequest` (then `state_sums` or `refuse`).
    """

    replies: tuple[bytes, ...] = field(default=(), repr=False)
    event: RunRecord | Plan | Settlement | BlameRequest | None = None


class PartyRound:
    """A party's state machine for one run.

    Args:
        identity: This party's identity.
        coordinator: The pinned coordinator.
        pins: Pinned peers by fingerprint; may contain this party.
        forms: Secure sums that this party knows, by name.
        journal: Memory across restarts.
        random_bytes: Cryptographic random numbers: nonces, halves of roots, self masks, shares.
        suites: Names of the sealing suites that this party accepts; a run has one of them.
        least_survivors: Fewest parties whose sum this party helps to open; at least
            `LEAST_PARTIES`.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity,
        coordinator: PublicIdentity,
        pins: Mapping[bytes, PublicIdentity],
        forms: Mapping[str, SecureSum],
        journal: RoundJournal,
        random_bytes: Callable[[int], bytes],
        suites: frozenset[str] = frozenset({DEFAULT_SUITE}),
        least_survivors: int = LEAST_PARTIES,
    ) -> None:
        self._identity = identity
        self._floor = max(LEAST_PARTIES, least_survivors)
        self._me = identity.fingerprint
        self._coordinator = coordinator
        self._pins = dict(pins)
        self._forms = dict(forms)
        self._journal = journal
        self._random_bytes = random_bytes
        self._suites = suites
        self._state = PartyState.NEW
        self._transcript = Transcript()
        self._answered: dict[tuple[type[Message], object], tuple[bytes, tuple[bytes, ...]]] = {}
        self._sealing_key: SealingKey | None = None
        self._offer: Signed | None = None
        self._statement: Signed | None = None
        self._record: RunRecord | None = None
        self._run_id = b""
        self._seats: tuple[KeyStatement, ...] = ()
        self._fingerprints: tuple[bytes, ...] = ()
        self._halves: dict[bytes, bytes] = {}
        self._roots = PairRoots(self._me, {})
        self._epoch = 0
        self._unconfirmed: dict[bytes, bytes] = {}
        self._confirmations: Signed | None = None
        self._plan: Signed | None = None
        self._sent: Contribution | None = None
        self._reveal_was_lost = False
        self._next_phase: tuple[int, int, int] | None = None
        self._holder: ShareHolder | None = None
        self._survivors: Signed | None = None
        self._wrong_dealers: tuple[bytes, ...] = ()
        self._witness: RowWitness | None = None
        self._blame: BlameRequest | None = None
        self._compared: tuple[bytes, ...] = ()

    # What others may know ---------------------------------------------------------------------

    @property
    def state(self) -> PartyState:
        """Where this party is."""
        return self._state

    @property
    def transcript(self) -> Transcript:
        """Chain of this run as this party saw it."""
        return self._transcript

    @property
    def run_id(self) -> bytes:
        """Digest of the run record; empty before it came."""
        return self._run_id

    @property
    def record(self) -> RunRecord | None:
        """The run record, once it came."""
        return self._record

    @property
    def seat_fingerprints(self) -> tuple[bytes, ...]:
        """Fingerprints of all parties, in seat order."""
        return self._fingerprints

    @property
    def epoch(self) -> int:
        """Highest epoch that this party moved to."""
        return self._epoch

    @property
    def wrong_dealers(self) -> tuple[bytes, ...]:
        """Survivors of the open plan whose shares were not what they had signed."""
        return self._wrong_dealers

    @property
    def reveal_was_lost(self) -> bool:
        """Whether the last settlement says that this party's shares did not come, though sent."""
        return self._reveal_was_lost

    @property
    def heads_compared(self) -> tuple[bytes, ...]:
        """Parties whose last heads came and were this party's own, in seat order; it is one."""
        return self._compared

    # Messages ---------------------------------------------------------------------------------

    def receive(self, frame: bytes, *, now: float) -> Received:
        """Take one frame from the coordinator.

        The same frame again gets the same answer, and changes nothing. So does a plan that this
        party answered before it was restarted.

        Args:
            frame: Bytes as they came.
            now: Unix time, in seconds.

        Raises:
            RemoteProtocolError: it is malformed, not signed by whom it must be, not allowed in
                this state or not of this run, or a plan that does not continue the history:
                nothing changed. A `ConflictingMessageError`, and whatever is wrong with a bundle,
                a settlement or a closing of this run, stops the run at this party.
            TooFewPartiesError: a run record with fewer parties than its form needs.
            RestoredJournalError: the frame is a statement that this party signed when its journal
                stood higher. The run stops, and the journal begins nothing until its owner acts.
        """
        signed = wire.decode(frame)
        if self._signed_here(signed):
            self._compare_journal(signed.message)
            return Received()
        if not isinstance(signed.message, _UNSIGNED):
            self._verify_coordinator(signed)
        earlier = self._from_an_earlier_life(signed, now=now)
        if earlier is not None:
            return earlier
        self._require_ours(signed.message)
        key = self._identify(signed.message)
        if key in self._answered:
            digest, replies = self._answered[key]
            if digest != signed.digest:
                self._stop()
                raise ConflictingMessageError(
                    "a message must have the same bytes each time",
                    f"another {type(signed.message).__name__}",
                    peer=COORDINATOR,
                )
            return Received(self._repeat(signed, replies, now=now))
        state = next_state(PARTY_TRANSITIONS, self._state, signed.message)
        received = self._act(signed, now=now)
        self._state = state
        self._answered[key] = (signed.digest, received.replies)
        return received

    def accept_run(self) -> tuple[bytes, ...]:
        """Agree to the run record: seal a half of each pair's root.

        Raises:
            WrongStateError: no run record waits for a verdict.
            MalformedMessageError: a peer's sealing key is unusable; names the peer.
        """
        self._require(PartyState.REVIEWING_RUN)
        record = self._known_record()
        frames = []
        for seat in self._peers():
            peer = _fingerprint(seat)
            half = self._random_bytes(_HALF_BYTES)
            self._halves[peer] = half
            try:
                sealed = seal(
                    half,
                    seat.sealing_key,
                    suite=record.suite,
                    run_id=self._run_id,
                    sender=self._me,
                    receiver=peer,
                )
            except MalformedMessageError as error:
                raise error.from_peer(peer.hex()) from error
            envelope = Envelope(self._run_id, self._me, peer, sealed)
            frames.append(wire.sign(envelope, self._identity).frame)
        replies = (wire.contain(EnvelopeBundle(self._run_id, tuple(frames))),)
        self._journal.witness({_fingerprint(seat): seat.journal_counter for seat in self._peers()})
        self._transcript = self._transcript.append("run record", self._run_id)
        self._state = PartyState.SEALED
        self._remember(record, replies)
        return replies

    def contribute(self, vector: NDArray[np.int64]) -> tuple[bytes, ...]:
        """Agree to the plan: hide this party's vector and return it, to be sent.

        Journals the plan, moves the roots forward, computes y once and stores it, in this order.
        Where the form survives drop-outs, shares of this plan's keys go in front of y.

        Args:
            vector: x, signed integers; shape (plan.words,). Secret.

        Raises:
            WrongStateError: no plan waits for a verdict.
            InvalidVectorError: not the plan's length, or out of range.
            KeyReuseError: the plan was begun before.
        """
        self._require(PartyState.REVIEWING_PLAN)
        signed = self._known_plan()
        plan = wire.expect(signed, Plan)
        form = self._form
        if vector.shape != (plan.words,):
            raise InvalidVectorError(f"the vector must have {plan.words} words", vector.shape)
        answer = self._encoded(signed, vector)  # or refused, before a key is touched
        self._journal.begin(run_id=self._run_id, epoch=plan.epoch, plan_digest=signed.digest)
        self._move_to(plan.epoch)
        keys = self._keys_by_seat(signed.digest)
        self_key = self._random_bytes(_SELF_KEY_BYTES) if form.survives_dropouts else b""
        words = form.ring.words_in(answer.body)
        form.hide(words, seat=self._seat(), pair_keys=keys, self_key=self_key)
        del words  # what is signed must not change any more
        frame, digest = answer.sign(self._identity)
        frames: tuple[bytes, ...] = (frame,)
        if form.survives_dropouts:
            frames = (self._deal(signed.digest, keys, self_key), frame)
        self._journal.keep(signed.digest, frames, expires_at=plan.expires_at)
        dealing = b"" if self._holder is None else self._holder.dealing_digest
        self._sent = Contribution(digest, dealing)
        self._witness = RowWitness(
            form,
            plan_digest=signed.digest,
            words=plan.words,
            seat=self._seat(),
            pair_keys=keys,
            self_key=self_key,
        )
        self._transcript = self._transcript.append("plan", signed.digest)
        self._state = PartyState.SENT
        # The frames themselves stay in the journal alone, until the plan is settled.
        self._remember(plan, ())
        return frames

    def state_sums(self, *, row_words: int) -> tuple[bytes, ...]:
        """Answer who spoiled a row: state the sum of each stream over it, once.

        Args:
            row_words: Words of a row, from the terms that this party agreed to: never from the
                request, which could ask for one word and so for a vote.

        Raises:
            WrongStateError: no row waits for a verdict.
            BlameError: the plan has no such row; to be refused.
        """
        self._require(PartyState.REVIEWING_ROW)
        assert self._blame is not None
        assert self._witness is not None
        request = self._blame
        sums = self._witness.sums(request.row, row_words=row_words)
        message = StreamSums(request.plan_digest, self._me, request.row, sums)
        return self._end_blame(request, (wire.sign(message, self._identity).frame,))

    def refuse(self, reason: str) -> tuple[bytes, ...]:
        """Turn the proposal down.

        Of a plan, that is a promise: nothing was sent for it, and nothing ever will be. It is in
        the journal and the plan's keys are gone before it is sent (rule R3).

        Args:
            reason: A stable public code, never a text.

        Raises:
            WrongStateError: nothing waits for a verdict.
            KeyReuseError: a y was kept for the plan.
            RestoredJournalError: the journal was halted: it cannot promise.
        """
        if self._state is PartyState.REVIEWING_RUN:
            replies = self._refusal(self._run_id, reason)
            self._stop()
            self._remember(self._known_record(), replies)
            return replies
        if self._state is PartyState.REVIEWING_ROW and self._blame is not None:
            request = self._blame
            # Never about the plan: that would promise that nothing was sent for it.
            return self._end_blame(request, self._refusal(wire.digest_of(request), reason))
        self._require(PartyState.REVIEWING_PLAN)
        signed = self._known_plan()
        plan = wire.expect(signed, Plan)
        replies = self._refusal(signed.digest, reason)  # which may fail, and is not sent yet
        self._journal.abandon(signed.digest)
        self._spend_epoch(plan)
        self._roots.advance(plan.epoch + 1)  # the next plan's: of this one nothing is left
        self._transcript = self._transcript.append("plan", signed.digest)
        self._state = PartyState.REFUSED
        self._remember(plan, replies)
        return replies

    # One method per message -------------------------------------------------------------------

    def _act(self, signed: Signed, *, now: float) -> Received:
        message = signed.message
        match message:
            case RunOffer():
                return self._on_offer(signed, message, now=now)
            case RunRecord():
                return self._on_record(signed, message, now=now)
            case EnvelopeBundle():
                return self._stopping_on_error(lambda: self._on_envelopes(message))
            case SetupClosing():
                return self._stopping_on_error(lambda: self._on_setup_closing(message))
            case Plan():
                return self._on_plan(signed, message, now=now)
            case SurvivorSet():
                self._require_open(message.plan_digest, now=now)
                return self._stopping_on_error(lambda: self._on_survivors(signed, message))
            case ShareBundle():
                self._require_open(message.plan_digest, now=now)
                return self._stopping_on_error(lambda: self._on_shares(message))
            case Settlement():
                return self._stopping_on_error(lambda: self._on_settlement(signed, message))
            case BlameRequest():
                return self._on_blame(message, now=now)
            case Closing():
                return self._stopping_on_error(lambda: self._on_closing(message))
            case HeadBundle():
                return self._stopping_on_error(lambda: self._on_heads(message))
            case _:  # the transition table lists no other
                raise AssertionError(type(message).__name__)

    def _on_offer(self, signed: Signed, offer: RunOffer, *, now: float) -> Received:
        if offer.coordinator_key != self._coordinator.key:
            raise UnknownPeerError(
                "the offer must name the pinned key", "another", peer=COORDINATOR
            )
        if offer.form not in self._forms:
            raise UnexpectedMessageError(
                "the form must be known to this party", "another", peer=COORDINATOR
            )
        if offer.suite not in self._suites:
            raise SuiteError(
                "the suite must be one that this party accepts", "another", peer=COORDINATOR
            )
        if offer.ring_bits != self._forms[offer.form].ring.bits:
            raise UnexpectedMessageError(
                "the ring must be the form's", offer.ring_bits, peer=COORDINATOR
            )
        _require_fresh(offer.expires_at, now=now)
        self._sealing_key = SealingKey(offer.suite)
        statement = KeyStatement(
            offer_digest=signed.digest,
            identity_key=self._identity.public.key,
            sealing_key=self._sealing_key.public_bytes,
            nonce=self._random_bytes(32),
            role=ROLE_PARTY,
            expires_at=offer.expires_at,
            journal_counter=self._journal.counter,
        )
        self._offer = signed
        self._statement = wire.sign(statement, self._identity)
        return Received((self._statement.frame,))

    def _on_record(self, signed: Signed, record: RunRecord, *, now: float) -> Received:
        assert self._offer is not None
        offer = wire.expect(self._offer, RunOffer)
        if record.suite != offer.suite:
            raise SuiteError("a run must keep to its offer's suite", "another", peer=COORDINATOR)
        same = (
            record.offer_digest == self._offer.digest
            and record.coordinator == self._coordinator.fingerprint
            and record.form == offer.form
            and record.ring_bits == offer.ring_bits
            and record.expires_at == offer.expires_at
            and record.simulated == offer.simulated
        )
        if not same:
            raise UnexpectedMessageError(
                "a run record must keep to its offer", "another", peer=COORDINATOR
            )
        _require_fresh(record.expires_at, now=now)
        self._forms[record.form].require_enough(len(record.statements))
        seats = self._checked_seats(record)
        self._seats, self._record, self._run_id = seats, record, signed.digest
        self._fingerprints = tuple(_fingerprint(seat) for seat in seats)
        return Received(event=record)

    def _checked_seats(self, record: RunRecord) -> tuple[KeyStatement, ...]:
        assert self._statement is not None
        if self._statement.frame not in record.statements:
            raise UnknownPeerError("our own statement must be in the run record", "none")
        seats, fingerprints = [], []
        for frame in record.statements:
            signed = wire.decode(frame)
            seat = wire.expect(signed, KeyStatement)
            fingerprint = _fingerprint(seat)
            if fingerprint != self._me and fingerprint not in self._pins:
                raise UnknownPeerError(
                    "every party must be pinned", "one that is not", peer=fingerprint.hex()
                )
            if (
                seat.offer_digest != record.offer_digest
                or seat.role != ROLE_PARTY
                or seat.expires_at != record.expires_at
            ):
                raise UnexpectedMessageError("every statement must be for this offer", "another")
            self._verify_relayed(signed, PublicIdentity(seat.identity_key))
            try:
                require_key_of(record.suite, seat.sealing_key)
            except SuiteError as error:
                raise error.from_peer(fingerprint.hex()) from error
            seats.append(seat)
            fingerprints.append(fingerprint)
            if seat.journal_counter < self._journal.witnessed(fingerprint):
                raise HistoryError(
                    "a party's journal must not be older than what it signed",
                    "an older one",
                    peer=fingerprint.hex(),
                )
        if fingerprints != sorted(set(fingerprints)):
            raise UnknownPeerError("seats must be in the order of fingerprints, none twice", "not")
        if len({seat.sealing_key for seat in seats}) != len(seats):
            raise UnknownPeerError("sealing keys must differ", "one that comes twice")
        return tuple(seats)

    def _on_envelopes(self, bundle: EnvelopeBundle) -> Received:
        roots = {}
        for frame in bundle.envelopes:
            signed = wire.decode(frame)
            envelope = wire.expect(signed, Envelope)
            sender = envelope.sender
            if sender not in self._halves or sender in roots:
                raise UnexpectedMessageError("one envelope must come from each peer", "another")
            self._verify_relayed(signed, PublicIdentity(self._seat_of(sender).identity_key))
            if envelope.run_id != self._run_id or envelope.receiver != self._me:
                # Its sender signed where it must go: it was delivered to the wrong place.
                raise UnexpectedMessageError(
                    "an envelope must be for this run and party", "another", peer=COORDINATOR
                )
            try:
                roots[sender] = self._root_with(sender, envelope.sealed)
            except RemoteProtocolError as error:
                raise error.from_peer(sender.hex()) from error
        if len(roots) != len(self._halves):
            raise UnexpectedMessageError("one envelope must come from each peer", len(roots))
        self._halves.clear()
        self._sealing_key = None
        self._unconfirmed = roots
        macs = tuple(
            confirmation(roots[peer], run_id=self._run_id, sender=self._me, receiver=peer)
            for peer in self._peer_fingerprints()
        )
        message = Confirmations(self._run_id, self._me, macs)
        self._confirmations = wire.sign(message, self._identity)
        return Received((self._confirmations.frame,))

    def _root_with(self, peer: bytes, sealed: bytes) -> bytes:
        assert self._sealing_key is not None
        theirs = self._sealing_key.open(sealed, run_id=self._run_id, sender=peer, receiver=self._me)
        if len(theirs) != _HALF_BYTES:
            raise BrokenEnvelopeError(f"a half must have {_HALF_BYTES} bytes", len(theirs))
        ours = self._halves[peer]
        lower, higher = (ours, theirs) if self._me < peer else (theirs, ours)
        return make_root(
            run_id=self._run_id,
            pair=Pair.of(self._me, peer),
            lower_half=lower,
            higher_half=higher,
        )

    def _on_setup_closing(self, closing: SetupClosing) -> Received:
        assert self._confirmations is not None
        peers = self._peer_fingerprints()
        if len(closing.macs) != len(peers) or len(closing.confirmation_digests) != len(self._seats):
            raise UnexpectedMessageError("one MAC must come from each peer", len(closing.macs))
        for peer, mac in zip(peers, closing.macs, strict=True):
            expected = confirmation(
                self._unconfirmed[peer], run_id=self._run_id, sender=peer, receiver=self._me
            )
            if not hmac.compare_digest(mac, expected):
                raise KeyConfirmationError(
                    "both ends must hold the same root", "another", peer=peer.hex()
                )
        if closing.confirmation_digests[self._seat()] != self._confirmations.digest:
            raise HistoryError("our own confirmations must be listed", "others", peer=COORDINATOR)
        self._roots = PairRoots(self._me, self._unconfirmed)
        self._unconfirmed = {}
        digest = setup_digest(closing.confirmation_digests)
        self._transcript = self._transcript.append("setup", digest)
        return Received((self._ready("setup"),))

    def _on_plan(self, signed: Signed, plan: Plan, *, now: float) -> Received:
        _require_fresh(plan.expires_at, now=now)
        self._journal.sweep(now=now)
        if plan.expires_at > self._known_record().expires_at:
            raise UnexpectedMessageError(
                "a plan must expire with its run at the latest", "later", peer=COORDINATOR
            )
        if plan.previous_head != self._transcript.head:
            raise HistoryError(
                "a plan must continue the history that this party remembers",
                "another head",
                peer=COORDINATOR,
            )
        if plan.phase != 0 and (plan.batch, plan.attempt, plan.phase) != self._next_phase:
            raise UnexpectedMessageError(
                "a later phase must follow the released one before it, once",
                plan.phase,
                peer=COORDINATOR,
            )
        if not self.epoch < plan.epoch <= self.epoch + MAX_SKIPPED_EPOCHS:
            raise UnexpectedMessageError(
                f"an attempt's epoch must be 1 to {MAX_SKIPPED_EPOCHS} ahead of {self.epoch}",
                plan.epoch,
                peer=COORDINATOR,
            )
        self._plan = signed
        self._next_phase = self._witness = None
        return Received(event=plan)

    def _on_survivors(self, signed: Signed, message: SurvivorSet) -> Received:
        chosen = set(message.survivors)
        if message.survivors != tuple(fp for fp in self._fingerprints if fp in chosen):
            raise UnexpectedMessageError(
                "survivors must be seats, in order, none twice", "others", peer=COORDINATOR
            )
        if len(chosen) < self._least_survivors:
            raise TooFewSharesError(received=len(chosen), threshold=self._least_survivors)
        # Before anything is revealed: a plan has one survivor set, after a restart too.
        self._journal.fix_survivors(message.plan_digest, signed.digest)
        self._survivors = signed
        return Received()

    def _on_shares(self, bundle: ShareBundle) -> Received:
        assert self._survivors is not None
        assert self._holder is not None
        assert self._sent is not None
        reveal, self._wrong_dealers = self._holder.reveal(self._survivors, bundle)
        self._holder = None
        signed = wire.sign(reveal, self._identity)
        self._sent = replace(self._sent, reveal=signed.digest)
        return Received((signed.frame,))

    def _on_settlement(self, signed: Signed, settlement: Settlement) -> Received:
        # A plan that never came, or that was not answered in time, is not in the transcript yet.
        is_new = self._state in (PartyState.READY, PartyState.REVIEWING_PLAN)
        is_known = self._state is not PartyState.READY
        if is_known and settlement.plan_digest != self._known_plan().digest:
            raise UnexpectedMessageError(
                "a settlement must be of the open plan", "another", peer=COORDINATOR
            )
        if settlement.state not in ("released", "void"):
            raise MalformedMessageError("a plan is released or void", "another state")
        if len(settlement.contributions) != len(self._seats):
            raise MalformedMessageError("every seat must be listed", "others")
        if not all(len(digest) in (0, DIGEST_BYTES) for digest in settlement.contributions):
            raise MalformedMessageError("a seat must have a digest or none", "another length")
        if is_known and settlement.words != wire.expect(self._known_plan(), Plan).words:
            raise HistoryError(
                "a settlement must be of the plan's length", "another", peer=COORDINATOR
            )
        self._require_told(settlement)
        self._require_refusals(settlement)
        self._reveal_was_lost = self._is_without_reveal(settlement)
        self._next_phase = None
        if is_known and settlement.state == "released":
            plan = wire.expect(self._known_plan(), Plan)
            self._next_phase = (plan.batch, plan.attempt, plan.phase + 1)
        self._journal.erase(settlement.plan_digest)
        if is_new:
            self._transcript = self._transcript.append("plan", settlement.plan_digest)
        if settlement.state == "released" and self._form.survives_dropouts:
            # The set follows from who is listed: a party that never saw it knows it, too.
            survivors = SurvivorSet(self._run_id, settlement.plan_digest, self._listed(settlement))
            digest = wire.digest_of(survivors)
            self._transcript = self._transcript.append("survivor set", digest)
        if not is_known:
            self._move_to(self.epoch + 1)  # a plan that never came took an epoch, too
        self._transcript = self._transcript.append("settlement", signed.digest)
        if settlement.state == "released" or not is_known:
            self._witness = None
        elif self._witness is not None:
            self._witness.note_void()
        self._forget_plan()
        return Received(event=settlement)

    def _require_told(self, settlement: Settlement) -> None:
        """Hold a settlement against what this party sent, and against whom it revealed for."""
        released = settlement.state == "released"
        listed = settlement.contributions[self._seat()]
        may_be_left_out = self._form.survives_dropouts or not released
        if listed not in self._own_entries and (listed or not may_be_left_out):
            raise HistoryError("what we sent must be listed", "another", peer=COORDINATOR)
        survivors = self._listed(settlement)
        if released and len(survivors) < self._least_survivors:
            raise HistoryError("a release must have enough parties' vectors", "a missing one")
        if self._survivors is not None:
            fixed = wire.expect(self._survivors, SurvivorSet).survivors
            if survivors != fixed:
                raise HistoryError(
                    "a settlement must be of the survivor set", "another", peer=COORDINATOR
                )

    @property
    def _own_entries(self) -> tuple[bytes, ...]:
        """What a settlement may say of this party: all that it signed, or all but its shares."""
        if self._sent is None:
            return (b"",)
        return self._sent.digest, self._sent.without_reveal.digest

    def _is_without_reveal(self, settlement: Settlement) -> bool:
        has_revealed = self._sent is not None and bool(self._sent.reveal)
        listed = settlement.contributions[self._seat()]
        return has_revealed and listed != self._own_entries[0]

    def _require_refusals(self, settlement: Settlement) -> None:
        """Check every refusal: else a coordinator could have an opened batch asked again."""
        if settlement.refusals and settlement.state != "void":
            raise FalseRefusalError(
                "a released plan must have no refusals", "one", peer=COORDINATOR
            )
        listed, seats = self._listed(settlement), list(self._fingerprints)
        for frame in settlement.refusals:
            signed = wire.decode(frame)
            refusal = wire.expect(signed, Refusal)
            if refusal.subject != settlement.plan_digest or refusal.sender not in seats:
                raise FalseRefusalError(
                    "refusals must be of this plan, in the order of seats",
                    "another",
                    peer=COORDINATOR,
                )
            del seats[: seats.index(refusal.sender) + 1]
            self._verify_relayed(signed, PublicIdentity(self._seat_of(refusal.sender).identity_key))
            is_ours = refusal.sender == self._me
            if refusal.sender in listed or (is_ours and self._state is not PartyState.REFUSED):
                raise FalseRefusalError(
                    "who refused must have sent nothing", "a vector", peer=COORDINATOR
                )

    def may_be_asked_again(self, settlement: Settlement) -> RetrySet | None:
        """Say among whom the queries of a settled plan may be asked again; see `retry`.

        Args:
            settlement: An event of this run: its refusals are checked.

        Returns:
            None if nobody may: it was released, or its sum may be open.
        """
        if settlement.state != "void":
            return None
        seats = frozenset(self._fingerprints)
        if self._form.survives_dropouts:
            # Who revealed is stopped by its journal, which has the survivor set.
            return RetrySet(frozenset(), seats)
        if not settlement.refusals:
            return None
        refused = [wire.expect(wire.decode(frame), Refusal) for frame in settlement.refusals]
        return RetrySet(seats - {refusal.sender for refusal in refused}, seats)

    def _listed(self, settlement: Settlement) -> tuple[bytes, ...]:
        """Parties whose vectors a settlement lists."""
        seats = zip(self._fingerprints, settlement.contributions, strict=True)
        return tuple(fingerprint for fingerprint, digest in seats if digest)

    def _on_blame(self, request: BlameRequest, *, now: float) -> Received:
        if self._witness is not None and now >= wire.expect(self._known_plan(), Plan).expires_at:
            self._witness = None
        if self._witness is None:
            raise BlameError("keys of the plan must be here still", "none", peer=COORDINATOR)
        self._witness.require_void(request.plan_digest)
        self._blame = request
        return Received(event=request)

    def _end_blame(self, request: BlameRequest, replies: tuple[bytes, ...]) -> tuple[bytes, ...]:
        self._blame = self._witness = None
        self._state = PartyState.READY
        self._remember(request, replies)
        return replies

    def _on_closing(self, closing: Closing) -> Received:
        if closing.head != self._transcript.head:
            raise HistoryError(
                "the coordinator must remember the same run", "another head", peer=COORDINATOR
            )
        statement = HeadStatement(
            self._run_id, self._me, self._transcript.head, self.epoch, self._journal.counter
        )
        self._roots.erase()
        self._witness = None
        return Received((wire.sign(statement, self._identity).frame,))

    def _on_heads(self, bundle: HeadBundle) -> Received:
        counters = {}
        if len(bundle.statements) != len(self._seats):
            raise UnexpectedMessageError("every seat's head must come", len(bundle.statements))
        for seat, frame in zip(self._seats, bundle.statements, strict=True):
            identity = PublicIdentity(seat.identity_key)
            if not frame:  # a party that was lost since
                continue
            signed = wire.decode(frame)
            statement = wire.expect(signed, HeadStatement)
            self._verify_relayed(signed, identity)
            if statement.sender != identity.fingerprint or statement.run_id != self._run_id:
                raise UnexpectedMessageError("a head must be its seat's", "another")
            if statement.head != self._transcript.head:
                raise HistoryError(
                    "all parties must remember the same run",
                    "another head",
                    peer=identity.fingerprint.hex(),
                )
            counters[identity.fingerprint] = statement.journal_counter
        heard = {*counters, self._me}
        if len(counters) < self._least_heads:
            raise TooFewSharesError(received=len(counters), threshold=self._least_heads)
        counters.pop(self._me, None)
        self._journal.witness(counters)
        self._compared = tuple(fp for fp in self._fingerprints if fp in heard)
        return Received((self._ready("closing"),))

    # Helpers ----------------------------------------------------------------------------------

    def _encoded(self, plan: Signed, vector: NDArray[np.int64]) -> wire.VectorFrame:
        """Write a vector where its y will be sent from."""
        ring = self._form.ring
        size = len(vector) * ring.word_type.itemsize
        frame = wire.VectorFrame(plan_digest=plan.digest, sender=self._me, size=size)
        ring.encode(vector, out=ring.words_in(frame.body))
        return frame

    def _deal(self, plan_digest: bytes, keys: Mapping[int, bytes], self_key: bytes) -> bytes:
        identities = {_fingerprint(seat): PublicIdentity(seat.identity_key) for seat in self._seats}
        self._holder = ShareHolder(
            self._identity, seats=identities, plan_digest=plan_digest, roots=self._roots
        )
        return self._holder.deal(
            keys,
            self_key=self_key,
            threshold=self._form.threshold(len(self._seats)),
            random_bytes=self._random_bytes,
        )

    def _require_open(self, plan_digest: bytes, *, now: float) -> None:
        if not self._form.survives_dropouts:
            raise UnexpectedMessageError("this form must have one exchange", "a second")
        plan = self._known_plan()
        if plan_digest != plan.digest:
            raise UnexpectedMessageError("a message must be of the open plan", "another")
        _require_fresh(wire.expect(plan, Plan).expires_at, now=now)

    @property
    def _least_survivors(self) -> int:
        """Fewest parties whose sum may open, by the form and by this party's own floor."""
        return max(self._form.threshold(len(self._seats)), self._floor)

    @property
    def _least_heads(self) -> int:
        """Fewest heads to compare: any two such comparisons have a party in common."""
        return max(least_heads(self._form, parties=len(self._seats)), self._floor)

    def _forget_plan(self) -> None:
        """Drop what was kept for the plan that is settled."""
        if self._plan is not None:
            self._spend_epoch(wire.expect(self._plan, Plan))
            # What was revealed is not said again.
            key = (ShareBundle, self._plan.digest)
            if key in self._answered:
                self._answered[key] = (self._answered[key][0], ())
        self._holder = self._survivors = None
        self._wrong_dealers = ()
        self._sent = None

    def _spend_epoch(self, plan: Plan) -> None:
        """Leave a plan's epoch, whatever became of it (a contribution that failed, perhaps)."""
        if plan.epoch > self.epoch:
            self._move_to(plan.epoch)

    def _move_to(self, epoch: int) -> None:
        """Take the roots of an epoch, which may be there already: an abandoned one was passed."""
        if epoch > self._roots.epoch:
            self._roots.advance(epoch)
        self._epoch = epoch

    def give_up(self) -> None:
        """Leave the run, whatever its state: its keys are gone. Stored y's stay, to be re-sent."""
        self._stop()

    def _verify_coordinator(self, signed: Signed) -> None:
        try:
            signed.verify(self._coordinator)
        except BadSignatureError as error:
            raise error.from_peer(COORDINATOR) from error

    def _verify_relayed(self, signed: Signed, sender: PublicIdentity) -> None:
        # The coordinator checks what it relays: a bad signature was made or let through by it.
        try:
            signed.verify(sender)
        except BadSignatureError as error:
            raise error.from_peer(COORDINATOR) from error

    def _require_ours(self, message: Message) -> None:
        """Leave a message of another run alone: an old one, sent again, must not stop this run."""
        run_id = getattr(message, "run_id", self._run_id)
        if run_id != self._run_id:
            raise UnexpectedMessageError("a message must be of this run", "another")

    def _identify(self, message: Message) -> tuple[type[Message], object]:
        """Name what a message is about: two bodies for one name are a conflict."""
        match message:
            case RunOffer():
                return (RunOffer, message.nonce)
            case RunRecord():
                return (RunRecord, message.offer_digest)
            case Plan():
                return (Plan, message.epoch)
            case Settlement() | SurvivorSet() | ShareBundle() | BlameRequest():
                return (type(message), message.plan_digest)
            case _:
                return (type(message), None)

    def _signed_here(self, shown: Signed) -> bool:
        """Tell whether somebody shows a statement that this party signed."""
        match shown.message:
            case KeyStatement(identity_key=key):
                is_ours = key == self._identity.public.key
            case Ready(sender=sender) | HeadStatement(sender=sender):
                is_ours = sender == self._me
            case _:
                return False
        try:
            shown.verify(self._identity.public)
        except BadSignatureError:
            return False
        return is_ours

    def _compare_journal(self, shown: Message) -> None:
        """Stop if this party signed a higher counter than its journal has (rule R4)."""
        assert isinstance(shown, KeyStatement | Ready | HeadStatement)
        if shown.journal_counter > self._journal.counter:
            self._stop()
            self._journal.halt(shown.journal_counter)
            raise RestoredJournalError(shown=shown.journal_counter, counter=self._journal.counter)

    def _from_an_earlier_life(self, signed: Signed, *, now: float) -> Received | None:
        """Answer about a run that this party does not hold any more, from its journal.

        Its keys are gone: the y that was stored is sent as it is (rule R4). If there never was one
        the plan is abandoned, so that the others may go on without this party (rule R3).
        """
        match signed.message:
            case Plan(run_id=run_id, expires_at=expires_at) if run_id != self._run_id:
                self._journal.sweep(now=now)
                if now >= expires_at:
                    self._journal.erase(signed.digest)
                    return None
                stored = self._journal.find(signed.digest)
                return Received(self._abandon(signed.digest) if stored is None else stored)
            case Settlement(run_id=run_id, plan_digest=plan) if run_id != self._run_id:
                # Nothing to object to: the plan that may come behind it is to be answered.
                self._journal.erase(plan)
                return Received()
            case _:
                return None

    def _abandon(self, plan_digest: bytes) -> tuple[bytes, ...]:
        """Promise never to send for a plan whose keys are gone; silent if a y was once sent."""
        try:
            self._journal.abandon(plan_digest)
        except KeyReuseError:
            return ()
        return self._refusal(plan_digest, KeysGoneError.code)

    def _repeat(
        self, signed: Signed, replies: tuple[bytes, ...], *, now: float
    ) -> tuple[bytes, ...]:
        message = signed.message
        if isinstance(message, ShareBundle):
            expires_at = wire.expect(self._known_plan(), Plan).expires_at
            return () if self._state is PartyState.STOPPED or now >= expires_at else replies
        if not isinstance(message, Plan) or replies:
            return replies
        if now >= message.expires_at:
            self._journal.erase(signed.digest)  # nobody needs it any more (rule R9)
        if self._state is PartyState.STOPPED or now >= message.expires_at:
            return ()
        stored = self._journal.find(signed.digest)
        return () if stored is None else stored

    def _remember(self, message: Message, replies: tuple[bytes, ...]) -> None:
        key = self._identify(message)
        digest, _ = self._answered[key]
        self._answered[key] = (digest, replies)

    def _stopping_on_error(self, act: Callable[[], Received]) -> Received:
        try:
            return act()
        except ProtocolError:
            self._stop()
            raise

    def _stop(self) -> None:
        self._state = PartyState.STOPPED
        self._roots.erase()
        self._halves.clear()
        self._unconfirmed.clear()
        self._sealing_key = None
        self._holder = self._witness = None

    def _refusal(self, subject: bytes, reason: str) -> tuple[bytes, ...]:
        return (wire.sign(Refusal(subject, self._me, reason), self._identity).frame,)

    def _ready(self, stage: str) -> bytes:
        message = Ready(self._run_id, self._me, stage, self._transcript.head, self._journal.counter)
        return wire.sign(message, self._identity).frame

    def _require(self, state: PartyState) -> None:
        if self._state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self._state.value)

    def _known_record(self) -> RunRecord:
        assert self._record is not None
        return self._record

    @property
    def _form(self) -> SecureSum:
        return self._forms[self._known_record().form]

    def _known_plan(self) -> Signed:
        assert self._plan is not None
        return self._plan

    def _seat(self) -> int:
        return self._fingerprints.index(self._me)

    def _seat_of(self, fingerprint: bytes) -> KeyStatement:
        return self._seats[self._fingerprints.index(fingerprint)]

    def _peers(self) -> tuple[KeyStatement, ...]:
        mine = self._identity.public.key
        return tuple(seat for seat in self._seats if seat.identity_key != mine)

    def _peer_fingerprints(self) -> tuple[bytes, ...]:
        return tuple(peer for peer in self._fingerprints if peer != self._me)

    def _keys_by_seat(self, phase_digest: bytes) -> dict[int, bytes]:
        keys = self._roots.keys_for(phase_digest)
        return {
            seat: keys[peer] for seat, peer in enumerate(self._fingerprints) if peer != self._me
        }


def setup_digest(confirmation_digests: tuple[bytes, ...]) -> bytes:
    """Digest of what all parties confirmed, in seat order: the transcript's "setup" entry."""
    return wire.digest_of_values("setup", list(confirmation_digests))


def least_heads(form: SecureSum, *, parties: int) -> int:
    """Fewest parties whose heads must agree at the end of a run: more than half of them."""
    most_of_them = form.threshold(parties) if form.survives_dropouts else parties // 2 + 1
    return max(most_of_them, LEAST_PARTIES)


def _fingerprint(seat: KeyStatement) -> bytes:
    return PublicIdentity(seat.identity_key).fingerprint


def _require_fresh(expires_at: int, *, now: float) -> None:
    if now >= expires_at:
        raise UnexpectedMessageError("a message must not have expired", "one that has")
