"""Every query that a party ever answered, over all runs and federations (rule R3).

A journal belongs to the hospital and its records, not to one federation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BindParameter, Connection, bindparam, func, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from party.storage.journal_rows import (
    claim_of,
    note_plan,
    plan_in,
    record_of,
    require_whole,
    the_journal,
    transaction,
    write_many,
)
from party.storage.party_database import PartyDatabase
from party.storage.site_schema import ClaimRow, PlanRow, SketchRow
from pate_fed.nodes.database import parts_of
from pate_fed.query_sketches import (
    Sketches,
    from_bytes,
    near_known,
    near_queries,
    neighbors,
    to_bytes,
)
from protocols.errors import KeyReuseError
from protocols.rounds import PlanClaim, SetBound, bound_on

_SOME: BindParameter[bytes] = bindparam("queries", expanding=True)
_CLAIMS = (
    select(PlanRow.claim)
    .join(ClaimRow, ClaimRow.plan_digest == PlanRow.plan_digest)
    .where(ClaimRow.query.in_(_SOME))
    .distinct()
)
_PLANS_OF = select(ClaimRow.query, ClaimRow.plan_digest).where(ClaimRow.query.in_(_SOME))
_CLAIM_OF = select(PlanRow.plan_digest, PlanRow.claim).where(
    PlanRow.plan_digest.in_(bindparam("plans", expanding=True))
)
_CLAIMED = select(ClaimRow.query).where(ClaimRow.query.in_(_SOME))
_COUNT = select(func.count(ClaimRow.query.distinct()))
_NEW_CLAIM = insert(ClaimRow)
_SKETCH = upsert(SketchRow)
_PUT_SKETCH = _SKETCH.on_conflict_do_update(
    index_elements=["query"],
    set_={"sketch": _SKETCH.excluded.sketch, "is_near": _SKETCH.excluded.is_near},
)
_SKETCHES = (
    select(SketchRow.query, SketchRow.sketch, SketchRow.is_near)
    .where(SketchRow.query.in_(select(ClaimRow.query)))
    .order_by(SketchRow.number)
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SketchedQueries:
    """The sketches of a batch, and whether each query lay close to one before it."""

    queries: tuple[bytes, ...]
    sketches: Sketches
    near: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"SketchedQueries(queries={len(self.queries)})"


@dataclass(frozen=True, slots=True, eq=False)
class KnownSketches:
    """The sketches of all queries that were claimed, in the order in which they were noted.

    `queries` are their digests; `near` is how many of them lay close to one before them.
    """

    queries: tuple[bytes, ...]
    sketches: Sketches
    near: int


@dataclass(frozen=True, slots=True)
class NearQueries:
    """The neighbors of a batch among all queries that were ever claimed.

    `known` are claimed queries that lie close to one of it, none of them asked by it; `total`
    counts close queries over all runs if this batch is answered.
    """

    batch: SketchedQueries
    known: frozenset[bytes]
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Neighbors:
    """The neighbors of one query: how many claimed ones are close, and their plans' claims.

    `earlier` are places of the queries before it in its batch that lie close to it; ascending. Only
    one that `is_new`, never claimed, counts as close to others.
    """

    known: int
    claims: tuple[PlanClaim, ...]
    earlier: NDArray[np.int64]
    is_new: bool


class QueryJournal:
    """The queries of a party's plans, their claims and their sketches, in its database."""

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    # Rules ------------------------------------------------------------------------------------

    def bound_on(self, queries: Sequence[bytes], *, near: Collection[bytes] = ()) -> SetBound:
        """Return the bound on the set of parties that a plan with these queries may open.

        They are `QueryBatch.digests`: the content of a query, not its place in a pool, since the
        same input in another pool is the same question. `near` are claimed queries that lie close
        to one of them, none of them its own.

        Raises `KeyReuseError` where a query comes twice or was answered, or a set that nobody knows
        may be open for it or for one close to it.
        """
        _require_each_once(queries)
        return bound_on(self.claims_of(queries), self.claims_of(near))

    def near_to(
        self, queries: Sequence[bytes], sketches: Sketches, *, distance: float, most: int | None
    ) -> NearQueries:
        """Find the claimed queries that lie close to these, given by `QueryBatch.digests`.

        A query that was asked before counts once, when it was asked first: its own sketch is not
        close to it, and asking it again is no new neighbor. Beyond `most` close queries over all
        runs (None for any number) no known query is named.
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
    ) -> tuple[Iterator[Neighbors], int]:
        """Find the queries close to each of these; `near_to` says it of all together.

        One query at a time is in memory: thousands may all be close to one another. Returns the
        neighbors of each, and the number of close queries over all runs without these.
        """
        known = self.known_sketches()
        return self._neighbors(known, queries, sketches, distance=distance), known.near

    def _neighbors(
        self, known: KnownSketches, queries: Sequence[bytes], sketches: Sketches, *, distance: float
    ) -> Iterator[Neighbors]:
        place_of = {query: place for place, query in enumerate(known.queries)}
        near = near_queries(sketches, known.sketches, distance=distance)
        rows = [row for row, query in enumerate(queries) if near[row] or query in place_of]
        others = neighbors(sketches[rows], known.sketches, distance=distance)
        earlier = neighbors(sketches[rows], sketches, distance=distance)
        held = self.claims_of_each(known.queries)
        kinds = {claims: kind for kind, claims in enumerate(dict.fromkeys(held))}
        kind_of, listed = np.array([kinds[claims] for claims in held], dtype=np.int64), list(kinds)
        wanted, nothing = set(rows), np.empty(0, dtype=np.int64)
        for row, query in enumerate(queries):
            if row not in wanted:
                yield Neighbors(0, (), nothing, is_new=True)
                continue
            theirs, ours = next(others), next(earlier)
            theirs = theirs[theirs != place_of.get(query, -1)]
            claims = {one for kind in np.unique(kind_of[theirs]) for one in listed[kind]}
            yield Neighbors(
                len(theirs), tuple(claims), ours[ours < row], is_new=query not in place_of
            )

    # Storage ----------------------------------------------------------------------------------

    @property
    def sketch_key(self) -> bytes:
        """Key of all sketches that are kept here; secret, so that nobody else can fit them."""
        with transaction(self._database) as connection:
            return bytes(the_journal(connection).sketch_key)

    def claims_of(self, queries: Collection[bytes]) -> list[PlanClaim]:
        """Return the claims of all plans that claimed one of these queries."""
        if not queries:
            return []
        with transaction(self._database) as connection:
            return _claims_of(connection, queries)

    def claims_of_each(self, queries: Sequence[bytes]) -> list[frozenset[PlanClaim]]:
        """Return, for each of some queries, the claims of all plans that claimed it."""
        plans_of: dict[bytes, set[bytes]] = {}
        with transaction(self._database) as connection:
            for part in parts_of(queries):
                for query, plan in connection.execute(_PLANS_OF, {"queries": part}):
                    plans_of.setdefault(query, set()).add(plan)
            named = list(set().union(*plans_of.values()))
            records = {
                plan: record
                for part in parts_of(named)
                for plan, record in connection.execute(_CLAIM_OF, {"plans": part})
                if record is not None
            }
        claim_in = {record: claim_of(record) for record in set(records.values())}
        return [
            frozenset(
                claim_in[records[plan]] for plan in plans_of.get(query, ()) if plan in records
            )
            for query in queries
        ]

    def claim(self, batch: SketchedQueries, *, plan_digest: bytes, claim: PlanClaim) -> None:
        """Note that these queries are about to be answered for one plan, and their sketches.

        A sketch that was noted before stays. Raises `KeyReuseError` where the plan claimed queries
        before, is abandoned or decided; or `bound_on` refuses a query. None is noted then.
        """
        with transaction(self._database) as connection:
            plan = plan_in(connection, plan_digest)
            require_whole(plan)
            if plan.claim is not None or plan.is_abandoned or plan.verdict is not None:
                raise KeyReuseError("a plan must ask its queries once")
            _require_each_once(batch.queries)
            bound_on(_claims_of(connection, batch.queries), ())
            note_plan(connection, plan_digest, claim=record_of(claim))
            _note_sketches(connection, batch)
            rows = ({"query": query, "plan_digest": plan_digest} for query in batch.queries)
            write_many(connection, _NEW_CLAIM, rows)

    def count(self) -> int:
        """Return the number of queries that were claimed, each once."""
        with transaction(self._database) as connection:
            return connection.scalars(_COUNT).one()

    def count_new(self, queries: Sequence[bytes]) -> int:
        """Return how many of these queries were never claimed."""
        with transaction(self._database) as connection:
            return len(set(queries) - _claimed_among(connection, queries))

    def known_sketches(self) -> KnownSketches:
        """Return the sketches of all claimed queries that have one."""
        with transaction(self._database) as connection:
            rows = connection.execute(_SKETCHES).all()
        sketches = from_bytes(b"".join(row.sketch for row in rows))
        return KnownSketches(
            tuple(row.query for row in rows), sketches, sum(row.is_near for row in rows)
        )


def _require_each_once(queries: Sequence[bytes]) -> None:
    if len(set(queries)) != len(queries):
        raise KeyReuseError("a batch must ask each query once")


def _claims_of(connection: Connection, queries: Collection[bytes]) -> list[PlanClaim]:
    found = {
        record
        for part in parts_of(list(queries))
        for record in connection.scalars(_CLAIMS, {"queries": part})
    }
    return [claim_of(record) for record in found if record is not None]


def _note_sketches(connection: Connection, batch: SketchedQueries) -> None:
    """Keep the sketches of a batch; a query that is claimed already keeps its own."""
    claimed = _claimed_among(connection, batch.queries)
    items = zip(batch.queries, to_bytes(batch.sketches), batch.near.tolist(), strict=True)
    rows = (
        {"query": query, "sketch": data, "is_near": near}
        for query, data, near in items
        if query not in claimed
    )
    write_many(connection, _PUT_SKETCH, rows)


def _claimed_among(connection: Connection, queries: Sequence[bytes]) -> set[bytes]:
    return {
        query
        for part in parts_of(queries)
        for query in connection.scalars(_CLAIMED, {"queries": part})
    }
