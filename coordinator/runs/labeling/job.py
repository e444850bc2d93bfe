"""The job of a labeling run, and the things that all its parts share while it is under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.database.run_store import RunStore
from coordinator.runs.labeling.roster import Member, Roster
from coordinator.runs.stages import OnStage, pass_by
from coordinator.runs.transport import Transport
from pate_fed.accounting import PerInstanceCost
from pate_fed.charges import RunLedger
from pate_fed.mechanisms import Mechanism, RandomBytes
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease
from pate_fed.terms import RunTerms
from protocols.envelope import SealingKey
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.rounds import CoordinatorJournal, CoordinatorRound, MemoryCoordinatorJournal
from protocols.secure_sum import RoundForm
from protocols.suites import DEFAULT_SUITE
from protocols.verified import CheckJournal


class TallyLink(Protocol):
    """The way to the tally, the second aggregator."""

    @property
    def identity(self) -> PublicIdentity:
        """The pinned one."""

    def state(self, offer: bytes) -> bytes:
        """Ask for its keys for a signed `RunOffer`; return its signed `KeyStatement`.

        Raises `TallyUnreachableError` where another try may help.
        """

    def check(self, packet: bytes) -> bytes:
        """Hand it a packet of run record, plan and request; return its answer's frame.

        Raises as `state` does, and `TallyRefusedError` where it says no.
        """


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What a coordinator needs to check votes together with a tally.

    Attributes:
        journal: Opens the journal of a plan, by its digest.
        sealing_key: Reads that of the run, for its parts of reports: the same until it is erased.
    """

    tally: TallyLink
    journal: Callable[[bytes], CheckJournal]
    sealing_key: Callable[[], SealingKey]


class Meter(Protocol):
    """Adds up what a run costs on its actual votes, batch by batch. Private."""

    def add(self, counts: NDArray[np.int64], release: NoisyRelease, *, rule: Mechanism) -> None:
        """Add a batch: its votes, its release and its rule."""

    @property
    def cost(self) -> PerInstanceCost:
        """The cost of all batches so far."""


MakeMeter = Callable[[Mechanism, RunTerms], Meter]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelingJob:
    """The inputs of a labeling run: parties, queries, rules and resources.

    Attributes:
        terms: Makes the terms from the parties in seat order.
        store: Opens the run's store, given its empty ledger.
        noise_bytes: Source of the noise: the operating system's, or a keyed stream in a
            simulation. It must not repeat bytes from before a crash. Not used where the parties
            add the noise.
        clock: Unix time, in seconds.
        owed: By fingerprint, settlements of earlier setups that a party may have missed.
        lifetime_s: Seconds after which the run and its plans expire.
        patience_s: Seconds for which a batch waits for a silent party, but no longer than its plan
            is valid.
        meter: Makes what adds up the cost on the actual votes, in a simulation. A deployment has no
            use for the private number, nor for copies of the votes that it needs.
        shares_out: Whether labels of records that vote are shared out over the classes, as teachers
            share out their votes.
        aggregation: Where the form has reports.
        may_leave_out: Whether it is set up without parties that are not ready in time, where each
            of its sums could do without them: an earlier try failed for want of one.
    """

    transport: Transport
    identity: SigningIdentity
    form: RoundForm
    members: list[Member]
    pool: QueryPool
    terms: Callable[[tuple[Member, ...]], RunTerms]
    simulated: bool
    store: Callable[[RunLedger], RunStore]
    random_bytes: RandomBytes
    noise_bytes: RandomBytes
    clock: Callable[[], float]
    sleep: Callable[[float], None] = time.sleep
    journal: CoordinatorJournal = field(default_factory=MemoryCoordinatorJournal)
    owed: Mapping[bytes, Sequence[bytes]] = field(default_factory=dict)
    on_stage: OnStage = pass_by
    lifetime_s: int = 24 * 3600
    suite: str = DEFAULT_SUITE
    patience_s: float = 0.0
    meter: MakeMeter | None = None
    shares_out: bool = False
    may_leave_out: bool = False
    aggregation: Aggregation | None = None


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run under way, as all its parts see it.

    Attributes:
        round: The protocol's end of it.
        expires_at: End of the run's validity, Unix time in seconds.
    """

    job: LabelingJob
    terms: RunTerms
    store: RunStore
    roster: Roster
    round: CoordinatorRound
    expires_at: int
    was_resumed: bool

    @property
    def threshold(self) -> int:
        """Fewest parties whose shares open a sum."""
        return self.job.form.threshold(len(self.round.seats))

    def goes_on_without_some(self, heard: int, *, at_once: bool = False) -> bool:
        """Tell whether the run is set up with the parties that were heard alone, so many.

        `at_once` says that no later try would find the others.
        """
        may = (at_once or self.job.may_leave_out) and not self.job.form.has_pair_keys
        return may and heard >= self.job.form.fewest_present(len(self.round.seats))

    @property
    def tolerated(self) -> dict[str, int]:
        """The allowed numbers of parties that collude with us, and that drop out."""
        return tolerated(self.terms, self.job.form, parties=len(self.round.seats))


def tolerated(terms: RunTerms, form: RoundForm, *, parties: int) -> dict[str, int]:
    """Return the numbers of parties that may collude with us, and drop out, as a run records."""
    rule = terms.rule
    if rule.colluders is not None and rule.dropouts is not None:
        return {"colluders": rule.colluders, "dropouts": rule.dropouts}
    return {
        "colluders": form.most_colluders(parties),
        "dropouts": parties - form.threshold(parties),
    }
