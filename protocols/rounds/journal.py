"""What a party must remember so that a key never meets two vectors (rule R4).

The order is: the plan's digest is journalled, y is computed once, y is stored, y is sent. Whoever
keeps the journal on disk syncs each step before returning. A plan that the party promised to leave
alone is journalled before the promise is sent (rule R3), and is never begun again.

A journal has a counter that never goes back. The party signs it in every run, and its peers
remember it: a journal that was restored from a backup is told by a counter below a signed one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class RoundJournal(ABC):
    """A party's memory of the plans that it served."""

    @property
    @abstractmethod
    def counter(self) -> int:
        """How often this journal was written to, over its whole life; below 2^32."""

    @abstractmethod
    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """Note that a vector is about to be computed for a plan.

        Raises:
            KeyReuseError: the plan was begun before or abandoned, or the run's epoch is not ahead.
            RestoredJournalError: the journal was halted.
        """

    @abstractmethod
    def abandon(self, plan_digest: bytes) -> None:
        """Note that nothing was sent for a plan, and that nothing ever will be.

        The queries that were claimed for it are free again: only this party could have answered.
        The same plan again changes nothing.

        Raises:
            KeyReuseError: a y was ever kept for it, be it erased since.
            RestoredJournalError: the journal was halted: what is missing in it may have been sent.
        """

    @abstractmethod
    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """Store the frames that answer a plan, before they are sent.

        Args:
            plan_digest: The plan.
            frames: Its answer; at least one frame. They may be megabytes: no need to join them.
            expires_at: Unix time after which nobody needs it, in seconds.

        Raises:
            KeyReuseError: the plan was not begun, has other frames, or is given up.
        """

    @abstractmethod
    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """Return the stored frames of a plan, to be sent again as they are."""

    @abstractmethod
    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """Note the one survivor set of a plan, before anything is revealed for it.

        Raises:
            KeyReuseError: the plan was not begun, has another survivor set, or is given up.
        """

    @abstractmethod
    def erase(self, plan_digest: bytes) -> None:
        """Drop a settled plan's frames; its digest stays, so that it is never begun again."""

    @abstractmethod
    def sweep(self, *, now: float) -> None:
        """Drop the frames of all plans that have expired, as `erase` does (rule R9)."""

    @abstractmethod
    def witness(self, counters: Mapping[bytes, int]) -> None:
        """Remember the counters of peers' journals, by fingerprint, as the peers signed them."""

    @abstractmethod
    def witnessed(self, peer: bytes) -> int:
        """Return the highest counter that a peer signed; 0 for a stranger."""

    @abstractmethod
    def halt(self, counter: int) -> None:
        """Note that this party signed `counter`, which the journal never reached.

        From here on `begin` refuses, until the owner acts.
        """
