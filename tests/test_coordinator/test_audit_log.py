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

from coordinator.database import Act, Actor, AuditEntry, AuditLog, Database
from coordinator.errors import BrokenAuditLogError, DatabaseError, EnrollmentError, RunQueueError
from coordinator.operator import Coordinator
from coordinator.runs.open_run import results_of
from protocols import wire
from protocols.errors import MalformedMessageError
from protocols.fingerprint_words import spoken
from tests.support.command import Command, pate_fed
from tests.support.markers import sampled
from tests.support.worked import Worked

__all__ = ["pate_fed"]

ENTRIES = 5
ANNA = Actor("anna", "command line")
LOGIN = pwd.getpwuid(os.getuid()).pw_name
DOMAIN = b"pate-fed/1/operator audit log\0"
Tamper = Callable[[sqlite3.Connection], object]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "coordinator.db"


@pytest.fixture
def log(file: Path) -> Iterator[AuditLog]:
    with Database(f"sqlite:///{file}", is_new=True) as database:
        yield filled(database)


def filled(database: Database) -> AuditLog:
    log = AuditLog(database)
    for place in range(ENTRIES):
        before, after = {"state": "requested"}, {"state": "member", "teachers": 5 + place}
        log.append(
            Act.APPROVED, f"H{place}", actor=ANNA, at=100.25 + place, before=before, after=after
        )
    return log


def tampered(file: Path, tamper: Tamper) -> None:
    """Act as somebody who can write the file."""
    with closing(sqlite3.connect(file)) as opened:
        tamper(opened)
        opened.commit()


def forged(number: int) -> bytes:
    return AuditEntry(
        number, 1, Act.APPROVED, Actor("bert", "command line"), "H", {}, {}
    ).to_bytes()


def edit(number: int) -> Tamper:
    return lambda file: file.execute(
        "UPDATE audit SET body = ? WHERE number = ?", (forged(number), number)
    )


def move(*steps: tuple[int, int]) -> Tamper:
    return lambda file: file.executemany(
        "UPDATE audit SET number = ? WHERE number = ?", [(new, old) for old, new in steps]
    )


def drop(*numbers: int) -> Tamper:
    return lambda file: file.executemany("DELETE FROM audit WHERE number = ?", zip(numbers))


def close_up(file: sqlite3.Connection) -> None:
    drop(3)(file)
    move((4, 3), (5, 4))(file)


def write_anew(file: sqlite3.Connection) -> None:
    """Write a whole chain, right in itself, that blames another person."""
    file.execute("DELETE FROM audit")
    link = hashlib.sha256(DOMAIN + b"first").digest()
    for number in range(1, ENTRIES + 1):
        link = hashlib.sha256(DOMAIN + b"record\0" + link + forged(number)).digest()
        file.execute("INSERT INTO audit VALUES (?, ?, ?)", (number, forged(number), link))


class TestChain:
    @pytest.mark.parametrize(
        ("tamper", "first"),
        [
            pytest.param(edit(1), 1, id="first changed"),
            pytest.param(edit(ENTRIES), ENTRIES, id="last changed"),
            pytest.param(move((2, 9), (3, 2), (9, 3)), 2, id="re-ordered"),
            pytest.param(drop(1), 1, id="first removed"),
            pytest.param(drop(3), 3, id="middle removed"),
            pytest.param(close_up, 3, id="middle removed, numbers closed up"),
            pytest.param(move((5, 6)), 5, id="gap before the last"),
        ],
    )
    def test_the_first_bad_entry_is_named(
        self, log: AuditLog, file: Path, tamper: Tamper, first: int
    ) -> None:
        assert log.verify() == ENTRIES
        tampered(file, tamper)
        with pytest.raises(BrokenAuditLogError) as caught:
            log.verify()
        assert (caught.value.number, caught.value.code) == (first, "PF-442")

    @pytest.mark.parametrize(
        ("tamper", "left", "first"),
        [
            pytest.param(drop(ENTRIES), ENTRIES - 1, ENTRIES, id="last entry cut"),
            pytest.param(drop(*range(1, ENTRIES + 1)), 0, 1, id="all cut"),
            pytest.param(write_anew, ENTRIES, ENTRIES, id="written anew"),
        ],
    )
    def test_only_a_head_kept_elsewhere_reveals_a_cut_or_a_new_chain(
        self, log: AuditLog, file: Path, tamper: Tamper, left: int, first: int
    ) -> None:
        kept = log.end
        tampered(file, tamper)
        assert log.verify() == left  # the chain alone cannot know
        with pytest.raises(BrokenAuditLogError) as caught:
            log.verify(heads=[kept])
        assert caught.value.number == first

    def test_a_cut_stays_visible_to_the_head_after_more_acts(
        self, log: AuditLog, file: Path
    ) -> None:
        kept = log.end
        tampered(file, drop(ENTRIES))
        for _ in range(3):
            log.append(Act.PAUSED, "x", actor=ANNA, at=200.0, before={}, after={})
        assert log.verify() == ENTRIES + 2
        with pytest.raises(BrokenAuditLogError):
            log.verify(heads=[kept])

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param([1, 2, "no such act", "a", "b", "c", {}, {}], id="act"),
            pytest.param([1, 2, "run paused", "a", "b", "c", {}], id="short"),
            pytest.param([1, 2, "run paused", "a", "b", "c", {}, {"x": [1]}], id="nested"),
            pytest.param([1, 2, "run paused", "a", b"b", "c", {}, {}], id="bytes"),
        ],
    )
    def test_what_is_no_entry_is_refused(self, body: list[object]) -> None:
        with pytest.raises(MalformedMessageError):
            AuditEntry.from_bytes(wire.encode_value(body))


