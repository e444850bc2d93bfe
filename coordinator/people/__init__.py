"""The people of the console: names, roles, passwords, one-time codes, sessions, the budget."""

from coordinator.people.budget import AGREEING, PROPOSING, FederationBudget
from coordinator.people.openid import Attempt, Provider
from coordinator.people.people import People, Person, Role, SetupCode
from coordinator.people.sessions import Session, Sessions

__all__ = [
    "AGREEING",
    "PROPOSING",
    "Attempt",
    "FederationBudget",
    "People",
    "Person",
    "Provider",
    "Role",
    "Session",
    "Sessions",
    "SetupCode",
]
