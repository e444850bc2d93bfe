"""An operator's acts are told as they were: edited, moved, left out, cut, written anew."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from coordinator.database import Actor, Database, FederationAct, FederationAuditLog
from coordinator.errors import DatabaseError, EnrollmentError, RunQueueError
from coordinator.operator import Coordinator
from protocols.fingerprint_words import spoken
from tests.support.command import Command, pate_fed
from tests.support.markers import sampled
from tests.support.worked import Worked

__all__ = ["pate_fed"]

LOGIN = pwd.getpwuid(os.getuid()).pw_name
DOMAIN = b"pate-fed/1/operator audit log\0"
Tamper = Callable[[sqlite3.Connection], object]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "coordinator.db"


def note(log: FederationAuditLog) -> None:
    log.append(FederationAct.PAUSED, {"by": "anna", "from": "command line", "subject": "x"}, at=1.0)


def tampered(file: Path, tamper: Tamper) -> None:
    """FederationAct as somebody who can write the file."""
    with closing(sqlite3.connect(file)) as opened:
        tamper(opened)
        opened.commit()


class TestWhole:
    """Acts and their entries are one transaction, in both kinds of database."""

    @sampled()
    def test_an_error_after_the_entry_undoes_both(self, database: Database) -> None:
        log = FederationAuditLog(database)
        note(log)

        def fail_after_it() -> None:
            with database.as_one():
                note(log)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_it()
        assert log.end[0] == log.verify() == 1

    def test_another_thread_has_its_own_transaction(self, file: Path) -> None:
        with Database(f"sqlite:///{file}", is_new=True) as database:
            log, seen = FederationAuditLog(database), list[int]()
            other = Thread(target=lambda: seen.append(log.end[0]))
            with database.as_one():
                note(log)
                other.start()
                other.join(0.1)
                assert not seen  # it waits until ours is stored
            other.join(20)
            assert seen == [1]


class TestActs:
    @pytest.fixture
    def federation(self, tmp_path: Path) -> Iterator[Worked]:
        made = Worked(tmp_path, names=("North", "South", "West"))
        made.ask()
        yield made
        made.coordinator.close()

    def test_every_act_leaves_one_entry(
        self,
        pate_fed: Command,
        federation: Worked,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.setenv(name, "mallory")
        log = federation.coordinator.audit_log
        begun = log.end[0]
        home = ("--home", federation.coordinator.home.folder)
        invitation = tmp_path / "east.json"
        asking = federation.join("North East").identity.fingerprint
        federation.coordinator.home.results("first").mkdir(parents=True)
        for act in (
            ("invite", "East", "--out", invitation),
            ("approve", "North East", "--words", spoken(asking)),
            ("revoke", "North East"),
            ("revoke", "East"),
            ("pause", "first"),
            ("resume", "first"),
            ("stop", "first"),
            ("export", "first", "--private", "--out", tmp_path / "labels"),
        ):
            ended = pate_fed(*act, *home)
            assert ended.code == 0, ended.err
        listed = pate_fed("audit-log", "list", *home, "--format", "json").json
        assert listed["entries"] == log.verify() == begun + 9
        shown = [one for one in listed["shown"] if one["number"] > begun + 1]
        states = [
            (one["act"], one["subject"], one["before"].get("state"), one["after"].get("state"))
            for one in shown
        ]
        assert states == [
            ("hospital invited", "East", None, "invited"),
            ("hospital approved", "North East", "requested", "member"),
            ("hospital revoked", "North East", "member", "revoked"),
            ("hospital revoked", "East", "invited", "withdrawn"),
            ("run paused", "first", "queued", "paused"),
            ("run resumed", "first", "paused", "queued"),
            ("run stopped", "first", "queued", "stopping"),
            ("results exported", "first", None, None),
        ]
        assert {(one["by"], one["from"]) for one in shown} == {(LOGIN, "command line")}
        assert shown[1]["after"]["votes"] == 0
        assert shown[1]["after"]["fingerprint"] == asking.hex()
        asked = [one["after"] for one in log.tables() if one["act"] == FederationAct.ASKED]
        text = federation.coordinator.queue.request("first").encode()
        assert [one["request_sha256"] for one in asked] == [hashlib.sha256(text).hexdigest()]
        token = json.loads(invitation.read_text())["token"]
        said = pate_fed("audit-log", "list", "--last", "99", *home).out
        assert "North East" in said
        assert token not in json.dumps(listed) + said

    def test_what_cannot_be_told_is_not_done(self, federation: Worked, tmp_path: Path) -> None:
        coordinator = federation.coordinator
        database = Path(coordinator.home.database_url.removeprefix("sqlite:///"))
        out, run = tmp_path / "labels", coordinator.queue.find("first")
        enrollment = coordinator.enrollment
        invitations, members = enrollment.invitations(), enrollment.parties()
        coordinator.home.results("first").mkdir(parents=True)
        tampered(database, lambda file: file.execute("DROP TABLE audit"))
        for act in (
            lambda: coordinator.invite("East"),
            lambda: coordinator.revoke("North"),
            lambda: coordinator.pause("first"),
            lambda: coordinator.stop("first"),
            lambda: coordinator.export("first", out),
            lambda: federation.ask("second"),
        ):
            with pytest.raises(DatabaseError):
                act()
        assert (enrollment.invitations(), enrollment.parties()) == (invitations, members)
        assert coordinator.queue.all() == [run]
        assert not out.exists()

    def test_a_refused_act_leaves_no_entry(self, federation: Worked, tmp_path: Path) -> None:
        coordinator = federation.coordinator
        before = coordinator.audit_log.end
        with pytest.raises(EnrollmentError):
            coordinator.approve("North", words="zoo " * 12)
        with pytest.raises(EnrollmentError):
            coordinator.revoke("Nobody")
        with pytest.raises(RunQueueError):
            coordinator.resume("first")
        with pytest.raises(RunQueueError):
            coordinator.export("first", tmp_path / "labels")
        assert coordinator.audit_log.end == before

    def test_the_person_of_another_door_is_named(self, federation: Worked) -> None:
        actor = Actor("Anna Núñez", "console")
        with closing(Coordinator(federation.coordinator.home, actor=actor)) as coordinator:
            coordinator.invite("East")
        *_, entry = federation.coordinator.audit_log.tables()
        assert (entry["by"], entry["from"], entry["subject"]) == (actor.name, actor.origin, "East")

    def test_an_export_is_its_owners_alone_and_a_new_file(
        self, pate_fed: Command, federation: Worked, tmp_path: Path
    ) -> None:
        home, out = ("--home", federation.coordinator.home.folder), tmp_path / "log.jsonl"
        log = federation.coordinator.audit_log
        ended = pate_fed("audit-log", "export", "--out", out, *home, "--format", "json").json
        assert ended == {"file": str(out), "entries": log.end[0]}
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert [json.loads(line) for line in out.read_text().splitlines()] == list(log.tables())
        again = pate_fed("audit-log", "export", "--out", out, *home)
        assert (again.code, again.error_code) == (2, "PF-402")

    def test_verify_prints_a_head_and_compares_kept_ones(
        self, pate_fed: Command, federation: Worked
    ) -> None:
        home = ("--home", federation.coordinator.home.folder)
        shown = pate_fed("audit-log", "verify", *home, "--format", "json").json
        kept = f"{shown['entries']}:{shown['head']}"
        assert kept in pate_fed("audit-log", "verify", *home).out
        assert pate_fed("audit-log", "verify", "--head", kept, *home).code == 0
        assert pate_fed("audit-log", "verify", "--head", "seven", *home).error_code == "PF-402"
        database = Path(federation.coordinator.home.database_url.removeprefix("sqlite:///"))
        tampered(
            database,
            lambda file: file.execute("DELETE FROM audit WHERE number = ?", (shown["entries"],)),
        )
        assert pate_fed("audit-log", "verify", *home).code == 0
        cut = pate_fed("audit-log", "verify", "--head", kept, *home)
        assert (cut.code, cut.error_code) == (5, "PF-442")
