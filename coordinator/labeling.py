"""One labeling run: plan, reserve, collect shares, open the sum, release, commit.

The order is the point. The worst case is reserved before a plan leaves, so no noise is ever drawn
without a charge; a release is stored with its charge before it is shown; and a batch that fails
after a share may have left a party keeps its charge and releases nothing.

Where it adds the noise, the coordinator sees the exact sum of each batch, in memory, between
opening it and adding noise. Where the parties add it, the sum opens noisy, and the exact one exists
nowhere.
It never holds one party's histogram.

A run that was killed goes on: `LabelingRun.resume` takes it up from its journal and its store, and
`finish` brings the batch that was open to its end. What was stored is settled and shown as it is;
what was not is collected again from the very same y's, and where the noise is the coordinator's it
is drawn afresh, since nobody has seen what it had come to.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import (
    CoordinatorError,
    DatabaseError,
    PartyFailedError,
    PartyRefusedError,
    RunDamagedError,
    RunEndedError,
    RunStateError,
    SetupError,
    SpoiledBatchError,
    VoidBatchError,
)
from coordinator.resuming import require_fit
from coordinator.stages import OnStage, Stage, pass_by
from coordinator.store import AskedBatch, BatchState, RunStore
from coordinator.transport import Silence, Transport
from pate_fed.accounting import NO_OUTCOMES, Outcomes, PerInstanceCost, PerInstanceMeter
from pate_fed.charging import RunLedger, noise_of, outcomes_of, rule_of
from pate_fed.errors import InvalidParameterError, PateFedError, RowSumError
from pate_fed.federation import MOST_VOID_BATCHES, BatchTerms, PhaseTerms, RunTerms
from pate_fed.mechanisms import (
    DistributedConfidentMax,
    DistributedGaussianMax,
    DistributedInteractiveMax,
    DistributedMechanism,
    FirstPhase,
    InteractiveGaussianMax,
    Mechanism,
    NoisePlan,
    RandomBytes,
)
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease
from pate_fed.votes import (
    NoisyHistogram,
    SummedHistogram,
    TeacherWeights,
    open_noisy_sum,
    open_sum,
)
from protocols import wire
from protocols.envelope import DEFAULT_SUITE
from protocols.errors import (
    HistoryError,
    LateMessageError,
    ProtocolError,
    RefusedError,
    TooFewSharesError,
    UnexpectedMessageError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Refusal
from protocols.plain import PlainSum
from protocols.rounds import CoordinatorJournal, CoordinatorRound, CoordinatorState
from protocols.secure_sum import SecureSum

SETUP_ANSWER_BYTES = 5 * 2**20
"""Largest answer while a run is set up: a bundle of envelopes."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Between two tries to reach a silent party; each pause is twice the one before."""

_MOST_NAMED = 10
"""Hospitals that one sentence names."""

_MOST_TOLD = wire.MAX_PACKET_FRAMES - 3
"""Settlements that fit into a packet with what comes behind them."""

_MOST_TRACED_BYTES = 4 * 2**20
"""Row sums of all parties that are kept to find out who spoiled a row; of more, nobody does."""

_NOTHING = "no answer"
"""Why there is no answer where an empty packet came."""

_ABSENT = Silence("not reached")
_CODE = re.compile(r"PF-\d{3}")
_log = logging.getLogger(__name__)

Failure = ProtocolError | CoordinatorError | PateFedError


@dataclass(frozen=True, slots=True)
class Member:
    """A party of the federation, as the coordinator enrolled it.

    Attributes:
        name: What people call it.
        identity: Its pinned identity.
        weights: Votes that each of its teachers casts per query.
        node: Number of its node; None where nobody knows it before it signs, or nobody let it in
            yet. To name it if it never signs.
    """

    name: str
    identity: PublicIdentity
    weights: TeacherWeights
    node: int | None = None


