"""Audits: how much released labels tell about votes and about training records."""

from pate_fed.audit.exposure import (
    MOST_ASKS,
    Target,
    asks_for_error,
    leak_error,
    votes_of_agreement,
)
from pate_fed.audit.vote_leak import (
    Answers,
    LeakedVotes,
    ThresholdCheck,
    normalized_error,
    rebuild_votes,
)
from pate_fed.audit.win_chances import Noise, chances_and_slopes, win_chances

__all__ = [
    "MOST_ASKS",
    "Answers",
    "LeakedVotes",
    "Noise",
    "Target",
    "ThresholdCheck",
    "asks_for_error",
    "chances_and_slopes",
    "leak_error",
    "normalized_error",
    "rebuild_votes",
    "votes_of_agreement",
    "win_chances",
]
