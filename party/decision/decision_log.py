"""A node's decisions, written down before any of their consequences leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from party.decision.decisions import (
    BatchAccepted,
    BatchRefused,
    Decision,
    RunAccepted,
    RunClosed,
    RunRefused,
    record_of,
)
from party.decision.federation_node import FederationNode
from party.errors import Reason, RefusalError, TooManyPendingError
from party.site.people_decisions import Approval, ApprovalState, PeopleDecisions, Subject
from party.storage import SiteAuditLog
from party.storage.site_audit_log import SiteAct
from pate_fed.nodes.audit_log import Facts
from pate_fed.terms import RunTerms
from protocols.run_scope import RunScope
from protocols.values import decode_value, digest_of_values

MOST_A_DAY = 100
"""Further refusals of one day leave one record for all."""

_DAY_S = 86_400
_LABEL = "refusal on record"
_KINDS = (SiteAct.RUN_REFUSED, SiteAct.BATCH_REFUSED)


class DecisionLog:
    """The decisions of a site's nodes in its audit log, and its questions to people."""

    def __init__(
        self,
        audit: SiteAuditLog,
        decisions: PeopleDecisions,
        *,
        clock: Callable[[], float],
        asks_about_runs: bool,
    ) -> None:
        self._audit = audit
        self._decisions = decisions
        self._refusals = Refusals(audit)
        self._clock = clock
        self._asks_about_runs = asks_about_runs

    def note(self, one: FederationNode, decision: Decision) -> None:
        """Write down a node's decision.

        Raises `RefusalError` where nobody can be asked about one more run, `ApprovalError` where a
        person took the approval back: the decision is another.
        """
        at, (kind, detail) = self._clock(), record_of(decision)
        match decision:
            case RunAccepted(run_id):
                self._audit.append(kind, detail, at=at)
                accepted = one.status.runs_accepted + 1
                one.status = replace(one.status, run=run_id.hex(), runs_accepted=accepted)
            case RunRefused(run_id, Reason.POOL | Reason.APPROVAL | Reason.TALLY, scope):
                try:
                    self._ask_people(scope)
                except TooManyPendingError as error:
                    # It waits for nobody: the coordinator is told so, and offers it again.
                    self.note(one, RunRefused(run_id, Reason.PENDING, scope))
                    raise RefusalError(Reason.PENDING, error.must, error.got) from error
                self._note_refusal(one, decision)
            case RunRefused():
                self._note_refusal(one, decision)
            case BatchAccepted(scope=scope):
                if self._asks_about_runs:
                    self._decisions.use(
                        scope.digest,
                        coordinator=scope.coordinator,
                        kind=kind,
                        detail=detail,
                    )
                else:
                    self._audit.append(kind, detail, at=at)
                answered = one.status.batches_answered + 1
                one.status = replace(one.status, batches_answered=answered)
            case RunClosed():
                self._audit.append(kind, detail, at=at)
            case BatchRefused():
                refused = one.status.batches_refused + 1
                one.status = replace(one.status, batches_refused=refused)
                self._note_refusal(one, decision)

    def decision_on(self, scope: RunScope) -> Approval | None:
        """Return the decision of people that a run depends on; None where they were not asked.

        Where they decide each run, to approve it approves its pool. A pool that was rejected after
        that rejects the run.
        """
        pool = self._decisions.decision(
            Subject.POOL, _pool_of(scope), coordinator=scope.coordinator
        )
        if not self._asks_about_runs:
            return pool
        run = self._decisions.decision(Subject.RUN, scope.digest, coordinator=scope.coordinator)
        is_approved = run is not None and run.state is ApprovalState.APPROVED
        if is_approved and pool is not None and pool.state is ApprovalState.REJECTED:
            return pool
        return run

    def _note_refusal(self, one: FederationNode, refusal: RunRefused | BatchRefused) -> None:
        at, (kind, detail) = self._clock(), record_of(refusal)
        one.status = replace(one.status, last_refusal=refusal.reason.value, last_refusal_at=at)
        self._refusals.note(kind, detail, at=at)

    def _ask_people(self, scope: RunScope) -> None:
        asked = [(Subject.POOL, _pool_of(scope))]
        if self._asks_about_runs:
            asked.append((Subject.RUN, scope.digest))
        for subject, digest in asked:
            self._decisions.ask(
                subject,
                digest,
                coordinator=scope.coordinator,
                terms=scope.terms,
                seats=scope.seats,
                form=scope.form,
                suite=scope.suite,
                tally=scope.tally,
            )


def _pool_of(scope: RunScope) -> bytes:
    return RunTerms.from_record(decode_value(scope.terms)).pool_digest


class Refusals:
    """The refusals in a site's audit log: each once, and a limited number per day.

    The coordinator can offer any number of different runs: its offers must not fill the hospital's
    disk. A refusal without a record is still a refusal.
    """

    def __init__(self, log: SiteAuditLog) -> None:
        self._log = log
        self._known: set[bytes] = set()
        self._day = self._today = 0
        for record in log.entries():
            if record.act in _KINDS:
                self._count(_digest(record.act, record.facts), at=record.at / 1000)
            elif record.act is SiteAct.REFUSALS_LEFT_OUT:
                self._count(b"", at=record.at / 1000)

    def note(self, kind: SiteAct, detail: Facts, *, at: float) -> None:
        """Put a refusal on record, unless it is there already or the day is full."""
        digest = _digest(kind, detail)
        if digest in self._known:
            return
        today = self._today if self._day == _day_of(at) else 0
        if today < MOST_A_DAY:
            self._log.append(kind, detail, at=at)
            self._count(digest, at=at)
        elif today == MOST_A_DAY:
            self._log.append(SiteAct.REFUSALS_LEFT_OUT, {"after": MOST_A_DAY}, at=at)
            self._count(b"", at=at)

    def _count(self, digest: bytes, *, at: float) -> None:
        if self._day != _day_of(at):
            self._day, self._today = _day_of(at), 0
        self._today += 1
        if digest:
            self._known.add(digest)


def _digest(kind: StrEnum, detail: Facts) -> bytes:
    return digest_of_values(_LABEL, [kind.value, dict(detail)])


def _day_of(at: float) -> int:
    return int(at // _DAY_S)
