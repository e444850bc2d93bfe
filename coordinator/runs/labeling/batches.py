"""The batches of a run, one after another: reserve and plan, open, decide, charge and settle.

Each charge is stored together with its step of the journal. A batch may also end void: nothing of
it is released. It stays charged, unless the settlement proves that its sum never opens.
"""

from __future__ import annotations

import traceback

import numpy as np
from numpy.typing import NDArray

from coordinator.database.run_store import BatchState, StoredBatch
from coordinator.errors import (
    CoordinatorError,
    DatabaseError,
    RunDamagedError,
    RunEndedError,
    RunStateError,
    SpoiledBatchError,
    TallyRefusedError,
    TallyUnreachableError,
    VoidBatchError,
)
from coordinator.runs.labeling.blame import who_broke_the_protocol, who_spoiled
from coordinator.runs.labeling.collecting import SumCollector
from coordinator.runs.labeling.deciding import Decider, digest_of_predictions
from coordinator.runs.labeling.job import RunContext
from coordinator.runs.labeling.messenger import Messenger
from coordinator.runs.stages import BatchStage
from pate_fed.charges import outcomes_of
from pate_fed.errors import InvalidParameterError, PateFedError, RowSumError
from pate_fed.releases import NoisyRelease
from pate_fed.terms import BatchTerms
from pate_fed.votes import NoisyHistogram, SummedHistogram
from protocols.errors import ProtocolError
from protocols.rounds import PlanClaim
from protocols.values import encode_value

Failure = ProtocolError | CoordinatorError | PateFedError


