"""A party's end of a run: takes messages, keeps the order of things, remembers its answers.

The phases themselves are next door: `setup`, `inquiry`, `batch`, `blame`, `closing`. The peers'
identities, the clock, random numbers, the journal and the decision of the party's own guard arrive
as arguments. The party does not trust the coordinator. It checks the peers' signatures of relayed
messages, and plans against the history that it remembers. Its guard judges which peers count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    ProtocolError,
    RestoredJournalError,
    WrongStateError,
)
from protocols.fields import Message
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
    Plan,
    Ready,
    RunInquiry,
    RunOffer,
    RunRecord,
    SetProposal,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    VerdictMacs,
)
from protocols.rounds.batch.at_party import PartyBatch
from protocols.rounds.blame.at_party import PartyBlame
from protocols.rounds.bounds import ANY_SET, PlanClaim, SetBound
from protocols.rounds.closing.at_party import PartyClosing
from protocols.rounds.inquiry.at_party import PartyInquiry
from protocols.rounds.lost_runs import LostRuns
from protocols.rounds.round_journal import RoundJournal
from protocols.rounds.seating import (
    COORDINATOR,
    LEAST_PARTIES,
    SeatedRun,
    require_fresh,
    require_run,
    verify_handed_over,
)
from protocols.rounds.setup.at_party import PartySetup
from protocols.rounds.states import PARTY_TRANSITIONS, PartyState, next_state, subject_of
from protocols.rounds.verdicts import take_proof
from protocols.secure_sum import RoundForm
from protocols.suites import DEFAULT_SUITE
from protocols.verified import VoteLayout
from protocols.wire import Signed

Frames = tuple[bytes, ...]

_MAY_BE_WRONG: tuple[type[Message], ...] = (
    *(RunOffer, RunRecord, Plan, SetProposal, BlameRequest),
    VerdictMacs,  # a peer's wrong MAC is not the coordinator's fault
)
"""Messages whose fault leaves a run as it was. Any other message's ends it at this party."""


@dataclass(frozen=True, slots=True)
class Received:
    """The result of a message.

    Attributes:
        replies: Frames to send back.
        event: Something that the node must act upon: a `RunRecord` (then `accept_run` or
            `refuse`), a `Plan` (then `contribute` or `refuse`), a `Settlement` of this run or of an
            earlier one (then charges), a `BlameRequest` (then `state_sums` or `refuse`), an
            `Inquiry` (then `inquiry.accept` or `inquiry.refuse`).
        proven: The claim that a settlement proves about its plan; None if there is none.
    """

    replies: tuple[bytes, ...] = field(default=(), repr=False)
    event: RunRecord | Plan | Settlement | BlameRequest | Inquiry | None = None
    proven: PlanClaim | None = None


