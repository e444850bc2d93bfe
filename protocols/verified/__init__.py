"""The verified form: two aggregators check every row of votes, and neither sees one."""

from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import (
    EvaluationPoint,
    ProvedVotes,
    VoteShare,
    challenge,
    prove,
)

__all__ = ["EvaluationPoint", "ProvedVotes", "VoteLayout", "VoteShare", "challenge", "prove"]
