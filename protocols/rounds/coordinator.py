"""The coordinator's end of a run: relays what it cannot read, and adds y's as they come.

The phases themselves are next door: `setup`, `batch`, `verdicts`, `opening`, `blame`, `closing`.
Each step is in the journal before the frame that follows from it leaves, so a coordinator that was
killed goes on (`CoordinatorRound.resumed`) with the very same bytes: it sends an open plan again
and gets the same y's, a proposal stays as it was, and a sum that was opened opens from the same y's
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import DEFAULT_SUITE, require_suite
from protocols.errors import (
    ConflictingMessageError,
    HistoryError,
    LateMessageError,
    RefusedError,
    RemoteProtocolError,
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
    Inquiry,
    KeyStatement,
    MaskedVector,
    Message,
    Plan,
    Proposal,
    Readiness,
    Ready,
    Refusal,
    Reveal,
    RunOffer,
    RunRecord,
    Settlement,
    ShareBundle,
    StreamSums,
    Verdict,
    VerdictMacs,
)
from protocols.rounds.blame import Blame, BlameCase, require_rows
from protocols.rounds.bounds import PlanClaim
from protocols.rounds.closing import require_head
from protocols.rounds.contribution import Contribution
from protocols.rounds.coordinator_journal import (
    CoordinatorJournal,
    HeadsCollected,
    MemoryCoordinatorJournal,
    PlanCertified,
    PlanOpened,
    PlanProposed,
    PlanSettled,
    RunClosed,
    RunFinished,
    SetupFinished,
    Step,
    SumOpened,
)
from protocols.rounds.history import (
    RunHistory,
    StepRules,
    counter_in,
    heads_record,
    newest,
    unheard,
)
from protocols.rounds.opening import ShareFault
from protocols.rounds.plans import OpenPlan, SettledPlan
from protocols.rounds.seating import require_enough_heads, require_run, setup_digest
from protocols.rounds.settlement import proven_claim
from protocols.rounds.setup import CoordinatorSetup
from protocols.rounds.states import COORDINATOR_TRANSITIONS, CoordinatorState, next_state
from protocols.rounds.tally import Tally
from protocols.run_scope import RunScope
from protocols.secure_sum import SecureSum
from protocols.signed_transcript import seal_files, transcript_lines
from protocols.transcript import Transcript
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
        known_statements: `statements` of an earlier run.
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
        offer = RunOffer(
            coordinator_key=identity.public.key,
            nonce=nonce,
            form=form.name,
            ring_bits=form.ring.bits,
            suite=suite,
            expires_at=expires_at,
            simulated=simulated,
        )
        self._prepare(identity, form, parties)
        self._state = CoordinatorState.OFFERED
        self._setup = CoordinatorSetup(
            identity=identity, parties=self._parties, offer=wire.sign(offer, identity)
        )
        self._statements = {
            party: wire.decode(frame) for party, frame in (known_statements or {}).items()
        }

    def _prepare(
        self,
        identity: SigningIdentity,
        form: SecureSum,
        parties: Mapping[bytes, PublicIdentity],
    ) -> None:
        self._identity = identity
        self._form = form
        self._parties = {seat: parties[seat] for seat in sorted(parties)}
        self._seats = tuple(self._parties)
        self._rules = StepRules(identity.public, self._parties, form)
        self._run: RunHistory | None = None
        self._transcript = Transcript()  # before there is a history
        self._awaited: tuple[bytes, ...] = self._seats
        self._received: dict[bytes, Signed | None] = {}
        self._answered: dict[tuple[type[Message], bytes, object], bytes] = {}
        self._tally: Tally | None = None
        self._case: BlameCase | None = None
        self._row_request = b""
        self._share_faults: tuple[ShareFault, ...] = ()

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
            journal: Where the run's steps were written, and more will be.

        Raises:
            UnfinishedSetupError: the run was not set up: it is given up.
            BrokenJournalError: a step does not follow, or the run is of others.
        """
        run = cls.__new__(cls)
        run._prepare(identity, form, parties)
        run._journal = journal
        known = run._rules.replay(journal.steps())
        run._run, run._state = known, known.state
        run._setup = CoordinatorSetup(identity=identity, parties=run._parties, offer=known.offer)
        run._setup.record = known.record
        run._statements = dict(known.statements)
        if known.plan is not None:
            run._collect(known.plan)
        elif known.state is CoordinatorState.COMPARING:
            run._awaited = run.heads_compared
        return run

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
        return self._setup.run_id

    @property
    def has_open_plan(self) -> bool:
        """Whether a plan waits to be settled."""
        return self._run is not None and self._run.plan is not None

    @property
    def open_plan(self) -> OpenPlan:
        """The open plan.

        Raises:
            WrongStateError: none is open.
        """
        if self._run is None or self._run.plan is None:
            raise WrongStateError("a plan must be open", self._state.value)
        return self._run.plan

    @property
    def run_record(self) -> RunRecord:
        """The run record.

        Raises:
            WrongStateError: it was not made yet.
        """
        return wire.expect(self._setup.known_record, RunRecord)

    @property
    def scope(self) -> RunScope:
        """What a person at a hospital approves of the run.

        Raises:
            WrongStateError: the record was not made yet.
        """
        return RunScope.of(self.run_record, seats=self._seats)

    @property
    def record_frame(self) -> bytes:
        """Frame of the run record; empty before it was made."""
        return b"" if self._setup.record is None else self._setup.record.frame

    @property
    def settled(self) -> tuple[SettledPlan, ...]:
        """Every settled plan, in order."""
        return () if self._run is None else self._run.settled

    def claim_of(self, plan: SettledPlan) -> PlanClaim | None:
        """Return what a plan's settlement proves about it (rule R3); None if nothing."""
        return proven_claim(plan.settlement, identities=self._parties, form=type(self._form))

    @property
    def closing_frame(self) -> bytes:
        """Frame that ended the run, the same as often as it is sent; empty before it."""
        return b"" if self._run is None else self._run.closing

    @property
    def heads_frame(self) -> bytes:
        """Frame of all parties' heads, the same as often as it is sent; empty before it."""
        frames = () if self._run is None else self._run.head_frames
        return wire.contain(HeadBundle(self.run_id, frames)) if frames else b""

    def unheard(self) -> dict[bytes, list[bytes]]:
        """Return the settlements that each party may not have heard of; see `history.unheard`."""
        return {seat: [] for seat in self._seats} | unheard(self._journal.steps())

    @property
    def transcript(self) -> Transcript:
        """Chain of this run."""
        return self._transcript if self._run is None else self._run.transcript

    @property
    def statements(self) -> dict[bytes, bytes]:
        """The frame in which each party signed its journal's highest counter (rule R4).

        To be kept over runs, and shown to a party before the next offer.
        """
        return {party: signed.frame for party, signed in self._statements.items()}

    @property
    def missing(self) -> tuple[bytes, ...]:
        """Parties whose message of this stage has not come, in seat order."""
        return tuple(seat for seat in self._awaited if seat not in self._received)

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """Parties whose y's are in the total of the open plan, in seat order."""
        return () if self._tally is None else self._tally.senders

    @property
    def most_share_bytes(self) -> int:
        """Most bytes that a party sends beside its y, or reveals; 0 where no plan needs it."""
        shares = None if self._tally is None else self._tally.shares
        return 0 if shares is None else shares.most_bytes

    @property
    def share_faults(self) -> tuple[ShareFault, ...]:
        """Shares of the open or the last settled plan that were dropped, and who is named."""
        shares = None if self._tally is None else self._tally.shares
        return self._share_faults if shares is None else shares.faults

    @property
    def nothing_was_shared(self) -> bool:
        """Whether every party signed a refusal of the open plan, and none sent a y."""
        tally = self._known_tally
        was_answered = tally.senders or self.open_plan.opened or self.open_plan.proposal is not None
        return not was_answered and set(tally.declined) == set(self._seats)

    @property
    def heard(self) -> int:
        """Parties whose message of this stage has come."""
        return len(self._awaited) - len(self.missing)

    @property
    def traces_rows(self) -> bool:
        """Whether a spoiled row of the last plan can be traced; False after a restart."""
        return self._case is not None

    @property
    def heads_compared(self) -> tuple[bytes, ...]:
        """Parties that signed the last head of this run, in seat order; none before `compare`."""
        frames = () if self._run is None else self._run.head_frames
        heads = zip(self._seats, frames, strict=bool(frames))
        return tuple(seat for seat, frame in heads if frame)

    # Messages ---------------------------------------------------------------------------------

    def receive(self, frame: bytes, *, peer: bytes | None = None) -> bytes:
        """Take one frame from a party.

        The same frame again changes nothing.

        Args:
            frame: Bytes as they came.
            peer: Fingerprint of the party that sent them, where that is known already.

        Returns:
            Fingerprint of the party that signed it.

        Raises:
            RemoteProtocolError: it is malformed, not signed by the party that it must be from,
                not allowed in this state or contradicts an earlier one; `peer` of the error
                names the party, and nothing changed.
            RefusedError: the party refused.
            LateMessageError: an answer to a plan that is settled, or to an exchange that is over.
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
            # Otherwise a party could answer an exchange that has not begun, and end it for all.
            raise UnexpectedMessageError("a party must speak once in each exchange", "more")
        self._check(signed, sender)
        self._answered[key] = signed.digest
        if isinstance(message, ShareBundle | VerdictMacs):  # in front of what ends the exchange
            return sender
        # A y was added to the total: the vector itself is not held.
        self._received[sender] = None if isinstance(message, MaskedVector) else signed
        self._note_counter(signed, sender)
        if not self.missing:
            self._end_stage(state)
        return sender

    def inquire(self, terms: bytes) -> bytes:
        """Return the frame that asks parties whether they would serve a plan; changes nothing.

        Args:
            terms: What the plan would ask; canonical bytes that this library does not read.

        Raises:
            WrongStateError: a plan is open, or the run is not set up.
        """
        self._require_settled()
        return wire.sign(Inquiry(self.run_id, terms), self._identity).frame

    def read_readiness(self, frame: bytes, *, inquiry: bytes) -> tuple[bytes, Readiness | Refusal]:
        """Read a party's answer to an inquiry; changes nothing.

        Args:
            frame: The answer.
            inquiry: The frame that was sent.

        Returns:
            The party's fingerprint, and what it signed.

        Raises:
            RemoteProtocolError: it is no party's answer to this inquiry.
        """
        signed = wire.decode(frame)
        message = signed.message
        if not isinstance(message, Readiness | Refusal):
            raise UnexpectedMessageError(
                "an answer must be that to an inquiry", type(message).__name__
            )
        if message.sender not in self._parties:
            raise UnknownPeerError("an answer must be a party's", "another's")
        signed.verify(self._parties[message.sender])
        # What stands in front of the inquiry may be refused, and then the rest is not read.
        of_run = isinstance(message, Refusal) and message.subject == self.run_id
        if not of_run and message.subject != wire.decode(inquiry).digest:
            raise UnexpectedMessageError("an answer must be to this inquiry", "another")
        return message.sender, message

    def recognize(self, frame: bytes) -> bytes:
        """Tell which party answered a run record that was sent again; changes nothing.

        A party that is still in the run repeats its answer. Any other party refuses. Both sign.

        Returns:
            The party's fingerprint.

        Raises:
            RemoteProtocolError: it is no party's answer to a run record.
        """
        signed = wire.decode(frame)
        match signed.message:
            case EnvelopeBundle(run_id=run_id, envelopes=envelopes) if envelopes:
                require_run(run_id, self.run_id)
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
            case EnvelopeBundle() | ShareBundle() | Verdict() | VerdictMacs():
                if peer is None:
                    raise UnknownPeerError("the sender of this message must be known", "none")
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
        match message:
            case Refusal():
                self._note_refusal(signed, message)
                raise RefusedError(message.reason, peer=sender.hex())
            case Verdict() | VerdictMacs():
                self._check_verdict(signed, sender)
            case MaskedVector() | ShareBundle() | Reveal() | StreamSums():
                self._check_answer(signed, sender)
            case _:
                self._check_statement(message, sender)

    def _check_statement(self, message: Message, sender: bytes) -> None:
        """Check a message of the setup or the closing."""
        match message:
            case KeyStatement():
                counter = self._counter_of(sender)
                self._setup.check_statement(message, sender, least_counter=counter)
            case EnvelopeBundle():
                self._setup.check_bundle(message, sender)
            case Confirmations():
                self._setup.check_confirmations(message)
            case Ready():
                require_run(message.run_id, self.run_id)
                if message.stage != _READY_STAGES[self._state]:
                    raise UnexpectedMessageError("a party must be ready with this stage", "another")
                if message.head != self.transcript.head:
                    raise HistoryError("a party must remember the same run", "another head")
            case HeadStatement():
                head, epoch = self.transcript.head, self._known_run.epoch
                require_head(message, run_id=self.run_id, head=head, epoch=epoch)
            case _:
                raise AssertionError(type(message).__name__)

    def _check_verdict(self, signed: Signed, sender: bytes) -> None:
        ballots = self._known_tally.ballots
        if isinstance(signed.message, VerdictMacs):
            ballots.take_macs(signed.message, sender)
        else:
            ballots.take(signed, sender)

    def _check_answer(self, signed: Signed, sender: bytes) -> None:
        """Check a message of a batch, and keep it."""
        message = signed.message
        match message:
            case MaskedVector():
                self._known_tally.add(signed, before=self._signed_before(sender))
            case ShareBundle():
                before = self._signed_before(sender)
                self._known_tally.take_shares(message, sender=sender, before=before)
            case Reveal():
                shares = self._known_tally.shares
                assert shares is not None
                shares.take_reveal(signed)
            case StreamSums():
                self._known_case.take(message)
            case _:
                raise AssertionError(type(message).__name__)

    def _note_refusal(self, signed: Signed, refusal: Refusal) -> None:
        """Keep a promise about the open plan: it is shown to all if the plan is void."""
        # A party that has lost the run cannot name it.
        if self._state not in (CoordinatorState.CLOSING, CoordinatorState.COMPARING):
            self._require_current(refusal.subject)
        if self.has_open_plan and refusal.subject == self.open_plan.digest:
            self._known_tally.note_refusal(refusal, signed.frame)

    # The setup --------------------------------------------------------------------------------

    def offer(self) -> bytes:
        """Return the frame that offers the run, for every party."""
        return self._setup.offer.frame

    def record(self, *, terms: bytes, colluders: int, dropouts: int) -> bytes:
        """Fix the run and return its record, for every party.

        Args:
            terms: What the run is for.
            colluders: Parties that may collude with the coordinator.
            dropouts: Parties that may be lost.
        """
        self._require(CoordinatorState.RECORDED)
        signed = self._setup.make_record(
            self._collected(), terms=terms, colluders=colluders, dropouts=dropouts
        )
        self._transcript = self._transcript.append("run record", signed.digest)
        return signed.frame

    def deliver(self) -> dict[bytes, bytes]:
        """Return, by receiver, the frame with the envelopes addressed to it."""
        self._require(CoordinatorState.DELIVERED)
        return self._setup.deliver(self._collected())

    def close_setup(self) -> dict[bytes, bytes]:
        """Return, by receiver, the frame with its peers' confirmations."""
        self._require(CoordinatorState.CONFIRMED)
        frames = self._setup.close(self._collected())
        digests = tuple(each.digest for each in self._setup.confirmations)
        self._transcript = self._transcript.append("setup", setup_digest(digests))
        return frames

    # A batch ----------------------------------------------------------------------------------

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
            row_words: Words of a row, to trace who spoils one; 0 if rows are not traced.

        Raises:
            WrongStateError: the last plan is not settled, or rows do not fill the vector.
        """
        self._require_settled()
        if row_words:
            require_rows(words, row_words)
        plan = Plan(
            run_id=self.run_id,
            epoch=self._known_run.epoch + 1,
            batch=batch,
            attempt=attempt,
            phase=phase,
            previous_head=self.transcript.head,
            words=words,
            expires_at=expires_at,
            terms=terms,
        )
        signed = wire.sign(plan, self._identity)
        self._do(PlanOpened(signed.frame))
        self._collect(self.open_plan, row_words=row_words)
        return signed.frame

    def _collect(self, plan: OpenPlan, *, row_words: int = 0) -> None:
        """Wait for the y's of a plan, from the beginning."""
        self._tally = Tally(
            self._form,
            identities=self._parties,
            plan=plan.plan,
            plan_digest=plan.signed.digest,
            row_words=row_words,
        )
        self._case = self._tally.case
        self._share_faults = ()
        # After a restart the same parties' y's have to come again.
        self._await(CoordinatorState.COLLECTING, plan.survivors or self._seats)

    def propose(self) -> dict[bytes, bytes]:
        """Propose to open the parties whose y's are in, once: a y that comes later is refused.

        A set that was proposed before a restart stays, and needs the same parties' y's again.

        Returns:
            By survivor, the frame of the proposal.

        Raises:
            WrongStateError: the form needs all parties, no plan is open, it is to be closed, or its
                certificate is out already.
            TooFewSharesError: too few y's came: the sum cannot open.
        """
        plan, tally = self.open_plan, self._known_tally
        if tally.shares is None:
            raise WrongStateError("only a form that survives drop-outs proposes", self._form.name)
        if tally.shares.is_fixed or not plan.may_open:
            raise WrongStateError(
                "a set must be proposed before the plan is closed or opens", "after"
            )
        if plan.proposal is None:
            self._form.require_survivors(len(tally.senders), parties=len(self._seats))
            proposal = Proposal(self.run_id, self.open_plan.digest, tally.senders)
            signed = tally.contributions
            listed = tuple(signed.get(seat) for seat in self._seats)
            self._do(PlanProposed(wire.sign(proposal, self._identity).frame, listed))
            plan = self.open_plan
        elif set(plan.survivors) != set(tally.senders):
            wanted = len(plan.survivors)
            raise TooFewSharesError(received=len(tally.senders), threshold=wanted)
        assert plan.proposal is not None
        self._await(CoordinatorState.AGREEING, plan.survivors)
        return dict.fromkeys(plan.survivors, plan.proposal.frame)

    def propose_closing(self) -> dict[bytes, bytes]:
        """Propose to close the plan: with enough verdicts its queries may be asked again.

        Returns:
            By party that agreed to no set, the frame of the proposal.

        Raises:
            WrongStateError: the form needs all parties, no plan is open, or a set is certified.
        """
        plan = self.open_plan
        if not self._form.survives_dropouts or self.open_plan.is_certified:
            raise WrongStateError("only a plan that has not opened can be closed", "another")
        if plan.closing is None:
            proposal = Proposal(self.run_id, self.open_plan.digest, ())
            frame = wire.sign(proposal, self._identity).frame
            self._do(PlanProposed(frame, (None,) * len(self._seats)))
            plan = self.open_plan
        assert plan.closing is not None
        agreed = self._known_tally.ballots.of(plan.survivors) if plan.survivors else ()
        asked = tuple(seat for seat in self._seats if seat not in agreed)
        self._await(CoordinatorState.AGREEING, asked)
        return dict.fromkeys(asked, plan.closing.frame)

    def certify(self) -> dict[bytes, list[bytes]]:
        """End the verdicts: note the certificate if there are enough.

        Returns:
            By survivor, the proof that enough parties agreed and the shares that the others dealt
            to it. Nothing where the plan is closed.

        Raises:
            WrongStateError: nothing was proposed.
            TooFewSharesError: too few equal verdicts.
        """
        plan, tally = self.open_plan, self._known_tally
        survivors = plan.last_proposed
        if survivors is None:
            raise WrongStateError("a certificate must follow a proposal", self._state.value)
        if not plan.certificate_frame:
            certificate = tally.ballots.certificate(survivors)
            if certificate is None:
                raise TooFewSharesError(
                    received=len(tally.ballots.of(survivors)),
                    threshold=self._form.threshold(len(self._seats)),
                )
            self._do(PlanCertified(wire.contain(certificate)))
        certificate = self.open_plan.certificate
        assert certificate is not None
        if not certificate.survivors:
            self._await(CoordinatorState.READY, ())
            return {}
        assert tally.shares is not None
        bundles = tally.shares.fix(certificate.verdict)
        self._await(CoordinatorState.REVEALING, certificate.survivors)
        proofs = tally.ballots.proofs(certificate)
        return {holder: [proofs[holder], bundle] for holder, bundle in bundles.items()}

    def certify_by_signatures(self) -> dict[bytes, list[bytes]]:
        """Prove the certified set once more, to survivors that doubt their peers' MACs.

        The coordinator cannot check a MAC: one lying party would otherwise end the sum of all.

        Returns:
            By survivor whose shares have not come, the certificate and the shares dealt to it.
        """
        shares, certificate = self._known_tally.shares, self.open_plan.certificate_frame
        assert shares is not None
        return {holder: [certificate, shares.bundle_for(holder)] for holder in self.missing}

    def open_total(self) -> NDArray[np.int64]:
        """Open the sum of all survivors' vectors and forget the total. Secret.

        Raises:
            WrongStateError: some y is missing or the set is not certified, or the sum was opened
                before.
            TooFewSharesError: a survivor's secrets have fewer good shares than open them.
            WrongShareError: a survivor's shares open something else than it signed; names it.
        """
        tally = self._known_tally
        if not tally.can_open:
            raise WrongStateError("every y must be in, and the sum opened once", self._state.value)
        streams = tally.streams()
        if not self.open_plan.opened:
            # The settlement lists what was signed before the sum opened, also after a restart.
            opened = tally.contributions
            self._do(SumOpened(tuple(opened.get(seat) for seat in self._seats)))
        return tally.open(streams)

    def settle(self, *, released: bool, result: bytes) -> bytes:
        """Close the open plan and return the frame that tells every party.

        Args:
            released: Whether its result was released; otherwise it is void.
            result: What was released.

        Raises:
            WrongStateError: no plan is open, or a release came before its sum was opened.
        """
        plan, tally = self.open_plan, self._known_tally
        if released and not plan.opened:
            raise WrongStateError("a release must follow an opened sum", self._state.value)
        settlement = Settlement(
            run_id=self.run_id,
            plan_digest=self.open_plan.digest,
            state="released" if released else "void",
            words=plan.plan.words,
            contributions=tally.entries(plan.opened or tally.contributions),
            # Whoever refuses after the sum was opened has sent all the same.
            refusals=() if plan.opened else tally.refusals,
            certificate=plan.certificate_frame,
            result=result,
        )
        signed = wire.sign(settlement, self._identity)
        self._share_faults = self.share_faults
        self._do(PlanSettled(signed.frame))
        self._tally = None
        if released:
            self._case = None
        self._await(CoordinatorState.READY, ())
        return signed.frame

    # Blame ------------------------------------------------------------------------------------

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
        request = self._known_case.ask(row, run_id=self.run_id)
        self._await(CoordinatorState.BLAMING, self._known_case.asked)
        signed = wire.sign(request, self._identity)
        self._row_request = signed.digest
        return signed.frame

    def name_liars(self, quotas: Sequence[int]) -> Blame:
        """Compare what the parties stated, and forget it. A party that stated nothing is named.

        Args:
            quotas: Sum of a row of each party, in seat order.

        Raises:
            WrongStateError: no row was asked about.
        """
        if self._state is not CoordinatorState.BLAMING:  # where some party is silent
            self._require(CoordinatorState.READY)
        blame = self._known_case.name(quotas)
        self._case = None
        self._await(CoordinatorState.READY, ())
        return blame

    # The closing ------------------------------------------------------------------------------

    def close(self) -> bytes:
        """End the run and return the frame that tells every party."""
        self._require_settled()
        closing = Closing(self.run_id, self.transcript.head)
        frame = wire.sign(closing, self._identity).frame
        self._do(RunClosed(frame))
        self._await(CoordinatorState.CLOSING, self._seats)
        return frame

    def compare(self) -> bytes:
        """Return all parties' heads, for every party to compare.

        A party that was lost since has none: the others go on if they are enough.

        Raises:
            WrongStateError: the run is not closed, or its heads were compared before.
            TooFewHeadsError: too few heads came to tell one history from two.
        """
        if self.heads_frame:
            raise WrongStateError("heads must be compared once", "a second time")
        if self._state is not CoordinatorState.CLOSING:
            self._require(CoordinatorState.COMPARING)
        received = [self._received.get(seat) for seat in self._seats]
        heads = tuple(b"" if signed is None else signed.frame for signed in received)
        require_enough_heads(heads, self._form)
        self._do(HeadsCollected(heads))
        self._await(CoordinatorState.COMPARING, self.heads_compared)
        return self.heads_frame

    def signed_transcript(self) -> list[dict[str, Any]]:
        """Return the transcript as it is written down: hashes, signatures and public keys."""
        run = self._known_run
        heads = [*run.heads]
        if not run.head_frames and run.closing:  # those that came, to show whose are missing
            signed = {seat: each for seat, each in self._received.items() if each is not None}
            by_seat = {seat: signed[seat] for seat in self._seats if seat in signed}
            heads.append(heads_record("closing", by_seat, run.transcript, epoch=run.epoch))
        parties = list(self._parties.values())
        return transcript_lines(run.transcript, heads, parties=parties, coordinator=self._identity)

    def seal_results(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Bind the files of this run's results to its transcript; see `seal_files`."""
        return seal_files(files, head=self.transcript.head, coordinator=self._identity)

    # Helpers ----------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        """Apply a step and journal it; nothing changed if either fails."""
        after = self._rules.apply(self._run, step)
        self._journal.append(step)
        self._run = after

    def _await(self, state: CoordinatorState, parties: tuple[bytes, ...]) -> None:
        """Begin an exchange."""
        self._state, self._awaited = state, parties
        self._received.clear()

    def _end_stage(self, state: CoordinatorState) -> None:
        """Leave a stage: every party's message is in. The setup and the run end with a step."""
        frames = tuple(
            b"" if signed is None else signed.frame
            for signed in (self._received.get(seat) for seat in self._seats)
        )
        if self._state is CoordinatorState.CONFIRMED:
            confirmations = tuple(
                (each.digest, each.signature) for each in self._setup.confirmations
            )
            record = self._setup.known_record.frame
            self._do(SetupFinished(self._setup.offer.frame, record, confirmations, frames))
        elif state is CoordinatorState.DONE:
            self._do(RunFinished(frames))
        self._state = state

    def _note_counter(self, signed: Signed, sender: bytes) -> None:
        if isinstance(signed.message, KeyStatement | Ready | HeadStatement):
            self._statements = newest(self._statements, {sender: signed})

    def _counter_of(self, party: bytes) -> int:
        signed = self._statements.get(party)
        return 0 if signed is None else counter_in(signed)

    def _collected(self) -> list[Signed]:
        """Hand over every party's message of this exchange, in seat order, and begin the next."""
        if self.missing:
            raise WrongStateError("an exchange must be over, once", self._state.value)
        messages = [self._received.pop(seat) for seat in self._seats]
        return [signed for signed in messages if signed is not None]

    def _signed_before(self, party: bytes) -> Contribution | None:
        """What a party signed for the open plan that others heard of, perhaps before a restart."""
        return self.open_plan.opened.get(party) or self.open_plan.fixed.get(party)

    @property
    def _known_run(self) -> RunHistory:
        if self._run is None:
            raise WrongStateError("a run must be set up", self._state.value)
        return self._run

    @property
    def _known_tally(self) -> Tally:
        if self._tally is None:
            raise WrongStateError("a plan must be open", self._state.value)
        return self._tally

    @property
    def _known_case(self) -> BlameCase:
        if self._case is None:
            raise WrongStateError("a row of a void plan must be asked about", "none")
        return self._case

    def _require(self, state: CoordinatorState) -> None:
        if self._state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self._state.value)

    def _require_settled(self) -> None:
        self._require(CoordinatorState.READY)
        if self.has_open_plan:
            raise WrongStateError("the last plan must be settled", "an open plan")

    def _require_size(self, frame: bytes) -> None:
        """Bound a frame before it is parsed: by the open plan if there is one."""
        most = EnvelopeBundle.MAX_BYTES
        if self._tally is not None:
            # A verdict with its MACs is smaller than shares for as many parties.
            most = max(self._tally.y_bytes + 4 * KIB, self.most_share_bytes)
        if len(frame) > most:
            raise WrongLengthError(f"a message must have at most {most} bytes now", len(frame))

    def _require_in_time(self, message: Message) -> None:
        """Refuse a late answer: its plan is settled, or its exchange is over."""
        if isinstance(message, MaskedVector | ShareBundle | Refusal | Verdict | VerdictMacs):
            plan = message.subject if isinstance(message, Refusal) else message.plan_digest
            is_open = self.has_open_plan and plan == self.open_plan.digest
            is_shut = is_open and self._state is not CoordinatorState.COLLECTING
            if isinstance(message, Verdict | VerdictMacs):
                is_shut = is_open and self._state is not CoordinatorState.AGREEING
            elif not self._form.survives_dropouts:
                is_shut = False
            if is_shut or any(plan == each.plan_digest for each in self.settled):
                raise LateMessageError("an answer must come before its plan is over", "a late one")

    def _require_current(self, subject: bytes) -> None:
        current = {self.run_id or self._setup.offer.digest}
        if self.has_open_plan:
            current.add(self.open_plan.digest)
        if self._state is CoordinatorState.BLAMING:
            current.add(self._row_request)
        if subject not in current:
            raise UnexpectedMessageError(
                "a refusal must be of this run or its open plan", "another's"
            )


def _subject(message: Message) -> object:
    """What a message is about, beside its type and sender: two bodies for one are a conflict."""
    match message:
        case MaskedVector() | ShareBundle() | StreamSums() | Verdict() | VerdictMacs():
            return message.plan_digest
        case Reveal():
            return message.opening_digest
        case Ready():
            return message.stage
        case _:
            return None
