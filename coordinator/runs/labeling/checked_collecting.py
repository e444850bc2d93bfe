"""One sum of reports: hospitals send them, both aggregators check them and open the noisy sum."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import RunEndedError
from coordinator.runs.labeling.collecting import SumCollector, require_enough
from coordinator.runs.labeling.job import RunContext
from coordinator.runs.labeling.messenger import Messenger
from coordinator.runs.labeling.vote_checking import VoteChecking
from coordinator.runs.stages import BatchStage
from protocols.verified import CheckState


class CheckedCollector(SumCollector):
    """Collects the reports of a run's plans, one plan at a time; see `SumCollector`.

    Attributes:
        rejected: For each sum that opened, names of the hospitals whose reports hold no votes. Why,
            nobody is told.
    """

    def __init__(self, context: RunContext, messenger: Messenger, checking: VoteChecking) -> None:
        super().__init__(context, messenger)
        self._checking = checking
        self.lost = []
        self.rejected: list[tuple[str, ...]] = []
        for each in self._round.settled:
            if each.is_released:
                listed = zip(self._round.seats, each.settlement.contributions, strict=True)
                opened = {seat for seat, entry in listed if entry}
                self._note(checking.reported(each.plan_digest), opened)

    def collect(self) -> NDArray[np.int64]:
        """Return the noisy sum of the reports that both aggregators accept.

        Raises:
            PartyFailedError: too few hospitals reported; names the first that failed.
            RunEndedError: the plan is to be closed: it was void before a restart.
            TallyUnreachableError: the tally is away; to be tried again with the same plan.
            ProtocolError: the sum cannot be opened, and never will be.
        """
        plan, batch = self._round.open_plan, self._round.batch
        machine = batch.reports.machine
        if machine.state is CheckState.STOPPED:
            raise RunEndedError("a batch must not be void already", "one before a restart")
        if machine.state is CheckState.COLLECTING:
            require_enough(self._ask(), here=len(batch.survivors), least=self._context.threshold)
            batch.close_reports()
        record = self._round.setup.signed_record.frame
        request = machine.close()
        self._on_stage(BatchStage.PROPOSED)
        while request:
            request = machine.receive(self._checking.ask([record, plan.frame, request]))
            self._on_stage(BatchStage.AGREED)
        batch.note_checked()
        self._on_stage(BatchStage.OPENED)
        assert machine.opened is not None
        assert machine.decision is not None
        self._note(machine.reported, machine.decision.accepted)
        return machine.opened.ravel()

    def close_plan(self) -> None:
        """Do nothing: a plan whose reports are there may open as long as the tally is."""

    def _note(self, reported: Collection[bytes], opened: Collection[bytes]) -> None:
        """Note who is not in a sum: those that were not heard, those whose reports are no votes."""
        self.lost.append(self._roster.names(set(self._round.seats).difference(reported)))
        self.rejected.append(self._roster.names(set(reported).difference(opened)))
