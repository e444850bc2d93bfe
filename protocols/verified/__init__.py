"""The verified form: two aggregators check every row of votes, and neither sees one."""

from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import (
    EvaluationPoint,
    ProvedVotes,
    VoteShare,
    challenge,
    prove,
)
from protocols.verified.vote_report import (
    Aggregator,
    VoteBatch,
    make_report,
    open_coordinator_part,
    open_tally_part,
    read_header,
)

__all__ = [
    "Aggregator",
    "EvaluationPoint",
    "ProvedVotes",
    "VoteBatch",
    "VoteLayout",
    "VoteShare",
    "challenge",
    "make_report",
    "open_coordinator_part",
    "open_tally_part",
    "prove",
    "read_header",
]
