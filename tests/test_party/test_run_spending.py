"""Which run a hospital's charge belongs to, when the audit log names it late or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from party.decision.run_spending import RunSpending, spending_by_run
from party.storage.ledger_store import RunCharges
from party.storage.site_audit_log import SiteAct
from pate_fed.accounting import FormalCost, GaussianMaxEvent, PrivacyLedger
from pate_fed.charges import RunLedger, whole_charge
from pate_fed.nodes.audit_log import AuditEntry
from pate_fed.prices import charged_price, run_price
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.votes import TeacherWeights
from tests.support.rules import run_terms

LUNG, HEART = b"l" * 32, b"h" * 32
FIRST, SECOND = b"1" * 32, b"2" * 32
PLAN = b"p" * 32


def accepted(run: bytes, coordinator: bytes) -> AuditEntry:
    return AuditEntry(1, 0, SiteAct.RUN_ACCEPTED, {"run": run, "coordinator": coordinator})


def charged(plan: bytes) -> AuditEntry:
    return AuditEntry(2, 0, SiteAct.CHARGED, {"charge": plan.hex()})


def spending(ledger: PrivacyLedger, records: Iterable[AuditEntry]) -> tuple[RunSpending, ...]:
    """No account of any of these runs is kept."""
    return spending_by_run(ledger, records, charges=lambda run: None, costs=run_costs)


def run_costs(terms: RunTerms) -> FormalCost:
    raise AssertionError("no terms are known")


def runs_of(*records: AuditEntry) -> list[tuple[str, bytes]]:
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve(PLAN.hex(), GaussianMaxEvent(1, 40.0))
    return [(one.run, one.coordinator) for one in spending(ledger, records)]


def test_every_charge_is_counted_and_the_open_ones_again() -> None:
    ledger = PrivacyLedger.for_life(5.0, 1e-5)
    for name in ("one", "two", "three"):
        ledger = ledger.reserve(name, GaussianMaxEvent(1, 40.0))
    ledger = ledger.forfeit("two").cancel("three")
    [unnamed] = spending(ledger, [])
    assert (unnamed.run, unnamed.batches, unnamed.open_batches) == ("", 3, 1)
    assert unnamed.share == ledger.used_share()


def test_an_unanswered_charge_is_of_the_last_run_of_the_only_coordinator() -> None:
    records = accepted(FIRST, LUNG), accepted(SECOND, LUNG), charged(PLAN)
    assert runs_of(*records) == [(SECOND.hex(), LUNG)]


def test_an_unanswered_charge_is_of_no_run_where_two_coordinators_may_have_asked() -> None:
    records = accepted(FIRST, LUNG), accepted(SECOND, HEART), charged(PLAN)
    assert runs_of(*records) == [("", b"")]


def test_an_answer_names_the_run_of_its_charge() -> None:
    answer = {"run": FIRST, "plan": PLAN}
    answered = AuditEntry(3, 0, SiteAct.BATCH_ANSWERED, answer)
    records = accepted(FIRST, LUNG), accepted(SECOND, HEART), charged(PLAN), answered
    assert runs_of(*records) == [(FIRST.hex(), LUNG)]


VIEWS: dict[str, tuple[str, dict[str, int]]] = {
    "aggregators": ("the coordinator or the tally", {}),
    "parties": ("the coordinator", {"colluders": 1, "dropouts": 0}),
    "coordinator": ("readers", {}),
}
"""Whose view is charged, by the place of the noise."""


def spent_at(place: str) -> tuple[PrivacyLedger, RunSpending, RunTerms]:
    """A run of five hospitals that is charged in full."""
    view: dict[str, Any] = dict(VIEWS[place][1])
    terms = run_terms(
        name="run",
        pool_digest=bytes(32),
        task_digest=NO_TASK,
        classes=2,
        weights=(TeacherWeights.equal(10),) * 5,
        mechanism="gnmax",
        sigma2=6.0,
        unit="record",
        max_asks=10,
        max_answers=10,
        budgets=(5.0,) * 5,
        delta=1e-5,
        noise_place=place,
        **view,
    )
    charge = whole_charge(terms, 0)
    assert charge is not None
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve(PLAN.hex(), charge)
    account = RunCharges(b"scope", 0, RunLedger.of(terms, at_party=True))
    records = accepted(FIRST, LUNG), charged(PLAN)
    [found] = spending_by_run(ledger, records, charges=lambda run: account, costs=run_price)
    return ledger, found, terms


@pytest.mark.parametrize("place", VIEWS)
def test_the_number_that_is_charged_stands_beside_that_of_readers(place: str) -> None:
    _, found, terms = spent_at(place)
    readers = run_price(terms)
    assert (found.epsilon, found.view) == (readers.epsilon, readers.holds_for)
    charged = charged_price(terms, 0).epsilon, VIEWS[place][0]
    assert (found.charged_epsilon, found.charged_view) == charged
    assert (found.charged_epsilon > readers.epsilon) is (place != "coordinator")