class TestWhole:
    """Acts and their entries are one transaction, in both kinds of database."""

    @sampled(1)
    def test_an_error_after_the_entry_undoes_both(self, database: Database) -> None:
        log = filled(database)

        def fail_after_it() -> None:
            with database.as_one():
                log.append(Act.PAUSED, "x", actor=ANNA, at=1.0, before={}, after={})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_it()
        assert log.end[0] == log.verify() == ENTRIES

    def test_a_search_finds_the_newest_entries_with_all_words(self, database: Database) -> None:
        log = filled(database)
        subjects = [one.subject for one in log.search(words=["anna", "member"], most=2)]
        assert subjects == ["H4", "H3"]
        assert [one.subject for one in log.search(words=["H3"])] == ["H3"]
        assert [one.number for one in log.search(before=3)] == [2, 1]
        assert log.search(words=["h3"]) == log.search(words=["' OR 1=1 --"]) == []

    def test_another_thread_has_its_own_transaction(self, file: Path) -> None:
        with Database(f"sqlite:///{file}", is_new=True) as database:
            log, seen = AuditLog(database), list[int]()
            other = Thread(target=lambda: seen.append(log.end[0]))
            with database.as_one():
                log.append(Act.PAUSED, "x", actor=ANNA, at=1.0, before={}, after={})
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
        results_of(federation.coordinator.home, "first").mkdir(parents=True)
        for act in (
            ("invite", "East", "--out", invitation),
            ("approve", "North East", "--words", spoken(asking), "--teachers", "7"),
            ("approve", "North East", "--words", spoken(asking), "--teachers", "8"),
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
        assert listed["entries"] == log.verify() == begun + 10
        shown = [one for one in listed["shown"] if one["number"] > begun + 1]
        states = [
            (one["act"], one["subject"], one["before"].get("state"), one["after"].get("state"))
            for one in shown
        ]
        assert states == [
            ("hospital invited", "East", None, "invited"),
            ("hospital approved", "North East", "requested", "member"),
            ("hospital approved", "North East", "member", "member"),
            ("hospital revoked", "North East", "member", "revoked"),
            ("hospital revoked", "East", "invited", "withdrawn"),
            ("run paused", "first", "queued", "paused"),
            ("run resumed", "first", "paused", "queued"),
            ("run stopped", "first", "queued", "stopping"),
            ("results exported", "first", None, None),
        ]
        assert {(one["by"], one["from"]) for one in shown} == {(LOGIN, "command line")}
        assert [shown[2][side]["teachers"] for side in ("before", "after")] == [7, 8]
        assert shown[1]["after"]["fingerprint"] == asking.hex()
        asked = [one for one, _ in log.entries() if one.act is Act.ASKED]
        text = federation.coordinator.queue.request("first").encode()
        assert [one.after["request_sha256"] for one in asked] == [hashlib.sha256(text).hexdigest()]
        token = json.loads(invitation.read_text())["token"]
        said = pate_fed("audit-log", "list", "--last", "99", *home).out
        assert "North East" in said
        assert token not in json.dumps(listed) + said

    def test_what_cannot_be_told_is_not_done(self, federation: Worked, tmp_path: Path) -> None:
        coordinator = federation.coordinator
        database = Path(coordinator.home.database_url.removeprefix("sqlite:///"))
        out, run = tmp_path / "labels", coordinator.queue.find("first")
        invitations, members = coordinator.invitations(), coordinator.members()
        results_of(coordinator.home, "first").mkdir(parents=True)
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
        assert (coordinator.invitations(), coordinator.members()) == (invitations, members)
        assert coordinator.queue.all() == [run]
        assert not out.exists()

    def test_a_refused_act_leaves_no_entry(self, federation: Worked, tmp_path: Path) -> None:
        coordinator = federation.coordinator
        before = coordinator.audit_log.end
        with pytest.raises(EnrollmentError):
            coordinator.approve("North", words="zoo " * 12, teachers=9)
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
        *_, (entry, _) = federation.coordinator.audit_log.entries()
        assert (entry.actor, entry.subject) == (actor, "East")

    def test_an_export_can_be_checked_from_its_bytes_alone(
        self, pate_fed: Command, federation: Worked, tmp_path: Path
    ) -> None:
        home, out = ("--home", federation.coordinator.home.folder), tmp_path / "log.jsonl"
        count, head = federation.coordinator.audit_log.end
        ended = pate_fed("audit-log", "export", "--out", out, *home, "--format", "json").json
        assert ended == {"file": str(out), "entries": count}
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        link = hashlib.sha256(DOMAIN + b"first").digest()
        for line in out.read_text().splitlines():
            table = json.loads(line)
            body = bytes.fromhex(table["body"])
            link = hashlib.sha256(DOMAIN + b"record\0" + link + body).digest()
            assert table["link"] == link.hex()
            assert AuditEntry.from_bytes(body).subject == table["subject"]
        assert link == head
        again = pate_fed("audit-log", "export", "--out", out, *home)
        assert (again.code, again.error_code) == (2, "PF-105")

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
        tampered(database, drop(shown["entries"]))
        assert pate_fed("audit-log", "verify", *home).code == 0
        cut = pate_fed("audit-log", "verify", "--head", kept, *home)
        assert (cut.code, cut.error_code) == (5, "PF-442")
