"""The coordinator's end of a run.

It relays what it cannot read, and adds y's as they come: no party's vector is ever held, only the
running total, which is uniform until the last y is in, or, where the form survives drop-outs, until
enough survivors have revealed what is left in it.

Each step is in its journal before the frame that follows from it leaves, so a coordinator that was
killed goes on (`CoordinatorRound.resumed`) with the very same bytes: an open plan is sent again and
the same y's come again, a survivor set that was fixed stays as it was, and a sum that was opened
has to be opened from the same y's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import DEFAULT_SUITE, require_key_of, require_suite
from protocols.errors import (
    ConflictingMessageError,
    HistoryError,
    LateMessageError,
    RefusedError,
    RemoteProtocolError,
    SuiteError,
    TooFewSharesError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongLengthError,
    WrongStateError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import (
    KIB,
    Closing,
    Confirmations,
    Envelope,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    KeyStatement,
    MaskedVector,
    Message,
    Plan,
    Ready,
    Refusal,
    Reveal,
    RunOffer,
    RunRecord,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    SurvivorSet,
)
from protocols.ring import Words
from protocols.rounds.blame import Blame, BlameCase, require_rows
from protocols.rounds.contribution import Contribution, entry_of
from protocols.rounds.coordinator_journal import (
    CoordinatorJournal,
    HeadsCollected,
    MemoryCoordinatorJournal,
    PlanOpened,
    PlanSettled,
    RunClosed,
    RunFinished,
    SetupFinished,
    SumOpened,
    SurvivorsFixed,
)
from protocols.rounds.opening import ShareFault, SumOpening
from protocols.rounds.party import ROLE_PARTY, least_heads, setup_digest
from protocols.rounds.replay import RememberedRun, SettledPlan, replay
from protocols.rounds.states import COORDINATOR_TRANSITIONS, CoordinatorState, next_state
from protocols.secure_sum import SecureSum
from protocols.signed_transcript import HeadSignature, HeadsRecord, transcript_lines
from protocols.transcript import EntrySignature, Transcript
from protocols.wire import Signed

_READY_STAGES = {CoordinatorState.CONFIRMED: "setup", CoordinatorState.COMPARING: "closing"}


class CoordinatorRound:
    """The coordinator's state machine for one run.

    Args:
        identity: The coordinator's identity.
        form: Secure sum of the run.
        parties: Pinned parties by fingerprint: all of them take part.
        nonce: 32 fresh random bytes.
        expires_at: Unix time after which the run is over, in seconds.
        simulated: Whether the run is a simulation.
        suite: Name of the sealing suite, the same for all parties.
        known_statements: What `statements` gave after an earlier run.
        journal: Memory across restarts, an empty one; in memory alone if None.

    Raises:
        TooFewPartiesError: fewer parties than the form needs.
        SuiteError: no such suite.
        WrongStateError: the journal is that of a run that was begun: see `resumed`.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity,
        form: SecureSum,
        parties: Mapping[bytes, PublicIdentity],
        nonce: bytes,
        expires_at: int,
        simulated: bool,
        suite: str = DEFAULT_SUITE,
        known_statements: Mapping[bytes, bytes] | None = None,
        journal: CoordinatorJournal | None = None,
    ) -> None:
        form.require_enough(len(parties))
        require_suite(suite)
        self._journal = MemoryCoordinatorJournal() if journal is None else journal
        if self._journal.steps():
            raise WrongStateError("a run must begin with an empty journal", "one with steps")
        self._identity = identity
        self._form = form
        self._parties = dict(parties)
        self._seats = tuple(sorted(parties))
        self._state = CoordinatorState.OFFERED
        self._transcript = Transcript()
        self._received: dict[bytes, Signed | None] = {}
        self._answered: dict[tuple[type[Message], bytes, object], bytes] = {}
        self._run_id = b""
        self._epoch = 0
        self._plan: Signed | None = None
        self._total: Words | None = None
        self._vectors: dict[bytes, bytes] = {}
        self._declined: dict[bytes, bytes] = {}
        self._opening: SumOpening | None = None
        self._survivor_set: Signed | None = None
        self._case: BlameCase | None = None
        self._row_request = b""
        self._fixed: dict[bytes, Contribution] = {}
        self._opened: dict[bytes, Contribution] = {}
        self._settled: list[SettledPlan] = []
        self._record: Signed | None = None
        self._closing = b""
        self._head_frames: tuple[bytes, ...] = ()
        self._statements = {
            party: wire.decode(frame) for party, frame in (known_statements or {}).items()
        }
        self._heads: list[HeadsRecord] = []
        offer = RunOffer(
            coordinator_key=identity.public.key,
            nonce=nonce,
            form=form.name,
            ring_bits=form.ring.bits,
            suite=suite,
            expires_at=expires_at,
            simulated=simulated,
        )
        self._offer = wire.sign(offer, identity)

    @classmethod
    def resumed(
        cls,
        *,
        identity: SigningIdentity,
        form: SecureSum,
        parties: Mapping[bytes, PublicIdentity],
        journal: CoordinatorJournal,
    ) -> Self:
        """Go on with a run after a restart.

        Args:
            identity: The coordinator's identity.
            form: Secure sum of the run.
            parties: Pinned parties by fingerprint: all that take part.
            journal: What the run's steps were written to; more will be.

        Raises:
            UnfinishedSetupError: the run was not set up: it is given up.
            BrokenJournalError: a step does not follow, or the run is of others.
        """
        steps = journal.steps()
        known = replay(steps, coordinator=identity.public, parties=parties, form=form)
        offer = wire.expect(known.offer, RunOffer)
        run = cls(
            identity=identity,
            form=form,
            parties=parties,
            nonce=offer.nonce,
            expires_at=offer.expires_at,
            simulated=offer.simulated,
            suite=offer.suite,
        )
        run._journal = journal
        run._remember(known)
        return run

    def _remember(self, known: RememberedRun) -> None:
        self._offer, self._record = known.offer, known.record
        self._run_id = known.record.digest
        self._state = known.state
        self._transcript, self._heads = known.transcript, list(known.heads)
        self._statements = dict(known.statements)
        self._epoch = known.epoch
        self._settled = list(known.settled)
        self._closing, self._head_frames = known.closing, known.head_frames
        if known.plan is not None:
            self._collect(known.plan)
            self._survivor_set = known.survivor_set
            self._fixed, self._opened = dict(known.fixed), dict(known.opened)

    # What others may know ---------------------------------------------------------------------

    @property
    def state(self) -> CoordinatorState:
        """What the coordinator waits for."""
        return self._state

    @property
    def seats(self) -> tuple[bytes, ...]:
        """Fingerprints of all parties, in seat order."""
        return self._seats

    @property
    def run_id(self) -> bytes:
        """Digest of the run record; empty before it was made."""
        return self._run_id

    @property
    def has_open_plan(self) -> bool:
        """Whether a plan waits to be settled."""
        return self._plan is not None

    @property
    def plan_digest(self) -> bytes:
        """Digest of the open plan.

        Raises:
            WrongStateError: none is open.
        """
        return self._open_plan().digest

    @property
    def phase(self) -> int:
        """Phase of the open plan.

        Raises:
            WrongStateError: none is open.
        """
        return wire.expect(self._open_plan(), Plan).phase

    @property
    def open_plan(self) -> Plan:
        """The open plan.

        Raises:
            WrongStateError: none is open.
        """
        return wire.expect(self._open_plan(), Plan)

    @property
    def plan_frame(self) -> bytes:
        """Frame of the open plan, the same as often as it is sent.

        Raises:
            WrongStateError: none is open.
        """
        return self._open_plan().frame

    @property
    def was_opened(self) -> bool:
        """Whether the sum of the open plan was opened, perhaps before a restart."""
        return bool(self._opened)

    @property
    def run_record(self) -> RunRecord:
        """The run record.

        Raises:
            WrongStateError: it was not made yet.
        """
        if self._record is None:
            raise WrongStateError("a run must be recorded", self._state.value)
        return wire.expect(self._record, RunRecord)

    @property
    def record_frame(self) -> bytes:
        """Frame of the run record; empty before it was made."""
        return b"" if self._record is None else self._record.frame

    @property
    def settled(self) -> tuple[SettledPlan, ...]:
        """Every settled plan, in order."""
        return tuple(self._settled)

    @property
    def closing_frame(self) -> bytes:
        """Frame that ended the run, the same as often as it is sent; empty before it."""
        return self._closing

    @property
    def heads_frame(self) -> bytes:
        """Frame of all parties' heads, the same as often as it is sent; empty before it."""
        if not self._head_frames:
            return b""
        return wire.contain(HeadBundle(self._run_id, self._head_frames))

    def unheard(self, party: bytes) -> list[bytes]:
        """Return the settlements that a party may not have heard of, oldest first.

        Who sent a y knew the history before its plan: whatever was settled from there on may be
        news. One that comes twice changes nothing.
        """
        seat = self._seats.index(party)
        frames: list[bytes] = []
        for each in reversed(self._settled):
            frames.insert(0, each.frame)
            if each.settlement.contributions[seat]:
                break
        return frames

    @property
    def transcript(self) -> Transcript:
        """Chain of this run."""
        return self._transcript

    @property
    def statements(self) -> dict[bytes, bytes]:
        """The frame in which each party signed its journal's highest counter (rule R4).

        To be kept over runs, and shown to a party before the next offer.
        """
        return {party: signed.frame for party, signed in self._statements.items()}

    @property
    def missing(self) -> tuple[bytes, ...]:
        """Parties whose message of this stage has not come, in seat order."""
        awaited = self.heads_compared or self._seats
        if self._state is CoordinatorState.BLAMING:
            awaited = self._known_case().asked
        elif self._survivor_set is not None:
            awaited = wire.expect(self._survivor_set, SurvivorSet).survivors
        return tuple(seat for seat in awaited if seat not in self._received)

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """Parties whose y's are in the total of the open plan, in seat order."""
        return tuple(seat for seat in self._seats if seat in self._vectors)

    @property
    def most_share_bytes(self) -> int:
        """Most bytes that a party sends beside its y, or reveals; 0 where no plan needs it."""
        return 0 if self._opening is None else self._opening.most_bytes

    @property
    def share_faults(self) -> tuple[ShareFault, ...]:
        """Shares of the open plan that were dropped, and who is named."""
        return () if self._opening is None else self._opening.faults

    @property
    def nothing_was_shared(self) -> bool:
        """Whether every party signed a refusal of the open plan, and none sent a y."""
        was_answered = self._vectors or self._opened or self._survivor_set is not None
        return not was_answered and set(self._declined) == set(self._seats)

    @property
    def declined(self) -> tuple[bytes, ...]:
        """Parties that signed that they will never send for the open plan, in seat order."""
        return tuple(seat for seat in self._seats if seat in self._declined)

    @property
    def survivors_are_fixed(self) -> bool:
        """Whether shares of the open plan may have been revealed, perhaps before a restart."""
        return self._survivor_set is not None

    @property
    def traces_rows(self) -> bool:
        """Whether it can be found out who spoiled a row of the last plan: not after a restart."""
        return self._case is not None

    @property
    def heads_compared(self) -> tuple[bytes, ...]:
        """Parties that signed the last head of this run, in seat order; none before `compare`."""
        heads = zip(self._seats, self._head_frames, strict=bool(self._head_frames))
        return tuple(seat for seat, frame in heads if frame)

    # Messages ---------------------------------------------------------------------------------

    def receive(self, frame: bytes, *, peer: bytes | None = None) -> bytes:
        """Take one frame from a party.

        The same frame again changes nothing.

        Args:
            frame: Bytes as they came.
            peer: Fingerprint of the party that they came from, where that is known already.

        Returns:
            Fingerprint of the party that signed it.

        Raises:
            RemoteProtocolError: it is malformed, not signed by the party that it must be from,
                not allowed in this state or contradicts an earlier one; `peer` of the error
                names the party, and nothing changed.
            RefusedError: the party refused.
            LateMessageError: an answer to a plan that is settled, or whose survivors are fixed.
        """
        try:
            self._require_size(frame)
            return self._take(frame, peer)
        except RemoteProtocolError as error:
            if peer is None or error.peer:
                raise
            raise error.from_peer(peer.hex()) from error

    def _take(self, frame: bytes, peer: bytes | None) -> bytes:
        signed = wire.decode(frame)
        message = signed.message
        sender = self._sender_of(signed, peer)
        if message.PURPOSE:
            signed.verify(self._parties[sender])
        key = (type(message), sender, _subject(message))
        seen = self._answered.get(key)
        if seen is not None:
            if seen != signed.digest:
                raise ConflictingMessageError(
                    "a message must have the same bytes each time",
                    f"another {type(message).__name__}",
                    peer=sender.hex(),
                )
            return sender
        self._require_in_time(message)
        state = next_state(COORDINATOR_TRANSITIONS, self._state, message)
        if sender not in self.missing:
            # Else a party could answer an exchange that has not begun, and end it for all.
            raise UnexpectedMessageError("a party must speak once in each exchange", "more")
        self._check(signed, sender)
        if isinstance(message, ShareBundle):  # goes in front of y, which ends the exchange
            self._answered[key] = signed.digest
            return sender
        # A y was added to the total: the vector itself is not held.
        self._received[sender] = None if isinstance(message, MaskedVector) else signed
        self._answered[key] = signed.digest
        self._note_counter(signed, sender)
        if not self.missing:
            self._note_heads()
            self._note_stage(state)
            self._state = state
        return sender

    def recognize(self, frame: bytes) -> bytes:
        """Tell which party answered the run record that was sent once more; changes nothing.

        A party that is still in the run answers as it did, any other refuses: either is signed.

        Returns:
            The party's fingerprint.

        Raises:
            RemoteProtocolError: nobody's answer, or one to something else.
        """
        signed = wire.decode(frame)
        match signed.message:
            case EnvelopeBundle(run_id=run_id, envelopes=envelopes) if envelopes:
                self._require_run(run_id)
                signed = wire.decode(envelopes[0])
                sender = wire.expect(signed, Envelope).sender
            case Refusal():
                sender = signed.message.sender
            case _:
                raise UnexpectedMessageError(
                    "an answer must be that to a run record", type(signed.message).__name__
                )
        if sender not in self._parties:
            raise UnknownPeerError("an answer must be a party's", "another's")
        signed.verify(self._parties[sender])
        return sender

    def _sender_of(self, signed: Signed, peer: bytes | None) -> bytes:
        message = signed.message
        match message:
            case KeyStatement():
                sender = PublicIdentity(message.identity_key).fingerprint
            case EnvelopeBundle() | ShareBundle():
                if peer is None:
                    raise UnknownPeerError("a bundle's sender must be known", "none")
                sender = peer
            case Confirmations() | Ready() | MaskedVector() | Refusal() | Reveal() | StreamSums():
                sender = message.sender
            case HeadStatement():
                sender = message.sender
            case _:
                raise UnexpectedMessageError(
                    "a message must be one that parties send", type(message).__name__
                )
        if sender not in self._parties or peer not in (None, sender):
            raise UnknownPeerError("a message must be of the party it came from", "another")
        return sender

    def _check(self, signed: Signed, sender: bytes) -> None:
        message = signed.message
        if isinstance(message, ShareBundle | Reveal | StreamSums):
            self._check_keys(signed, sender)
            return
        match message:
            case KeyStatement():
                self._check_statement(message, sender)
            case EnvelopeBundle():
                self._check_bundle(message, sender)
            case Confirmations():
                self._require_run(message.run_id)
                if len(message.macs) != len(self._seats) - 1:
                    raise UnexpectedMessageError("one MAC must be for each peer", "others")
            case Ready():
                self._require_run(message.run_id)
                if message.stage != _READY_STAGES[self._state]:
                    raise UnexpectedMessageError("a party must be ready with this stage", "another")
                self._require_head(message.head)
            case MaskedVector():
                self._add(signed, message)
            case Refusal():
                self._note_refusal(signed, message)
                raise RefusedError(message.reason, peer=sender.hex())
            case HeadStatement():
                self._check_head(message)
            case _:
                raise AssertionError(type(message).__name__)

    def _note_refusal(self, signed: Signed, refusal: Refusal) -> None:
        """Keep a promise about the open plan: it is shown to all if the plan is void."""
        # A party that has lost the run cannot name it.
        if self._state not in (CoordinatorState.CLOSING, CoordinatorState.COMPARING):
            self._require_current(refusal.subject)
        if self._plan is not None and refusal.subject == self._plan.digest:
            self._declined[refusal.sender] = signed.frame

    def _check_head(self, statement: HeadStatement) -> None:
        self._require_run(statement.run_id)
        self._require_head(statement.head)
        if statement.epoch != self._epoch:
            raise HistoryError("the epoch must be the run's", statement.epoch)

    def _check_statement(self, statement: KeyStatement, sender: bytes) -> None:
        offer = wire.expect(self._offer, RunOffer)
        if (
            statement.offer_digest != self._offer.digest
            or statement.role != ROLE_PARTY
            or statement.expires_at != offer.expires_at
        ):
            raise UnexpectedMessageError("a key statement must be for this offer", "another")
        try:
            require_key_of(offer.suite, statement.sealing_key)
        except SuiteError as error:
            raise error.from_peer(sender.hex()) from error
        if statement.journal_counter < self._counter_of(sender):
            raise HistoryError(
                "a party's journal must not be older than what it signed",
                "an older one",
                peer=sender.hex(),
            )

    def _check_bundle(self, bundle: EnvelopeBundle, sender: bytes) -> None:
        self._require_run(bundle.run_id)
        receivers = []
        for frame in bundle.envelopes:
            signed = wire.decode(frame)
            envelope = wire.expect(signed, Envelope)
            # So that a receiver who meets a bad signature knows that it was not relayed in faith.
            signed.verify(self._parties[sender])
            if envelope.sender != sender or envelope.run_id != self._run_id:
                raise UnexpectedMessageError("an envelope must be its sender's, of this run", "no")
            receivers.append(envelope.receiver)
        if receivers != [seat for seat in self._seats if seat != sender]:
            raise UnexpectedMessageError("one envelope must be for each peer", "others")

    def _add(self, signed: Signed, vector: MaskedVector) -> None:
        plan = self._open_plan()
        if vector.plan_digest != plan.digest:
            raise UnexpectedMessageError("a vector must be for the open plan", "another")
        if vector.sender in self._declined:
            raise ConflictingMessageError("who refused a plan must send no vector", "one")
        added = self._signed_before(vector.sender)
        if added is not None and added.vector != signed.digest:
            raise ConflictingMessageError(
                "a y must be the one that was added before", "another", peer=vector.sender.hex()
            )
        if self._opening is not None and not self._opening.has_dealt(vector.sender):
            raise UnexpectedMessageError("shares must come before a vector", "none")
        if len(vector.body) != self._y_bytes:
            raise WrongLengthError(f"y must have {self._y_bytes} bytes", len(vector.body))
        assert self._total is not None
        words = self._form.ring.from_bytes(vector.body)
        self._form.merge(self._total, words)
        if self._case is not None:
            self._case.add(vector.sender, words)
        self._vectors[vector.sender] = signed.digest

    def _check_keys(self, signed: Signed, sender: bytes) -> None:
        message = signed.message
        if isinstance(message, StreamSums):
            self._known_case().take(message)
            return
        if self._opening is None:
            raise UnexpectedMessageError("this form must have no shares", "some")
        match message:
            case ShareBundle():
                identity = self._parties[sender]
                added = self._signed_before(sender)
                self._opening.take_dealing(
                    message,
                    sender=sender,
                    identity=identity,
                    known_digest=b"" if added is None else added.dealing,
                )
            case Reveal():
                self._opening.take_reveal(signed)

    # Calls ------------------------------------------------------------------------------------

    def offer(self) -> bytes:
        """Return the frame that offers the run, for every party."""
        return self._offer.frame

    def record(self, *, terms: bytes, colluders: int, dropouts: int) -> bytes:
        """Fix the run and return its record, for every party.

        Args:
            terms: What the run is for.
            colluders: Parties that may collude with the coordinator.
            dropouts: Parties that may be lost.
        """
        self._require(CoordinatorState.RECORDED)
        statements = self._collected()
        offer = wire.expect(self._offer, RunOffer)
        record = RunRecord(
            offer_digest=self._offer.digest,
            coordinator=self._identity.fingerprint,
            statements=tuple(statement.frame for statement in statements),
            form=offer.form,
            ring_bits=offer.ring_bits,
            suite=offer.suite,
            threshold=len(self._seats) - dropouts,
            colluders=colluders,
            dropouts=dropouts,
            expires_at=offer.expires_at,
            simulated=offer.simulated,
            terms=terms,
        )
        signed = wire.sign(record, self._identity)
        self._run_id = signed.digest
        self._record = signed
        self._append("run record", signed)
        return signed.frame

    def deliver(self) -> dict[bytes, bytes]:
        """Return, by receiver, the frame with the envelopes addressed to it."""
        self._require(CoordinatorState.DELIVERED)
        boxes: dict[bytes, list[bytes]] = {seat: [] for seat in self._seats}
        for seat, signed in zip(self._seats, self._collected(), strict=True):
            bundle = wire.expect(signed, EnvelopeBundle)
            peers = [peer for peer in self._seats if peer != seat]
            for receiver, frame in zip(peers, bundle.envelopes, strict=True):
                boxes[receiver].append(frame)
        return {
            seat: wire.contain(EnvelopeBundle(self._run_id, tuple(box)))
            for seat, box in boxes.items()
        }

    def close_setup(self) -> dict[bytes, bytes]:
        """Return, by receiver, the frame with its peers' confirmations."""
        self._require(CoordinatorState.CONFIRMED)
        collected = self._collected()
        confirmations = [wire.expect(signed, Confirmations) for signed in collected]
        digests = tuple(signed.digest for signed in collected)
        frames = {}
        for place, seat in enumerate(self._seats):
            # A sender's MACs leave its own seat out, so later seats stand one place earlier.
            macs = tuple(
                message.macs[place - (sender_place < place)]
                for sender_place, message in enumerate(confirmations)
                if sender_place != place
            )
            closing = SetupClosing(self._run_id, macs, digests)
            frames[seat] = wire.sign(closing, self._identity).frame
        signatures = tuple(
            EntrySignature(seat, signed.digest, signed.signature)
            for seat, signed in zip(self._seats, collected, strict=True)
        )
        self._transcript = self._transcript.append("setup", setup_digest(digests), signatures)
        return frames

    def plan(
        self,
        *,
        batch: int,
        attempt: int,
        words: int,
        expires_at: int,
        terms: bytes,
        phase: int = 0,
        row_words: int = 0,
    ) -> bytes:
        """Open an attempt at a batch and return its plan, the same for every party.

        Args:
            batch: Number of the batch.
            attempt: Which try of it.
            words: Length of the vector.
            expires_at: Unix time after which nobody sends for it.
            terms: What is asked.
            phase: Which vector of this attempt, from 0; each is a plan of its own.
            row_words: Words of a row, if it is to be found out who spoils one; 0 if not.

        Raises:
            WrongStateError: the last plan is not settled, or rows do not fill the vector.
        """
        self._require_settled()
        if row_words:
            require_rows(words, row_words)
        plan = Plan(
            run_id=self._run_id,
            epoch=self._epoch + 1,
            batch=batch,
            attempt=attempt,
            phase=phase,
            previous_head=self._transcript.head,
            words=words,
            expires_at=expires_at,
            terms=terms,
        )
        signed = wire.sign(plan, self._identity)
        self._journal.append(PlanOpened(signed.frame))
        self._epoch += 1
        self._append("plan", signed)
        self._collect(signed)
        self._case = self._new_case(words, row_words)
        return signed.frame

    def _collect(self, plan: Signed) -> None:
        """Wait for the y's of a plan, from the beginning."""
        self._plan = plan
        self._case = None
        self._total = self._form.empty_total(wire.expect(plan, Plan).words)
        self._fixed.clear()
        self._opened.clear()
        self._vectors.clear()
        self._declined.clear()
        self._received.clear()
        if self._form.survives_dropouts:
            self._opening = SumOpening(self._form, seats=self._seats, plan_digest=plan.digest)
        self._state = CoordinatorState.COLLECTING

    def fix_survivors(self) -> dict[bytes, list[bytes]]:
        """Fix whose y's are in the sum, once: a y that comes later is refused.

        A set that was fixed before a restart stays, and needs the same parties' y's again.

        Returns:
            By survivor, its frames: the survivor set, and the shares that the others dealt to it.

        Raises:
            WrongStateError: the form needs all parties, no plan is open, or the set is fixed.
            TooFewSharesError: too few y's came: the sum cannot be opened.
        """
        plan = self._open_plan()
        if self._opening is None:
            raise WrongStateError("the form must survive drop-outs", self._form.name)
        if self._opening.is_fixed:
            raise WrongStateError("survivors must be fixed once", "a second time")
        survivors = self.survivors
        fixed = self._survivor_set
        if fixed is None:
            self._form.require_survivors(len(survivors), parties=len(self._seats))
            fixed = wire.sign(SurvivorSet(self._run_id, plan.digest, survivors), self._identity)
            signed = self._contributions()
            listed = tuple(signed.get(seat) for seat in self._seats)
            self._journal.append(SurvivorsFixed(fixed.frame, listed))
            self._fixed = signed
        elif self.missing:
            wanted = wire.expect(fixed, SurvivorSet).survivors
            raise TooFewSharesError(received=len(survivors), threshold=len(wanted))
        self._survivor_set = fixed
        frames = self._opening.fix(fixed, survivors)
        self._received.clear()
        self._state = CoordinatorState.REVEALING
        return frames

    def open_total(self) -> NDArray[np.int64]:
        """Open the sum of all survivors' vectors and forget the total. Secret.

        Raises:
            WrongStateError: some y is missing or the survivors are not fixed, or the sum was opened
                before.
            TooFewSharesError: a survivor's secrets have fewer good shares than open them.
            WrongShareError: a survivor's shares open something else than it signed; names it.
        """
        is_whole = len(self._vectors) == len(self._seats)
        if self._opening is not None:
            is_whole = self._opening.is_fixed
        if self._total is None or not is_whole:
            raise WrongStateError("every y must be in, and the sum opened once", self._state.value)
        streams = [] if self._opening is None else self._opening.streams()
        if not self._opened:
            # What is told of the sum is what was there when it was opened: after a restart too.
            self._opened = self._contributions()
            added = tuple(self._opened.get(seat) for seat in self._seats)
            self._journal.append(SumOpened(added))
        if self._case is not None and streams:
            alive = [self._seats.index(seat) for seat in self.survivors]
            left = self._form.leftovers(alive, parties=len(self._seats))
            opened = zip(left, streams, strict=True)
            self._case.note_opened((dealer, seat, key) for (dealer, seat, _), (_, key) in opened)
        total, self._total = self._total, None
        return self._form.unshard(total, streams=streams)

    def settle(self, *, released: bool, result: bytes) -> bytes:
        """Close the open plan and return the frame that tells every party.

        Args:
            released: Whether its result was released; otherwise it is void.
            result: What was released.

        Raises:
            WrongStateError: no plan is open, or its sum was not opened and yet it was released.
        """
        plan = self._open_plan()
        if released and not self._opened:
            raise WrongStateError("a release must follow an opened sum", self._state.value)
        added = self._opened or self._contributions()
        settlement = Settlement(
            run_id=self._run_id,
            plan_digest=plan.digest,
            state="released" if released else "void",
            words=wire.expect(plan, Plan).words,
            contributions=tuple(entry_of(added.get(seat)) for seat in self._seats),
            refusals=() if released else tuple(self._declined[seat] for seat in self.declined),
            result=result,
        )
        signed = wire.sign(settlement, self._identity)
        self._journal.append(PlanSettled(signed.frame))
        if released and self._survivor_set is not None:
            self._append("survivor set", self._survivor_set)
        self._append("settlement", signed)
        self._settled.append(
            SettledPlan(wire.expect(plan, Plan), plan.digest, settlement, signed.frame)
        )
        self._plan = self._total = self._opening = self._survivor_set = None
        self._fixed.clear()
        self._opened.clear()
        if released:
            self._case = None
        self._vectors.clear()
        self._received.clear()
        self._state = CoordinatorState.READY
        return signed.frame

    def ask_for_sums(self, row: int) -> bytes:
        """Ask who spoiled a row of the plan that was settled as void, once.

        Args:
            row: Which row.

        Returns:
            The frame for every party whose y was in the sum: those in `missing`.

        Raises:
            WrongStateError: the last plan is not settled, or was released, or its rows were not to
                be traced, or it has no such row.
        """
        self._require_settled()
        request = self._known_case().ask(row, run_id=self._run_id)
        self._received.clear()
        self._state = CoordinatorState.BLAMING
        signed = wire.sign(request, self._identity)
        self._row_request = signed.digest
        return signed.frame

    def name_liars(self, quotas: Sequence[int]) -> Blame:
        """Compare what the parties stated, and forget it. Who did not state is named for that.

        Args:
            quotas: What a row of each party must come to, in seat order.

        Raises:
            WrongStateError: no row was asked about.
        """
        if self._state is not CoordinatorState.BLAMING:  # else somebody is silent
            self._require(CoordinatorState.READY)
        blame = self._known_case().name(quotas)
        self._case = None
        self._received.clear()
        self._state = CoordinatorState.READY
        return blame

    def close(self) -> bytes:
        """End the run and return the frame that tells every party."""
        self._require_settled()
        closing = Closing(self._run_id, self._transcript.head)
        frame = wire.sign(closing, self._identity).frame
        self._journal.append(RunClosed(frame))
        self._received.clear()
        self._closing = frame
        self._state = CoordinatorState.CLOSING
        return frame

    def compare(self) -> bytes:
        """Return all parties' heads, for every party to compare.

        A party that was lost since has none: the others go on if they are enough.

        Raises:
            WrongStateError: the run is not closed, or its heads were compared before.
            TooFewSharesError: too few heads came to tell one history from two.
        """
        if self._head_frames:
            raise WrongStateError("heads must be compared once", "a second time")
        if self._state is CoordinatorState.CLOSING:
            came, least = len(self._received), least_heads(self._form, parties=len(self._seats))
            if came < least:
                raise TooFewSharesError(received=came, threshold=least)
            self._note_heads()
            self._state = CoordinatorState.COMPARING
        self._require(CoordinatorState.COMPARING)
        received = [self._received.get(seat) for seat in self._seats]
        heads = tuple(b"" if signed is None else signed.frame for signed in received)
        self._journal.append(HeadsCollected(heads))
        self._received.clear()
        self._head_frames = heads
        return self.heads_frame

    def signed_transcript(self) -> list[dict[str, Any]]:
        """Return the transcript as it is written down: hashes, signatures and public keys."""
        heads = [*self._heads]
        if self._state is CoordinatorState.CLOSING:  # those that came, for whoever asks who did not
            heads.append(self._heads_record())
        parties = [self._parties[seat] for seat in self._seats]
        return transcript_lines(
            self._transcript, heads, parties=parties, coordinator=self._identity
        )

    # Helpers ----------------------------------------------------------------------------------

    def _append(self, kind: str, signed: Signed) -> None:
        signature = EntrySignature(self._identity.fingerprint, signed.digest, signed.signature)
        self._transcript = self._transcript.append(kind, signed.digest, (signature,))

    def _note_counter(self, signed: Signed, sender: bytes) -> None:
        message = signed.message
        if isinstance(message, KeyStatement | Ready | HeadStatement) and (
            message.journal_counter >= self._counter_of(sender)
        ):
            self._statements[sender] = signed

    def _counter_of(self, party: bytes) -> int:
        signed = self._statements.get(party)
        if signed is None:
            return 0
        assert isinstance(signed.message, KeyStatement | Ready | HeadStatement)
        return signed.message.journal_counter

    def _note_heads(self) -> None:
        """Keep what all parties signed of the chain, once all have: it is in their own words."""
        if self._state in (CoordinatorState.CONFIRMED, CoordinatorState.CLOSING):
            self._heads.append(self._heads_record())

    def _note_stage(self, state: CoordinatorState) -> None:
        """Write down the end of the setup and of the run, once every party has said so."""
        received = [self._received.get(seat) for seat in self._seats]
        frames = tuple(b"" if signed is None else signed.frame for signed in received)
        if self._state is CoordinatorState.CONFIRMED:
            assert self._record is not None
            _, setup = self._transcript.entries
            confirmations = tuple((each.digest, each.signature) for each in setup.signatures)
            step = SetupFinished(self._offer.frame, self._record.frame, confirmations, frames)
            self._journal.append(step)
        elif state is CoordinatorState.DONE:
            self._journal.append(RunFinished(frames))

    def _heads_record(self) -> HeadsRecord:
        stage = "setup" if self._state is CoordinatorState.CONFIRMED else "closing"
        signatures = []
        for seat in self._seats:
            signed = self._received.get(seat)
            if signed is not None and isinstance(signed.message, Ready | HeadStatement):
                counter = signed.message.journal_counter
                signatures.append(HeadSignature(seat, counter, signed.signature))
        return HeadsRecord(stage, len(self._transcript.entries), self._epoch, tuple(signatures))

    def _collected(self) -> list[Signed]:
        """Hand over every party's message of this exchange, in seat order, and begin the next."""
        if self.missing:
            raise WrongStateError("an exchange must be over, once", self._state.value)
        messages = [self._received.pop(seat) for seat in self._seats]
        return [signed for signed in messages if signed is not None]

    def _signed_before(self, party: bytes) -> Contribution | None:
        """What a party signed for the open plan that others heard of, perhaps before a restart."""
        return self._opened.get(party) or self._fixed.get(party)

    def _contributions(self) -> dict[bytes, Contribution]:
        """What the parties whose y's are in the total signed until now, by fingerprint."""
        opening = self._opening
        if opening is None:
            return {seat: Contribution(digest) for seat, digest in self._vectors.items()}
        return {
            seat: opening.contribution_of(seat, vector_digest=digest)
            for seat, digest in self._vectors.items()
        }

    def _new_case(self, words: int, row_words: int) -> BlameCase | None:
        if not row_words:
            return None
        return BlameCase(
            self._form,
            seats=self._seats,
            plan_digest=self._open_plan().digest,
            words=words,
            row_words=row_words,
        )

    def _known_case(self) -> BlameCase:
        if self._case is None:
            raise WrongStateError("a row of a void plan must be asked about", "none")
        return self._case

    def _open_plan(self) -> Signed:
        if self._plan is None:
            raise WrongStateError("a plan must be open", self._state.value)
        return self._plan

    @property
    def _y_bytes(self) -> int:
        words = wire.expect(self._open_plan(), Plan).words
        return words * self._form.ring.word_type.itemsize

    def _require(self, state: CoordinatorState) -> None:
        if self._state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self._state.value)

    def _require_settled(self) -> None:
        self._require(CoordinatorState.READY)
        if self._plan is not None:
            raise WrongStateError("the last plan must be settled", "an open plan")

    def _require_size(self, frame: bytes) -> None:
        """Bound a frame before it is parsed: what answers a plan by it, all else by a bundle."""
        most = EnvelopeBundle.MAX_BYTES
        if self._plan is not None:
            most = self._y_bytes + 4 * KIB
            if self._opening is not None:
                most = max(most, self._opening.most_bytes)
        if len(frame) > most:
            raise WrongLengthError(f"a message must have at most {most} bytes now", len(frame))

    def _require_in_time(self, message: Message) -> None:
        """Refuse what answers a plan that is over: its sum or its survivors stand."""
        if isinstance(message, MaskedVector | ShareBundle | Refusal):
            plan = message.subject if isinstance(message, Refusal) else message.plan_digest
            is_open = self._plan is not None and plan == self._plan.digest
            # A set that was fixed before a restart needs the same y's again.
            is_shut = is_open and self._opening is not None and self._opening.is_fixed
            if is_shut or any(plan == each.plan_digest for each in self._settled):
                raise LateMessageError("an answer must come before its plan is over", "a late one")

    def _require_current(self, subject: bytes) -> None:
        current = {self._run_id or self._offer.digest}
        if self._plan is not None:
            current.add(self._plan.digest)
        if self._state is CoordinatorState.BLAMING:
            current.add(self._row_request)
        if subject not in current:
            raise UnexpectedMessageError("a refusal must be of this run or its open plan", "not")

    def _require_run(self, run_id: bytes) -> None:
        if run_id != self._run_id:
            raise UnexpectedMessageError("a message must be of this run", "another")

    def _require_head(self, head: bytes) -> None:
        if head != self._transcript.head:
            raise HistoryError("a party must remember the same run", "another head")


def _subject(message: Message) -> object:
    """What a message is about, beside its type and sender: two bodies for one are a conflict."""
    match message:
        case MaskedVector() | ShareBundle() | StreamSums():
            return message.plan_digest
        case Reveal():
            return message.opening_digest
        case Ready():
            return message.stage
        case _:
            return None
