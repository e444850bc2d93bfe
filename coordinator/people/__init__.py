"""The people of the console: who they are, what they may do, and how they prove it."""

from coordinator.people.people import People, Person, SetupCode
from coordinator.people.roles import Role
from coordinator.people.sessions import ABSOLUTE, IDLE, Session, Sessions

__all__ = ["ABSOLUTE", "IDLE", "People", "Person", "Role", "Session", "Sessions", "SetupCode"]
