"""A party's end of a run: takes messages, keeps the order of things, remembers its answers.

The phases themselves are next door: `setup`, `batch`, `verdicts`, `opening`, `settlement`, `blame`,
`closing`. Pinned identities, the clock, random numbers, the journal and the decision of the party's
own guard arrive as arguments. The party does not trust the coordinator. It checks relayed messages
against signatures of pinned peers, and plans against the history that it remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import DEFAULT_SUITE
from protocols.errors import (
    BadSignatureError,
    BlameError,
    ConflictingMessageError,
    KeyReuseError,
    ProtocolError,
    RestoredJournalError,
    UnexpectedMessageError,
    WrongStateError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import (
    BlameRequest,
    Certificate,
    Closing,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    Inquiry,
    KeyStatement,
    Message,
    Plan,
    Proposal,
    Readiness,
    Ready,
    Refusal,
    RunOffer,
    RunRecord,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    VerdictMacs,
)
from protocols.pair_keys import PairRoots
from protocols.rounds.batch import hide_vector, require_plan
from protocols.rounds.blame import RowWitness
from protocols.rounds.bounds import ANY_SET, PlanClaim, SetBound
from protocols.rounds.closing import compare_heads, state_head
from protocols.rounds.journal import RoundJournal
from protocols.rounds.lost_runs import LostRuns
from protocols.rounds.plans import PartyPlan
from protocols.rounds.seating import COORDINATOR, LEAST_PARTIES, Seating, require_fresh, require_run
from protocols.rounds.settlement import learn_settlement, require_settlement
from protocols.rounds.setup import PartySetup
from protocols.rounds.states import PARTY_TRANSITIONS, PartyState, next_state
from protocols.rounds.verdicts import give_verdict, take_proof
from protocols.secure_sum import SecureSum
from protocols.transcript import Transcript
from protocols.wire import Signed

_PROOFS: tuple[type[Message], ...] = (VerdictMacs, Certificate)
"""Each proves that enough parties gave a verdict. Only the first one is checked."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a message led to.

    Attributes:
        replies: Frames to send back.
        event: Something that the node must act upon: a `RunRecord` (then `accept_run` or
            `refuse`), a `Plan` (then `contribute` or `refuse`), a `Settlement` of this run or of an
            earlier one (then charges), a `BlameRequest` (then `state_sums` or `refuse`), an
            `Inquiry` (then `state_readiness` or `refuse_inquiry`).
        proven: What a settlement proves about its plan; None where that is nothing.
    """

    replies: tuple[bytes, ...] = field(default=(), repr=False)
    event: RunRecord | Plan | Settlement | BlameRequest | Inquiry | None = None
    proven: PlanClaim | None = None


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
        self._me = identity.fingerprint
        self._coordinator = coordinator
        self._floor = max(LEAST_PARTIES, least_survivors)
        self._journal = journal
        self._random_bytes = random_bytes
        self._setup = PartySetup(
            identity=identity,
            coordinator=coordinator,
            pins=pins,
            forms=forms,
            suites=suites,
            journal=journal,
            random_bytes=random_bytes,
        )
        self._lost_runs = LostRuns(identity, coordinator=coordinator, journal=journal)
        self._state = PartyState.NEW
        self._transcript = Transcript()
        self._answered: dict[tuple[object, ...], tuple[bytes, tuple[bytes, ...]]] = {}
        self._seating: Seating | None = None
        self._roots = PairRoots(self._me, {})
        self._epoch = 0
        self._open: PartyPlan | None = None
        self._void_witness: RowWitness | None = None
        self._void_expires_at = 0
        self._next_phase: tuple[int, int, int] | None = None
        self._reveal_was_lost = False
        self._wrong_dealers: tuple[bytes, ...] = ()
        self._blame: BlameRequest | None = None
        self._inquiry = b""
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
        return b"" if self._seating is None else self._seating.run_id

    @property
    def record(self) -> RunRecord | None:
        """The run record, once it came."""
        return None if self._seating is None else self._seating.record

    @property
    def seat_fingerprints(self) -> tuple[bytes, ...]:
        """Fingerprints of all parties, in seat order."""
        return () if self._seating is None else self._seating.fingerprints

    @property
    def epoch(self) -> int:
        """Highest epoch that this party moved to."""
        return self._epoch

    @property
    def wrong_dealers(self) -> tuple[bytes, ...]:
        """Dealers whose shares did not fit what they had signed, of the last plan that opened here.

        Each of them, or the coordinator that relayed the shares, is at fault.
        """
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
            RemoteProtocolError: it is malformed, not signed by its sender, not allowed in this
                state or not of this run, or a plan that does not continue the history, or a
                proposal that this party must not agree to: nothing changed. A
                `ConflictingMessageError`, and any fault of a bundle, a settlement or a closing of
                this run, stops the run at this party.
            TooFewPartiesError: a run record with fewer parties than its form needs.
            RestoredJournalError: the frame is a statement that this party signed when its journal
                stood higher. The run stops, and the hospital must join anew.
        """
        signed = wire.decode(frame)
        if self._signed_here(signed):
            self._compare_journal(signed.message)
            return Received()
        if signed.message.PURPOSE:
            self._verify_coordinator(signed)
        if getattr(signed.message, "run_id", self.run_id) != self.run_id:
            if isinstance(signed.message, Settlement):
                is_known, claim = self._lost_runs.learn(signed.message)
                return Received(event=signed.message if is_known else None, proven=claim)
            answer = self._lost_runs.answer(signed, now=now)
            if answer is not None:
                return Received(answer)
        require_run(getattr(signed.message, "run_id", self.run_id), self.run_id)
        if isinstance(signed.message, Inquiry):
            return self._on_inquiry(signed, signed.message, now=now)
        key = _identify(signed.message)
        if key in self._answered:
            digest, replies = self._answered[key]
            # A coordinator that was restarted may prove the same verdict by other parties' MACs.
            if digest != signed.digest and not isinstance(signed.message, _PROOFS):
                self._stop()
                raise ConflictingMessageError(
                    "a message must have the same bytes each time",
                    f"another {type(signed.message).__name__}",
                    peer=COORDINATOR,
                )
            if isinstance(signed.message, Plan) and self._state is PartyState.REVIEWING_PLAN:
                require_fresh(signed.message.expires_at, now=now)
                return Received(event=signed.message)  # nobody could decide on it
            return Received(self._repeat(signed, replies, now=now))
        state = next_state(PARTY_TRANSITIONS, self._state, signed.message)
        received = self._act(signed, now=now)
        self._state = state
        self._answered[key] = (signed.digest, received.replies)
        return received

    def state_readiness(self, refused: Sequence[int]) -> tuple[bytes, ...]:
        """Answer an inquiry: this party would serve its items, but for some.

        Args:
            refused: Places of those that it would refuse, ascending.

        Raises:
            WrongStateError: no inquiry waits for an answer.
        """
        return self._end_inquiry(
            lambda subject: wire.sign(Readiness(subject, self._me, tuple(refused)), self._identity)
        )

    def refuse_inquiry(self, reason: str) -> tuple[bytes, ...]:
        """Answer an inquiry: this party would serve nothing of it.

        Args:
            reason: A stable public code, never a text.

        Raises:
            WrongStateError: no inquiry waits for an answer.
        """
        return self._end_inquiry(
            lambda subject: wire.sign(Refusal(subject, self._me, reason), self._identity)
        )

    def accept_run(self) -> tuple[bytes, ...]:
        """Agree to the run record: seal a half of each pair's root.

        Raises:
            WrongStateError: no run record waits for a decision.
            MalformedMessageError: a peer's sealing key is unusable; names the peer.
        """
        self._require(PartyState.REVIEWING_RUN)
        replies = (self._setup.seal(self._run),)
        self._transcript = self._transcript.append("run record", self.run_id)
        self._state = PartyState.SEALED
        self._remember(self._run.record, replies)
        return replies

    def contribute(
        self, vector: NDArray[np.int64], *, bound: SetBound = ANY_SET
    ) -> tuple[bytes, ...]:
        """Agree to the plan: hide this party's vector and return it, to be sent.

        Where the form survives drop-outs, shares of this plan's keys go in front of y.

        Args:
            vector: x, signed integers; shape (plan.words,). Secret.
            bound: What the journal allows to be opened for the plan's queries (rule R3).

        Raises:
            WrongStateError: no plan waits for a decision.
            InvalidVectorError: not the plan's length, or out of range.
            KeyReuseError: the plan was begun before, or no set within `bound` can open.
        """
        self._require(PartyState.REVIEWING_PLAN)
        plan = self._known_plan
        if not bound.leaves_room(self._run.fingerprints, threshold=self._run.threshold):
            raise KeyReuseError("a plan must leave a set that may open", "none")
        try:
            frames = hide_vector(
                plan,
                vector,
                seating=self._run,
                identity=self._identity,
                roots=self._roots,
                journal=self._journal,
                random_bytes=self._random_bytes,
            )
        finally:
            self._epoch = max(self._epoch, self._roots.epoch)
        plan.bound = bound
        self._transcript = self._transcript.append("plan", plan.digest)
        self._state = PartyState.SENT
        # The frames themselves stay in the journal alone, until the plan is settled.
        self._remember(plan.known, ())
        return frames

    def state_sums(self, *, row_words: int) -> tuple[bytes, ...]:
        """Answer who spoiled a row: state the sum of each stream over it, once.

        Args:
            row_words: Words of a row, from the terms that this party agreed to: never from the
                request, which could ask for one word and so for a vote.

        Raises:
            WrongStateError: no row waits for a decision.
            BlameError: the plan has no such row; to be refused.
        """
        self._require(PartyState.REVIEWING_ROW)
        assert self._blame is not None
        assert self._void_witness is not None
        request = self._blame
        sums = self._void_witness.sums(request.row, row_words=row_words)
        message = StreamSums(request.plan_digest, self._me, request.row, sums)
        return self._end_blame(request, (wire.sign(message, self._identity).frame,))

    def refuse(self, reason: str) -> tuple[bytes, ...]:
        """Refuse the run record, the plan or the row that waits for a decision.

        To refuse a plan is a promise: nothing was sent for it, and nothing ever will be. The
        promise is in the journal, and the plan's keys are gone, before it is sent (rule R3).

        Args:
            reason: A stable public code, never a text.

        Raises:
            WrongStateError: nothing waits for a decision.
            KeyReuseError: a y was kept for the plan, or the run has too many refused plans.
            RestoredJournalError: the journal was halted: it cannot promise.
        """
        if self._state is PartyState.REVIEWING_RUN:
            replies = self._refusal(self.run_id, reason)
            self._stop()
            self._remember(self._run.record, replies)
            return replies
        if self._state is PartyState.REVIEWING_ROW and self._blame is not None:
            request = self._blame
            # Its subject is the request: a refusal of the plan would say that nothing was sent.
            return self._end_blame(request, self._refusal(wire.digest_of(request), reason))
        self._require(PartyState.REVIEWING_PLAN)
        plan = self._known_plan
        replies = self._refusal(plan.digest, reason)  # which may fail, and is not sent yet
        self._journal.abandon(plan.digest, run_id=self.run_id)
        self._move_to(plan.known.epoch)
        self._roots.advance(plan.known.epoch + 1)  # this plan's keys are gone
        plan.is_refused = True
        self._transcript = self._transcript.append("plan", plan.digest)
        self._state = PartyState.REFUSED
        self._remember(plan.known, replies)
        return replies

    def give_up(self) -> None:
        """Leave the run in any state: its keys are erased. Stored y's stay, to be sent again."""
        self._stop()

    # One method per message -------------------------------------------------------------------

    def _act(self, signed: Signed, *, now: float) -> Received:
        message = signed.message
        match message:
            case RunOffer() | RunRecord() | EnvelopeBundle() | SetupClosing():
                return self._on_setup(signed, message, now=now)
            case Plan():
                return self._on_plan(signed, message, now=now)
            case Proposal():
                return self._on_proposal(message, now=now)
            case VerdictMacs():
                self._require_open(message.plan_digest, now=now)
                return self._on_proof(message)  # a peer's wrong MAC is not the coordinator's
            case Certificate():
                self._require_open(message.plan_digest, now=now)
                return self._stopping(lambda: self._on_proof(message))
            case ShareBundle():
                self._require_open(message.plan_digest, now=now)
                return self._stopping(lambda: self._on_shares(message))
            case Settlement():
                return self._stopping(lambda: self._on_settlement(signed, message))
            case BlameRequest():
                return self._on_blame(message, now=now)
            case Closing():
                return self._stopping(lambda: self._on_closing(message))
            case HeadBundle():
                return self._stopping(lambda: self._on_heads(message))
            case _:  # the transition table lists no other
                raise AssertionError(type(message).__name__)

    def _on_setup(
        self,
        signed: Signed,
        message: RunOffer | RunRecord | EnvelopeBundle | SetupClosing,
        *,
        now: float,
    ) -> Received:
        match message:
            case RunOffer():
                return Received((self._setup.state(signed, message, now=now),))
            case RunRecord():
                self._seating = self._setup.read_record(signed, message, now=now)
                return Received(event=message)
            case EnvelopeBundle():
                confirm = self._setup.confirm
                return self._stopping(lambda: Received((confirm(self._run, message),)))
            case SetupClosing():
                return self._stopping(lambda: self._on_setup_closing(message))

    def _on_setup_closing(self, closing: SetupClosing) -> Received:
        self._roots, digest = self._setup.finish(self._run, closing)
        self._transcript = self._transcript.append("setup", digest)
        return Received((self._ready("setup"),))

    def _on_plan(self, signed: Signed, plan: Plan, *, now: float) -> Received:
        self._journal.sweep(now=now)
        require_plan(
            plan,
            seating=self._run,
            transcript=self._transcript,
            epoch=self.epoch,
            next_phase=self._next_phase,
            now=now,
        )
        self._open = PartyPlan(signed.digest, plan)
        self._next_phase = self._void_witness = None
        self._wrong_dealers = ()
        return Received(event=plan)

    def _on_proposal(self, proposal: Proposal, *, now: float) -> Received:
        """Give this party's one verdict on the plan: journalled, then signed."""
        if not self._run.form.survives_dropouts:
            raise UnexpectedMessageError(
                "a proposal must be for a form that survives drop-outs", "another form"
            )
        plan = self._open
        if plan is None and not proposal.survivors:
            plan = PartyPlan(proposal.plan_digest)  # it never came here, and never will
        if plan is None or proposal.plan_digest != plan.digest:
            raise UnexpectedMessageError("a message must be of the open plan", "another")
        if plan.plan is not None:
            require_fresh(plan.plan.expires_at, now=now)
        replies = give_verdict(
            proposal,
            plan,
            seating=self._run,
            least=self._least_survivors,
            identity=self._identity,
            roots=self._roots,
            journal=self._journal,
        )
        self._open = plan
        return Received(replies)

    def _on_inquiry(self, signed: Signed, inquiry: Inquiry, *, now: float) -> Received:
        """Let the node say whether it would serve what may be asked; no state changes.

        Raises:
            UnexpectedMessageError: no plan can come now, or the run has expired.
        """
        self._state = next_state(PARTY_TRANSITIONS, self._state, inquiry)
        require_fresh(self._run.record.expires_at, now=now)
        self._inquiry = signed.digest
        return Received(event=inquiry)

    def _end_inquiry(self, answer: Callable[[bytes], Signed]) -> tuple[bytes, ...]:
        if not self._inquiry:
            raise WrongStateError("an inquiry must wait for an answer", "none")
        subject, self._inquiry = self._inquiry, b""
        return (answer(subject).frame,)

    def _require_open(self, plan_digest: bytes, *, now: float) -> None:
        """Check that a message is of the open plan, which has not expired.

        Raises:
            UnexpectedMessageError: it is not. A message of an earlier plan may only be late.
        """
        plan = self._known_plan
        if plan_digest != plan.digest:
            raise UnexpectedMessageError("a message must be of the open plan", "another")
        if plan.plan is not None:
            require_fresh(plan.plan.expires_at, now=now)

    def _on_proof(self, proof: VerdictMacs | Certificate) -> Received:
        take_proof(proof, self._known_plan, seating=self._run, roots=self._roots)
        return Received()

    def _on_shares(self, bundle: ShareBundle) -> Received:
        plan = self._known_plan
        assert plan.is_certified
        assert plan.verdict is not None
        assert plan.holder is not None
        assert plan.sent is not None
        reveal, self._wrong_dealers = plan.holder.reveal(plan.verdict, bundle)
        plan.holder = None
        signed = wire.sign(reveal, self._identity)
        plan.sent = replace(plan.sent, reveal=signed.digest)
        return Received((signed.frame,))

    def _on_settlement(self, signed: Signed, settlement: Settlement) -> Received:
        run = self._run
        plan = self._open or PartyPlan(settlement.plan_digest)  # one that never came
        require_settlement(settlement, plan, seating=run, least=self._least_survivors)
        claim = learn_settlement(
            self._journal,
            settlement,
            identities=run.identities,
            form=type(run.form),
            known=plan.verdict if plan.is_certified else None,
            came_here=plan.plan is not None,
        )
        self._note_reveal(settlement, plan)
        self._next_phase = None
        if plan.plan is not None and settlement.state == "released":
            self._next_phase = (plan.plan.batch, plan.plan.attempt, plan.plan.phase + 1)
        self._extend(signed, settlement, plan)
        self._keep_witness(settlement, plan)
        # A plan that never came used an epoch, too, and so did one whose answer failed.
        self._move_to(self.epoch + 1 if plan.plan is None else plan.plan.epoch)
        key = _identify_shares(plan.digest)
        if key in self._answered:  # shares are not shown again
            self._answered[key] = (self._answered[key][0], ())
        self._open = None
        return Received(event=settlement, proven=claim)

    def _note_reveal(self, settlement: Settlement, plan: PartyPlan) -> None:
        has_revealed = plan.sent is not None and bool(plan.sent.reveal)
        listed = settlement.contributions[self._run.seat]
        self._reveal_was_lost = has_revealed and listed != plan.entries[0]

    def _extend(self, signed: Signed, settlement: Settlement, plan: PartyPlan) -> None:
        """Add to the transcript what this settlement tells, and the plan if it is not there."""
        if not plan.is_answered:
            self._transcript = self._transcript.append("plan", settlement.plan_digest)
        if settlement.certificate:
            certificate = wire.expect(wire.decode(settlement.certificate), Certificate)
            digest = wire.digest_of(certificate.verdict)
            self._transcript = self._transcript.append("verdict", digest)
        self._transcript = self._transcript.append("settlement", signed.digest)

    def _keep_witness(self, settlement: Settlement, plan: PartyPlan) -> None:
        """Keep the streams of a void plan, in case a row of it was wrong."""
        self._void_witness = None
        if settlement.state == "void" and plan.witness is not None:
            plan.witness.note_void()
            self._void_witness = plan.witness
            self._void_expires_at = plan.known.expires_at

    def _on_blame(self, request: BlameRequest, *, now: float) -> Received:
        if now >= self._void_expires_at:
            self._void_witness = None
        if self._void_witness is None:
            raise BlameError("keys of the plan must be here still", "none", peer=COORDINATOR)
        self._void_witness.require_void(request.plan_digest)
        self._blame = request
        return Received(event=request)

    def _end_blame(self, request: BlameRequest, replies: tuple[bytes, ...]) -> tuple[bytes, ...]:
        self._blame = self._void_witness = None
        self._state = PartyState.READY
        self._remember(request, replies)
        return replies

    def _on_closing(self, closing: Closing) -> Received:
        frame = state_head(
            closing,
            seating=self._run,
            transcript=self._transcript,
            epoch=self.epoch,
            journal_counter=self._journal.counter,
            identity=self._identity,
        )
        self._roots.erase()
        self._void_witness = None
        return Received((frame,))

    def _on_heads(self, bundle: HeadBundle) -> Received:
        compared = compare_heads(
            bundle, seating=self._run, head=self._transcript.head, floor=self._floor
        )
        self._journal.witness(compared.counters)
        self._compared = compared.parties
        return Received((self._ready("closing"),))

    # Helpers ----------------------------------------------------------------------------------

    @property
    def _run(self) -> Seating:
        assert self._seating is not None
        return self._seating

    @property
    def _known_plan(self) -> PartyPlan:
        assert self._open is not None
        return self._open

    @property
    def _least_survivors(self) -> int:
        """Fewest parties whose sum may open, by the form and by this party's own floor."""
        return max(self._run.threshold, self._floor)

    def _move_to(self, epoch: int) -> None:
        """Move to an epoch. A refused plan has moved the roots beyond it already."""
        if epoch > self._roots.epoch:
            self._roots.advance(epoch)
        self._epoch = max(self._epoch, epoch)

    def _verify_coordinator(self, signed: Signed) -> None:
        try:
            signed.verify(self._coordinator)
        except BadSignatureError as error:
            raise error.from_peer(COORDINATOR) from error

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

    def _repeat(
        self, signed: Signed, replies: tuple[bytes, ...], *, now: float
    ) -> tuple[bytes, ...]:
        message = signed.message
        if isinstance(message, ShareBundle | Proposal):
            plan = None if self._open is None else self._open.plan
            is_over = plan is not None and now >= plan.expires_at
            return () if self._state is PartyState.STOPPED or is_over else replies
        if not isinstance(message, Plan) or replies:
            return replies
        if now >= message.expires_at:
            self._journal.erase(signed.digest)  # nobody needs it any more (rule R9)
        if self._state is PartyState.STOPPED or now >= message.expires_at:
            return ()
        stored = self._journal.find(signed.digest)
        return () if stored is None else stored

    def _remember(self, message: Message, replies: tuple[bytes, ...]) -> None:
        key = _identify(message)
        digest, _ = self._answered[key]
        self._answered[key] = (digest, replies)

    def _stopping(self, act: Callable[[], Received]) -> Received:
        try:
            return act()
        except ProtocolError:
            self._stop()
            raise

    def _stop(self) -> None:
        self._state = PartyState.STOPPED
        self._roots.erase()
        self._setup.forget()
        self._void_witness = None
        if self._open is not None:
            self._open.holder = self._open.witness = None

    def _refusal(self, subject: bytes, reason: str) -> tuple[bytes, ...]:
        return (wire.sign(Refusal(subject, self._me, reason), self._identity).frame,)

    def _ready(self, stage: str) -> bytes:
        message = Ready(self.run_id, self._me, stage, self._transcript.head, self._journal.counter)
        return wire.sign(message, self._identity).frame

    def _require(self, state: PartyState) -> None:
        if self._state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self._state.value)


def _identify(message: Message) -> tuple[object, ...]:
    """Name what a message is about: two bodies for one name are a conflict."""
    match message:
        case RunOffer():
            return (RunOffer, message.nonce)
        case RunRecord():
            return (RunRecord, message.offer_digest)
        case Plan():
            return (Plan, message.epoch)
        case Proposal():
            # One set, and one attempt to close the plan.
            return (Proposal, message.plan_digest, bool(message.survivors))
        case ShareBundle():
            return _identify_shares(message.plan_digest)
        case Settlement() | BlameRequest():
            return (type(message), message.plan_digest)
        case VerdictMacs() | Certificate():
            return ("proof", message.plan_digest)
        case _:
            return (type(message),)


def _identify_shares(plan_digest: bytes) -> tuple[object, ...]:
    return (ShareBundle, plan_digest)
