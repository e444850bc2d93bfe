"""What a party must remember: the plans it served and the queries it answered, for ever.

`MemoryJournal` keeps both in memory, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.query_sketches import Sketches, from_bytes, to_bytes
from protocols.errors import KeyReuseError, RestoredJournalError
from protocols.rounds import RetrySet, RoundJournal


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SketchedQueries:
    """What is kept of a batch, so that queries that lie close to it can be told later.

    Attributes:
        queries: `QueryBatch.digests`.
        sketches: `pate_fed.query_sketches.sketch` of each.
        near: Whether it lay close to a query before it; shape (queries,).
    """

    queries: tuple[bytes, ...]
    sketches: Sketches
    near: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"SketchedQueries(queries={len(self.queries)})"


class QueryJournal(ABC):
    """Every query that a party ever answered, over all runs and federations (rule R3)."""

    @abstractmethod
    def claim(
        self,
        queries: Sequence[bytes],
        *,
        plan_digest: bytes,
        seats: Collection[bytes] | None = None,
    ) -> None:
        """Note that these queries are about to be answered, for one plan.

        Args:
            queries: `QueryBatch.digests`: what is asked about, not where it stands in which
                pool, since the same input in another pool would be the same question.
            plan_digest: The plan that asks them.
            seats: Fingerprints of all parties of its run.

        Raises:
            KeyReuseError: one of them is claimed, comes twice, or is free for others than `seats`;
                or the plan is given up. None is noted.
        """

    @abstractmethod
    def release(self, plan_digest: bytes, retry: RetrySet) -> None:
        """Free the queries that were claimed for a plan whose sum will never open; see `retry`.

        From here on nothing is begun, kept or revealed for the plan. Again, it changes nothing.

        Args:
            plan_digest: The plan, which is void.
            retry: Who may be asked these queries again.

        Raises:
            KeyReuseError: a survivor set was fixed for it: something may have been revealed.
            RestoredJournalError: the journal was halted.
        """

    @abstractmethod
    def any_answered(
        self, queries: Sequence[bytes], *, seats: Collection[bytes] | None = None
    ) -> bool:
        """Tell whether one of these queries is claimed, comes twice, or is not free for `seats`.

        Args:
            queries: As for `claim`.
            seats: Fingerprints of all parties that would be asked; None: of a query that was ever
                freed it is not known whether it may be asked again.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of queries that are claimed."""

    @abstractmethod
    def keep_sketches(self, batch: SketchedQueries) -> None:
        """Note the sketches of queries that are about to be claimed.

        They count from when their queries are claimed, so that a crash in between does no harm.
        """

    @abstractmethod
    def sketches(self) -> Sketches:
        """Return the sketches of all claimed queries that have one; shape (queries, ...)."""

    @abstractmethod
    def count_near(self) -> int:
        """Return how many claimed queries lay close to one before them."""


class Journal(RoundJournal, QueryJournal):
    """Both journals of a party."""


class MemoryJournal(Journal):
    """Both journals, in memory."""

    def __init__(self) -> None:
        self._epochs: dict[bytes, int] = {}
        self._plans: set[bytes] = set()
        self._answered: set[bytes] = set()
        self._frames: dict[bytes, tuple[bytes, ...]] = {}
        self._survivors: dict[bytes, bytes] = {}
        self._expiries: dict[bytes, int] = {}
        self._given_up: set[bytes] = set()
        self._queries: set[bytes] = set()
        self._sketches: dict[bytes, tuple[bytes, bool]] = {}
        self._claims: dict[bytes, tuple[bytes, ...]] = {}
        self._retries: dict[bytes, tuple[RetrySet, ...]] = {}
        self._witnessed: dict[bytes, int] = {}
        self._counter = self._halted_at = 0

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        return self._counter

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        self._note_begin(run_id=run_id, epoch=epoch, plan_digest=plan_digest)
        self._counter += 1

    def abandon(self, plan_digest: bytes) -> None:
        """See `RoundJournal.abandon`."""
        if self._is_new_promise(plan_digest):
            self._note_abandoned(plan_digest)
            self._counter += 1

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        self._require_open(plan_digest)
        self._answered.add(plan_digest)
        self._expiries[plan_digest] = expires_at
        self._frames[plan_digest] = frames
        self._counter += 1

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """See `RoundJournal.find`."""
        return self._frames.get(plan_digest)

    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """See `RoundJournal.fix_survivors`."""
        if self._is_new_set(plan_digest, survivors_digest):
            self._survivors[plan_digest] = survivors_digest
            self._counter += 1

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        if self._frames.pop(plan_digest, None) is not None:
            self._expiries.pop(plan_digest, None)
            self._counter += 1

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""
        for plan_digest in [plan for plan, end in self._expiries.items() if now >= end]:
            self.erase(plan_digest)

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""
        news = self._news(counters)
        if news:
            self._witnessed.update(news)
            self._counter += 1

    def witnessed(self, peer: bytes) -> int:
        """See `RoundJournal.witnessed`."""
        return self._witnessed.get(peer, 0)

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""
        if counter > self._halted_at:
            self._halted_at = counter
            self._counter += 1

    def claim(
        self,
        queries: Sequence[bytes],
        *,
        plan_digest: bytes,
        seats: Collection[bytes] | None = None,
    ) -> None:
        """See `QueryJournal.claim`."""
        self._require_unanswered(queries, plan_digest=plan_digest, seats=seats)
        self._note_claim(plan_digest, queries)
        self._counter += 1

    def release(self, plan_digest: bytes, retry: RetrySet) -> None:
        """See `QueryJournal.release`."""
        if self._is_to_release(plan_digest):
            self._note_release(plan_digest, retry)
            self._counter += 1

    def any_answered(
        self, queries: Sequence[bytes], *, seats: Collection[bytes] | None = None
    ) -> bool:
        """See `QueryJournal.any_answered`."""
        if len(set(queries)) != len(queries) or not self._queries.isdisjoint(queries):
            return True
        return any(
            seats is None or not retry.allows(seats)
            for query in self._retries.keys() & set(queries)
            for retry in self._retries[query]
        )

    def count(self) -> int:
        """See `QueryJournal.count`."""
        return len(self._queries)

    def keep_sketches(self, batch: SketchedQueries) -> None:
        """See `QueryJournal.keep_sketches`."""
        self._note_sketches(batch.queries, to_bytes(batch.sketches), batch.near.tolist())
        self._counter += 1

    def sketches(self) -> Sketches:
        """See `QueryJournal.sketches`."""
        kept = [data for query, (data, _) in self._sketches.items() if query in self._queries]
        return from_bytes(b"".join(kept))

    def count_near(self) -> int:
        """See `QueryJournal.count_near`."""
        return sum(near for query, (_, near) in self._sketches.items() if query in self._queries)

    def _note_sketches(
        self, queries: Sequence[bytes], sketches: Sequence[bytes], near: Sequence[bool]
    ) -> None:
        for query, sketch, is_near in zip(queries, sketches, near, strict=True):
            if query not in self._queries:  # what was answered keeps what was noted of it
                self._sketches[query] = (sketch, is_near)

    def _note_begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        self._require_new(run_id=run_id, epoch=epoch, plan_digest=plan_digest)
        self._plans.add(plan_digest)
        self._epochs[run_id] = epoch

    def _require_new(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        self._require_whole()
        is_known = plan_digest in self._plans or plan_digest in self._given_up
        if is_known or epoch <= self._epochs.get(run_id, 0):
            raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")

    def _require_open(self, plan_digest: bytes) -> None:
        is_over = plan_digest in self._answered or plan_digest in self._given_up
        if plan_digest not in self._plans or is_over:
            raise KeyReuseError("a plan must be begun and answered once", "not so")

    def _is_new_promise(self, plan_digest: bytes) -> bool:
        self._require_whole()
        if plan_digest in self._answered:
            raise KeyReuseError("a plan that is abandoned must have no y", "one that was kept")
        return plan_digest not in self._given_up

    def _note_abandoned(self, plan_digest: bytes) -> None:
        self._given_up.add(plan_digest)
        self._queries.difference_update(self._claims.pop(plan_digest, ()))

    def _is_to_release(self, plan_digest: bytes) -> bool:
        self._require_whole()
        if plan_digest in self._survivors:
            raise KeyReuseError("queries must be free of shares to be asked again", "revealed ones")
        return plan_digest in self._claims

    def _note_claim(self, plan_digest: bytes, queries: Sequence[bytes]) -> None:
        self._claims[plan_digest] = tuple(queries)
        self._queries.update(queries)

    def _note_release(self, plan_digest: bytes, retry: RetrySet) -> None:
        queries = self._claims.pop(plan_digest)
        self._given_up.add(plan_digest)
        self._queries.difference_update(queries)
        for query in queries:
            self._retries[query] = (*self._retries.get(query, ()), retry)

    def _require_whole(self) -> None:
        """A journal that misses records cannot promise what it did not do."""
        if self._halted_at:
            raise RestoredJournalError(shown=self._halted_at, counter=self._counter)

    def _is_new_set(self, plan_digest: bytes, survivors_digest: bytes) -> bool:
        known = self._survivors.get(plan_digest)
        is_open = plan_digest in self._plans and plan_digest not in self._given_up
        if not is_open or known not in (None, survivors_digest):
            raise KeyReuseError("a plan must be begun and have one survivor set", "another")
        return known is None

    def _require_unanswered(
        self, queries: Sequence[bytes], *, plan_digest: bytes, seats: Collection[bytes] | None
    ) -> None:
        if plan_digest in self._claims or plan_digest in self._given_up:
            raise KeyReuseError("a plan must ask its queries once", "one that did")
        if self.any_answered(queries, seats=seats):
            raise KeyReuseError("no query may be answered twice", "one that was")

    def _news(self, counters: Mapping[bytes, int]) -> dict[bytes, int]:
        return {peer: count for peer, count in counters.items() if count > self.witnessed(peer)}

    def __repr__(self) -> str:
        return f"MemoryJournal(plans={len(self._plans)})"
