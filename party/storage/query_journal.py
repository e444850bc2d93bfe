"""A party's memory for ever: the plans it served and the queries it answered.

A journal belongs to the hospital and its records, not to one federation. The rules that span runs
(rule R3) stand here once, in `QueryJournal.bound_on`; implementations only store. `MemoryJournal`
keeps everything in memory, for simulations and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.query_sketches import (
    Sketches,
    from_bytes,
    near_known,
    near_queries,
    neighbors,
    to_bytes,
)
from protocols.errors import KeyReuseError, RestoredJournalError
from protocols.rounds import PlanClaim, RoundJournal, RunNote, SetBound, bound_on
from protocols.rounds.journal import MOST_UNSERVED


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SketchedQueries:
    """The sketches of a batch, kept to recognize later queries that lie close to it.

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


@dataclass(frozen=True, slots=True, eq=False)
class KnownSketches:
    """The sketches of all queries that were claimed, in the order in which they were noted.

    Attributes:
        queries: Their digests.
        sketches: Their sketches; shape (queries, ...).
        near: How many of them lay close to one before them.
    """

    queries: tuple[bytes, ...]
    sketches: Sketches
    near: int


@dataclass(frozen=True, slots=True)
class NearQueries:
    """The neighbors of a batch among all queries that were ever claimed.

    Attributes:
        batch: The entries to keep of the batch.
        known: The claimed queries that lie close to one of it, none of them asked by it.
        total: Number of close queries over all runs if this batch is answered.
    """

    batch: SketchedQueries
    known: frozenset[bytes]
    total: int


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The neighbors of one query.

    Attributes:
        known: The claimed queries that lie close to it, itself left out.
        earlier: Places of the queries before it in its batch that lie close to it.
        is_new: Whether it was never claimed: only then does it count as close to others.
    """

    known: frozenset[bytes]
    earlier: frozenset[int]
    is_new: bool


class QueryJournal(ABC):
    """Every query that a party ever answered, over all runs and federations (rule R3)."""

    # Rules: once, for every implementation ----------------------------------------------------

    def bound_on(
        self, queries: Sequence[bytes], *, near: Collection[bytes] = (), after: bytes = b""
    ) -> SetBound:
        """Return the bound on the set of parties that a plan with these queries may open.

        Args:
            queries: `QueryBatch.digests`: the content of a query, not its place in a pool, since
                the same input in another pool is the same question.
            near: Claimed queries that lie close to one of `queries`, none of them its own.
            after: For a second phase, the plan of the first, whose claim does not bind.

        Raises:
            KeyReuseError: a query comes twice or was answered, or a set that nobody knows may be
                open for it or for one close to it.
        """
        if len(set(queries)) != len(queries):
            raise KeyReuseError("a batch must ask each query once", "one twice")
        return bound_on(self.claims_of(queries, but=after), self.claims_of(near, but=after))

    def near_to(
        self, queries: Sequence[bytes], sketches: Sketches, *, distance: float, most: int | None
    ) -> NearQueries:
        """Find the claimed queries that lie close to these.

        A query that was asked before counts once, when it was asked first: its own sketch is not
        close to it, and asking it again is no new neighbor.

        Args:
            queries: `QueryBatch.digests`.
            sketches: Sketch of each.
            distance: See `pate_fed.query_sketches.near_queries`.
            most: Most close queries over all runs; None for any number. Beyond it no known query is
                named.
        """
        known = self.known_sketches()
        own = set(known.queries)
        is_new = np.array([query not in own for query in queries], dtype=np.bool_)
        near = is_new & near_queries(sketches, known.sketches, distance=distance)
        batch = SketchedQueries(tuple(queries), sketches, near)
        total = known.near + int(near.sum())
        if most is not None and total > most:
            return NearQueries(batch, frozenset(), total)
        rows = np.flatnonzero(near | ~is_new)
        close = near_known(sketches[rows], known.sketches, distance=distance)
        found = {known.queries[place] for place in np.flatnonzero(close)}
        return NearQueries(batch, frozenset(found - set(queries)), total)

    def neighbors_of(
        self, queries: Sequence[bytes], sketches: Sketches, *, distance: float
    ) -> tuple[list[Neighbors], int]:
        """Find the queries close to each of these; `near_to` says it of all together.

        Args:
            queries: `QueryBatch.digests`.
            sketches: Sketch of each.
            distance: See `pate_fed.query_sketches.near_queries`.

        Returns:
            The neighbors of each, and the number of close queries over all runs without these.
        """
        known = self.known_sketches()
        own = set(known.queries)
        is_new = np.array([query not in own for query in queries], dtype=np.bool_)
        near = near_queries(sketches, known.sketches, distance=distance)
        found = [Neighbors(frozenset(), frozenset(), bool(one)) for one in is_new]
        rows = np.flatnonzero(near | ~is_new)
        others = neighbors(sketches[rows], known.sketches, distance=distance)
        earlier = neighbors(sketches[rows], sketches, distance=distance)
        for row, theirs, ours in zip(rows.tolist(), others, earlier, strict=True):
            digests = frozenset(known.queries[place] for place in theirs) - {queries[row]}
            before = frozenset(ours[ours < row].tolist())
            found[row] = Neighbors(digests, before, found[row].is_new)
        return found, known.near

    # Storage ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sketch_key(self) -> bytes:
        """Key of all sketches that are kept here; secret, so that nobody else can fit them."""

    @abstractmethod
    def claims_of(self, queries: Collection[bytes], *, but: bytes = b"") -> list[PlanClaim]:
        """Return the claims of all plans, but one, that claimed one of these queries."""

    @abstractmethod
    def claim(
        self,
        batch: SketchedQueries,
        *,
        plan_digest: bytes,
        claim: PlanClaim,
        after: bytes = b"",
    ) -> None:
        """Note that these queries are about to be answered for one plan, and their sketches.

        Args:
            batch: The queries. A sketch that was noted before stays.
            plan_digest: The plan that asks them.
            claim: The claim on the plan: `PlanClaim.sent`.
            after: For a second phase, the plan of the first.

        Raises:
            KeyReuseError: the plan claimed queries before, is abandoned or decided; or `bound_on`
                refuses a query. None is noted.
            RestoredJournalError: the journal was halted.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of queries that were claimed, each once."""

    @abstractmethod
    def count_new(self, queries: Sequence[bytes]) -> int:
        """Return how many of these queries were never claimed."""

    @abstractmethod
    def known_sketches(self) -> KnownSketches:
        """Return the sketches of all claimed queries that have one."""


class Journal(RoundJournal, QueryJournal):
    """Both journals of a party."""


class MemoryJournal(Journal):
    """Both journals, in memory."""

    def __init__(self) -> None:
        self._runs: dict[bytes, RunNote] = {}
        self._epochs: dict[bytes, int] = {}
        self._plans: set[bytes] = set()
        self._runs_of: dict[bytes, bytes] = {}
        self._unserved: dict[bytes, set[bytes]] = {}
        self._answered: set[bytes] = set()
        self._frames: dict[bytes, tuple[bytes, ...]] = {}
        self._verdicts: dict[bytes, bytes] = {}
        self._expiries: dict[bytes, int] = {}
        self._abandoned: set[bytes] = set()
        self._claims: dict[bytes, PlanClaim] = {}
        self._claimed_by: dict[bytes, list[bytes]] = {}
        self._sketches: dict[bytes, tuple[bytes, bool]] = {}
        self._witnessed: dict[bytes, int] = {}
        self._counter = self._halted_at = 0

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        return self._counter

    # Plans ------------------------------------------------------------------------------------

    def enter(self, run: RunNote) -> None:
        """See `RoundJournal.enter`."""
        self.require_whole()
        if run.run_id not in self._runs:
            self._runs[run.run_id] = run
            self._counter += 1

    def run(self, run_id: bytes) -> RunNote | None:
        """See `RoundJournal.run`."""
        return self._runs.get(run_id)

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        self.require_whole()
        known = (self._plans, self._abandoned, self._verdicts)
        if any(plan_digest in each for each in known) or epoch <= self._epochs.get(run_id, 0):
            raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")
        self._plans.add(plan_digest)
        self._runs_of[plan_digest] = run_id
        self._epochs[run_id] = epoch
        self._counter += 1

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.abandon`."""
        self.require_whole()
        if plan_digest in self._answered:
            raise KeyReuseError("a plan that is abandoned must have no y", "one that was kept")
        if plan_digest in self._abandoned:
            return
        self._note_unserved(plan_digest, run_id)
        self._abandoned.add(plan_digest)
        if self._claims.pop(plan_digest, None) is not None:
            for plans in self._claimed_by.values():
                if plan_digest in plans:
                    plans.remove(plan_digest)
        self._counter += 1

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        over = (self._answered, self._abandoned, self._verdicts)
        if plan_digest not in self._plans or any(plan_digest in each for each in over):
            raise KeyReuseError(
                "a plan must be begun and answered once", "one that is over or unknown"
            )
        self._answered.add(plan_digest)
        self._expiries[plan_digest] = expires_at
        self._frames[plan_digest] = frames
        self._counter += 1

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """See `RoundJournal.find`."""
        return self._frames.get(plan_digest)

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.decide`."""
        self.require_whole()
        given = self._verdicts.get(plan_digest)
        if given not in (None, verdict_digest):
            raise KeyReuseError("a party must give one verdict on a plan", "another")
        if given is None:
            self._note_unserved(plan_digest, run_id)
            self._verdicts[plan_digest] = verdict_digest
            self._counter += 1

    def verdict_on(self, plan_digest: bytes) -> bytes:
        """See `RoundJournal.verdict_on`."""
        return self._verdicts.get(plan_digest, b"")

    def run_of(self, plan_digest: bytes) -> bytes:
        """See `RoundJournal.run_of`."""
        return self._runs_of.get(plan_digest, b"")

    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        """See `RoundJournal.resolve`."""
        self.require_whole()
        known = self._claims.get(plan_digest)
        if known is not None and not known.is_free and known != known.learning(claim):
            self._claims[plan_digest] = known.learning(claim)
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

    # Other journals ---------------------------------------------------------------------------

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""
        news = {peer: count for peer, count in counters.items() if count > self.witnessed(peer)}
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

    def require_whole(self) -> None:
        """See `RoundJournal.require_whole`."""
        if self._halted_at:
            raise RestoredJournalError(shown=self._halted_at, counter=self._counter)

    def require_room(self, size: int) -> None:
        """See `RoundJournal.require_room`."""

    # Queries ----------------------------------------------------------------------------------

    @property
    def sketch_key(self) -> bytes:
        """See `QueryJournal.sketch_key`; none, so that a simulation can be repeated."""
        return b""

    def claims_of(self, queries: Collection[bytes], *, but: bytes = b"") -> list[PlanClaim]:
        """See `QueryJournal.claims_of`."""
        plans = {plan for query in queries for plan in self._claimed_by.get(query, ())}
        return [self._claims[plan] for plan in plans - {but}]

    def claim(
        self,
        batch: SketchedQueries,
        *,
        plan_digest: bytes,
        claim: PlanClaim,
        after: bytes = b"",
    ) -> None:
        """See `QueryJournal.claim`."""
        self.require_whole()
        over = (self._claims, self._abandoned, self._verdicts)
        if any(plan_digest in each for each in over):
            raise KeyReuseError("a plan must ask its queries once", "one that did")
        self.bound_on(batch.queries, after=after)
        self._claims[plan_digest] = claim
        items = zip(batch.queries, to_bytes(batch.sketches), batch.near.tolist(), strict=True)
        for query, data, near in items:
            plans = self._claimed_by.setdefault(query, [])
            if not plans:  # one that was claimed keeps its sketch
                self._sketches[query] = (data, near)
            plans.append(plan_digest)
        self._counter += 1

    def count(self) -> int:
        """See `QueryJournal.count`."""
        return len(list(self._claimed()))

    def count_new(self, queries: Sequence[bytes]) -> int:
        """See `QueryJournal.count_new`."""
        return sum(not self._claimed_by.get(query) for query in queries)

    def known_sketches(self) -> KnownSketches:
        """See `QueryJournal.known_sketches`."""
        kept = [query for query in self._sketches if self._claimed_by.get(query)]
        sketches = from_bytes(b"".join(self._sketches[query][0] for query in kept))
        near = sum(self._sketches[query][1] for query in kept)
        return KnownSketches(tuple(kept), sketches, near)

    # Helpers ----------------------------------------------------------------------------------

    def _claimed(self) -> Iterable[bytes]:
        return (query for query, plans in self._claimed_by.items() if plans)

    def _note_unserved(self, plan_digest: bytes, run_id: bytes) -> None:
        """Count a plan that was never begun here against its run."""
        unserved = self._unserved.setdefault(run_id, set())
        if plan_digest in self._plans or plan_digest in unserved:
            return
        if len(unserved) >= MOST_UNSERVED:
            raise KeyReuseError(f"a run must have at most {MOST_UNSERVED} unserved plans", "more")
        unserved.add(plan_digest)
        self._runs_of.setdefault(plan_digest, run_id)

    def __repr__(self) -> str:
        return f"MemoryJournal(plans={len(self._plans)})"
