"""What a party must remember so that a key never meets two vectors (rule R4).

The order is: the plan's digest is journalled, y is computed once, y is stored, y is sent. Whoever
keeps the journal on disk syncs each step before returning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class RoundJournal(ABC):
    """A party's memory of the plans that it served."""

    @abstractmethod
    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """Note that a vector is about to be computed for a plan.

        Raises:
            KeyReuseError: the plan was begun before, or the run's epoch is not ahead.
        """

    @abstractmethod
    def keep(self, plan_digest: bytes, frame: bytes) -> None:
        """Store the frame that answers a plan, before it is sent.

        Raises:
            KeyReuseError: the plan was not begun, or has another frame.
        """

    @abstractmethod
    def find(self, plan_digest: bytes) -> bytes | None:
        """Return the stored frame of a plan, to be sent again as it is."""

    @abstractmethod
    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """Note the one survivor set of a plan, before anything is revealed for it.

        Raises:
            KeyReuseError: the plan was not begun, or has another survivor set.
        """

    @abstractmethod
    def erase(self, plan_digest: bytes) -> None:
        """Drop a settled plan's frame; its digest stays, so that it is never begun again."""