@dataclass(frozen=True, slots=True)
class LabelingSettings:
    """What a run is asked to do; `RunTerms` without what only the federation knows.

    Attributes:
        terms: Makes the terms from the parties in seat order.
        simulated: Whether the run is a simulation.
        lifetime_s: Seconds after which the run and its plans expire.
        suite: Sealing suite of the run, the same for all.
        patience_s: Seconds for which a batch waits for a party that is silent, at the longest
            until its plan expires.
    """

    terms: Callable[[tuple[Member, ...]], RunTerms]
    simulated: bool
    lifetime_s: int = 24 * 3600
    suite: str = DEFAULT_SUITE
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch that is being answered.

    Attributes:
        batch: As it is stored.
        terms: What its plan says.
        rule: What decides it.
    """

    batch: AskedBatch
    terms: BatchTerms = field(repr=False)
    rule: Mechanism | DistributedMechanism = field(repr=False)


class SilenceError(Exception):
    """No packet came; `code` says why."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class LabelingRun:
    """A run over one transport, from setup to closing.

    Args:
        transport: Reaches the parties.
        identity: The coordinator's identity.
        form: Secure sum.
        members: The parties, all of whom take part.
        pool: Public inputs that may be asked about.
        settings: What the run is asked to do.
        store: Makes room for ledger and releases; given the run's empty ledger.
        random_bytes: Cryptographic random numbers for protocol nonces.
        noise_bytes: Source of the noise: the operating system's, or a keyed stream in a
            simulation. Not used where the parties add the noise.
        clock: Unix time, in seconds.
        sleep: Waits for so many seconds.
        journal: Where the round's steps are written; in memory alone if None.
        on_stage: Called at every point where a run may be stopped; for tests.

    Raises:
        TooFewPartiesError: fewer members than the form needs.
        InvalidParameterError: the terms name a mechanism or noise that cannot be.
        WrongStateError: the journal is that of a run that was begun: see `resume`.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        identity: SigningIdentity,
        form: SecureSum,
        members: list[Member],
        pool: QueryPool,
        settings: LabelingSettings,
        store: Callable[[RunLedger], RunStore],
        random_bytes: RandomBytes,
        noise_bytes: RandomBytes,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
        journal: CoordinatorJournal | None = None,
        on_stage: OnStage = pass_by,
    ) -> None:
        self._prepare(members, settings, store)
        self._clock = clock
        self._sleep = sleep
        self._transport = transport
        self._form = form
        self._pool = pool
        self._noise_bytes = noise_bytes
        self._on_stage = on_stage
        self._expires_at = int(clock()) + settings.lifetime_s
        self._round = CoordinatorRound(
            identity=identity,
            form=form,
            parties={fp: member.identity for fp, member in self._members.items()},
            nonce=random_bytes(32),
            expires_at=self._expires_at,
            simulated=settings.simulated,
            suite=settings.suite,
            known_statements=self._known_statements,
            journal=journal,
        )
        self._unheard: dict[bytes, list[bytes]] = {seat: [] for seat in self._round.seats}

    @classmethod
    def resume(
        cls,
        *,
        transport: Transport,
        identity: SigningIdentity,
        form: SecureSum,
        members: list[Member],
        pool: QueryPool,
        settings: LabelingSettings,
        store: Callable[[RunLedger], RunStore],
        noise_bytes: RandomBytes,
        clock: Callable[[], float],
        journal: CoordinatorJournal,
        sleep: Callable[[float], None] = time.sleep,
        on_stage: OnStage = pass_by,
        is_read_only: bool = False,
    ) -> Self:
        """Go on with a run after a crash; one exchange tells which node is which party.

        `finish` has to follow, before anything else is asked. What it cost on the votes that it
        met is not known any more.

        Args:
            transport: Reaches the parties.
            identity: The coordinator's identity.
            form: Secure sum of the run.
            members: All parties of the run.
            pool: Public inputs that may be asked about.
            settings: What the run was asked to do; its terms must be the same.
            store: Opens the run's store, given its empty ledger.
            noise_bytes: Source of noise; must not repeat what it gave before the crash.
            clock: Unix time, in seconds.
            journal: The run's.
            sleep: Waits for so many seconds.
            on_stage: As for a new run.
            is_read_only: Whether nobody is looked for: what the run gave can be read, no more.

        Raises:
            UnfinishedSetupError: the run was not set up: it is given up.
            BrokenJournalError: the journal does not fit itself, or is of other parties.
            RunDamagedError: journal, store and terms do not fit each other.
            SetupError: fewer parties can be reached than the form needs; the run may be resumed
                later.
        """
        run = cls.__new__(cls)
        run._prepare(members, settings, store)
        run._transport = transport
        run._form = form
        run._pool = pool
        run._noise_bytes = noise_bytes
        run._clock = clock
        run._sleep = sleep
        run._on_stage = on_stage
        run._round = CoordinatorRound.resumed(
            identity=identity,
            form=form,
            parties={fp: member.identity for fp, member in run._members.items()},
            journal=journal,
        )
        run._take_up(find_nodes=not is_read_only)
        return run

    def _prepare(
        self,
        members: list[Member],
        settings: LabelingSettings,
        store: Callable[[RunLedger], RunStore],
    ) -> None:
        """Set up what does not depend on the round."""
        self._members = {
            member.identity.fingerprint: member
            for member in sorted(members, key=lambda member: member.identity.fingerprint)
        }
        self.terms = settings.terms(self.members)
        self.mechanism: Mechanism | DistributedMechanism = rule_of(self.terms)
        if self.terms.at_parties:
            for phase in range(self.terms.phases):
                noise_of(self.terms, phase=phase).require_room(self.terms.total_votes)
        self._store = store(RunLedger.of(self.terms))
        self._known_statements = {
            party: frame
            for party, frame in self._store.statements().items()
            if party in self._members
        }
        self._nodes: dict[bytes, int] = {}
        self._refusals: dict[bytes, str] = {}
        self._settlement: bytes | None = None
        self._batch = 0
        self._words = 0
        self._voids = 0
        self._lost: list[tuple[str, ...]] = []
        self._not_heard: tuple[str, ...] = ()
        self._asked: set[int] = set()
        self._is_unfinished = self._was_resumed = False
        self._patience_s = settings.patience_s
        self._meter: PerInstanceMeter | None = None
        if isinstance(self.mechanism, Mechanism):
            self._meter = PerInstanceMeter(
                self.mechanism, delta=self.terms.delta, weight=float(self.terms.unit_votes)
            )

    def _take_up(self, *, find_nodes: bool) -> None:
        """Read off journal and store where the run stood, and find the parties."""
        require_fit(self._round, self._store, self.terms)
        asked = self._store.asked()
        kept = [each for each in asked.values() if each.state is not BatchState.WITHDRAWN]
        self._expires_at = self._round.run_record.expires_at
        self._batch = max(asked, default=-1) + 1
        self._asked = {index for each in kept if not self._is_free(each) for index in each.indices}
        self._voids = sum(each.state is BatchState.VOID for each in kept)
        self._lost = [
            self._names_of_lost(each.settlement.contributions)
            for each in self._round.settled
            if each.is_released and self._form.survives_dropouts
        ]
        self._unheard = {seat: self._round.unheard(seat) for seat in self._round.seats}
        self._meter = None  # it has not met the votes of before
        self._is_unfinished = self._was_resumed = True
        if find_nodes and self._round.state is not CoordinatorState.DONE:
            self._find_nodes_again()
        self._store.save_statements(self._round.statements)

    # What others may know ---------------------------------------------------------------------

    @property
    def round(self) -> CoordinatorRound:
        """The protocol's end of this run."""
        return self._round

    @property
    def members(self) -> tuple[Member, ...]:
        """The parties, in seat order."""
        return tuple(self._members.values())

    @property
    def lost(self) -> tuple[tuple[str, ...], ...]:
        """For each batch that could be opened without them, the parties that were lost in it."""
        return tuple(self._lost)

    @property
    def not_heard(self) -> tuple[str, ...]:
        """Parties that were lost at the closing: nobody compared their heads, in seat order."""
        return self._not_heard

    @property
    def asked(self) -> frozenset[int]:
        """Positions in the pool that may not be asked about again in this run."""
        return frozenset(self._asked)

    @property
    def voids(self) -> int:
        """Void batches so far."""
        return self._voids

    def refusing(self, codes: Collection[str]) -> dict[str, str]:
        """Return the parties that refused for now when they were asked last, each with its code.

        Args:
            codes: Those of refusals that may pass.

        Returns:
            Codes by name, in seat order; empty where a batch can do without these parties.
        """
        refusing = {
            member.name: self._refusals[seat]
            for seat, member in self._members.items()
            if self._refusals.get(seat) in codes
        }
        seats = len(self._round.seats)
        return refusing if seats - len(refusing) < self._form.threshold(seats) else {}

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached, or too many batches were void."""
        return self.left == NO_OUTCOMES or self._voids >= MOST_VOID_BATCHES

    @property
    def left(self) -> Outcomes:
        """What the caps still allow."""
        return self._store.ledger().left

    @property
    def asks_left(self) -> int:
        """Queries that may still be asked, whatever the other caps say."""
        return self._store.ledger().outcomes.asks_left

    # Calls ------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Enrol all parties in the run and make their pair roots; four exchanges.

        Raises:
            SetupError: not every party answered the offer.
            PartyFailedError: a party failed, refused or was silent; says which.
        """
        self._find_nodes()
        record = self._round.record(
            terms=wire.encode_value(self.terms.as_record()), **self._tolerated
        )
        self._store.save_run_id(self._round.run_id)
        # Each first sees what it signed last: a journal that is older stops it (rule R4).
        self._require(
            self._exchange({seat: [*self._said_by(seat), record] for seat in self._round.seats})
        )
        for frames in (self._round.deliver, self._round.close_setup):
            self._require(self._exchange({seat: [frame] for seat, frame in frames().items()}))
        self._store.save_statements(self._round.statements)

    def ask(
        self, indices: tuple[int, ...], *, predictions: NDArray[np.float64] | None = None
    ) -> NoisyRelease:
        """Ask one batch; one exchange, or two where the form survives drop-outs.

        With noise at the parties a check opens rows of its own, hence as many exchanges again.

        Args:
            indices: Positions in the pool, none of which was asked before, but in a void batch
                whose error said that they may be asked again.
            predictions: For Interactive-GNMax, the student's chances of each class, from released
                labels and public inputs only; shape (queries, classes). None before there is a
                student.

        Returns:
            What was released; it is stored and charged already.

        Raises:
            InvalidParameterError: a query was asked before, or is not in the pool; or predictions
                came that do not fit.
            RunEndedError: the run has expired; nothing happened.
            OutcomeCapError: a cap of the run is reached; nothing happened.
            BudgetExhaustedError: its worst case does not fit a budget; nothing happened.
            VoidBatchError: a party broke the rules, refused or was silent; nothing of the batch
                was released, and the error says what became of its budget. A `SpoiledBatchError`
                names whose row was wrong, as far as that can be found out.
        """
        self._pool.ask(indices)
        if self._is_unfinished:
            raise InvalidParameterError("the last batch must be finished before another", "not so")
        if not self._asked.isdisjoint(indices):
            raise InvalidParameterError("no query may be asked twice", "one that was asked")
        self._rule_for(indices, predictions)
        if self._clock() >= self._expires_at:  # every hospital would refuse
            raise RunEndedError("a run must be asked before it expires", "one that expired")
        self._look_for_missing()
        ledger = self._store.ledger()
        asked = AskedBatch(self._batch, indices, ledger.left, predictions)
        reserved = ledger.reserve(asked.entry_id, ledger.worst_case(len(indices)))
        self._is_unfinished = True
        self._store.save_asked(reserved, asked)
        self._batch += 1
        self._asked.update(indices)
        self._on_stage(Stage.RESERVED)
        return self._answer(asked)

    def ask_refusing(self) -> None:
        """Ask parties that refused whether they still would; one exchange, nothing is charged.

        They are sent the run's record once more: it changes nothing there.
        """
        packet = wire.pack([self._round.record_frame])
        nodes = [self._nodes[seat] for seat in self._refusals if seat in self._nodes]
        self._recognize(self._transport.exchange(dict.fromkeys(nodes, packet)))

    def finish(self, *, gives_up: bool = False) -> NoisyRelease | None:
        """Bring the last batch to its end, after `resume`; as many exchanges as that needs.

        Args:
            gives_up: Whether an open batch is void: no noise is drawn for it any more. So may what
                was restored be ended, of which nobody knows what was drawn for it before.

        Returns:
            Its release: the stored one if it was stored, since noise is never drawn twice for
            what may have been seen. None if there is none: no batch was asked, the last one is
            void, or its plan had not left, so that its queries may be asked again.

        Raises:
            VoidBatchError: as for `ask`.
        """
        last = max(self._store.asked().values(), key=lambda each: each.number, default=None)
        release = None
        if last is not None:
            match last.state:
                case BatchState.OPEN if self._has_left(last) and gives_up:
                    raise self._void(last, RunEndedError("a batch must be finished", "a stop"))
                case BatchState.OPEN if self._has_left(last):
                    return self._answer(last)
                case BatchState.OPEN:
                    self._withdraw(last)
                case BatchState.VOID if self._round.has_open_plan:
                    self._settle_void()
                case BatchState.RELEASED:
                    _, release = self._store.releases()[last.number]
                    self._settle_if_open(release)
        self._is_unfinished = False
        return release

    def close(self) -> None:
        """End the run: all parties settle, and compare their transcripts; two exchanges.

        A party that does not answer, or has lost the run, does not fail it; `not_heard` names it.

        Raises:
            PartyFailedError: a party failed or remembers another run, or too many were lost; says
                which.
        """
        if self._round.state is CoordinatorState.DONE:
            return
        self._look_for_missing()
        lost: list[PartyFailedError] = []
        if not self._round.heads_frame:
            closing = self._round.closing_frame or self._round.close()
            self._on_stage(Stage.CLOSING)
            lost = self._require_lost_only(self._tell(closing))
        try:
            heads = self._round.heads_frame or self._round.compare()
        except TooFewSharesError as error:
            raise lost[0] from error
        self._on_stage(Stage.COMPARING)
        heard = self._round.heads_compared
        self._not_heard = tuple(
            member.name for seat, member in self._members.items() if seat not in heard
        )
        self._require_lost_only(self._exchange({seat: [heads] for seat in heard}))
        self._store.save_statements(self._round.statements)
        self._on_stage(Stage.FINISHED)

    @staticmethod
    def _require_lost_only(failures: list[PartyFailedError]) -> list[PartyFailedError]:
        """Raise what is worse than a lost party: somebody who remembers another run, above all."""
        for failure in failures:
            has_no_run = isinstance(failure, PartyRefusedError) and (
                failure.cause == UnexpectedMessageError.code
            )
            if not (failure.is_silent or has_no_run):
                raise failure
        return failures

    @property
    def per_instance_cost(self) -> PerInstanceCost | None:
        """What the run cost on the votes that it met. Private: not to be published.

        None with noise at the parties: nobody sees the votes that it would be computed from. None
        after a restart, too: what those of before came to was written nowhere.
        """
        return None if self._meter is None else self._meter.cost

    # Helpers ----------------------------------------------------------------------------------

    def _answer(self, batch: AskedBatch) -> NoisyRelease:
        """Bring a batch that is reserved to its end, wherever it stands."""
        digest = b"" if batch.predictions is None else _digest_of(batch.predictions)
        terms = BatchTerms(self.terms, batch.indices, digest)
        asked = _Asked(batch, terms, self._rule_for(batch.indices, batch.predictions))
        try:
            if isinstance(asked.rule, DistributedConfidentMax):
                release = self._ask_in_two_phases(asked, asked.rule)
            else:
                release = self._decide(asked, self._open_first(asked))
        except (RunStateError, DatabaseError) as error:
            # Nobody knows what is on disk: only a restart tells. The batch stays as it is.
            traceback.clear_frames(error.__traceback__)
            raise
        except (ProtocolError, CoordinatorError, PateFedError) as error:
            raise self._void(batch, error) from error
        self._on_stage(Stage.DECIDED)
        ledger = self._store.ledger().commit(batch.entry_id, outcomes_of(release), release.digest)
        self._store.save_release(ledger, batch=batch.number, indices=batch.indices, release=release)
        self._on_stage(Stage.STORED)
        self._settle_if_open(release)  # else the first phase has said it all
        self._is_unfinished = False
        return release

    def _ask_in_two_phases(self, asked: _Asked, rule: DistributedConfidentMax) -> NoisyRelease:
        """Open the check's rows, say what passed, and open fresh rows of that; as many exchanges.

        Everything that a cap may stop is cut off before: what is opened is paid for.
        """
        number, left = asked.batch.number, asked.batch.left
        first = self._store.first_phase(number)
        if first is None:
            noisy = self._open_first(asked)
            assert isinstance(noisy, NoisyHistogram)
            first = rule.phase_one(noisy, max_answers=left.answers, max_refusals=left.refusals)
            # Before anybody is told: what passed is decided once.
            self._store.save_first_phase(number, first)
            self._on_stage(Stage.FIRST_STORED)
        if self._round.has_open_plan and not self._round.phase:
            self._settle(first)
        if not len(first.passed):
            return first.as_release()
        terms = PhaseTerms(self._first_plan(number), tuple(first.passed.tolist()), first.digest)
        words = self._collect(
            number,
            terms.as_record(),
            words=len(terms.rows) * self.terms.classes,
            phase=1,
        )
        return rule.phase_two(first, self._noisy(words, queries=len(terms.rows), phase=1))

    def _first_plan(self, number: int) -> bytes:
        """Digest of the plan of a batch's first phase, which is settled."""
        [digest] = [
            each.plan_digest
            for each in self._round.settled[-2:]
            if each.plan.batch == number and each.plan.phase == 0
        ]
        return digest

    def _has_left(self, batch: AskedBatch) -> bool:
        """Whether a plan of a batch may have reached a party."""
        if self._round.has_open_plan:
            return True  # of the last batch, see `require_fit`
        return any(each.plan.batch == batch.number for each in self._round.settled)

    def _is_free(self, batch: AskedBatch) -> bool:
        """Whether a void batch of before a restart may be asked again: see `_void`.

        A masked one may not: what was revealed then is in no settlement.
        """
        plans = [each for each in self._round.settled if each.plan.batch == batch.number]
        promised = all(each.settlement.refusals and not each.plan.phase for each in plans)
        is_shut = bool(plans) and promised and not self._form.survives_dropouts
        return batch.state is BatchState.VOID and is_shut

    def _withdraw(self, batch: AskedBatch) -> None:
        """Forget a batch whose plan never left: nobody ever heard of it."""
        ledger = self._store.ledger().withdraw(batch.entry_id)
        self._store.save_failure(ledger, batch=batch.number, state=BatchState.WITHDRAWN)
        self._asked.difference_update(batch.indices)

    def _settle(self, result: NoisyRelease | FirstPhase) -> None:
        """Close the open plan; parties hear of it with the next message."""
        self._settlement = self._round.settle(
            released=True, result=wire.encode_value(result.as_record())
        )
        self._on_stage(Stage.SETTLED)

    def _settle_if_open(self, release: NoisyRelease) -> None:
        if self._round.has_open_plan:
            self._settle(release)

    def _settle_void(self) -> None:
        """Close the open plan as void; parties hear of it with the next message."""
        self._settlement = self._round.settle(released=False, result=b"")
        self._on_stage(Stage.SETTLED)

    def _decide(self, asked: _Asked, opened: SummedHistogram | NoisyHistogram) -> NoisyRelease:
        """Turn an opened sum into labels; adds noise only where it is the coordinator's to add."""
        rule, left = asked.rule, asked.batch.left
        if isinstance(opened, NoisyHistogram):
            assert isinstance(rule, DistributedGaussianMax)
            return rule.label(opened, max_answers=left.answers)
        assert not isinstance(rule, DistributedMechanism)
        release = rule.release(
            opened,
            noise=NoisePlan(),
            random_bytes=self._noise_bytes,
            max_answers=left.answers,
            max_refusals=left.refusals,
        )
        if self._meter is not None:
            self._meter.add(opened.counts, release, rule=rule)
        return release

    def _rule_for(
        self, indices: tuple[int, ...], predictions: NDArray[np.float64] | None
    ) -> Mechanism | DistributedMechanism:
        """Return the mechanism of one batch; the student's predictions are public."""
        if predictions is None:
            return self.mechanism
        if not isinstance(self.mechanism, InteractiveGaussianMax | DistributedInteractiveMax):
            raise InvalidParameterError(
                "predictions must be for 'interactive'", self.terms.mechanism
            )
        if predictions.shape != (len(indices), self.terms.classes):
            raise InvalidParameterError(
                f"predictions must have shape {(len(indices), self.terms.classes)}",
                predictions.shape,
            )
        return self.mechanism.with_predictions(predictions, total_votes=self.terms.total_votes)

    def _find_nodes(self) -> None:
        """Offer the run to the nodes; who signs tells which party a node is.

        A node that is nobody's of the run may answer what it likes.
        """
        nodes = self._transport.nodes()
        offer = wire.pack([self._round.offer()])
        names = {member.node: member.name for member in self.members}
        failures: dict[int, str] = {}
        restored: dict[int, bytes] = {}
        for node, answer in self._transport.exchange(dict.fromkeys(nodes, offer)).items():
            who = names.get(node, f"node {node}")
            try:
                for frame in self._frames(answer):
                    self._nodes[self._round.receive(frame)] = node
            except RefusedError as error:
                failures[node] = f"{who}: a refusal [{_cause_of(error)}]"
            except ProtocolError as error:
                failures[node] = f"{who}: {error} [{error.code}]"
                if isinstance(error, HistoryError):
                    restored[node] = bytes.fromhex(error.peer)
            except SilenceError as error:
                failures[node] = f"{who}: {error.code}"
        self._store.save_statements(self._round.statements)
        if restored:  # a journal below what its party signed: the party is told, and stops
            shown = {node: wire.pack(self._said_by(party)) for node, party in restored.items()}
            self._transport.exchange(shown)
        missing = self._round.missing
        seated = [failure for node, failure in failures.items() if node in self._nodes.values()]
        if missing or seated:
            silent = [self._members[seat] for seat in missing]
            heard = [*seated, *failures.values()] + [
                f"no word of {one.name}" for one in silent if one.node not in failures
            ]
            said = "; ".join(heard[:_MOST_NAMED])
            raise SetupError(
                f"all {len(self._round.seats)} parties must take part",
                f"{len(self._round.seats) - len(missing)} of them ({said})",
            )

    def _find_nodes_again(self) -> None:
        """Look for the parties of the run, all of whom are needed unless the form survives that."""
        self._look_for_missing()
        least = self._form.threshold(len(self._round.seats))
        if len(self._nodes) < least:
            raise SetupError(
                f"at least {least} parties must be there for the run to go on",
                f"{len(self._nodes)} (without {self._names_of_missing()})",
            )

    def _names_of_missing(self) -> str:
        missing = [one.name for seat, one in self._members.items() if seat not in self._nodes]
        return ", ".join(missing[:_MOST_NAMED])

    def _look_for_missing(self) -> None:
        """Find out which node is which party of the run, by what it signs; changes nothing there.

        A party that cannot be reached is silent until it can.
        """
        known = set(self._nodes.values())
        packet = wire.pack([self._round.record_frame])
        waiting = [node for node in self._transport.nodes() if node not in known]
        if len(known) == len(self._round.seats) or not waiting:
            return
        self._recognize(self._transport.exchange(dict.fromkeys(waiting, packet)))

    def _recognize(self, answers: Mapping[int, bytes | Silence]) -> None:
        """Note who answered the run's record, and who would refuse a batch for now."""
        for node, answer in answers.items():
            try:
                for frame in self._frames(answer):
                    seat = self._round.recognize(frame)
                    self._nodes.setdefault(seat, node)
                    self._refusals.pop(seat, None)
                    message = wire.decode(frame).message
                    if isinstance(message, Refusal):
                        self._refusals[seat] = message.reason
            except (ProtocolError, SilenceError):
                continue

    def _said_by(self, party: bytes) -> list[bytes]:
        """What a party signed of its journal's counter in an earlier run, if anything."""
        return [self._known_statements[party]] if party in self._known_statements else []

    def _names_of_lost(self, contributions: tuple[bytes, ...]) -> tuple[str, ...]:
        seats = zip(self.members, contributions, strict=True)
        return tuple(member.name for member, entry in seats if not entry)

    def _open_first(self, asked: _Asked) -> SummedHistogram | NoisyHistogram:
        """Ask a batch, and open the sum of its first vector."""
        terms = asked.terms
        words = self._collect(asked.batch.number, terms.as_record(), words=terms.words, phase=0)
        if self.terms.at_parties:
            return self._noisy(words, queries=len(terms.indices), phase=0)
        return open_sum(
            words,
            queries=len(terms.indices),
            classes=self.terms.classes,
            total_votes=self._votes_in_sum,
        )

    def _collect(
        self, batch: int, terms: dict[str, Any], *, words: int, phase: int
    ) -> NDArray[np.int64]:
        """Ask for one vector and add it up. Secret where the parties add no noise."""
        plan = self._plan(batch, wire.encode_value(terms), words=words, phase=phase)
        self._on_stage(Stage.PLANNED)
        self._words = words
        failures = self._tell(plan)
        if self._was_resumed and failures:
            failures = self._tell_bare(plan, failures)
        failures = self._wait(plan, failures)
        self._note_refusals(failures)
        self._on_stage(Stage.ANSWERED)
        self._reveal(failures)
        self._on_stage(Stage.REVEALED)
        opened = self._round.open_total()
        self._on_stage(Stage.OPENED)
        return opened

    def _note_refusals(self, failures: list[PartyFailedError]) -> None:
        refused = {one.party: one.cause for one in failures if isinstance(one, PartyRefusedError)}
        self._refusals = {
            seat: refused[member.name]
            for seat, member in self._members.items()
            if member.name in refused
        }

    def _plan(self, batch: int, terms: bytes, *, words: int, phase: int) -> bytes:
        """Return the plan of a vector: the very one that was made before a restart, if any."""
        if not self._round.has_open_plan:
            return self._round.plan(
                batch=batch,
                attempt=0,
                words=words,
                expires_at=self._expires_at,
                terms=terms,
                phase=phase,
                row_words=self._row_words(words),
            )
        plan = self._round.open_plan
        if (plan.batch, plan.phase, plan.words, plan.terms) != (batch, phase, words, terms):
            raise RunDamagedError("the open plan must be the open batch's", "another")
        return self._round.plan_frame

    def _tell_bare(self, plan: bytes, failed: list[PartyFailedError]) -> list[PartyFailedError]:
        """Send a plan once more to who failed, alone.

        A party that was restarted, too, knows nothing of the run but its stored y, and stumbles
        over settlements that it cannot place.
        """
        names = {failure.party for failure in failed}
        return self._exchange(
            {seat: [plan] for seat, member in self._members.items() if member.name in names}
        )

    def _noisy(self, words: NDArray[np.int64], *, queries: int, phase: int) -> NoisyHistogram:
        """Check the rows of a sum that holds the parties' noise."""
        noise, senders = noise_of(self.terms, phase=phase), len(self._round.survivors)
        shape = {"queries": queries, "classes": self.terms.classes}
        return open_noisy_sum(
            words,
            **shape,
            total_votes=self._votes_in_sum,
            sigma=noise.sum_sigma(senders),
            row_sum_bound=noise.row_sum_bound(**shape, senders=senders),
        )

    def _wait(self, plan: bytes, failures: list[PartyFailedError]) -> list[PartyFailedError]:
        """Send a plan again to those who were silent, as it is, while there is hope and time.

        Who broke the protocol or refused is not waited for, and nobody where that voids the batch.
        """
        deadline = min(self._clock() + self._patience_s, self._expires_at)
        pause = _FIRST_PAUSE_S
        while self._clock() < deadline and self._may_come(failures):
            self._sleep(min(pause, deadline - self._clock()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            silent = {failure.party for failure in failures if failure.is_silent}
            waited = self._tell(plan, only=silent)
            failures = [failure for failure in failures if not failure.is_silent] + waited
        return failures

    def _may_come(self, failures: list[PartyFailedError]) -> bool:
        """Whether silent parties are all that a batch lacks."""
        silent = sum(failure.is_silent for failure in failures)
        needed = self._form.threshold(len(self._round.seats))
        return bool(silent) and len(self._round.survivors) + silent >= needed

    def _reveal(self, failures: list[PartyFailedError]) -> None:
        """Do without who failed, in a second exchange, if the form can.

        Raises:
            PartyFailedError: the form needs all parties, or more than are left; names the first.
        """
        if not self._form.survives_dropouts:
            self._require(failures)
            return
        if len(self._round.survivors) < self._form.threshold(len(self._round.seats)):
            self._require(failures)
        frames = self._round.fix_survivors()
        self._on_stage(Stage.SURVIVORS_FIXED)
        lost = self._exchange(frames)
        self._lost.append(tuple(failure.party for failure in (*failures, *lost)))

    @property
    def _votes_in_sum(self) -> int:
        """Votes per query of the parties whose vectors are in the sum."""
        seats = self._round.seats
        return sum(self.terms.quotas[seats.index(seat)] for seat in self._round.survivors)

    @property
    def _tolerated(self) -> dict[str, int]:
        """How many parties may collude with us, and how many may drop out."""
        if self.terms.colluders is not None and self.terms.dropouts is not None:
            return {"colluders": self.terms.colluders, "dropouts": self.terms.dropouts}
        parties = len(self._round.seats)
        dropouts = parties - self._form.threshold(parties)
        colluders = self._form.most_colluders(parties) if self._form.survives_dropouts else 1
        return {"colluders": colluders, "dropouts": dropouts}

    def _void(self, batch: AskedBatch, error: Failure) -> VoidBatchError:
        """Settle a failed batch: what may have been sent stays charged.

        Its queries may be asked again if no hospital can object (rule R3): in the additive form
        once somebody signed that it never will send, in the masked one while nobody was asked to
        reveal. That is another batch, with a number, a charge and noise of its own: each entry of
        a ledger is one plan, and what was charged for a void one stays charged (rule R13).
        """
        # Else the error would keep the frames of `open_sum`, and the sum in them, alive.
        traceback.clear_frames(error.__traceback__)
        ledger = self._store.ledger()
        nothing_left = self._round.nothing_was_shared and not self._round.phase
        entry_id = batch.entry_id
        settled = ledger.cancel(entry_id) if nothing_left else ledger.forfeit(entry_id)
        self._store.save_failure(settled, batch=batch.number, state=BatchState.VOID)
        self._on_stage(Stage.VOID_STORED)
        if self._form.survives_dropouts:
            is_shut = not self._round.survivors_are_fixed
        else:
            is_shut = bool(self._round.declined)
        may_ask_again = is_shut and not self._round.phase
        self._settle_void()
        self._voids += 1
        self._is_unfinished = False
        if may_ask_again:
            self._asked.difference_update(batch.indices)
        must = "every party must keep to the protocol for a batch to be released"
        got = f"{error.must}, got {error.got}"
        reservation = "cancelled" if nothing_left else "forfeited"
        if isinstance(error, RowSumError) and self._round.traces_rows:
            named = self._who_spoiled(error.row)
            return SpoiledBatchError(must, got, reservation=reservation, named=named)
        return VoidBatchError(must, got, reservation=reservation, may_ask_again=may_ask_again)

    def _row_words(self, words: int) -> int:
        """Words of a row, if it is to be found out who spoils one; else 0.

        With noise at the parties a row's sum is secret; the plain form has no streams to compare;
        and more row sums than fit the coordinator's memory are not kept.
        """
        kept = len(self._members) * words // self.terms.classes * self._form.ring.bits // 8
        is_fit = kept <= _MOST_TRACED_BYTES and self._form.name != PlainSum.name
        return self.terms.classes if is_fit and not self.terms.at_parties else 0

    def _who_spoiled(self, row: int) -> tuple[str, ...]:
        """Ask whose row it was; one exchange. Returns a line for each who is named."""
        request = self._round.ask_for_sums(row)
        asked = {self._members[seat].name for seat in self._round.missing}
        failures = self._tell(request, only=asked)
        causes = {failure.party: failure.cause for failure in failures}
        blame = self._round.name_liars(self.terms.quotas)
        name = {seat: member.name for seat, member in self._members.items()}
        named = [f"{name[seat]}: its row is not its votes" for seat in blame.parties]
        named += [f"{name[one]} and {name[two]}: one of them lies" for one, two in blame.pairs]
        named += [
            f"{name[seat]}: it does not say [{causes.get(name[seat], 'PF-412')}]"
            for seat in blame.silent
        ]
        for line in named:
            _log.warning("a batch is void; %s", line)
        return tuple(named)

    def _exchange(self, frames: Mapping[bytes, list[bytes]]) -> list[PartyFailedError]:
        """Send frames by party and take all answers; return who failed, in seat order."""
        packets = {
            self._nodes[seat]: wire.pack(items)
            for seat, items in frames.items()
            if seat in self._nodes
        }
        answers = self._transport.exchange(packets) if packets else {}
        failures: list[PartyFailedError] = []
        for seat in frames:
            try:
                for frame in self._frames(answers.get(self._nodes.get(seat, -1), _ABSENT)):
                    self._receive(frame, seat)
                if seat in self._round.missing:
                    failures.append(self._silent(seat, _NOTHING))
            except ProtocolError as error:
                failures.append(self._failed(seat, error))
            except SilenceError as error:
                failures.append(self._silent(seat, error.code))
            self._on_stage(Stage.HEARD)
        return failures

    def _receive(self, frame: bytes, seat: bytes) -> None:
        """Take a frame. What was under way for too long is refused, and is no fault."""
        try:
            self._round.receive(frame, peer=seat)
        except LateMessageError:
            return

    def _tell(self, frame: bytes, *, only: Collection[str] | None = None) -> list[PartyFailedError]:
        """Send a frame to all, or to some, behind the settlements each may not have heard of.

        Who missed more than a packet holds is told a part of it, and is silent until it has all.
        """
        frames = {
            seat: told[:_MOST_TOLD] if len(told) > _MOST_TOLD else [*told, frame]
            for seat, told in self._settled().items()
            if only is None or self._members[seat].name in only
        }
        failures = self._exchange(frames)
        causes = {failure.party: failure.cause for failure in failures}
        for seat, sent in frames.items():
            # A part of what it missed is answered by nothing at all.
            heard = _NOTHING if sent[-1] is not frame else None
            if causes.get(self._members[seat].name) == heard:
                del self._unheard[seat][: len(sent)]
        return failures

    def _settled(self) -> dict[bytes, list[bytes]]:
        """Return by party the settlements that travel with the next message.

        Who missed a batch needs them all: its history has to be the others'. One that comes twice
        changes nothing.
        """
        settlement, self._settlement = self._settlement, None
        if settlement is not None:
            for told in self._unheard.values():
                told.append(settlement)
        return self._unheard

    def _frames(self, answer: bytes | Silence) -> list[bytes]:
        if isinstance(answer, Silence):
            raise SilenceError(answer.code)
        return wire.unpack(answer, max_bytes=self._max_answer_bytes)

    @property
    def _max_answer_bytes(self) -> int:
        words = max(self._words, 1)
        return max(SETUP_ANSWER_BYTES, 4 * words + 8 * 1024 + self._round.most_share_bytes)

    def _failed(self, seat: bytes, error: ProtocolError) -> PartyFailedError:
        """Put the party's name to what it sent."""
        name = self._members[seat].name
        if isinstance(error, RefusedError):
            cause = _cause_of(error)
            return PartyRefusedError(error.must, "a refusal", party=name, cause=cause)
        return PartyFailedError(error.must, error.got, party=name, cause=error.code)

    def _silent(self, seat: bytes, code: str) -> PartyFailedError:
        name = self._members[seat].name
        return PartyFailedError(
            "every party must answer", "none", party=name, cause=code, is_silent=True
        )

    def _require(self, failures: list[PartyFailedError]) -> None:
        if failures:
            raise failures[0]


def _cause_of(error: RefusedError) -> str:
    """Code of a refusal. The text is the party's: only a code may go on to screens and reports."""
    return error.reason if _CODE.fullmatch(error.reason) else error.code


def _digest_of(predictions: NDArray[np.float64]) -> bytes:
    shape = ",".join(str(size) for size in predictions.shape)
    body = np.ascontiguousarray(predictions, dtype="<f8").tobytes()
    return hashlib.sha256(f"pate-fed predictions {shape}\n".encode() + body).digest()
