"""The people of the console: names, roles, passwords, one-time codes, sessions, the budget."""

from coordinator.people.budget import AGREEING, PROPOSING, FederationBudget, Proposal
from coordinator.people.people import People, Person, SetupCode
from coordinator.people.roles import Role
from coordinator.people.sessions import ABSOLUTE, IDLE, Session, Sessions

__all__ = [
    "ABSOLUTE",
    "AGREEING",
    "IDLE",
    "PROPOSING",
    "FederationBudget",
    "People",
    "Person",
    "Proposal",
    "Role",
    "Session",
    "Sessions",
    "SetupCode",
]
