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
    def claim(self, pool_digest: bytes, indices: Sequence[int]) -> None:
        """Note that these queries are about to be answered.

        Raises:
            KeyReuseError: one of them was claimed before; none is noted.
        """

    @abstractmethod
    def any_answered(self, pool_digest: bytes, indices: Sequence[int]) -> bool:
        """Tell whether one of these queries was claimed before."""

    @abstractmethod
    def count(self, pool_digest: bytes) -> int:
        """Return the number of queries of this pool that were claimed."""


class Journal(RoundJournal, QueryJournal):
    """Both journals of a party."""


class MemoryJournal(Journal):
    """Both journals, in memory."""

    def __init__(self) -> None:
        self._epochs: dict[bytes, int] = {}
        self._plans: set[bytes] = set()
        self._frames: dict[bytes, bytes] = {}
        self._queries: dict[bytes, set[int]] = {}

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

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        self._frames.pop(plan_digest, None)

    def claim(self, pool_digest: bytes, indices: Sequence[int]) -> None:
        """See `QueryJournal.claim`."""
        if self.any_answered(pool_digest, indices):
            raise KeyReuseError("no query may be answered twice", "one that was")
        self._queries.setdefault(pool_digest, set()).update(indices)

    def any_answered(self, pool_digest: bytes, indices: Sequence[int]) -> bool:
        """See `QueryJournal.any_answered`."""
        return not self._queries.get(pool_digest, set()).isdisjoint(indices)

    def count(self, pool_digest: bytes) -> int:
        """See `QueryJournal.count`."""
        return len(self._queries.get(pool_digest, ()))

    def __repr__(self) -> str:
        return f"MemoryJournal(plans={len(self._plans)})"
