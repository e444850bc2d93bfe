"""The batches of a run, one after another: reserve, open, decide, store with its charge, settle.

Or void: then what may have been sent stays charged, and nothing of the batch is released.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import (
    CoordinatorError,
    DatabaseError,
    RunEndedError,
    RunStateError,
    SpoiledBatchError,
    VoidBatchError,
)
from coordinator.labeling.blame import who_spoiled
from coordinator.labeling.collecting import SumCollector
from coordinator.labeling.deciding import Decider, Rule, digest_of_predictions
from coordinator.labeling.messenger import Messenger
from coordinator.labeling.roster import Roster
from coordinator.stages import OnStage, Stage
from coordinator.store import AskedBatch, BatchState, RunStore
from pate_fed.charging import outcomes_of
from pate_fed.errors import InvalidParameterError, PateFedError, RowSumError
from pate_fed.federation import BatchTerms, PhaseTerms, RunTerms
from pate_fed.mechanisms import DistributedConfidentMax, FirstPhase
from pate_fed.releases import NoisyRelease
from pate_fed.votes import NoisyHistogram, SummedHistogram
from protocols import wire
from protocols.errors import ProtocolError
from protocols.rounds import CoordinatorRound
from protocols.secure_sum import SecureSum

Failure = ProtocolError | CoordinatorError | PateFedError


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
    rule: Rule = field(repr=False)


class Batches:
    """What a run asked, and what becomes of it.

    Args:
        run: The protocol's end of the run.
        form: Secure sum.
        terms: Of the run.
        roster: The parties.
        store: Ledger and releases.
        messenger: Reaches the parties.
        collector: Opens sums.
        decider: Makes labels of them.
        on_stage: Called at every point where the run may be stopped.
    """

    def __init__(
        self,
        *,
        run: CoordinatorRound,
        form: SecureSum,
        terms: RunTerms,
        roster: Roster,
        store: RunStore,
        messenger: Messenger,
        collector: SumCollector,
        decider: Decider,
        on_stage: OnStage,
    ) -> None:
        self._round = run
        self._form = form
        self._terms = terms
        self._roster = roster
        self._store = store
        self._messenger = messenger
        self._collector = collector
        self._decider = decider
        self._on_stage = on_stage
        self._next = 0
        self._voids = 0
        self._asked: set[int] = set()
        self._is_unfinished = False

    @property
    def asked(self) -> frozenset[int]:
        """Positions in the pool that may not be asked about again in this run."""
        return frozenset(self._asked)

    @property
    def voids(self) -> int:
        """Void batches so far."""
        return self._voids

    def take_up(self) -> None:
        """Read off the store what was asked before a restart; `finish` has to follow."""
        asked = self._store.asked()
        kept = [each for each in asked.values() if each.state is not BatchState.WITHDRAWN]
        self._next = max(asked, default=-1) + 1
        self._asked = {index for each in kept if not self._is_free(each) for index in each.indices}
        self._voids = sum(each.state is BatchState.VOID for each in kept)
        self._is_unfinished = True

    def require_askable(self, indices: tuple[int, ...]) -> None:
        """Raise InvalidParameterError unless these may be asked about now."""
        if self._is_unfinished:
            raise InvalidParameterError("the last batch must be finished before another", "not so")
        if not self._asked.isdisjoint(indices):
            raise InvalidParameterError("no query may be asked twice", "one that was asked")

    def ask(
        self, indices: tuple[int, ...], predictions: NDArray[np.float64] | None
    ) -> NoisyRelease:
        """Reserve the worst case of one batch, and bring it to its end.

        Raises:
            OutcomeCapError: a cap of the run is reached; nothing happened.
            BudgetExhaustedError: its worst case does not fit a budget; nothing happened.
            VoidBatchError: nothing of it was released.
        """
        ledger = self._store.ledger()
        asked = AskedBatch(self._next, indices, ledger.left, predictions)
        reserved = ledger.reserve(asked.entry_id, ledger.worst_case(len(indices)))
        self._is_unfinished = True
        self._store.save_asked(reserved, asked)
        self._next += 1
        self._asked.update(indices)
        self._on_stage(Stage.RESERVED)
        return self._answer(asked)

    def finish(self, *, gives_up: bool) -> NoisyRelease | None:
        """Bring the last batch to its end, after `take_up`.

        Args:
            gives_up: Whether an open batch is void: no noise is drawn for it any more.

        Returns:
            Its release, if there is one.

        Raises:
            VoidBatchError: nothing of it was released.
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

    # To its end -------------------------------------------------------------------------------

    def _answer(self, batch: AskedBatch) -> NoisyRelease:
        """Bring a batch that is reserved to its end, wherever it stands."""
        terms = BatchTerms(self._terms, batch.indices, digest_of_predictions(batch.predictions))
        asked = _Asked(batch, terms, self._decider.rule_for(batch.indices, batch.predictions))
        try:
            if isinstance(asked.rule, DistributedConfidentMax):
                release = self._ask_in_two_phases(asked, asked.rule)
            else:
                release = self._decider.decide(
                    self._open_first(asked), rule=asked.rule, left=batch.left
                )
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

    def _open_first(self, asked: _Asked) -> SummedHistogram | NoisyHistogram:
        """Ask a batch, and open the sum of its first vector."""
        terms = asked.terms
        words = self._collector.collect(
            asked.batch.number, terms.as_record(), words=terms.words, phase=0
        )
        return self._decider.open(words, queries=len(terms.indices), places=self._collector.places)

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
        return rule.phase_two(first, self._open_second(number, first))

    def _open_second(self, number: int, first: FirstPhase) -> NoisyHistogram:
        """Ask for fresh rows of what passed, and open their sum."""
        terms = PhaseTerms(self._first_plan(number), tuple(first.passed.tolist()), first.digest)
        queries = len(terms.rows)
        words = self._collector.collect(
            number, terms.as_record(), words=queries * self._terms.classes, phase=1
        )
        return self._decider.open_noisy(
            words, queries=queries, phase=1, places=self._collector.places
        )

    def _first_plan(self, number: int) -> bytes:
        """Digest of the plan of a batch's first phase, which is settled."""
        [digest] = [
            each.plan_digest
            for each in self._round.settled[-2:]
            if each.plan.batch == number and each.plan.phase == 0
        ]
        return digest

    def _settle(self, result: NoisyRelease | FirstPhase) -> None:
        """Close the open plan; parties hear of it with the next message."""
        self._messenger.note_settled(
            self._round.settle(released=True, result=wire.encode_value(result.as_record()))
        )
        self._on_stage(Stage.SETTLED)

    def _settle_if_open(self, release: NoisyRelease) -> None:
        if self._round.has_open_plan:
            self._settle(release)

    def _settle_void(self) -> None:
        """Close the open plan as void; parties hear of it with the next message."""
        self._messenger.note_settled(self._round.settle(released=False, result=b""))
        self._on_stage(Stage.SETTLED)

    # Void or withdrawn ------------------------------------------------------------------------

    def _void(self, batch: AskedBatch, error: Failure) -> VoidBatchError:
        """Settle a failed batch: what may have been sent stays charged."""
        # Else the error would keep the frames of `open_sum`, and the sum in them, alive.
        traceback.clear_frames(error.__traceback__)
        ledger = self._store.ledger()
        nothing_left = self._round.nothing_was_shared and not self._round.phase
        entry_id = batch.entry_id
        settled = ledger.cancel(entry_id) if nothing_left else ledger.forfeit(entry_id)
        self._store.save_failure(settled, batch=batch.number, state=BatchState.VOID)
        self._on_stage(Stage.VOID_STORED)
        may_ask_again = self._may_ask_again()
        self._settle_void()
        self._voids += 1
        self._is_unfinished = False
        if may_ask_again:
            self._asked.difference_update(batch.indices)
        must = "every party must keep to the protocol for a batch to be released"
        got = f"{error.must}, got {error.got}"
        reservation = "cancelled" if nothing_left else "forfeited"
        if isinstance(error, RowSumError) and self._round.traces_rows:
            named = who_spoiled(
                error.row,
                run=self._round,
                terms=self._terms,
                roster=self._roster,
                messenger=self._messenger,
            )
            return SpoiledBatchError(must, got, reservation=reservation, named=named)
        return VoidBatchError(must, got, reservation=reservation, may_ask_again=may_ask_again)

    def _may_ask_again(self) -> bool:
        """Whether the queries of the open plan may be asked again if it is void.

        They may if no hospital can object (rule R3): in the additive form once somebody signed
        that it never will send, in the masked one while nobody was asked to reveal. That is another
        batch, with a number, a charge and noise of its own: each entry of a ledger is one plan, and
        what was charged for a void one stays charged (rule R13).
        """
        if self._form.survives_dropouts:
            is_shut = not self._round.survivors_are_fixed
        else:
            is_shut = bool(self._round.declined)
        return is_shut and not self._round.phase

    def _withdraw(self, batch: AskedBatch) -> None:
        """Forget a batch whose plan never left: nobody ever heard of it."""
        ledger = self._store.ledger().withdraw(batch.entry_id)
        self._store.save_failure(ledger, batch=batch.number, state=BatchState.WITHDRAWN)
        self._asked.difference_update(batch.indices)

    def _has_left(self, batch: AskedBatch) -> bool:
        """Whether a plan of a batch may have reached a party."""
        if self._round.has_open_plan:
            return True  # of the last batch, see `require_fit`
        return any(each.plan.batch == batch.number for each in self._round.settled)

    def _is_free(self, batch: AskedBatch) -> bool:
        """Whether a void batch of before a restart may be asked again: see `_may_ask_again`.

        A masked one may not: what was revealed then is in no settlement.
        """
        plans = [each for each in self._round.settled if each.plan.batch == batch.number]
        promised = all(each.settlement.refusals and not each.plan.phase for each in plans)
        is_shut = bool(plans) and promised and not self._form.survives_dropouts
        return batch.state is BatchState.VOID and is_shut
