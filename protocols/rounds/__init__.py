"""The two ends of a run as state machines without I/O: frames in, frames out.

One module or folder per phase: `inquiry`, `setup`, `batch`, `verdicts`, `opening`, `settlement`,
`blame`, `closing`. A folder has the two ends in files of their own. `seating` has a run at a party,
`live_run` at the coordinator. Until it is settled a plan is a `party_plan` there, and one of
`plans` here. `party` and `coordinator` hand each message to its phase, and `states` has their
tables. `journal` and `coordinator_journal` hold the state of each end that must survive a restart;
`history` says how each step changes a run, and `lost_runs` holds a party's answers without its
keys. `bounds` says which sets of parties may be opened for a query that was asked before.
`protocols.walkthrough` tells it all in one function.
"""

from protocols.rounds.blame.at_coordinator import Blame
from protocols.rounds.bounds import ANY_SET, PlanClaim, SetBound, bound_on
from protocols.rounds.coordinator import CoordinatorRound
from protocols.rounds.coordinator_journal import CoordinatorJournal, MemoryCoordinatorJournal
from protocols.rounds.history import unheard
from protocols.rounds.inquiry.at_coordinator import read_run_answer
from protocols.rounds.party import PartyRound, Received
from protocols.rounds.round_journal import RoundJournal, RunNote
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
    "PartyRound",
    "PartyState",
    "PlanClaim",
    "Received",
    "RoundJournal",
    "RunNote",
    "SetBound",
    "bound_on",
    "read_run_answer",
    "unheard",
]
