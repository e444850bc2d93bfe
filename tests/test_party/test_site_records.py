"""What the site's people decided: pins, approvals, settings, each with its audit record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from party.audit import AuditKind
from party.audit_log import AuditLog
from party.errors import RecordError, StorageError
from party.site_records import ApprovalState, SiteRecords, Subject
from party.storage import PartyDatabase
from protocols.identity import SigningIdentity

PEER, OTHER = SigningIdentity.generate().public, SigningIdentity.generate().public
POOL, RUN = b"p" * 32, b"r" * 32


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PartyDatabase]:
    with PartyDatabase.at(tmp_path / "party.db") as opened:
        yield opened


@pytest.fixture
def records(database: PartyDatabase) -> SiteRecords:
    ticks = count(1_000)
    return SiteRecords(database, clock=lambda: float(next(ticks)))


def logged(database: PartyDatabase) -> list[tuple[AuditKind, dict[str, Any]]]:
    log = AuditLog(database)
    log.verify()
    return [(record.kind, dict(record.detail)) for record in log.records()]


class TestPins:
    def test_a_pin_says_who_was_checked_how_and_by_whom(
        self, records: SiteRecords, database: PartyDatabase
    ) -> None:
        pin = records.add_pin("north", PEER, how="words by telephone", by="A. Meyer")
        assert records.pins() == {PEER.fingerprint: pin}
        assert (pin.identity, pin.checked_how, pin.pinned_at) == (PEER, "words by telephone", 1000)
        [(kind, detail)] = logged(database)
        assert kind is AuditKind.PIN_ADDED
        assert detail == {
            "name": "north",
            "fingerprint": PEER.fingerprint,
            "how": "words by telephone",
            "by": "A. Meyer",
        }

    @pytest.mark.parametrize(
        ("name", "identity"),
        [
            pytest.param("north", OTHER, id="name"),
            pytest.param("south", PEER, id="identity"),
            pytest.param("north", PEER, id="both"),
        ],
    )
    def test_a_name_and_an_identity_are_pinned_once(
        self, records: SiteRecords, database: PartyDatabase, name: str, identity: Any
    ) -> None:
        records.add_pin("north", PEER, how="in person", by="A. Meyer")
        before = logged(database)
        with pytest.raises(RecordError):
            records.add_pin(name, identity, how="by mail", by="M. Allory")
        assert [pin.checked_how for pin in records.pins().values()] == ["in person"]
        assert logged(database) == before

    def test_a_pin_is_replaced_only_after_it_was_removed(
        self, records: SiteRecords, database: PartyDatabase
    ) -> None:
        records.add_pin("north", PEER, how="in person", by="A. Meyer")
        records.remove_pin("north", by="A. Meyer")
        assert records.pins() == {}
        records.add_pin("north", OTHER, how="in person", by="A. Meyer")
        assert list(records.pins()) == [OTHER.fingerprint]
        kinds = [kind for kind, _ in logged(database)]
        assert kinds == [AuditKind.PIN_ADDED, AuditKind.PIN_REMOVED, AuditKind.PIN_ADDED]
        with pytest.raises(RecordError):
            records.remove_pin("south", by="A. Meyer")


class TestApprovals:
    def test_what_is_asked_waits_and_is_noted_once(
        self, records: SiteRecords, database: PartyDatabase
    ) -> None:
        first = records.ask(Subject.POOL, POOL)
        assert first.state is ApprovalState.PENDING
        assert records.ask(Subject.POOL, POOL) == first
        assert records.approvals(ApprovalState.PENDING) == (first,)
        assert len(logged(database)) == 1
        assert not records.is_approved(Subject.POOL, POOL)

    def test_a_person_decides_and_may_think_again(
        self, records: SiteRecords, database: PartyDatabase
    ) -> None:
        records.ask(Subject.RUN, RUN)
        approved = records.approve(Subject.RUN, RUN, by="A. Meyer")
        assert (approved.state, approved.decided_by) == (ApprovalState.APPROVED, "A. Meyer")
        assert records.is_approved(Subject.RUN, RUN)
        # Asked again it stands as it was decided: a message changes nothing.
        assert records.ask(Subject.RUN, RUN) == approved
        records.reject(Subject.RUN, RUN, by="B. Ito")
        assert not records.is_approved(Subject.RUN, RUN)
        kinds = [kind for kind, _ in logged(database)]
        assert kinds == [AuditKind.ASKED, AuditKind.APPROVED, AuditKind.REJECTED]

    def test_nothing_is_approved_that_was_not_asked(
        self, records: SiteRecords, database: PartyDatabase
    ) -> None:
        for decide in (records.approve, records.reject):
            with pytest.raises(RecordError):
                decide(Subject.POOL, POOL, by="A. Meyer")
        assert logged(database) == []

    def test_a_pool_is_not_approved_as_a_run(self, records: SiteRecords) -> None:
        records.ask(Subject.RUN, POOL)
        records.approve(Subject.RUN, POOL, by="A. Meyer")
        assert not records.is_approved(Subject.POOL, POOL)
        assert records.approved_pools() == frozenset()

    def test_the_guard_gets_approved_pools_and_no_others(self, records: SiteRecords) -> None:
        for pool in (POOL, RUN, b"q" * 32):
            records.ask(Subject.POOL, pool)
        records.approve(Subject.POOL, POOL, by="A. Meyer")
        records.reject(Subject.POOL, RUN, by="A. Meyer")
        assert records.approved_pools() == {POOL}


class TestSettings:
    def test_a_setting_is_there_again_and_its_changes_are_logged(
        self, records: SiteRecords, database: PartyDatabase
    ) -> None:
        assert records.setting("paused") is None
        for value in ("yes", "yes", "no"):
            records.set("paused", value, by="A. Meyer")
        assert records.setting("paused") == "no"
        assert records.settings() == {"paused": "no"}
        assert [detail["value"] for _, detail in logged(database)] == ["yes", "no"]


def test_a_decision_whose_record_cannot_be_stored_is_none(
    records: SiteRecords, database: PartyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.ask(Subject.POOL, POOL)

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the log must be writable", "a full disk")

    monkeypatch.setattr(AuditLog, "append", fail)
    for decide in (
        lambda: records.approve(Subject.POOL, POOL, by="A. Meyer"),
        lambda: records.add_pin("north", PEER, how="in person", by="A. Meyer"),
        lambda: records.set("paused", "yes", by="A. Meyer"),
    ):
        with pytest.raises(StorageError):
            decide()
    monkeypatch.undo()
    assert records.approved_pools() == frozenset()
    assert (records.pins(), records.settings()) == ({}, {})
