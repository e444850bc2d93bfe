"""The two ends of a run as state machines without I/O: frames in, frames out.

`states` has the tables, `party` and `coordinator` the two ends, `journal` what an end must
remember across a restart, `retry` who may be asked again after a batch that came to nothing,
`blame` how it is found out who spoiled a row.
"""

from protocols.rounds.blame import Blame
from protocols.rounds.coordinator import CoordinatorRound
from protocols.rounds.journal import RoundJournal
from protocols.rounds.party import PartyRound, Received
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
    "CoordinatorRound",
    "CoordinatorState",
    "PartyRound",
    "PartyState",
    "Received",
    "RetrySet",
    "RoundJournal",
]
