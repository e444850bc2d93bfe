"""One secure sum over the parties: a plan, their vectors, the survivors' shares, the opened sum.

A silent party is waited for while that may help. A party that refused or broke the protocol is not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import PartyFailedError, PartyRefusedError, RunDamagedError, RunEndedError
from coordinator.runs.labeling.blame import traced_row_words
from coordinator.runs.labeling.job import RunContext
from coordinator.runs.labeling.messenger import Failures, Messenger, require_no
from coordinator.runs.stages import BatchStage
from protocols.errors import (
    FalseCertificateError,
    KeysGoneError,
    TooFewSharesError,
    UnexpectedMessageError,
)
from protocols.values import encode_value

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""First pause between two tries to reach a silent party; each pause is twice the one before."""

GRACE_S = 60.0
"""For how long a sum that can open without a silent party waits for it: long enough for a broken
connection, too short to hold up the others."""

_log = logging.getLogger(__name__)


class SumCollector:
    """Collects the sums of a run, one at a time.

    Attributes:
        lost: For each sum that opened without some parties, their names.
        share_faults: For each dropped share, the names of the parties that may be at fault.
        left_out: By seat, why a party is done with this run: its keys are gone, or it spoiled a
            batch. It gets no further plan where the form can do without it.
    """

    def __init__(self, context: RunContext, messenger: Messenger) -> None:
        self._context = context
        self._form = context.job.form
        self._round = context.round
        self._roster = context.roster
        self._messenger = messenger
        self._clock = context.job.clock
        self._on_stage = context.job.on_stage
        self._absent: set[bytes] = set()  # waited for in vain, and not heard since
        self.left_out: Failures = {}
        self.leave_out_absent()
        self.share_faults: list[tuple[str, ...]] = []
        self.lost = [
            self._names_without(each.settlement.contributions)
            for each in self._round.settled
            if each.is_released and self._form.survives_dropouts
        ]

    def plan(self, batch: int, terms: dict[str, object], *, words: int) -> None:
        """Open the plan of a batch; one open before a restart stays."""
        encoded = encode_value(terms)
        if self._round.has_open_plan:
            plan = self._round.open_plan.plan
            if (plan.batch, plan.words, plan.terms) != (batch, words, encoded):
                raise RunDamagedError("the open plan must be the open batch's")
            return
        self._round.batch.plan(
            batch=batch,
            words=words,
            expires_at=self._context.expires_at,
            terms=encoded,
            row_words=traced_row_words(words, self._context),
        )

    def collect(self) -> NDArray[np.int64]:
        """Ask for the open plan's vectors and add them up. Secret unless the parties add noise.

        Raises:
            PartyFailedError: too few parties answered for the form; names the first that failed.
            RunEndedError: the plan is to be closed: it was void before a restart.
            ProtocolError: the sum cannot be opened.
        """
        if not self._round.open_plan.may_open:
            raise RunEndedError("a batch must not be void already", "one before a restart")
        self._open_set(self._ask())
        self._on_stage(BatchStage.REVEALED)
        try:
            opened = self._round.batch.open_total()
        finally:
            self._note_share_faults()
        self._on_stage(BatchStage.OPENED)
        return opened

    def _ask(self) -> Failures:
        """Send the open plan, wait for answers while that may help, and return the failures."""
        open_plan = self._round.open_plan
        self._messenger.words = open_plan.plan.words
        # Where the sum needs every party, a refusal of this very plan proves that it never opens.
        left_out = self.left_out if self._form.survives_dropouts else {}
        asked = tuple(seat for seat in self._round.seats if seat not in left_out)
        failures = self._messenger.tell(open_plan.frame, only=asked)
        if self._context.was_resumed and failures:
            # A restarted party, too, knows only its stored y, and cannot place some settlements.
            failures = self._messenger.exchange({seat: [open_plan.frame] for seat in failures})
        failures = self._wait(open_plan.frame, failures)
        for seat, failure in failures.items():
            if failure.cause == KeysGoneError.code:
                self.left_out[seat] = failure
        self._on_stage(BatchStage.ANSWERED)
        return left_out | failures

    def close_plan(self) -> None:
        """Ask all parties to close a plan that did not open, so that its queries are free again.

        Nothing happens where the form cannot close plans, or the plan's set is certified.
        """
        if not self._form.is_certified or self._round.open_plan.opens_a_set:
            return
        frames = self._round.batch.propose_closing()
        self._on_stage(BatchStage.CLOSING_PROPOSED)
        for frame in set(frames.values()):
            self._messenger.tell(frame, only=frames)
        with suppress(TooFewSharesError):  # then its queries are never asked again
            self._round.batch.certify()

    def leave_out(self, seat: bytes, code: str) -> None:
        """Note that a party is done with this run: it spoiled a batch, or has lost the keys."""
        must = (
            "a party must have entered the run, have its keys and have spoiled no batch to be asked"
        )
        name = self._roster.name(seat)
        self.left_out[seat] = PartyRefusedError(must, "another state", party=name, cause=code)

    def leave_out_absent(self) -> None:
        """Ask nothing more of parties without which the run was set up."""
        for seat in self._round.absent:
            self.leave_out(seat, UnexpectedMessageError.code)

    @property
    def places(self) -> tuple[int, ...]:
        """Seats, by number, of the parties whose vectors are in the sum."""
        return tuple(self._round.seats.index(seat) for seat in self._round.batch.survivors)

    def _wait(self, plan: bytes, failures: Failures) -> Failures:
        """Send a plan again to silent parties, unchanged, while there is hope and time.

        Nobody waits for a party that broke the protocol or refused, nor where the batch is void
        without it. Where the sum can open the others wait a moment only, and once for each time
        that a party falls silent.
        """
        grace_ends = self._clock() + GRACE_S

        def again(silent: Collection[bytes]) -> Failures:
            return self._messenger.tell(plan, only=silent)

        def worth_until(silent: Collection[bytes]) -> float:
            here = len(self._round.batch.survivors)
            if here < self._context.threshold:
                return math.inf if here + len(silent) >= self._context.threshold else 0.0
            return 0.0 if self._absent.issuperset(silent) else grace_ends

        failures = self._until(failures, again, worth_until)
        self._absent = {seat for seat, failure in failures.items() if failure.is_silent}
        return failures

    def _exchange(self, frames: Mapping[bytes, list[bytes]]) -> Failures:
        """Send frames by party, again to silent ones while too few have answered."""

        def again(silent: Collection[bytes]) -> Failures:
            return self._messenger.exchange({seat: frames[seat] for seat in silent})

        def worth_until(silent: Collection[bytes]) -> float:
            heard = self._round.exchange.heard
            is_hopeful = heard < self._context.threshold <= heard + len(silent)
            return math.inf if is_hopeful else 0.0

        return self._until(self._messenger.exchange(frames), again, worth_until)

    def _until(
        self,
        failures: Failures,
        again: Callable[[Collection[bytes]], Failures],
        worth_until: Callable[[Collection[bytes]], float],
    ) -> Failures:
        """Ask silent parties again, with growing pauses, while that may help and time is left.

        `again` asks some once more; `worth_until` tells, given the silent ones, until when to wait.
        """
        deadline = min(self._clock() + self._context.job.patience_s, self._context.expires_at)
        pause = _FIRST_PAUSE_S
        while True:
            silent = {seat for seat, failure in failures.items() if failure.is_silent}
            left = min(deadline, worth_until(silent)) - self._clock() if silent else 0.0
            if left <= 0:
                return failures
            self._context.job.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            waited = again(silent)
            failures = {seat: failures[seat] for seat in failures if seat not in silent} | waited

    def _open_set(self, failures: Failures) -> None:
        """Go on without the failed parties, if the form can: verdicts, then shares."""
        here = len(self._round.batch.survivors) if self._form.is_certified else 0
        require_enough(failures, here=here, least=self._context.threshold)
        if not self._form.is_certified:
            return
        proposals = self._round.batch.propose()
        self._on_stage(BatchStage.PROPOSED)
        unsure = self._exchange({seat: [frame] for seat, frame in proposals.items()})
        self._on_stage(BatchStage.AGREED)
        try:
            frames = self._round.batch.certify()
        except TooFewSharesError as error:
            raise next(iter(unsure.values()), error) from error
        self._on_stage(BatchStage.CERTIFIED)
        lost = self._exchange(frames)
        doubting = {
            seat: frames
            for seat, frames in self._round.batch.certify_by_signatures().items()
            if seat in lost and lost[seat].cause == FalseCertificateError.code
        }
        if doubting:
            lost = {seat: lost[seat] for seat in lost if seat not in doubting}
            lost |= self._exchange(doubting)
        # A party that came back after a restart is not in a set that was proposed before it.
        absent = set(self._round.seats).difference(self._round.batch.survivors)
        self.lost.append(self._roster.names({*absent, *failures, *unsure, *lost}))

    def _note_share_faults(self) -> None:
        """Log the parties of dropped shares for the operator."""
        for fault in self._round.batch.share_faults:
            names = self._roster.names(fault.named)
            self.share_faults.append(names)
            _log.warning("a share differed from its dealer's signed hashes: %s", " or ".join(names))

    def _names_without(self, contributions: tuple[bytes, ...]) -> tuple[str, ...]:
        seats = zip(self._roster.members, contributions, strict=True)
        return tuple(member.name for member, entry in seats if not entry)


def require_enough(failures: Failures, *, here: int, least: int) -> None:
    """Raise the first failure where fewer parties than a sum needs are here.

    Whoever broke the protocol is named first: silence may be nobody's fault, and a refusal, such as
    of a plan that expired meanwhile, is none.
    """
    if here < least:
        require_no(dict(sorted(failures.items(), key=lambda one: _is_no_fault(one[1]))))


def _is_no_fault(failure: PartyFailedError) -> bool:
    """Tell whether a party did not break the protocol: it was silent, or refused."""
    return failure.is_silent or isinstance(failure, PartyRefusedError)
