"""The verified form: two aggregators check every row of votes, and neither sees one."""

from protocols.verified.verified_run import VerifiedSum, VerifyingEnd, run_verified_sum
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
from protocols.verified.vote_sum import make_coin, noisy_share, open_noisy_sum

__all__ = [
    "Aggregator",
    "EvaluationPoint",
    "ProvedVotes",
    "VerifiedSum",
    "VerifyingEnd",
    "VoteBatch",
    "VoteLayout",
    "VoteShare",
    "challenge",
    "make_coin",
    "make_report",
    "noisy_share",
    "open_coordinator_part",
    "open_noisy_sum",
    "open_tally_part",
    "prove",
    "read_header",
    "run_verified_sum",
]
