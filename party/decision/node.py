"""A party without a network: packets in, packets out.

The node follows the order of the rules. The protocol checks the sender and the state, the guard
decides, the charge is stored, the queries are journalled. Then noise is drawn if the parties add
it, the teachers vote, votes that patients use up are stored, and y is sent. After any fault, only a
stable code leaves the site.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from party.decision.agreed_run import AgreedRun, OpenBatch
from party.decision.decisions import (
    BatchAccepted,
    BatchRefused,
    Decision,
    RunAccepted,
    RunClosed,
    RunRefused,
)
from party.decision.faults import Decided, Faults, reason_for
from party.decision.guard import Guard
from party.decision.own_votes import OwnVotes
from party.decision.settlements import Settlements
from party.errors import Reason
from party.site.party_task import PartyTask
from party.storage.journal import Journal
from party.storage.ledger_store import LedgerStore
from party.storage.patient_votes import tags_by
from pate_fed.accounting import PrivacyLedger
from pate_fed.errors import InvalidParameterError, PateFedError
from protocols import wire
from protocols.errors import BlameError, ProtocolError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import (
    MAX_COLUMN_BYTES,
    BlameRequest,
    Dealing,
    HeadBundle,
    Inquiry,
    Plan,
    Refusal,
    RunInquiry,
    RunOffer,
    RunReadiness,
    RunRecord,
    Settlement,
)
from protocols.rounds import PartyRound, PartyState, Received
from protocols.run_scope import RunScope
from protocols.secure_sum import RoundForm

MAX_PACKET_BYTES = 8 * 2**20
"""Most bytes of a packet. In a run it may have more: the shares of all its parties for this one."""

Tell = Callable[[Decision], None]
"""Told of every decision, before anything that follows from it leaves."""


_log = logging.getLogger(__name__)


class PartyNode:
    """A hospital's decisions in one federation: packets in, packets out.

    `known_peers` were checked by our people or named by the coordinator; the guard counts only
    checked ones. Nothing is done that `tell` cannot take note of. `decided` looks up the decision
    of its people on a run. `noise_bytes` is, in a simulation and nowhere else, a repeatable source
    of this party's noise, which otherwise comes from `random_bytes`.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity,
        coordinator: PublicIdentity,
        known_peers: Mapping[bytes, PublicIdentity],
        guard: Guard,
        tasks: Mapping[bytes, PartyTask],
        forms: Mapping[str, RoundForm],
        journal: Journal,
        ledger: LedgerStore,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
        tell: Tell = lambda _: None,
        decided: Decided = lambda _: None,
        noise_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        if noise_bytes is not None and not guard.policy.simulated:
            raise InvalidParameterError("noise must be drawn afresh")
        self._identity = identity
        self._coordinator = coordinator
        self._known_peers = dict(known_peers)
        self._guard = guard
        self._tasks = dict(tasks)
        self._forms = dict(forms)
        self._journal = journal
        self._ledger = ledger
        self._random_bytes = random_bytes
        self._ballots = OwnVotes(
            random_bytes if noise_bytes is None else noise_bytes,
            cast=journal.patient_votes,
            tag_of=tags_by(identity),
        )
        self._clock = clock
        self._tell = tell
        self._round = self._new_round()
        self._run: AgreedRun | None = None
        self._offers: set[bytes] = set()
        self._faults = Faults(decided)
        self._settlements = Settlements(
            ledger,
            journal,
            self._faults,
            me=identity.fingerprint,
            most_returned=lambda: self._guard.policy.most_returned,
        )
        journal.sweep(now=clock())

    @property
    def ledger(self) -> PrivacyLedger:
        """This party's charges."""
        return self._ledger.load()

    @property
    def fault(self) -> str:
        """Code of the last packet's fault, ours or its sender's; empty if it had none."""
        return self._faults.code

    @property
    def state(self) -> PartyState:
        """Where the party is in its run."""
        return self._round.state

    @property
    def run_id(self) -> bytes:
        """Id of its run; empty before it has one."""
        return self._round.run_id

    @property
    def transcript_head(self) -> bytes:
        """Head of the run's chain as this party saw it."""
        return self._round.transcript.head

    @property
    def heads_compared(self) -> tuple[bytes, ...]:
        """Parties whose last heads agreed with this party's own, in seat order."""
        return self._round.heads_compared

    def adopt(
        self,
        *,
        guard: Guard,
        known_peers: Mapping[bytes, PublicIdentity],
        tasks: Mapping[bytes, PartyTask],
    ) -> None:
        """Take the owner's newest decisions: the guard at once, peers and tasks from the next run.

        A run is left whose teachers were trained anew meanwhile, or whose patients were read anew:
        it has to be set up again.
        """
        self._guard = guard
        self._known_peers = dict(known_peers)
        self._tasks = dict(tasks)
        run = self._run
        kept = None if run is None else tasks.get(run.terms.pool_digest)
        if run is None or kept is None or kept is run.task:
            return
        # An evaluation is made anew when its patients are read from another table.
        if kept.teachers != run.task.teachers or kept.evaluation is not None:
            self._round.give_up()
            self._run = None

    def receive(self, packet: bytes) -> bytes:
        """Answer one packet. Never raises: any fault becomes a coded refusal."""
        replies: list[bytes] = []
        frame = b""
        self._faults.code = ""
        try:
            self._settlements.book(self._run, self._round)
            for frame in wire.unpack(packet, max_bytes=self._most_bytes):
                replies.extend(self._take(frame))
        except (ProtocolError, PateFedError) as error:
            self._faults.note(error)
            _log.warning("a message was refused: %s", error.code)
            replies.append(_refusal(self._identity, error.code, of=frame, run=self._round.run_id))
        except Exception as error:
            self._faults.note(error)
            _log.error("something unexpected went wrong: %s", type(error).__name__)
            code = reason_for(error).value
            replies.append(_refusal(self._identity, code, of=frame, run=self._round.run_id))
        return wire.pack(replies[: wire.MAX_PACKET_FRAMES])  # an honest packet asks for fewer

    @property
    def _most_bytes(self) -> int:
        seats = 0 if self._run is None else len(self._run.scope.seats)
        return max(MAX_PACKET_BYTES, seats * (MAX_COLUMN_BYTES + Dealing.MAX_BYTES))

    def _take(self, frame: bytes) -> tuple[bytes, ...]:
        signed = wire.decode(frame)
        if isinstance(signed.message, RunInquiry):
            return self._judge_run_inquiry(signed, signed.message)
        received = self._receive(frame)
        match received.event:
            case RunRecord():
                return self._judge_run(received.event)
            case Plan():
                return self._judge_plan(received.event)
            case Settlement():
                self._settlements.add(received.event, received.proven)
                self._settlements.book(self._run, self._round)
            case BlameRequest():
                return self._judge_row()
            case Inquiry():
                return self._judge_inquiry(received.event)
            case None:
                self._note_closed(frame)
        return received.replies

    def _note_closed(self, frame: bytes) -> None:
        run, round_ = self._run, self._round
        if run is None or run.is_closed or not isinstance(wire.decode(frame).message, HeadBundle):
            return
        self._tell(RunClosed(round_.run_id, round_.transcript.head, round_.heads_compared))
        run.is_closed = True

    def _receive(self, frame: bytes) -> Received:
        """Hand a frame to its run. A new offer of the coordinator replaces the run that is open.

        The coordinator may have lost that run. An offer that this party saw before changes nothing.
        """
        signed = wire.decode(frame)
        if not isinstance(signed.message, RunOffer) or signed.digest in self._offers:
            return self._round.receive(frame, now=self._clock())
        fresh = self._new_round()
        received = fresh.receive(frame, now=self._clock())  # raises unless it is genuine
        # It leaves the run: its keys are gone. A reservation stays so, until it is settled.
        self._round.give_up()
        self._run = None
        self._offers.add(signed.digest)
        self._round = fresh
        return received

    def _new_round(self) -> PartyRound:
        return PartyRound(
            identity=self._identity,
            coordinator=self._coordinator,
            known_peers=self._known_peers,
            forms=self._forms,
            journal=self._journal,
            random_bytes=self._random_bytes,
            least_survivors=self._guard.policy.least_parties,
            suites=self._guard.policy.suites,
            tally=self._guard.aggregators.tally,
        )

    def _judge_run(self, record: RunRecord) -> tuple[bytes, ...]:
        self._journal.require_whole()
        run_id = self._round.run_id or bytes(32)
        scope = RunScope.of(record, seats=self._round.known.fingerprints)
        try:
            run = self._reviewed(record, scope, run_id=run_id)
            self._tell(RunAccepted(run_id, run.terms, scope))
            run.account.enter()
        except Exception as error:
            return self._refuse(RunRefused(run_id, self._faults.reason_of(error, scope), scope))
        self._run = run
        return self._round.accept_run()

    def _reviewed(
        self, record: RunRecord | RunInquiry, scope: RunScope, *, run_id: bytes
    ) -> AgreedRun:
        return AgreedRun.reviewed(
            record,
            scope,
            run_id=run_id,
            me=self._identity.fingerprint,
            guard=self._guard,
            forms=self._forms,
            tasks=self._tasks,
            journal=self._journal,
            ledger=self._ledger,
        )

    def _judge_run_inquiry(self, signed: wire.Signed, inquiry: RunInquiry) -> tuple[bytes, ...]:
        """Say whether a run would be accepted, and ask our people; the run that is open goes on."""
        self._journal.require_whole()
        self._new_round().require_joinable(signed, inquiry)
        scope = RunScope.of(inquiry, seats=inquiry.seats)
        said = ""
        try:
            self._reviewed(inquiry, scope, run_id=bytes(32))
        except Exception as error:
            refusal = RunRefused(bytes(32), self._faults.reason_of(error, scope), scope)
            said = self._faults.noted(lambda: self._tell(refusal), refusal.reason).value
        decision = self._faults.decision_on(scope)
        at = 0.0 if decision is None else decision.decided_at or decision.asked_at
        words = "" if decision is None else decision.words
        message = RunReadiness(signed.digest, self._identity.fingerprint, said, int(at), words)
        return (wire.sign(message, self._identity).frame,)

    def _judge_plan(self, plan: Plan) -> tuple[bytes, ...]:
        self._journal.require_whole()  # another federation's run may have halted it
        run = self._agreed_run
        plan_digest = wire.digest_of(plan)
        if run.asked is not None and run.asked.is_silent:
            return ()
        run.asked = asked = OpenBatch(plan_digest, plan.words // run.terms.columns)
        try:
            batch, worst = run.review_batch(self._guard, plan.terms, words=plan.words)
            run.require_new(plan_digest)
            bound = run.review_queries(self._guard, batch)
        except Exception as error:
            return self._refuse(BatchRefused(plan_digest, self._faults.reason_of(error, run.scope)))
        # A failure from here on still comes before any vote, so it may be told (rule R12). A charge
        # stays. Where it cannot be stored the plan may come once more.
        if run.account.state_of(asked.entry_id) is None:
            run.account.reserve(asked.entry_id, worst)
        self._journal.queries.claim(batch.digests, plan_digest=plan_digest, claim=run.claim)
        run.asked = asked = replace(asked, batch=batch, bound=bound)
        try:
            self._tell(BatchAccepted(run.run_id, run.scope, plan_digest, len(batch)))
        except Exception as error:  # somebody took the approval back since the guard looked
            return self._refuse(BatchRefused(plan_digest, self._faults.reason_of(error, run.scope)))
        return self._contribute(plan, asked)

    def _judge_inquiry(self, inquiry: Inquiry) -> tuple[bytes, ...]:
        """Say whether a plan would be served, but for queries refused alone: no vote, no charge."""
        run = self._agreed_run
        try:
            self._journal.require_whole()
            batch, _ = run.review_batch(self._guard, inquiry.terms)
            self._journal.require_room(4 * len(batch) * run.terms.columns)
            return self._round.inquiry.accept(run.refused_alone(self._guard, batch))
        except Exception as error:
            return self._round.inquiry.refuse(self._faults.reason_of(error, run.scope).value)

    def _judge_row(self) -> tuple[bytes, ...]:
        """State the stream sums of a row that was wrong, where they tell nothing (rule R11).

        With noise at the parties they would tell the sum of this party's noise. A report has none.
        """
        try:
            terms = self._agreed_run.terms
            if not terms.rule.opens_noisy:
                return self._round.state_sums(row_words=terms.columns)
            reason = Reason.ROW
        except Exception as error:
            reason = Reason.ROW if isinstance(error, BlameError) else self._faults.reason_of(error)
        _log.warning("the sums of a row were refused: %s", reason.value)
        return self._round.refuse(reason.value)

    def _contribute(self, plan: Plan, asked: OpenBatch) -> tuple[bytes, ...]:
        """Vote and send, or be silent: no outcome may tell a vote (rule R12)."""
        assert asked.batch is not None
        run = self._agreed_run
        weights = self._guard.weights_on(run.terms.pool_digest)
        try:
            vector = self._ballots.vector(run, asked.batch, weights=weights)
            if self._clock() >= plan.expires_at:
                _log.error("the teachers took longer than the plan allows")
                run.fall_silent()
                return ()
            return self._round.contribute(
                vector, bound=asked.bound, layout=run.layout(asked.queries)
            )
        except Exception as error:
            self._faults.note(error)
            _log.error("a vote could not be sent: %s", type(error).__name__)
            # A disk that is full tells no vote: the plan may come once more, and be refused.
            if reason_for(error) is not Reason.STORAGE:
                run.fall_silent()
            return ()

    def _refuse(self, refusal: RunRefused | BatchRefused) -> tuple[bytes, ...]:
        """Refuse with a code and note it; refuse also if it cannot be noted."""
        reason = self._faults.noted(lambda: self._tell(refusal), refusal.reason)
        return self._round.refuse(reason.value)

    @property
    def _agreed_run(self) -> AgreedRun:
        assert self._run is not None
        return self._run

    def __repr__(self) -> str:
        return f"PartyNode({self._identity.fingerprint.hex()[:16]}, {self.state.value})"


def _refusal(identity: SigningIdentity, code: str, *, of: bytes, run: bytes) -> bytes:
    """Return the frame that refuses another frame, or all of a run."""
    message = Refusal(_subject_of(of) or run or bytes(32), identity.fingerprint, code)
    return wire.sign(message, identity).frame


def _subject_of(frame: bytes) -> bytes:
    """Digest that a refusal names by itself: of an offer or inquiry; empty for other frames."""
    try:
        signed = wire.decode(frame)
    except ProtocolError:
        return b""
    alone = RunOffer | RunInquiry | Inquiry
    return signed.digest if isinstance(signed.message, alone) else b""
