"""Before a plan: the coordinator asks whether it would be served; both ends. Nothing changes."""

from protocols.rounds.inquiry.at_coordinator import CoordinatorInquiry
from protocols.rounds.inquiry.at_party import PartyInquiry

__all__ = ["CoordinatorInquiry", "PartyInquiry"]
