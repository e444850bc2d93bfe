"""One secure sum over the parties: a plan, their vectors, the survivors' shares, the opened sum.

Who is silent is waited for while that may help; who broke the protocol or refused is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import PartyRefusedError, RunDamagedError
from coordinator.labeling.blame import traced_row_words
from coordinator.labeling.messenger import Failures, Messenger, require_no
from coordinator.labeling.roster import Roster
from coordinator.stages import OnStage, Stage
from pate_fed.federation import RunTerms
from protocols import wire
from protocols.rounds import CoordinatorRound
from protocols.secure_sum import SecureSum

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Between two tries to reach a silent party; each pause is twice the one before."""


class SumCollector:
    """Collects the sums of a run, one at a time.

    Args:
        run: The protocol's end of it.
        form: Secure sum.
        terms: Of the run.
        roster: The parties.
        messenger: Reaches them.
        clock: Unix time, in seconds.
        sleep: Waits for so many seconds.
        patience_s: Seconds for which a sum waits for a party that is silent.
        expires_at: Unix time after which nobody sends for the run, in seconds.
        on_stage: Called at every point where the run may be stopped.
        was_resumed: Whether the run went on after a restart.

    Attributes:
        lost: For each sum that could be opened without them, the names of the parties that were
            lost in it.
    """

    def __init__(
        self,
        *,
        run: CoordinatorRound,
        form: SecureSum,
        terms: RunTerms,
        roster: Roster,
        messenger: Messenger,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        patience_s: float,
        expires_at: int,
        on_stage: OnStage,
        was_resumed: bool,
    ) -> None:
        self._round = run
        self._form = form
        self._terms = terms
        self._roster = roster
        self._messenger = messenger
        self._clock = clock
        self._sleep = sleep
        self._patience_s = patience_s
        self._expires_at = expires_at
        self._on_stage = on_stage
        self._was_resumed = was_resumed
        self.lost = [
            self._names_without(each.settlement.contributions)
            for each in run.settled
            if each.is_released and form.survives_dropouts
        ]

    def collect(
        self, batch: int, terms: dict[str, Any], *, words: int, phase: int
    ) -> NDArray[np.int64]:
        """Ask for one vector and add it up. Secret where the parties add no noise.

        Args:
            batch: Number of the batch.
            terms: What its plan says.
            words: Length of the vector.
            phase: Which vector of the batch it is, from 0.

        Raises:
            PartyFailedError: the form needs all parties, or more than are left; names the first.
            RunDamagedError: the plan that was open before a restart is another one.
            ProtocolError: the sum cannot be opened.
        """
        plan = self._plan(batch, wire.encode_value(terms), words=words, phase=phase)
        self._on_stage(Stage.PLANNED)
        self._messenger.expect_vectors(words)
        failures = self._messenger.tell(plan)
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

    @property
    def places(self) -> tuple[int, ...]:
        """Seats, by number, of the parties whose vectors are in the sum."""
        return tuple(self._round.seats.index(seat) for seat in self._round.survivors)

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
                row_words=traced_row_words(
                    words, parties=len(self._round.seats), form=self._form, terms=self._terms
                ),
            )
        plan = self._round.open_plan
        if (plan.batch, plan.phase, plan.words, plan.terms) != (batch, phase, words, terms):
            raise RunDamagedError("the open plan must be the open batch's", "another")
        return self._round.plan_frame

    def _tell_bare(self, plan: bytes, failed: Failures) -> Failures:
        """Send a plan once more to who failed, alone.

        A party that was restarted, too, knows nothing of the run but its stored y, and stumbles
        over settlements that it cannot place.
        """
        return self._messenger.exchange({seat: [plan] for seat in failed})

    def _wait(self, plan: bytes, failures: Failures) -> Failures:
        """Send a plan again to those who were silent, as it is, while there is hope and time.

        Who broke the protocol or refused is not waited for, and nobody where that voids the batch.
        """
        deadline = min(self._clock() + self._patience_s, self._expires_at)
        pause = _FIRST_PAUSE_S
        while self._clock() < deadline and self._may_come(failures):
            self._sleep(min(pause, deadline - self._clock()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            silent = {seat for seat, failure in failures.items() if failure.is_silent}
            waited = self._messenger.tell(plan, only=silent)
            failures = {seat: failures[seat] for seat in failures if seat not in silent} | waited
        return failures

    def _may_come(self, failures: Failures) -> bool:
        """Whether silent parties are all that a batch lacks."""
        silent = sum(failure.is_silent for failure in failures.values())
        needed = self._form.threshold(len(self._round.seats))
        return bool(silent) and len(self._round.survivors) + silent >= needed

    def _note_refusals(self, failures: Failures) -> None:
        refused = {
            seat: failure.cause
            for seat, failure in failures.items()
            if isinstance(failure, PartyRefusedError)
        }
        self._roster.refusals = {
            seat: refused[seat] for seat in self._round.seats if seat in refused
        }

    def _reveal(self, failures: Failures) -> None:
        """Do without who failed, in a second exchange, if the form can."""
        if not self._form.survives_dropouts:
            require_no(failures)
            return
        if len(self._round.survivors) < self._form.threshold(len(self._round.seats)):
            require_no(failures)
        frames = self._round.fix_survivors()
        self._on_stage(Stage.SURVIVORS_FIXED)
        lost = self._messenger.exchange(frames)
        self.lost.append(tuple(one.party for one in (*failures.values(), *lost.values())))

    def _names_without(self, contributions: tuple[bytes, ...]) -> tuple[str, ...]:
        seats = zip(self._roster.members, contributions, strict=True)
        return tuple(member.name for member, entry in seats if not entry)
