"""The verified form: two aggregators check every row of votes, and neither sees one."""

from protocols.verified.check_history import COORDINATOR_CHECKS, TALLY_CHECKS, CheckState
from protocols.verified.check_journal import (
    CheckJournal,
    CheckStep,
    CheckStopped,
    Exchanged,
    MemoryCheckJournal,
    ReportTaken,
    SecretsDrawn,
    check_step_from_record,
    check_step_to_record,
)
from protocols.verified.checking_coordinator import CheckingCoordinator
from protocols.verified.checking_end import CheckingEnd
from protocols.verified.checking_tally import CheckingTally
from protocols.verified.side_audit import SideFindings, SideMaterial, audit_side
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
    open_part,
    read_header,
    read_part,
)
from protocols.verified.vote_side import Decision, SideSecrets, VoteSide
from protocols.verified.vote_sum import make_coin, noisy_share, open_noisy_sum

__all__ = [
    "COORDINATOR_CHECKS",
    "TALLY_CHECKS",
    "Aggregator",
    "CheckJournal",
    "CheckState",
    "CheckStep",
    "CheckStopped",
    "CheckingCoordinator",
    "CheckingEnd",
    "CheckingTally",
    "Decision",
    "EvaluationPoint",
    "Exchanged",
    "MemoryCheckJournal",
    "ProvedVotes",
    "ReportTaken",
    "SecretsDrawn",
    "SideFindings",
    "SideMaterial",
    "SideSecrets",
    "VerifiedSum",
    "VerifyingEnd",
    "VoteBatch",
    "VoteLayout",
    "VoteShare",
    "VoteSide",
    "audit_side",
    "challenge",
    "check_step_from_record",
    "check_step_to_record",
    "make_coin",
    "make_report",
    "noisy_share",
    "open_noisy_sum",
    "open_part",
    "prove",
    "read_header",
    "read_part",
    "run_verified_sum",
]
