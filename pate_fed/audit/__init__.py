"""Audits: how much released labels tell about votes and about training records."""

from pate_fed.audit.canary import CanaryAudit, canary_audit, epsilon_lower_bound
from pate_fed.audit.exposure import (
    AUDITED,
    MOST_ASKS,
    Target,
    asks_for_error,
    leak_error,
    votes_of_agreement,
)
from pate_fed.audit.gradient_descent import descend
from pate_fed.audit.membership import (
    MembershipAudit,
    ShadowModels,
    likelihood_scores,
    membership_audit,
)
from pate_fed.audit.sacro_report import sacro_report
from pate_fed.audit.vote_leak import (
    Answers,
    Check,
    LeakedVotes,
    normalized_error,
    rebuild_votes,
)
from pate_fed.audit.win_chances import Noise, chances_and_slopes, win_chances

__all__ = [
    "AUDITED",
    "MOST_ASKS",
    "Answers",
    "CanaryAudit",
    "Check",
    "LeakedVotes",
    "MembershipAudit",
    "Noise",
    "ShadowModels",
    "Target",
    "asks_for_error",
    "canary_audit",
    "chances_and_slopes",
    "descend",
    "epsilon_lower_bound",
    "leak_error",
    "likelihood_scores",
    "membership_audit",
    "normalized_error",
    "rebuild_votes",
    "sacro_report",
    "votes_of_agreement",
    "win_chances",
]