class PartyRound(SeatedRun):
    """A party's state machine for one run: a `SeatedRun` that takes messages.

    `known_peers` and `forms` are those that it knows, by fingerprint and by name. `random_bytes`
    gives nonces, halves of roots, self masks, shares, masks of reports. A run has one of the
    `suites`. At least `LEAST_PARTIES` are in a sum that it helps to open, whatever
    `least_survivors` says. `tally` is the second aggregator that it pinned, for reports.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity,
        coordinator: PublicIdentity,
        known_peers: Mapping[bytes, PublicIdentity],
        forms: Mapping[str, RoundForm],
        journal: RoundJournal,
        random_bytes: Callable[[int], bytes],
        suites: frozenset[str] = frozenset({DEFAULT_SUITE}),
        least_survivors: int = LEAST_PARTIES,
        tally: PublicIdentity | None = None,
    ) -> None:
        super().__init__(
            identity,
            coordinator=coordinator,
            journal=journal,
            random_bytes=random_bytes,
            least_survivors=least_survivors,
        )
        self._setup = PartySetup(
            self, known_peers=known_peers, forms=forms, suites=suites, tally=tally
        )
        self._lost_runs = LostRuns(self)
        self._answered: dict[tuple[type[Message], object], tuple[bytes, Frames]] = {}
        self._blame = PartyBlame()
        self._closing = PartyClosing(self)
        self.state = PartyState.NEW
        self.inquiry = PartyInquiry(self)
        self.batch = PartyBatch(self, self._blame)

    # Public facts -------------------------------------------------------------------------------

    @property
    def record(self) -> RunRecord | None:
        """The run record, once it came."""
        return None if self.seating is None else self.seating.record

    @property
    def heads_compared(self) -> tuple[bytes, ...]:
        """Parties whose last head equals ours, in seat order; ours is among them."""
        return self._closing.heads_compared

    # Messages ---------------------------------------------------------------------------------

    def require_joinable(self, signed: Signed, inquiry: RunInquiry) -> None:
        """Check an inquiry before an offer; see `PartySetup.require_joinable`."""
        self._setup.require_joinable(signed, inquiry)

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
        message = signed.message
        if _is_signed_by(signed, self.identity.public):
            self._compare_journal(message)
            return Received()
        if message.PURPOSE:
            verify_handed_over(signed, self.coordinator)
        if getattr(message, "run_id", self.run_id) != self.run_id:
            if isinstance(message, Settlement):
                is_known, claim = self._lost_runs.learn(message)
                return Received(event=message if is_known else None, proven=claim)
            answer = self._lost_runs.answer(signed, now=now)
            if answer is not None:
                return Received(answer)
        require_run(getattr(message, "run_id", self.run_id), self.run_id)
        if isinstance(message, Inquiry):
            self.state = next_state(PARTY_TRANSITIONS, self.state, message)
            self.inquiry.take(signed, now=now)
            return Received(event=message)
        answered = self._answered.get(_name_of(message))
        if answered is not None:
            return self._answer_again(signed, *answered, now=now)
        state = next_state(PARTY_TRANSITIONS, self.state, message)
        if isinstance(message, VerdictMacs | Certificate | ShareBundle):
            self.batch.require_open(message.plan_digest, now=now)  # it may only be late
        try:
            received = self._act(signed, now=now)
        except ProtocolError:
            if not isinstance(message, _MAY_BE_WRONG):
                self._stop()
            raise
        self.state = state
        self._answered[_name_of(message)] = (signed.digest, received.replies)
        return received

    def accept_run(self) -> tuple[bytes, ...]:
        """Agree to the run record that waits: seal a half of each pair's root, if there are any.

        Raises `MalformedMessageError` where a peer's sealing key is unusable; names the peer.
        """
        self._require(PartyState.REVIEWING_RUN)
        record = self.known.record
        if not self.known.form.has_pair_keys:
            self._setup.enter()
            self.extend("run record", self.run_id)
            return self._decided(record, (self.ready("setup"),), PartyState.READY)
        replies = (self._setup.seal(),)
        self.extend("run record", self.run_id)
        return self._decided(record, replies, PartyState.SEALED)

    def contribute(
        self,
        vector: NDArray[np.int64],
        *,
        bound: SetBound = ANY_SET,
        layout: VoteLayout | None = None,
    ) -> tuple[bytes, ...]:
        """Agree to the plan: hide this party's vector and return it, to be sent.

        Where verdicts certify a set, shares of this plan's keys go in front of y.

        Args:
            vector: x, signed integers; shape (plan.words,). Secret.
            bound: The journal's bound on the sets that may open for the plan's queries (rule R3).
            layout: Of this party's votes, where the form has reports.

        Raises:
            WrongStateError: no plan waits for a decision.
            InvalidVectorError: not the plan's length, or out of range; no votes of the layout.
            KeyReuseError: the plan was begun before, or no set within `bound` can open.
        """
        self._require(PartyState.REVIEWING_PLAN)
        frames = self.batch.contribute(vector, bound=bound, layout=layout)
        # The frames themselves stay in the journal alone, until the plan is settled.
        self._decided(self.batch.known.known, (), PartyState.SENT)
        return frames

    def state_sums(self, *, row_words: int) -> tuple[bytes, ...]:
        """Answer who spoiled a row: state the sum of each stream over it, once.

        `row_words` comes from the terms that this party agreed to: never from the request, which
        could ask for one word and so for a vote. Raises `BlameError` where the plan has no such
        row; to be refused.
        """
        self._require(PartyState.REVIEWING_ROW)
        request, sums = self._blame.request, self._blame.sums(row_words=row_words)
        message = StreamSums(request.plan_digest, self.me, request.row, sums)
        replies = (wire.sign(message, self.identity).frame,)
        self._blame.drop()
        return self._decided(request, replies, PartyState.READY)

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
        replies: Frames
        match self.state:
            case PartyState.REVIEWING_RUN:
                replies = (self.refusal(self.run_id, reason),)
                self._stop()
                return self._decided(self.known.record, replies, PartyState.STOPPED)
            case PartyState.REVIEWING_ROW:
                request = self._blame.request
                # Its subject is the request: one of the plan would say that nothing was sent.
                replies = (self.refusal(wire.digest_of(request), reason),)
                self._blame.drop()
                return self._decided(request, replies, PartyState.READY)
            case _:
                self._require(PartyState.REVIEWING_PLAN)
                replies = self.batch.refuse(reason)
                return self._decided(self.batch.known.known, replies, PartyState.REFUSED)

    def give_up(self) -> None:
        """Leave the run in any state: its keys are erased. Stored y's stay, to be sent again."""
        self._stop()

    # One case per message ---------------------------------------------------------------------

    def _act(self, signed: Signed, *, now: float) -> Received:  # noqa: PLR0912 - one each
        message = signed.message
        match message:
            case RunOffer():
                return Received((self._setup.state(signed, message, now=now),))
            case RunRecord():
                self._setup.read_record(signed, message, now=now)
                return Received(event=message)
            case EnvelopeBundle():
                return Received((self._setup.confirm(message),))
            case SetupClosing():
                self._setup.finish(message)
                return Received((self.ready("setup"),))
            case Plan():
                self.batch.take_plan(signed, message, now=now)
                return Received(event=message)
            case SetProposal():
                return Received(self.batch.take_proposal(message, now=now))
            case VerdictMacs() | Certificate():
                take_proof(message, self.batch.known, run=self)
                return Received()
            case ShareBundle():
                return Received((self.batch.reveal(message),))
            case Settlement():
                claim = self.batch.settle(signed, message)
                self._drop_shares(message.plan_digest)
                return Received(event=message, proven=claim)
            case BlameRequest():
                self._blame.take(message, now=now)
                return Received(event=message)
            case Closing():
                frame = self._closing.state_head(message)
                self.roots.erase()
                self._blame.witness = None
                return Received((frame,))
            case HeadBundle():
                self._closing.compare(message)
                return Received((self.ready("closing"),))
            case _:  # the transition table lists no other
                raise AssertionError(type(message).__name__)

    # Helpers ----------------------------------------------------------------------------------

    def _compare_journal(self, shown: Message) -> None:
        """Stop if this party signed a higher counter than its journal has (rule R4)."""
        assert isinstance(shown, KeyStatement | Ready | HeadStatement)
        journal = self.journal
        if shown.journal_counter > journal.counter:
            self._stop()
            journal.halt(shown.journal_counter)
            raise RestoredJournalError(shown=shown.journal_counter, counter=journal.counter)

    def _answer_again(
        self, signed: Signed, digest: bytes, replies: Frames, *, now: float
    ) -> Received:
        """Answer a message as before, unless it is another one in the same place."""
        message = signed.message
        # A coordinator that was restarted may prove the same verdict by other parties' MACs.
        if digest != signed.digest and not isinstance(message, VerdictMacs | Certificate):
            self._stop()
            raise ConflictingMessageError(
                "a message must have the same bytes each time",
                f"another {type(message).__name__}",
                peer=COORDINATOR,
            )
        if isinstance(message, Plan) and self.state is PartyState.REVIEWING_PLAN:
            require_fresh(message.expires_at, now=now)
            return Received(event=message)  # nobody could decide on it
        return Received(self._repeat(signed, replies, now=now))

    def _repeat(self, signed: Signed, replies: Frames, *, now: float) -> Frames:
        message = signed.message
        if isinstance(message, ShareBundle | SetProposal):
            plan = None if self.batch.open is None else self.batch.open.plan
            is_over = plan is not None and now >= plan.expires_at
            return () if self.state is PartyState.STOPPED or is_over else replies
        if not isinstance(message, Plan) or replies:
            return replies
        if now >= message.expires_at:
            self.journal.erase(signed.digest)  # nobody needs it any more (rule R9)
        if self.state is PartyState.STOPPED or now >= message.expires_at:
            return ()
        stored = self.journal.find(signed.digest)
        return () if stored is None else stored

    def _drop_shares(self, plan_digest: bytes) -> None:
        """Never show the shares of a settled plan again."""
        name = (ShareBundle, plan_digest)
        if name in self._answered:
            self._answered[name] = (self._answered[name][0], ())

    def _decided(self, message: Message, replies: Frames, state: PartyState) -> Frames:
        """Note the answer to a message that waited for a decision, and go on."""
        name = _name_of(message)
        self._answered[name] = (self._answered[name][0], replies)
        self.state = state
        return replies

    def _stop(self) -> None:
        self.state = PartyState.STOPPED
        self.roots.erase()
        self._setup.forget()
        self._blame.witness = None
        self.batch.forget()

    def _require(self, state: PartyState) -> None:
        if self.state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self.state.value)


def _name_of(message: Message) -> tuple[type[Message], object]:
    """Name the place of a message in its run: one of either proof of a verdict is checked."""
    kind = VerdictMacs if isinstance(message, Certificate) else type(message)
    return kind, subject_of(message)


def _is_signed_by(shown: Signed, identity: PublicIdentity) -> bool:
    """Tell whether somebody shows a statement that this party signed."""
    match shown.message:
        case KeyStatement(identity_key=key):
            is_ours = key == identity.key
        case Ready(sender=sender) | HeadStatement(sender=sender):
            is_ours = sender == identity.fingerprint
        case _:
            return False
    try:
        shown.verify(identity)
    except BadSignatureError:
        return False
    return is_ours
