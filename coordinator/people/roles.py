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
    Role.OPERATOR: "Invites hospitals and runs the labeling.",
    Role.PRIVACY_OFFICER: "Reads everything, and may pause or stop a run.",
    Role.AUDITOR: "Reads everything, and changes nothing.",
}
