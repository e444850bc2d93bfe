"""What the site did is told as it was: edited, moved, left out, cut, written anew."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.errors import CoordinatorError
from party.decision.decisions import Decision, record_of
from party.errors import StorageError
from party.flower.serving import serve
from party.service import PartyService
from party.site.site import Site
from party.storage import Journal, LedgerStore, PartyDatabase, SiteAuditLog
from party.storage.site_audit_log import SiteAct, sign_head
from pate_fed.nodes.forwarding import Forwarding
from protocols import wire
from protocols.errors import ProtocolError
from protocols.identity import SigningIdentity
from protocols.invitation import read_audit_head
from protocols.membership_messages import AuditHead
from tests.support.federation import TEACHERS, Federation
from tests.support.hospital_site import make_site

SITE = SigningIdentity.generate()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PartyDatabase]:
    with PartyDatabase.create(tmp_path / "party.db") as opened:
        yield opened


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_signed_head_is_this_sites_and_says_how_many_entries(database: PartyDatabase) -> None:
    log = SiteAuditLog(database)
    for place in range(3):
        log.append(SiteAct.CHARGED, {}, at=float(place))
    frame = sign_head(*log.end, SITE)
    head = read_audit_head(frame, SITE.public)
    assert (head.records, head.head) == log.end == (3, log.end[1])
    other = SigningIdentity.generate()
    for_another = wire.sign(AuditHead(other.fingerprint, 3, log.end[1]), SITE).frame
    for forged in (sign_head(*log.end, other), for_another, frame[:-1], b"", b"\x00"):
        with pytest.raises(ProtocolError):
            read_audit_head(forged, SITE.public)


class TestNode:
    """What a node writes down of a run."""

    def federation(
        self, database: PartyDatabase, **changed: Any
    ) -> tuple[Federation, SiteAuditLog]:
        federation, log = Federation(**changed), SiteAuditLog(database)
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
        told = list(log.entries())
        batch = [SiteAct.CHARGED, SiteAct.BATCH_ANSWERED, SiteAct.SETTLED]
        kinds = [SiteAct.RUN_ACCEPTED, *batch, *batch, SiteAct.RUN_CLOSED]
        assert [record.act for record in told] == kinds
        assert told[-1].facts["head"] == federation.run.round.transcript.head
        entries = [entry.entry_id for entry in federation.nodes[0].ledger.entries]
        for kind in (SiteAct.CHARGED, SiteAct.SETTLED):
            assert [r.facts["charge"] for r in told if r.act is kind] == entries
        answered = [r.facts for r in told if r.act is SiteAct.BATCH_ANSWERED]
        assert [str(detail["plan"].hex()) for detail in answered] == entries  # type: ignore[union-attr]
        assert [detail["queries"] for detail in answered] == [2, 1]
        assert told[0].facts["run"] == federation.run.round.run_id
        used = federation.nodes[0].ledger.used_share()
        assert float(str(told[-2].facts["lifetime_share"])) == used > 0
        assert log.verify() == len(told)

    def test_a_refused_run_and_batch_are_told_with_their_codes(
        self, database: PartyDatabase, tmp_path: Path, stack: ExitStack
    ) -> None:
        federation, log = self.federation(database, policies={0: {"least_parties": 9}})
        with pytest.raises(CoordinatorError):
            federation.run.set_up()
        [refused] = log.entries()
        assert (refused.act, refused.facts["code"]) == (SiteAct.RUN_REFUSED, "PF-310")

        another = stack.enter_context(PartyDatabase.create(tmp_path / "another.db"))
        federation, log = self.federation(another, budgets={0: 0.2})
        federation.run.set_up()

        def ask_until_it_refuses() -> None:
            for index in range(6):
                federation.ask(index)

        with pytest.raises(CoordinatorError):
            ask_until_it_refuses()
        last = [record for record in log.entries() if record.act is not SiteAct.SETTLED][-1]
        assert (last.act, last.facts["code"]) == (SiteAct.BATCH_REFUSED, "PF-318")

    def test_what_cannot_be_written_down_is_not_done(
        self, database: PartyDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation, _ = self.federation(database)

        def fail(*_: object, **__: object) -> None:
            raise StorageError("the log must be writable", "a full disk")

        monkeypatch.setattr(SiteAuditLog, "append", fail)
        with pytest.raises(CoordinatorError):
            federation.run.set_up()
        monkeypatch.undo()
        federation, log = self.federation(database)
        federation.run.set_up()
        monkeypatch.setattr(SiteAuditLog, "append", fail)
        with pytest.raises(CoordinatorError):
            federation.ask(0)
        assert federation.steps[0].count("vote") == 0
        assert [record.act for record in log.entries()] == [SiteAct.RUN_ACCEPTED]

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
                        (r.act, {k: v for k, v in r.facts.items() if k not in hidden})
                        for r in log.entries()
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
        assert lines == list(SiteAuditLog(database).tables())
    assert lines[0]["act"] == "settings changed"
