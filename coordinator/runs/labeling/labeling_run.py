"""The life of one run: setup, batches while the caps allow, closing; and going on after a crash."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coordinator.database.run_store import RunStore
from coordinator.errors import PartyRefusedError, RunDamagedError, RunEndedError
from coordinator.runs.labeling.batches import Batches
from coordinator.runs.labeling.checked_collecting import CheckedCollector
from coordinator.runs.labeling.collecting import SumCollector
from coordinator.runs.labeling.deciding import Decider
from coordinator.runs.labeling.job import LabelingJob, MakeMeter, RunContext
from coordinator.runs.labeling.messenger import (
    Failures,
    Messenger,
    code_of,
    may_pass,
    require_agreement,
    require_no,
)
from coordinator.runs.labeling.node_finder import NodeFinder
from coordinator.runs.labeling.roster import Roster, in_seat_order
from coordinator.runs.labeling.vote_checking import (
    AggregatorKeys,
    VoteChecking,
    rejection_notes,
)
from coordinator.runs.stages import BatchStage
from pate_fed.accounting import NO_OUTCOMES, Outcomes
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.charges import RunLedger
from pate_fed.releases import NoisyRelease
from pate_fed.terms import MOST_VOID_BATCHES, BatchTerms, RunTerms
from protocols.errors import KeysGoneError, TooFewHeadsError, UnexpectedMessageError
from protocols.messages import Readiness
from protocols.rounds import CoordinatorRound, CoordinatorState
from protocols.values import encode_value

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchReadiness:
    """The parties' readiness for a batch before it is asked.

    Attributes:
        unready: Refusal codes by name of each party that would not answer at all, "" for a silent
            one, in seat order.
        refused: By position in the pool, names of the parties that would not answer a query: they
            answered it before.
    """

    unready: Mapping[str, str]
    can_do_without: bool
    refused: Mapping[int, tuple[str, ...]]


class LabelingRun:
    """A run over one transport, from setup to closing.

    Raises:
        TooFewPartiesError: fewer members than the form needs.
        InvalidParameterError: the terms name an impossible mechanism or noise.
        WrongStateError: the journal is of a run that has begun: see `resume`.
        RunDamagedError: the store has an open batch.
    """

    def __init__(self, job: LabelingJob) -> None:
        terms, store, roster = self._agree(job, meter=job.meter if job.simulated else None)
        checking = self._checking
        expires_at = int(job.clock()) + job.lifetime_s
        round_ = CoordinatorRound(
            identity=job.identity,
            form=job.form,
            parties=roster.identities,
            nonce=job.random_bytes(32),
            expires_at=expires_at,
            simulated=job.simulated,
            suite=job.suite,
            known_statements=roster.statements,
            journal=job.journal,
            check=None if checking is None else checking.machine,
        )
        self._compose(RunContext(job, terms, store, roster, round_, expires_at, was_resumed=False))

    @classmethod
    def resume(cls, job: LabelingJob, *, is_read_only: bool = False) -> Self:
        """Go on with a run after a crash; one exchange finds each party's node.

        Call `finish` next, before another batch is asked. If it is read-only, nobody is looked for.

        Raises:
            UnfinishedSetupError: the run was not set up, and is given up.
            BrokenJournalError: the journal does not fit itself, or is of other parties.
            RunDamagedError: journal, store and terms do not fit each other.
            SetupError: fewer parties can be reached than the form needs; the run may be resumed
                later.
        """
        run = cls.__new__(cls)
        terms, store, roster = run._agree(job, meter=None)
        round_ = CoordinatorRound.resumed(
            identity=job.identity,
            form=job.form,
            parties=roster.identities,
            journal=job.journal,
            check=None if run._checking is None else run._checking.machine,
        )
        _require("results must be of the journal's run", store.run_id() == round_.run_id)
        record = round_.setup.record
        agreed = encode_value(terms.as_record())
        _require("the run must be of its terms", record.terms == agreed)
        run._compose(
            RunContext(job, terms, store, roster, round_, record.expires_at, was_resumed=True)
        )
        if not is_read_only and round_.state is not CoordinatorState.DONE:
            run._finder.find_again()
        store.statements.save(round_.statements)
        return run

    def _agree(
        self, job: LabelingJob, *, meter: MakeMeter | None
    ) -> tuple[RunTerms, RunStore, Roster]:
        seated = in_seat_order(job.members)
        terms = job.terms(seated)
        self._decider = Decider(
            terms, noise_bytes=job.noise_bytes, meter=meter, shares_out=job.shares_out
        )
        store = job.store(RunLedger.of(terms))
        roster = Roster(seated, store.statements.frames())
        self._checking = None
        if job.aggregation is not None:
            self._checking = VoteChecking(job, job.aggregation, terms, roster.identities)
        return terms, store, roster

    def _compose(self, context: RunContext) -> None:
        self._context = context
        self.round = context.round
        self.members = context.roster.members
        self.not_heard: tuple[str, ...] = ()
        self._broke_closing: tuple[str, ...] = ()
        self._messenger = Messenger(context)
        self._finder = NodeFinder(context, self._messenger)
        self._collector = (
            SumCollector(context, self._messenger)
            if self._checking is None
            else CheckedCollector(context, self._messenger, self._checking)
        )
        self._batches = Batches(
            context,
            messenger=self._messenger,
            collector=self._collector,
            decider=self._decider,
        )

    # Public facts -------------------------------------------------------------------------------

    @property
    def terms(self) -> RunTerms:
        """Its terms."""
        return self._context.terms

    @property
    def names_by_node(self) -> dict[int, str]:
        """The name of the party at each node, of those that were found."""
        roster = self._context.roster
        return {node: roster.name(seat) for seat, node in roster.nodes.items()}

    @property
    def lost(self) -> tuple[tuple[str, ...], ...]:
        """For each batch that opened without some parties, their names."""
        return tuple(self._collector.lost)

    @property
    def rejected(self) -> tuple[tuple[str, ...], ...]:
        """For each batch that opened, names of hospitals whose reports hold no votes."""
        collector = self._collector
        return tuple(collector.rejected) if isinstance(collector, CheckedCollector) else ()

    @property
    def notes(self) -> list[str]:
        """Name the hospitals that the run was set up without, or that broke its closing.

        And those whose reports hold no votes, with the number of those batches.
        """
        absent = self._context.roster.names(self.round.absent)
        return [
            *(
                f"The run was set up without {name}, which was not ready in time."
                for name in absent
            ),
            *(
                f"{name} broke the protocol when the run was closed."
                for name in self._broke_closing
            ),
            *rejection_notes(self.rejected),
        ]

    @property
    def last_note(self) -> str:
        """Say who is not in the last batch's verified votes; empty if nobody is missing."""
        if not self.rejected:
            return ""
        said = [f"{', '.join(self.lost[-1])}: not heard"] if self.lost[-1] else []
        said += [f"{', '.join(self.rejected[-1])}: no votes"] if self.rejected[-1] else []
        return f"left out of the last batch: {'; '.join(said)}" if said else ""

    @property
    def share_faults(self) -> tuple[tuple[str, ...], ...]:
        """For each share that differed from its dealer's hashes, the parties that may be at fault.

        Where only one's word stands against the other's, both are named.
        """
        return tuple(self._collector.share_faults)

    @property
    def asked(self) -> frozenset[int]:
        """Positions in the pool that may not be asked about again in this run."""
        return frozenset(self._batches.asked)

    @property
    def voids(self) -> int:
        """Void batches so far."""
        return self._batches.voids

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached, or too many batches were void."""
        return self.left == NO_OUTCOMES or self.voids >= MOST_VOID_BATCHES

    @property
    def left(self) -> Outcomes:
        """The outcomes that the caps still allow."""
        return self._context.store.ledger().left

    @property
    def per_instance_cost(self) -> PerInstanceCost | None:
        """The run's cost on the actual votes. Private: not to be published.

        Simulations alone add it up: it needs copies of the exact votes. None with noise at the
        parties: nobody sees these. None after a restart, too.
        """
        return self._decider.per_instance_cost

    # Calls ------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Enrol all parties in the run and make their pair roots; four exchanges.

        Without pair keys two are enough, after the tally has stated its own. The run may then be
        set up without parties that are not ready in time; see `LabelingJob.may_leave_out`.

        Raises:
            TallyUnreachableError: the tally is away; nobody was offered anything.
            SetupError: not every party answered the offer.
            PartyFailedError: a party failed, refused or was silent; names it.
        """
        keys = self._tally_keys()  # before any hospital enters the run
        self._finder.offer_run()
        record = self.round.setup.make_record(
            terms=encode_value(self.terms.as_record()),
            sealing_key=keys.coordinator,
            tally=keys.tally,
            **self._context.tolerated,
        )
        self._context.store.save_run_id(self.round.run_id)
        require_no(self._messenger.hand_over(self._context.job.owed))
        # Each first sees its last signed head: a journal that is older stops it (rule R4).
        offered = {seat: [*self._context.roster.said_by(seat), record] for seat in self.round.seats}
        there = {seat: frames for seat, frames in offered.items() if seat in self.round.missing}
        failures = self._messenger.exchange(there)
        is_final = not any(map(may_pass, failures.values()))
        heard = len(there) - len(self.round.missing)
        if failures and self._context.goes_on_without_some(heard, at_once=is_final):
            for failure in failures.values():
                _log.warning("a run is set up without %s: %s", failure.party, failure.cause)
            if self.round.missing:
                self.round.go_on_without_missing()
        else:
            require_agreement(failures)
        self._collector.leave_out_absent()
        if self._context.job.form.has_pair_keys:
            for frames in (self.round.setup.deliver, self.round.setup.close):
                step = {seat: [frame] for seat, frame in frames().items()}
                require_agreement(self._messenger.exchange(step))
        self._context.store.statements.save(self.round.statements)

    def ask(
        self, indices: tuple[int, ...], *, predictions: NDArray[np.float64] | None = None
    ) -> NoisyRelease:
        """Ask one batch; one exchange, or three where the form survives drop-outs.

        Returns the release, which is stored and charged already.

        Args:
            indices: Positions in the pool. None was asked before, except in a void batch whose
                error allowed it.
            predictions: For a mechanism that learns, the student's chances of each class, from
                released labels and public inputs only; shape (queries, classes). None before there
                is a student.

        Raises:
            InvalidParameterError: a query was asked before, or is not in the pool; or the
                predictions do not fit.
            RunEndedError: the run has expired; nothing happened.
            OutcomeCapError: a cap of the run is reached; nothing happened.
            VoidBatchError: a party broke the rules, refused or was silent; nothing of the batch was
                released, and the error gives the state of its budget. A `SpoiledBatchError` names
                the party of the wrong row, if it can be found out.
        """
        self._require_askable(indices)
        self._decider.rule_for(indices, predictions)
        self._finder.look_for_missing()
        return self._batches.ask(indices, predictions)

    def ask_ready(self, indices: tuple[int, ...]) -> BatchReadiness:
        """Ask all parties whether they would answer a batch; one exchange, nothing is charged."""
        self._require_askable(indices)
        self._tally_keys()  # it is there
        self._finder.look_for_missing()
        terms = BatchTerms(self.terms, indices)
        said = self._messenger.inquire(self.round.inquiry.ask(encode_value(terms.as_record())))
        unready: dict[str, str] = {}
        refused: dict[int, tuple[str, ...]] = {}
        for seat in self.round.seats:
            name, answer = self._context.roster.name(seat), said.get(seat)
            if seat in self._collector.left_out:
                unready[name] = self._collector.left_out[seat].cause
            elif isinstance(answer, Readiness):
                for place in answer.refused:
                    if place < len(indices):
                        refused[indices[place]] = (*refused.get(indices[place], ()), name)
            else:
                unready[name] = "" if answer is None else code_of(answer.reason)
                if unready[name] == KeysGoneError.code:
                    self._collector.leave_out(seat, KeysGoneError.code)
        ready = len(self.round.seats) - len(unready)
        return BatchReadiness(unready, ready >= self._context.threshold, refused)

    def _tally_keys(self) -> AggregatorKeys:
        if self._checking is None:
            return AggregatorKeys()
        return self._checking.keys_for(self.round.setup.offer)

    def _require_askable(self, indices: tuple[int, ...]) -> None:
        self._context.job.pool.ask(indices)
        self._batches.require_askable(indices)
        if self._context.job.clock() >= self._context.expires_at:  # every hospital would refuse
            raise RunEndedError("a run must be asked before it expires", "one that expired")

    def finish(self, *, voids: bool = False) -> NoisyRelease | None:
        """Finish the open batch after `resume`.

        Args:
            voids: Whether to void an open batch, with no noise drawn for it any more. Set it
                after a restore: nobody knows the noise drawn for the batch before.

        Returns:
            Release of the last batch, from the store if it is there: noise is never drawn twice for
            a sum that may have been seen. None if no batch was asked, or the last one is void.
        """
        return self._batches.finish(voids=voids)

    def close(self) -> None:
        """End the run: all parties settle, and compare their transcripts; two exchanges.

        A party that does not answer, or has lost the run, does not fail it; `not_heard` names it.

        Raises:
            PartyFailedError: a party failed or remembers another run, or too many were lost; names
                it.
        """
        if self.round.state is CoordinatorState.DONE:
            return
        self._finder.look_for_missing()
        lost: Failures = {}
        if not self.round.closing.heads_frame:
            closing = self.round.closing.frame or self.round.closing.close()
            self._context.job.on_stage(BatchStage.CLOSING)
            lost = self._require_lost_only(self._messenger.tell(closing))
        try:
            heads = self.round.closing.heads_frame or self.round.closing.compare()
        except TooFewHeadsError as error:
            raise next(iter(lost.values())) from error
        self._context.job.on_stage(BatchStage.COMPARING)
        heard = self.round.closing.heads_compared
        self.not_heard = self._context.roster.names(set(self.round.seats).difference(heard))
        self._require_lost_only(self._messenger.exchange({seat: [heads] for seat in heard}))
        self._context.store.statements.save(self.round.statements)
        self._context.job.on_stage(BatchStage.FINISHED)

    def _require_lost_only(self, failures: Failures) -> Failures:
        """Raise faults worse than a lost party: above all, a party that remembers another run.

        A party that spoiled a batch cannot keep the others from comparing their histories. Nor can
        any one of them where no two have keys in common: it is named.
        """
        for seat, failure in failures.items():
            has_no_run = isinstance(failure, PartyRefusedError) and (
                failure.cause == UnexpectedMessageError.code
            )
            if failure.is_silent or has_no_run or seat in self._collector.left_out:
                continue
            if self._context.job.form.has_pair_keys:
                raise failure
            self._broke_closing += self._context.roster.names([seat])
        return failures


def _require(must: str, holds: bool) -> None:
    if not holds:
        raise RunDamagedError(f"the journal and the results must fit: {must}")
