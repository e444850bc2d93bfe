"""Which refusals are put on record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from party.decision.decision_log import MOST_A_DAY, Refusals
from party.storage import PartyDatabase, SiteAuditLog
from party.storage.site_audit_log import SiteAct

DAY_S = 86_400.0
NOON = 20_000 * DAY_S + 43_200


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SiteAuditLog]:
    with PartyDatabase.create(tmp_path / "party.db") as database:
        yield SiteAuditLog(database)


def refuse(refusals: Refusals, terms: int, *, at: float = NOON) -> None:
    refusals.note(SiteAct.RUN_REFUSED, {"code": "PF-314", "terms": b"%d" % terms}, at=at)


@pytest.mark.parametrize("offers", [1, 2, 7])
def test_offers_that_alternate_are_each_on_record_once(log: SiteAuditLog, offers: int) -> None:
    refusals = Refusals(log)
    for terms in islice(cycle(range(offers)), 50):
        refuse(refusals, terms)
    assert log.end[0] == offers
    # Nor again after a restart.
    refuse(Refusals(log), 0)
    assert log.end[0] == offers


def test_the_same_offer_that_is_refused_for_another_reason_is_on_record_again(
    log: SiteAuditLog,
) -> None:
    refusals = Refusals(log)
    for code in ("PF-314", "PF-323", "PF-314", "PF-323"):
        refusals.note(SiteAct.RUN_REFUSED, {"code": code, "terms": b"a"}, at=NOON)
    assert [record.facts["code"] for record in log.entries()] == ["PF-314", "PF-323"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_flood_of_offers_leaves_no_more_than_a_days_worth(
    log: SiteAuditLog, is_restarted: bool
) -> None:
    refusals = Refusals(log)
    for terms in range(2 * MOST_A_DAY):
        refuse(refusals, terms)
        if is_restarted and terms in (MOST_A_DAY // 2, MOST_A_DAY + 5):
            refusals = Refusals(log)
    kinds = [record.act for record in log.entries()]
    assert kinds == [SiteAct.RUN_REFUSED] * MOST_A_DAY + [SiteAct.REFUSALS_LEFT_OUT]
    refuse(refusals, 10_000, at=NOON + DAY_S)
    assert log.end[0] == MOST_A_DAY + 2
    assert log.verify() == log.end[0]


def test_refused_batches_count_too(log: SiteAuditLog) -> None:
    refusals = Refusals(log)
    for number in range(2 * MOST_A_DAY):
        plan = number.to_bytes(32, "big")
        refusals.note(SiteAct.BATCH_REFUSED, {"plan": plan, "code": "PF-317"}, at=NOON)
    assert log.end[0] == MOST_A_DAY + 1
