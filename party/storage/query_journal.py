"""Every query that a party ever answered, over all runs and federations (rule R3).

A journal belongs to the hospital and its records, not to one federation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import BindParameter, Connection, bindparam, func, insert, select

from party.storage.journal_rows import (
    claim_of,
    note_plan,
    plan_in,
    record_of,
    require_whole,
    transaction,
    write_many,
)
from party.storage.party_database import PartyDatabase
from party.storage.site_schema import ClaimRow, PlanRow
from pate_fed.nodes.database import parts_of
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


class QueryJournal:
    """The queries of a party's plans, and their claims, in its database."""

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    # Rules ------------------------------------------------------------------------------------

    def bound_on(self, queries: Sequence[bytes]) -> SetBound:
        """Return the bound on the set of parties that a plan with these queries may open.

        They are `QueryBatch.digests`: the content of a query, not its place in a pool, since the
        same row in another pool is the same question.

        Raises `KeyReuseError` where a query comes twice or was answered, or a set that nobody knows
        may be open for it.
        """
        _require_each_once(queries)
        return bound_on(self.claims_of(queries))

    # Storage ----------------------------------------------------------------------------------

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

    def claim(self, queries: Sequence[bytes], *, plan_digest: bytes, claim: PlanClaim) -> None:
        """Note that these queries are about to be answered for one plan.

        Raises `KeyReuseError` where the plan claimed queries
        before, is abandoned or decided; or `bound_on` refuses a query. None is noted then.
        """
        with transaction(self._database) as connection:
            plan = plan_in(connection, plan_digest)
            require_whole(plan)
            if plan.claim is not None or plan.is_abandoned or plan.verdict is not None:
                raise KeyReuseError("a plan must ask its queries once")
            _require_each_once(queries)
            bound_on(_claims_of(connection, queries))
            note_plan(connection, plan_digest, claim=record_of(claim))
            rows = ({"query": query, "plan_digest": plan_digest} for query in queries)
            write_many(connection, _NEW_CLAIM, rows)

    def count(self) -> int:
        """Return the number of queries that were claimed, each once."""
        with transaction(self._database) as connection:
            return connection.scalars(_COUNT).one()

    def count_new(self, queries: Sequence[bytes]) -> int:
        """Return how many of these queries were never claimed."""
        with transaction(self._database) as connection:
            return len(set(queries) - _claimed_among(connection, queries))


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


def _claimed_among(connection: Connection, queries: Sequence[bytes]) -> set[bytes]:
    return {
        query
        for part in parts_of(queries)
        for query in connection.scalars(_CLAIMED, {"queries": part})
    }
