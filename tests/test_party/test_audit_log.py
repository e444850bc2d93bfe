"""What the site did is told as it was: edited, moved, left out, cut, written anew."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import CoordinatorError
from party.decision.decisions import Decision, record_of
from party.errors import BrokenAuditLogError, StorageError
from party.flower.serving import serve
from party.service import PartyService
from party.site.folder import Site
from party.storage import AuditLog, Journal, LedgerStore, PartyDatabase
from party.storage.audit import AuditKind, AuditRecord, sign_head
from pate_fed.nodes.forwarding import Forwarding
from protocols import wire
from protocols.enrollment import read_audit_head
from protocols.errors import MalformedMessageError, ProtocolError
from protocols.identity import SigningIdentity
from protocols.membership import AuditHead
from tests.support.federation import TEACHERS, Federation
from tests.support.hospital_site import make_site

SITE = SigningIdentity.generate()
RECORDS = 6
Tamper = Callable[[sqlite3.Connection], object]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PartyDatabase]:
    with PartyDatabase.create(tmp_path / "party.db") as opened:
        yield opened


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def filled(database: PartyDatabase, *, records: int = RECORDS) -> AuditLog:
    log = AuditLog(database)
    for place in range(records):
        detail: dict[str, str | int | bytes] = {"run": bytes([place]), "epsilon": "0.25"}
        log.append(AuditKind.CHARGED, detail, at=100.25 + place)
    return log


def tampered(database: PartyDatabase, tamper: Tamper) -> None:
    """Act as somebody who can write the file."""
    with closing(sqlite3.connect(database.path)) as file:
        tamper(file)
        file.commit()


def edit(number: int) -> Tamper:
    body = AuditRecord(number, 100_250, AuditKind.CHARGED, {"epsilon": "0.01"}).to_bytes()
    return lambda file: file.execute("UPDATE audit SET body = ? WHERE number = ?", (body, number))


def swap(one: int, other: int) -> Tamper:
    def move(file: sqlite3.Connection) -> None:
        for old, new in ((one, -1), (other, one), (-1, other)):
            file.execute("UPDATE audit SET number = ? WHERE number = ?", (new, old))

    return move


def drop(*numbers: int) -> Tamper:
    return lambda file: file.executemany("DELETE FROM audit WHERE number = ?", zip(numbers))


def leave_out_and_close_up(number: int) -> Tamper:
    def act(file: sqlite3.Connection) -> None:
        drop(number)(file)
        for later in range(number + 1, RECORDS + 1):
            file.execute("UPDATE audit SET number = ? WHERE number = ?", (later - 1, later))

    return act


def write_anew(count: int) -> Tamper:
    """Write a whole chain, right in itself, that tells another story."""

    def act(file: sqlite3.Connection) -> None:
        file.execute("DELETE FROM audit")
        link = hashlib.sha256(b"pate-fed/1/audit log\0first").digest()
        for number in range(1, count + 1):
            body = AuditRecord(number, 100_250, AuditKind.RUN_REFUSED, {}).to_bytes()
            link = hashlib.sha256(b"pate-fed/1/audit log\0record\0" + link + body).digest()
            file.execute("INSERT INTO audit VALUES (?, ?, ?)", (number, body, link))

    return act


class TestRecords:
    def test_they_are_there_again_in_order(self, database: PartyDatabase) -> None:
        log = filled(database)
        assert log.verify() == log.end[0] == RECORDS
        assert [record.number for record in log.records()] == list(range(1, RECORDS + 1))
        last = list(log.records(first=RECORDS))
        expected = {"run": bytes([RECORDS - 1]), "epsilon": "0.25"}
        assert last == [AuditRecord(RECORDS, 105_250, AuditKind.CHARGED, expected)]

    def test_an_empty_log_is_whole_and_has_a_head(self, database: PartyDatabase) -> None:
        log = AuditLog(database)
        assert (log.verify(), log.end[0], len(log.end[1])) == (0, 0, 32)
        assert log.verify(heads=[log.end]) == 0

    def test_the_chain_is_what_the_page_says(self, database: PartyDatabase) -> None:
        """Computed here once more, from the bytes alone."""
        log = filled(database, records=2)
        link = hashlib.sha256(b"pate-fed/1/audit log\0first").digest()
        for place in range(2):
            detail = {"run": bytes([place]), "epsilon": "0.25"}
            body = wire.encode_value([place + 1, 100_250 + 1000 * place, "charged", detail])
            link = hashlib.sha256(b"pate-fed/1/audit log\0record\0" + link + body).digest()
        assert log.end[1] == link

    def test_a_record_is_stored_with_what_it_is_about_or_not_at_all(
        self, database: PartyDatabase
    ) -> None:
        log = filled(database)

        def fail_after_it() -> None:
            with database.transaction() as connection:
                log.append(AuditKind.APPROVED, {}, at=1.0, connection=connection)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_it()
        assert log.end[0] == log.verify() == RECORDS

    def test_many_records_are_checked_in_parts(self, database: PartyDatabase) -> None:
        log = AuditLog(database)
        with database.transaction() as connection:
            for _ in range(2_100):
                log.append(AuditKind.SETTLED, {}, at=1.0, connection=connection)
        assert log.verify() == 2_100
        tampered(database, edit(2_050))
        with pytest.raises(BrokenAuditLogError) as caught:
            log.verify()
        assert caught.value.number == 2_050

    @given(
        detail=st.dictionaries(
            st.text(max_size=9), st.one_of(st.text(), st.binary(), st.integers(0, 2**63))
        )
    )
    def test_a_record_comes_back_from_its_bytes(self, detail: dict[str, str | bytes | int]) -> None:
        record = AuditRecord(7, 5, AuditKind.SETTINGS_CHANGED, detail)
        assert AuditRecord.from_bytes(record.to_bytes()) == record

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param([1, 2, "no such kind", {}], id="kind"),
            pytest.param([1, 2, "charged"], id="short"),
            pytest.param([1, 2, "charged", {"a": [1]}], id="nested"),
            pytest.param("charged", id="text"),
        ],
    )
    def test_what_is_no_record_is_refused(self, body: object) -> None:
        with pytest.raises(MalformedMessageError):
            AuditRecord.from_bytes(wire.encode_value(body))  # type: ignore[arg-type]


class TestTampering:
    @pytest.mark.parametrize(
        ("tamper", "first"),
        [
            *[pytest.param(edit(n), n, id=f"record {n} edited") for n in (1, 3, RECORDS)],
            pytest.param(swap(2, 3), 2, id="neighbors swapped"),
            pytest.param(swap(1, RECORDS), 1, id="first and last swapped"),
            pytest.param(drop(1), 1, id="first deleted"),
            pytest.param(drop(4), 4, id="middle deleted"),
            pytest.param(leave_out_and_close_up(4), 4, id="middle deleted, numbers closed up"),
            pytest.param(
                lambda file: file.execute("UPDATE audit SET link = zeroblob(32) WHERE number = 5"),
                5,
                id="link",
            ),
            pytest.param(
                lambda file: file.execute(
                    "INSERT INTO audit SELECT number + 1, body, link FROM audit WHERE number = 6"
                ),
                7,
                id="last one twice",
            ),
        ],
    )
    def test_the_first_bad_record_is_named(
        self, database: PartyDatabase, tamper: Tamper, first: int
    ) -> None:
        log = filled(database)
        tampered(database, tamper)
        with pytest.raises(BrokenAuditLogError) as caught:
            log.verify()
        assert (caught.value.number, caught.value.code) == (first, "PF-353")

    @pytest.mark.parametrize("cut", [1, 3, RECORDS])
    def test_a_cut_end_is_told_by_a_head_that_others_hold(
        self, database: PartyDatabase, cut: int
    ) -> None:
        log = filled(database)
        held = log.end
        tampered(database, drop(*range(RECORDS - cut + 1, RECORDS + 1)))
        assert log.verify() == RECORDS - cut  # the chain alone cannot know
        assert not log.goes_on_from(*held)
        with pytest.raises(BrokenAuditLogError) as caught:
            log.verify(heads=[held])
        assert caught.value.number == RECORDS - cut + 1

    @pytest.mark.parametrize("count", [RECORDS - 1, RECORDS, RECORDS + 2])
    def test_a_chain_written_anew_is_told_by_a_head_that_others_hold(
        self, database: PartyDatabase, count: int
    ) -> None:
        log = filled(database)
        held = log.end
        tampered(database, write_anew(count))
        assert log.verify() == count
        assert not log.goes_on_from(*held)
        with pytest.raises(BrokenAuditLogError) as caught:
            log.verify(heads=[held])
        assert caught.value.number == RECORDS

    def test_a_log_that_goes_on_honestly_satisfies_every_head(
        self, database: PartyDatabase
    ) -> None:
        log, heads = AuditLog(database), []
        for place in range(5):
            heads.append(log.end)
            log.append(AuditKind.SETTLED, {}, at=float(place))
        heads.append(log.end)
        assert log.verify(heads=[*heads, heads[2]]) == 5
        assert all(log.goes_on_from(*head) for head in heads)

    def test_a_signed_head_is_this_sites_and_says_how_many_records(
        self, database: PartyDatabase
    ) -> None:
        log = filled(database)
        frame = sign_head(*log.end, SITE)
        head = read_audit_head(frame, SITE.public)
        assert (head.records, head.head) == log.end == (RECORDS, log.end[1])
        other = SigningIdentity.generate()
        for_another = wire.sign(AuditHead(other.fingerprint, RECORDS, log.end[1]), SITE).frame
        for forged in (sign_head(*log.end, other), for_another, frame[:-1], b"", b"\x00"):
            with pytest.raises(ProtocolError):
                read_audit_head(forged, SITE.public)

    def test_a_log_that_cannot_be_stored_says_so(self, database: PartyDatabase) -> None:
        log = filled(database)
        tampered(database, lambda file: file.execute("DROP TABLE audit"))
        with pytest.raises(StorageError):
            log.append(AuditKind.SETTLED, {}, at=1.0)


class TestNode:
    """What a node writes down of a run."""

    def federation(self, database: PartyDatabase, **changed: Any) -> tuple[Federation, AuditLog]:
        federation, log = Federation(**changed), AuditLog(database)
        node = federation.nodes[0]
        Journal(database)  # its process is the node
        budget = federation.nodes[0].ledger
        node._ledger = LedgerStore(database, budget=budget, clock=lambda: federation.now)

        def tell(decision: Decision) -> None:
            log.append(*record_of(decision), at=federation.now)

        node._tell = tell
        return federation, log

    def test_a_run_is_told_from_its_beginning_to_its_end(self, database: PartyDatabase) -> None:
        federation, log = self.federation(database)
        federation.run.set_up()
        federation.ask(0, 1)
        federation.ask(2)
        federation.run.close()
        told = list(log.records())
        batch = [AuditKind.CHARGED, AuditKind.BATCH_ANSWERED, AuditKind.SETTLED]
        kinds = [AuditKind.RUN_ACCEPTED, *batch, *batch, AuditKind.RUN_CLOSED]
        assert [record.kind for record in told] == kinds
        assert told[-1].detail["head"] == federation.run.round.transcript.head
        entries = [entry.entry_id for entry in federation.nodes[0].ledger.entries]
        for kind in (AuditKind.CHARGED, AuditKind.SETTLED):
            assert [r.detail["charge"] for r in told if r.kind is kind] == entries
        answered = [r.detail for r in told if r.kind is AuditKind.BATCH_ANSWERED]
        assert [str(detail["plan"].hex()) for detail in answered] == entries  # type: ignore[union-attr]
        assert [detail["queries"] for detail in answered] == [2, 1]
        assert told[0].detail["run"] == federation.run.round.run_id
        used = federation.nodes[0].ledger.used_share()
        assert float(str(told[-2].detail["lifetime_share"])) == used > 0
        assert log.verify() == len(told)

    def test_a_refused_run_and_batch_are_told_with_their_codes(
        self, database: PartyDatabase, tmp_path: Path, stack: ExitStack
    ) -> None:
        federation, log = self.federation(database, policies={0: {"least_parties": 9}})
        with pytest.raises(CoordinatorError):
            federation.run.set_up()
        [refused] = log.records()
        assert (refused.kind, refused.detail["code"]) == (AuditKind.RUN_REFUSED, "PF-310")

        another = stack.enter_context(PartyDatabase.create(tmp_path / "another.db"))
        federation, log = self.federation(another, budgets={0: 0.2})
        federation.run.set_up()

        def ask_until_it_refuses() -> None:
            for index in range(6):
                federation.ask(index)

        with pytest.raises(CoordinatorError):
            ask_until_it_refuses()
        last = [record for record in log.records() if record.kind is not AuditKind.SETTLED][-1]
        assert (last.kind, last.detail["code"]) == (AuditKind.BATCH_REFUSED, "PF-318")

    def test_what_cannot_be_written_down_is_not_done(
        self, database: PartyDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation, _ = self.federation(database)

        def fail(*_: object, **__: object) -> None:
            raise StorageError("the log must be writable", "a full disk")

        monkeypatch.setattr(AuditLog, "append", fail)
        with pytest.raises(CoordinatorError):
            federation.run.set_up()
        monkeypatch.undo()
        federation, log = self.federation(database)
        federation.run.set_up()
        monkeypatch.setattr(AuditLog, "append", fail)
        with pytest.raises(CoordinatorError):
            federation.ask(0)
        assert federation.steps[0].count("vote") == 0
        assert [record.kind for record in log.records()] == [AuditKind.RUN_ACCEPTED]

    def test_no_record_depends_on_a_vote(self, tmp_path: Path) -> None:
        """Two hospitals' teachers vote otherwise; their logs say the same until the release."""
        logs = []
        for name, label in (("one", 0), ("other", 1)):
            with PartyDatabase.create(tmp_path / name) as database:
                votes = {0: lambda batch, label=label: np.full((TEACHERS, len(batch)), label)}
                federation, log = self.federation(database, votes=votes)
                federation.run.set_up()
                federation.ask(0, 1)
                hidden = ("run", "coordinator", "plan", "charge", "terms")
                logs.append(
                    [
                        (r.kind, {k: v for k, v in r.detail.items() if k not in hidden})
                        for r in log.records()
                    ]
                )
        assert logs[0] == logs[1]
        assert len(logs[0]) == 3


def test_a_node_that_serves_copies_its_records_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate_fed.nodes.forwarding._LOOK_S", 0.01)
    monkeypatch.setattr("party.flower.serving.quiet_environment", lambda _: {})
    copy, site = tmp_path / "copy.jsonl", make_site(tmp_path / "site")
    site = site.save(replace(site.settings, audit=Forwarding(file=str(copy))))
    site = Site.open(site.folder)  # as the file says it
    service, stopped = PartyService(site), threading.Event()
    served = {"stopped": stopped, "memberships": ()}
    serving = threading.Thread(target=serve, args=(service, site), kwargs=served)
    serving.start()
    end = time.monotonic() + 60
    while not (copy.exists() and copy.read_text("ascii")) and time.monotonic() < end:
        time.sleep(0.01)
    stopped.set()
    serving.join(60)
    lines = [json.loads(line) for line in copy.read_text("ascii").splitlines()]
    with PartyDatabase.at(site.path("party.db")) as database:
        assert lines == list(AuditLog(database).tables())
    assert lines[0]["act"] == "settings changed"
