"""Which run a hospital's charge belongs to, when the audit log names it late or not at all."""

from __future__ import annotations

from collections.abc import Iterable

from party.decision.run_spending import RunSpending, spending_by_run
from party.storage.site_audit_log import SiteAct
from pate_fed.accounting import FormalCost, GaussianMaxEvent, PrivacyLedger
from pate_fed.nodes.audit_log import AuditEntry
from pate_fed.terms import RunTerms

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
