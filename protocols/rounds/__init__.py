"""The two ends of a run as state machines without I/O: frames in, frames out.

`states` has the tables, `party` and `coordinator` the two ends, `journal` and `coordinator_journal`
what each must remember across a restart; `replay` reads the coordinator's back, `retry` says who
may be asked again after a void batch, `blame` how it is found out who spoiled a row.
"""

from protocols.rounds.blame import Blame
from protocols.rounds.coordinator import CoordinatorRound
from protocols.rounds.coordinator_journal import CoordinatorJournal, MemoryCoordinatorJournal
from protocols.rounds.journal import RoundJournal
from protocols.rounds.party import PartyRound, Received
from protocols.rounds.replay import SettledPlan
from protocols.rounds.retry import RetrySet
from protocols.rounds.states import (
    COORDINATOR_TRANSITIONS,
    PARTY_TRANSITIONS,
    CoordinatorState,
    PartyState,
)

__all__ = [
    "COORDINATOR_TRANSITIONS",
    "PARTY_TRANSITIONS",
    "Blame",
    "CoordinatorJournal",
    "CoordinatorRound",
    "CoordinatorState",
    "MemoryCoordinatorJournal",
    "PartyRound",
    "PartyState",
    "Received",
    "RetrySet",
    "RoundJournal",
    "SettledPlan",
]
