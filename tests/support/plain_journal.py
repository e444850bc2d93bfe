"""A party's journal in plain dictionaries, copied a million times over by `sum_model`.

It keeps the plans and the queries alone. `tests.test_party.test_journal` holds it against the
product's, call by call.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from party.storage.query_journal import QueryJournal
from protocols.errors import KeyReuseError
from protocols.rounds import PlanClaim
from protocols.rounds.round_journal import MOST_UNSERVED


@dataclass(frozen=True, slots=True)
class PlainPlan:
    """A plan: the fields of `site_schema.PlanRow`, its queries, and if its y is kept."""

    run_id: bytes = b""
    epoch: int = 0
    verdict: bytes = b""
    is_answered: bool = False
    has_frames: bool = False
    is_abandoned: bool = False
    claim: PlanClaim | None = None
    queries: tuple[bytes, ...] = ()


class PlainQueries(QueryJournal):
    """The queries of a `PlainJournal`; the rules are the product's."""

    def __init__(self) -> None:
        self.plans: dict[bytes, PlainPlan] = {}

    def claims_of(self, queries: Collection[bytes]) -> list[PlanClaim]:
        asked = set(queries)
        held = {plan.claim for plan in self.plans.values() if asked & {*plan.queries}}
        return [claim for claim in held if claim is not None]

    def claim(self, queries: Sequence[bytes], *, plan_digest: bytes, claim: PlanClaim) -> None:
        plan = self.plans.get(plan_digest, PlainPlan())
        if plan.claim is not None or plan.is_abandoned or plan.verdict:
            raise KeyReuseError("a plan must ask its queries once", "one that did")
        self.bound_on(queries)
        self.plans[plan_digest] = replace(plan, claim=claim, queries=tuple(queries))

    @property
    def claimed(self) -> set[bytes]:
        """Every query that was claimed."""
        return {query for plan in self.plans.values() for query in plan.queries}

    def count(self) -> int:
        return len(self.claimed)

    def count_new(self, queries: Sequence[bytes]) -> int:
        return len(set(queries) - self.claimed)


class PlainJournal:
    """What the model needs of a `Journal`."""

    def __init__(self) -> None:
        self.queries = PlainQueries()

    def copied(self) -> Self:
        """Another one that can be written to without changing this one."""
        other = copy.copy(self)
        other.queries = copy.copy(self.queries)
        other.queries.plans = dict(self.queries.plans)
        return other

    @property
    def content(self) -> Hashable:
        """All that it holds, in no order."""
        return frozenset(self.queries.plans.items())

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        plan = self._plan(plan_digest)
        last = max((one.epoch for one in self._plans_of(run_id)), default=0)
        if plan.epoch or plan.is_abandoned or plan.verdict or epoch <= last:
            raise KeyReuseError("a plan must be new and its epoch ahead", "one served before")
        self.queries.plans[plan_digest] = replace(plan, run_id=run_id, epoch=epoch)

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        plan = self._plan(plan_digest)
        if not plan.epoch or plan.is_answered or plan.is_abandoned or plan.verdict:
            raise KeyReuseError(
                "a plan must be begun and answered once", "one that is over or unknown"
            )
        self.queries.plans[plan_digest] = replace(plan, is_answered=True, has_frames=True)

    def erase(self, plan_digest: bytes) -> None:
        if plan_digest in self.queries.plans:
            plan = self._plan(plan_digest)
            self.queries.plans[plan_digest] = replace(plan, has_frames=False)

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        plan = self._plan(plan_digest)
        if plan.is_answered:
            raise KeyReuseError("a plan that is abandoned must have no y", "one that was kept")
        if not plan.is_abandoned:
            run_id = self._noted_run(plan, run_id)
            gone = replace(plan, run_id=run_id, is_abandoned=True, claim=None, queries=())
            self.queries.plans[plan_digest] = gone

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        plan = self._plan(plan_digest)
        if plan.verdict not in (b"", verdict_digest):
            raise KeyReuseError("a party must give one verdict on a plan", "another")
        if not plan.verdict:
            run_id = self._noted_run(plan, run_id)
            self.queries.plans[plan_digest] = replace(plan, run_id=run_id, verdict=verdict_digest)

    def verdict_on(self, plan_digest: bytes) -> bytes:
        return self._plan(plan_digest).verdict

    def run_of(self, plan_digest: bytes) -> bytes:
        return self._plan(plan_digest).run_id

    def claim_on(self, plan_digest: bytes) -> PlanClaim | None:
        """The claim of a plan; None if it claims nothing."""
        return self._plan(plan_digest).claim

    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        plan = self._plan(plan_digest)
        if plan.claim is not None and not plan.claim.is_free:
            learned = replace(plan, claim=plan.claim.learning(claim))
            self.queries.plans[plan_digest] = learned

    def _plan(self, plan_digest: bytes) -> PlainPlan:
        return self.queries.plans.get(plan_digest, PlainPlan())

    def _plans_of(self, run_id: bytes) -> list[PlainPlan]:
        return [plan for plan in self.queries.plans.values() if plan.run_id == run_id]

    def _noted_run(self, plan: PlainPlan, run_id: bytes) -> bytes:
        """Count a plan that was never begun here against its run."""
        if plan.run_id:
            return plan.run_id
        if sum(not one.epoch for one in self._plans_of(run_id)) >= MOST_UNSERVED:
            raise KeyReuseError(f"a run must have at most {MOST_UNSERVED} unserved plans", "more")
        return run_id
