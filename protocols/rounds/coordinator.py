"""The coordinator's end of a run: relays sealed messages unread, and adds y's as they come.

It hands each message to its phase, whose steps are next door, too. Each step is in the journal
before the frame that follows from it leaves, so a coordinator that was killed goes on
(`CoordinatorRound.resumed`) with the very same bytes: it sends an open plan again and gets the same
y's, a proposal stays as it was, and a sum that was opened opens from the same y's only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from protocols import wire
from protocols.envelope import suite_named
from protocols.errors import (
    ConflictingMessageError,
    HistoryError,
    LateMessageError,
    RefusedError,
    RemoteProtocolError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongLengthError,
    WrongStateError,
)
from protocols.fields import Message
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import (
    Confirmations,
    EnvelopeBundle,
    HeadStatement,
    KeyStatement,
    MaskedVector,
    Ready,
    Refusal,
    Reveal,
    RunOffer,
    ShareBundle,
    StreamSums,
    Verdict,
    VerdictMacs,
)
from protocols.rounds.batch.at_coordinator import CoordinatorBatch, CoordinatorBlame
from protocols.rounds.closing.at_coordinator import CoordinatorClosing
from protocols.rounds.coordinator_journal import CoordinatorJournal, MemoryCoordinatorJournal
from protocols.rounds.history import newest
from protocols.rounds.inquiry.at_coordinator import CoordinatorInquiry
from protocols.rounds.live_run import LiveRun, MakeCheck
from protocols.rounds.seating import require_run
from protocols.rounds.setup.at_coordinator import CoordinatorSetup
from protocols.rounds.states import (
    COORDINATOR_TRANSITIONS,
    CoordinatorState,
    next_state,
    plan_of,
    subject_of,
)
from protocols.secure_sum import RoundForm
from protocols.suites import DEFAULT_SUITE
from protocols.transcript import counter_in
from protocols.vote_messages import VoteReport
from protocols.wire import Signed

_SETTING_UP = {
    CoordinatorState.OFFERED: CoordinatorState.RECORDED,
    CoordinatorState.CONFIRMED: CoordinatorState.READY,
}
_READY_STAGES = {CoordinatorState.CONFIRMED: "setup", CoordinatorState.COMPARING: "closing"}


class CoordinatorRound(LiveRun):
    """The coordinator's state machine for one run: a `LiveRun` that takes messages.

    All of the pinned `parties`, by fingerprint, take part. `nonce` is 32 fresh random bytes; after
    `expires_at`, Unix time in seconds, the run is over. `known_statements` are the `statements` of
    an earlier run. The journal is an empty one; in memory alone if None. Of a form with reports
    `check` makes this end's machine for a plan.

    Raises:
        TooFewPartiesError: fewer parties than the form needs.
        SuiteError: no such suite.
        WrongStateError: the journal is that of a run that was begun: see `resumed`.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity,
        form: RoundForm,
        parties: Mapping[bytes, PublicIdentity],
        nonce: bytes,
        expires_at: int,
        simulated: bool,
        suite: str = DEFAULT_SUITE,
        known_statements: Mapping[bytes, bytes] | None = None,
        journal: CoordinatorJournal | None = None,
        check: MakeCheck | None = None,
    ) -> None:
        form.require_enough(len(parties))
        suite_named(suite)  # refuses an unknown one
        journal = MemoryCoordinatorJournal() if journal is None else journal
        if journal.steps():
            raise WrongStateError("a run must begin with an empty journal")
        offer = RunOffer(
            coordinator_key=identity.public.key,
            nonce=nonce,
            form=form.name,
            ring_bits=form.ring_bits,
            suite=suite,
            expires_at=expires_at,
            simulated=simulated,
        )
        super().__init__(identity, form=form, parties=parties, journal=journal, check=check)
        statements = known_statements or {}
        self._prepare(
            wire.sign(offer, identity),
            statements={party: wire.decode(frame) for party, frame in statements.items()},
        )

    @classmethod
    def resumed(
        cls,
        *,
        identity: SigningIdentity,
        form: RoundForm,
        parties: Mapping[bytes, PublicIdentity],
        journal: CoordinatorJournal,
        check: MakeCheck | None = None,
    ) -> Self:
        """Go on with a run after a restart, from the journal where its steps were written.

        Raises:
            UnfinishedSetupError: the run was not set up: it is given up.
            BrokenJournalError: a step does not follow, or the run is of others.
        """
        run = cls.__new__(cls)
        LiveRun.__init__(run, identity, form=form, parties=parties, journal=journal, check=check)
        known = run.replay()
        run._prepare(known.offer, statements=known.statements)
        if known.plan is not None:
            run.batch.begin(known.plan)
        elif known.state is CoordinatorState.COMPARING:
            run.exchange.begin(CoordinatorState.COMPARING, run.closing.heads_compared)
        return run

    def _prepare(self, offer: Signed, *, statements: Mapping[bytes, Signed]) -> None:
        self._statements = dict(statements)
        self._answered: dict[tuple[type[Message], bytes, object], bytes] = {}
        self.setup = CoordinatorSetup(self, offer)
        self.inquiry = CoordinatorInquiry(self)
        self.blame = CoordinatorBlame(self)
        self.batch = CoordinatorBatch(self, self.blame)
        self.closing = CoordinatorClosing(self)

    @property
    def state(self) -> CoordinatorState:
        """The message that the coordinator waits for."""
        return self.exchange.state

    @property
    def statements(self) -> dict[bytes, bytes]:
        """The frame in which each party signed its journal's highest counter (rule R4).

        To be kept over runs, and shown to a party before the next offer.
        """
        return {party: signed.frame for party, signed in self._statements.items()}

    @property
    def missing(self) -> tuple[bytes, ...]:
        """Parties whose message of this exchange has not come, in seat order."""
        return self.exchange.missing

    @property
    def absent(self) -> tuple[bytes, ...]:
        """Parties without which the run was set up, in seat order; none before it was."""
        return () if self.history is None else self.history.absent

    def go_on_without_missing(self) -> None:
        """Set the run up without the parties that are missing: each sum would do without them, too.

        They keep their seats, so that a row is of one run and one account, whoever is there.

        Raises:
            WrongStateError: the setup is over, or the form needs all of its parties.
            TooFewPartiesError, TooFewHeadsError: too few are left, see `Form.require_present`;
                nothing changed.
        """
        exchange = self.exchange
        if self.form.has_pair_keys or exchange.state not in _SETTING_UP:
            raise WrongStateError("a setup must be open, of a form that does without parties")
        self.form.require_present(exchange.heard, parties=len(self.seats))
        exchange.leave_out(exchange.missing)
        self._end_stage(_SETTING_UP[exchange.state])

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
        sender = _sender_of(message, peer)
        if sender not in self.parties or peer not in (None, sender):
            raise UnknownPeerError("a message must be of the party it came from")
        if message.PURPOSE:
            signed.verify(self.parties[sender])
        key = (type(message), sender, subject_of(message))
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
        state = next_state(COORDINATOR_TRANSITIONS, self.state, message)
        exchange = self.exchange
        if sender not in exchange.missing:
            # Otherwise a party could answer an exchange that has not begun, and end it for all.
            raise UnexpectedMessageError("a party must speak once in each exchange")
        self._check(signed, sender)
        self._answered[key] = signed.digest
        if isinstance(message, ShareBundle | VerdictMacs):  # another message ends the exchange
            return sender
        # A y was added to the total, a report noted: they are not held.
        exchange.take(sender, None if isinstance(message, MaskedVector | VoteReport) else signed)
        if isinstance(message, KeyStatement | Ready | HeadStatement):
            self._statements = newest(self._statements, {sender: signed})
        if not exchange.missing:
            self._end_stage(state)
        return sender

    def _check(self, signed: Signed, sender: bytes) -> None:
        message = signed.message
        match message:
            case Refusal():
                self._note_refusal(signed, message)
                raise RefusedError(message.reason, peer=sender.hex())
            case (
                MaskedVector() | ShareBundle() | VerdictMacs() | Verdict() | Reveal() | VoteReport()
            ):
                self.batch.take(signed, sender)
            case StreamSums():
                self.blame.known_case.take(message)
            case KeyStatement():
                known = self._statements.get(sender)
                least = 0 if known is None else counter_in(known)
                self.setup.check_statement(message, sender, least_counter=least)
            case EnvelopeBundle():
                self.setup.check_bundle(message, sender)
            case Confirmations():
                self.setup.check_confirmations(message)
            case Ready():
                self._check_ready(message)
            case HeadStatement():
                self.closing.check_head(message)
            case _:
                raise AssertionError(type(message).__name__)

    def _check_ready(self, message: Ready) -> None:
        require_run(message.run_id, self.run_id)
        if message.stage != _READY_STAGES[self.state]:
            raise UnexpectedMessageError("a party must be ready with this stage")
        if message.head != self.transcript.head:
            raise HistoryError("a party must remember the same run")

    def _note_refusal(self, signed: Signed, refusal: Refusal) -> None:
        """Keep a promise about the open plan: it is shown to all if the plan is void."""
        # A party that has lost the run cannot name it.
        if self.state not in (CoordinatorState.CLOSING, CoordinatorState.COMPARING):
            self._require_current(refusal.subject)
        if self.has_open_plan and refusal.subject == self.open_plan.digest:
            if refusal.sender in self.batch.survivors:  # a settlement cannot list it with both
                raise ConflictingMessageError("a party that sent for a plan must not refuse it")
            self.batch.known_total.declined[refusal.sender] = signed.frame

    def _end_stage(self, state: CoordinatorState) -> None:
        """Leave a stage: every party's message is in. The setup and the run end with a step."""
        if self.state is CoordinatorState.CONFIRMED:
            self.setup.finish()
        elif state is CoordinatorState.DONE:
            self.closing.finish()
        self.exchange.state = state

    def _require_size(self, frame: bytes) -> None:
        """Bound a frame before it is parsed: by the open plan where that needs more."""
        # A y that is too long is read up to here: its signature proves its sender's fault.
        most = max(EnvelopeBundle.MAX_BYTES, self.batch.most_bytes)
        if len(frame) > most:
            raise WrongLengthError(f"a message must have at most {most} bytes now", len(frame))

    def _require_in_time(self, message: Message) -> None:
        """Refuse a late answer: its plan is settled, or its exchange is over."""
        answers = MaskedVector | VoteReport | ShareBundle | Refusal | Verdict | VerdictMacs
        if isinstance(message, answers):
            match message:
                case Refusal():
                    plan = message.subject
                case VoteReport():
                    plan = plan_of(message)
                case _:
                    plan = message.plan_digest
            is_open = self.has_open_plan and plan == self.open_plan.digest
            is_shut = is_open and self.state is not CoordinatorState.COLLECTING
            if isinstance(message, Verdict | VerdictMacs):
                is_shut = is_open and self.state is not CoordinatorState.AGREEING
            elif not self.form.survives_dropouts:
                is_shut = False
            if is_shut or any(plan == each.plan_digest for each in self.settled):
                raise LateMessageError("an answer must come before its plan is over")

    def _require_current(self, subject: bytes) -> None:
        current = {self.run_id or self.setup.offer.digest}
        if self.has_open_plan:
            current.add(self.open_plan.digest)
        if self.state is CoordinatorState.BLAMING:
            current.add(self.blame.request_digest)
        if subject not in current:
            raise UnexpectedMessageError("a refusal must be of this run or its open plan")


def _sender_of(message: Message, peer: bytes | None) -> bytes:
    """Return the party that a message names as its sender, or that it came from."""
    match message:
        case KeyStatement():
            return PublicIdentity(message.identity_key).fingerprint
        case EnvelopeBundle() | ShareBundle() | Verdict() | VerdictMacs() | VoteReport():
            if peer is None:
                raise UnknownPeerError("the sender of this message must be known")
            return peer
        case Confirmations() | Ready() | MaskedVector() | Refusal() | Reveal() | StreamSums():
            return message.sender
        case HeadStatement():
            return message.sender
        case _:
            raise UnexpectedMessageError(
                "a message must be one that parties send", type(message).__name__
            )