class Batches:
    """The batches of a run, asked, decided and settled. A resumed run has to `finish` first."""

    def __init__(
        self,
        context: RunContext,
        *,
        messenger: Messenger,
        collector: SumCollector,
        decider: Decider,
    ) -> None:
        self._context = context
        self._round = context.round
        self._store = context.store
        self._messenger = messenger
        self._collector = collector
        self._decider = decider
        self._on_stage = context.job.on_stage
        asked = self._store.asked()
        self._next = max(asked, default=-1) + 1
        self.asked = {
            index
            for each in asked.values()
            if each.state is not BatchState.FREED
            for index in each.indices
        }
        # Hospitals count void batches from the setup.
        self.voids = len({each.plan.batch for each in self._round.settled if not each.is_released})
        self._is_unfinished = context.was_resumed
        if not context.was_resumed and any(
            each.state is BatchState.OPEN for each in asked.values()
        ):
            raise RunDamagedError("every batch of an earlier setup must be settled")

    def require_askable(self, indices: tuple[int, ...]) -> None:
        """Raise InvalidParameterError if one of these may not be asked now."""
        if self._is_unfinished:
            raise InvalidParameterError("the last batch must be finished before another")
        if not self.asked.isdisjoint(indices):
            raise InvalidParameterError("no query may be asked twice")

    def ask(
        self, indices: tuple[int, ...], predictions: NDArray[np.float64] | None
    ) -> NoisyRelease:
        """Reserve the worst case of one batch with its plan, and bring it to its end.

        Raises:
            OutcomeCapError: a cap of the run is reached; nothing happened.
            VoidBatchError: nothing of it was released.
            TallyRefusedError: the same, and the tally serves the run no more.
            TallyUnreachableError: the batch stays open, to be finished later.
        """
        ledger = self._store.ledger()
        asked = StoredBatch(self._next, indices, ledger.left, predictions)
        reserved = ledger.reserve(asked.entry_id, ledger.worst_case(len(indices)))
        terms = self._terms_of(asked)
        self._is_unfinished = True
        with self._store.together():
            self._store.save_asked(reserved, asked)
            self._collector.plan(asked.number, terms.as_record(), words=terms.words)
        self._next += 1
        self.asked.update(indices)
        self._on_stage(BatchStage.PLANNED)
        return self._answer(asked)

    def finish(self, *, voids: bool) -> NoisyRelease | None:
        """Finish the open batch, if there is one, after a resumption; see `LabelingRun.finish`."""
        last = max(self._store.asked().values(), key=lambda each: each.number, default=None)
        release = None
        if last is not None and last.state is BatchState.OPEN:
            if voids:
                raise self._void(last, RunEndedError("a batch must be finished", "a stop"))
            return self._answer(last)
        if last is not None and last.state is BatchState.RELEASED:
            _, release = self._store.releases()[last.number]
        self._is_unfinished = False
        return release

    # To its end -------------------------------------------------------------------------------

    def _answer(self, batch: StoredBatch) -> NoisyRelease:
        """Finish a reserved batch, in any state."""
        rule = self._decider.rule_for(batch.indices, batch.predictions)
        try:
            release = self._decider.decide(self._open(batch), rule=rule, left=batch.left)
        except (RunStateError, DatabaseError, TallyUnreachableError) as error:
            # Nobody knows the state on disk, or at the tally: another try tells. The batch stays.
            traceback.clear_frames(error.__traceback__)
            raise
        except TallyRefusedError as error:  # it would refuse the next batch, too
            self._void(batch, error)
            raise
        except (ProtocolError, CoordinatorError, PateFedError) as error:
            raise self._void(batch, error) from error
        self._on_stage(BatchStage.DECIDED)
        ledger = self._store.ledger().commit(batch.entry_id, outcomes_of(release), release.digest)
        with self._store.together():
            self._store.save_release(ledger, batch=batch.number, release=release)
            self._messenger.note_settled(  # parties hear of it with the next message
                self._round.batch.settle(released=True, result=encode_value(release.as_record()))
            )
        self._on_stage(BatchStage.STORED)
        self._is_unfinished = False
        return release

    def _terms_of(self, batch: StoredBatch) -> BatchTerms:
        return BatchTerms(
            self._context.terms, batch.indices, digest_of_predictions(batch.predictions)
        )

    def _open(self, batch: StoredBatch) -> SummedHistogram | NoisyHistogram:
        """Ask a batch, and open the sum of its vectors."""
        terms = self._terms_of(batch)
        self._collector.plan(batch.number, terms.as_record(), words=terms.words)
        words = self._collector.collect()
        return self._decider.open(words, queries=len(terms.indices), places=self._collector.places)

    # Void -------------------------------------------------------------------------------------

    def _void(self, batch: StoredBatch, error: Failure) -> VoidBatchError:
        """Settle a failed batch: it stays charged, unless its sum provably never opens."""
        # Otherwise the error would keep the frames of `open_sum`, and the sum in them, alive.
        traceback.clear_frames(error.__traceback__)
        is_open = self._round.has_open_plan
        if is_open and not self._round.batch.nothing_was_shared:
            self._collector.close_plan()
        ledger, entry_id = self._store.ledger(), batch.entry_id
        proven: PlanClaim | None = None
        with self._store.together():
            if is_open:
                self._messenger.note_settled(self._round.batch.settle(released=False, result=b""))
                proven = self._round.batch.claim_of(self._round.settled[-1])
            is_freed = proven is not None and proven.is_free
            comes_back = proven is not None and proven.gives_back(
                noise_at_parties=self._context.terms.rule.at_parties
            )
            settled = ledger.cancel(entry_id) if comes_back else ledger.forfeit(entry_id)
            self._store.save_void(settled, batch=batch.number, is_freed=is_freed)
        self._on_stage(BatchStage.VOID_STORED)
        self.voids += 1
        self._is_unfinished = False
        if is_freed:
            self.asked.difference_update(batch.indices)
        must = "every party must keep to the protocol for a batch to be released"
        got = f"{error.must}, got {error.got or 'another'}"
        reservation = "cancelled" if comes_back else "forfeited"
        is_traced = isinstance(error, RowSumError) and self._round.blame.case is not None
        if is_traced:
            assert isinstance(error, RowSumError)
            spoilers = who_spoiled(error.row, self._context, self._messenger)
        else:
            spoilers = who_broke_the_protocol(error, self._context)
        if not (is_traced or spoilers.named):
            return VoidBatchError(must, got, reservation=reservation, may_ask_again=is_freed)
        for seat in spoilers.proven:
            self._collector.leave_out(seat, SpoiledBatchError.code)
        return SpoiledBatchError(
            must,
            got,
            reservation=reservation,
            named=spoilers.named,
            parties=self._context.roster.names(spoilers.seats),
            may_ask_again=is_freed,
        )
