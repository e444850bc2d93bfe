"""The people of the console: names, roles, passwords, one-time codes, sessions."""

from coordinator.people.people import People, Person, SetupCode
from coordinator.people.roles import Role
from coordinator.people.sessions import ABSOLUTE, IDLE, Session, Sessions

__all__ = ["ABSOLUTE", "IDLE", "People", "Person", "Role", "Session", "Sessions", "SetupCode"]
