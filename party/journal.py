"""What a party must remember: the plans it served and the queries it answered, for ever.

`MemoryJournal` keeps both in memory, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from protocols.errors import KeyReuseError
from protocols.rounds import RoundJournal


class QueryJournal(ABC):
    """Every query that a party ever answered, over all runs and federations (rule R3)."""

    @abstractmethod
    def claim(self, queries: Sequence[bytes]) -> None:
        """Note that these queries are about to be answered.

        Args:
            queries: `QueryBatch.digests`: what is asked about, not where it stands in which
                pool, since the same input in another pool would be the same question.

        Raises:
            KeyReuseError: one of them was claimed before, or comes twice; none is noted.
        """

    @abstractmethod
    def any_answered(self, queries: Sequence[bytes]) -> bool:
        """Tell whether one of these queries was claimed before, or comes twice."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of queries that were claimed."""


class Journal(RoundJournal, QueryJournal):
    """Both journals of a party."""


class MemoryJournal(Journal):
    """Both journals, in memory."""

    def __init__(self) -> None:
        self._epochs: dict[bytes, int] = {}
        self._plans: set[bytes] = set()
        self._frames: dict[bytes, bytes] = {}
        self._survivors: dict[bytes, bytes] = {}
        self._queries: set[bytes] = set()

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        if plan_digest in self._plans or epoch <= self._epochs.get(run_id, 0):
            raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")
        self._plans.add(plan_digest)
        self._epochs[run_id] = epoch

    def keep(self, plan_digest: bytes, frame: bytes) -> None:
        """See `RoundJournal.keep`."""
        if plan_digest not in self._plans or plan_digest in self._frames:
            raise KeyReuseError("a plan must be begun and answered once", "not so")
        self._frames[plan_digest] = frame

    def find(self, plan_digest: bytes) -> bytes | None:
        """See `RoundJournal.find`."""
        return self._frames.get(plan_digest)

    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """See `RoundJournal.fix_survivors`."""
        known = self._survivors.get(plan_digest, survivors_digest)
        if plan_digest not in self._plans or known != survivors_digest:
            raise KeyReuseError("a plan must be begun and have one survivor set", "another")
        self._survivors[plan_digest] = survivors_digest

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        self._frames.pop(plan_digest, None)

    def claim(self, queries: Sequence[bytes]) -> None:
        """See `QueryJournal.claim`."""
        if self.any_answered(queries):
            raise KeyReuseError("no query may be answered twice", "one that was")
        self._queries.update(queries)

    def any_answered(self, queries: Sequence[bytes]) -> bool:
        """See `QueryJournal.any_answered`."""
        return len(set(queries)) != len(queries) or not self._queries.isdisjoint(queries)

    def count(self) -> int:
        """See `QueryJournal.count`."""
        return len(self._queries)

    def __repr__(self) -> str:
        return f"MemoryJournal(plans={len(self._plans)})"
