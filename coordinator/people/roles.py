"""The roles of people of the console."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """A person's role; `coordinator.console.access` says which page it opens."""

    ADMINISTRATOR = "administrator"
    OPERATOR = "operator"
    PRIVACY_OFFICER = "privacy officer"
    AUDITOR = "auditor"

    @property
    def words(self) -> str:
        """Its rights, in one sentence."""
        return _WORDS[self]


_WORDS: Final = {
    Role.ADMINISTRATOR: "May do everything, and decides who may use the console.",
    Role.OPERATOR: "Invites and suspends hospitals, runs the labeling, may propose a budget.",
    Role.PRIVACY_OFFICER: "Reads everything; may pause or stop a run, suspend a hospital, and "
    "agree to a higher budget.",
    Role.AUDITOR: "Reads everything, and changes nothing.",
}
