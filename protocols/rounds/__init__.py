"""The two ends of a run as state machines without I/O: frames in, frames out.

One module or folder per phase: `run_inquiry`, `setup`, `inquiry`, `batch`, `verdicts`, `opening`,
`settlement`, `blame`, `closing`. A folder has the two ends beside each other, `at_party` and
`at_coordinator`, so that a hospital's end can be read alone. A run at a party is a `seated_run` in
its `seating`, at the coordinator a `live_run` with one `exchange` at a time. Until it is settled, a
plan is a `party_plan` there, and one of `plans` with its `ballots` here. `party` and `coordinator`
hand each message to its phase, `states` has their tables, and `answers` what a party answers again.
`journal` and `coordinator_journal` hold the state of each end that must survive a restart;
`history` says how each step changes a run, and `lost_runs` holds a party's answers without its
keys. `bounds` says which sets of parties may be opened for a query that was asked before.
"""

from protocols.rounds.blame.at_coordinator import Blame
from protocols.rounds.bounds import ANY_SET, PlanClaim, SetBound, bound_on
from protocols.rounds.coordinator import CoordinatorRound
from protocols.rounds.coordinator_journal import CoordinatorJournal, MemoryCoordinatorJournal
from protocols.rounds.history import unheard
from protocols.rounds.journal import RoundJournal, RunNote
from protocols.rounds.party import PartyRound, Received
from protocols.rounds.plans import OpenPlan, SettledPlan
from protocols.rounds.states import (
    COORDINATOR_TRANSITIONS,
    PARTY_TRANSITIONS,
    CoordinatorState,
    PartyState,
)

__all__ = [
    "ANY_SET",
    "COORDINATOR_TRANSITIONS",
    "PARTY_TRANSITIONS",
    "Blame",
    "CoordinatorJournal",
    "CoordinatorRound",
    "CoordinatorState",
    "MemoryCoordinatorJournal",
    "OpenPlan",
    "PartyRound",
    "PartyState",
    "PlanClaim",
    "Received",
    "RoundJournal",
    "RunNote",
    "SetBound",
    "SettledPlan",
    "bound_on",
    "unheard",
]
