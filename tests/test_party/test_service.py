"""A hospital's node with its state on disk: approvals, pauses, restarts, what it writes down."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

import party.flower.client_app
from coordinator.database import Database
from coordinator.errors import PartyRefusedError, SetupError, VoidBatchError
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.home import utc_now
from coordinator.runs.labeling import LabelingRun
from party.errors import (
    BrokenSiteLogError,
    JoinError,
    JournalLockedError,
    Reason,
    RecordError,
    StorageError,
)
from party.service import PartyService
from party.site.joining import CoordinatorDoor
from party.site.own_table import add
from party.site.party_task import Vote
from party.site.people_decisions import MOST_PENDING, Approval, ApprovalState, Subject
from party.site.site import DATABASE_FILE, SETTINGS_FILE, Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import Status, read_status, write_status
from party.storage.site_audit_log import SiteAct
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidParameterError
from pate_fed.queries import QueryBatch
from pate_fed.teachers.own_teacher import pinned
from pate_fed.terms import MOST_VOID_BATCHES
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.membership_messages import Membership
from protocols.suites import DEFAULT_SUITE
from tests.support.deployed import make_home
from tests.support.federation import MemoryTransport, holds_vector, kinds
from tests.support.hospital_services import (
    NAMES,
    TEACHERS,
    Hospitals,
    audit_of,
    ledger_of,
    make_hospitals,
    records_of,
)
from tests.support.hospital_site import LABEL, PATIENT, SLUG, membership_of, write_own_table
from tests.support.markers import sampled

MARKER = 1


def votes(_: object, task: LearningTask) -> object:
    """Teachers that all know the answer, and vote for one class."""
    return lambda batch: np.full((TEACHERS, len(batch)), MARKER)


class Running:
    """Services, three unless there are more sites, over a transport in memory."""

    def __init__(self, hospitals: Hospitals, stack: ExitStack) -> None:
        self.hospitals, self.stack, self.now = hospitals, stack, time.time()
        places = range(len(hospitals.sites))
        self.jumps = [0.0 for _ in places]  # how wrong each hospital's clock is
        self.services = [self.open(place) for place in places]
        self.transport = MemoryTransport(self.services, [])

    def open(self, place: int, vote_of: object = votes) -> PartyService:
        service = PartyService(
            self.hospitals.sites[place],
            clock=lambda: self.now + self.jumps[place],
            vote_of=vote_of,  # type: ignore[arg-type]
        )
        self.stack.callback(service.close)
        return service

    def restart(self, place: int, vote_of: object = votes) -> PartyService:
        """What a crash leaves is read by another process."""
        self.services[place]._database.close()
        self.services[place] = self.transport.doors[place] = self.open(place, vote_of)
        return self.services[place]

    def run(self) -> LabelingRun:
        return self.hospitals.run(self.transport, clock=lambda: self.now, sleep=self.wait)

    def set_up(self, *asked: int) -> LabelingRun:
        """Set a run up, and ask each of these queries in a batch."""
        run = self.run()
        run.set_up()
        for index in asked:
            run.ask((index,))
        return run

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def file(self, place: int, *parts: str) -> Path:
        return self.hospitals.sites[place].path(*parts)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def running(tmp_path: Path, stack: ExitStack) -> Running:
    hospitals = make_hospitals(tmp_path)
    hospitals.approve_all()
    return Running(hospitals, stack)


def charged(running: Running, place: int) -> list[str]:
    return [entry.state.value for entry in ledger_of(running.hospitals.sites[place]).entries]


def status_of(running: Running, place: int) -> Status:
    status = read_status(running.file(place, STATUS_FILE))
    assert status is not None
    return status


def tampered(running: Running, place: int, statement: str) -> None:
    """SiteAct as somebody who can write the database."""
    with closing(sqlite3.connect(running.file(place, DATABASE_FILE))) as file:
        file.execute(statement)
        file.commit()


class TestRun:
    def test_three_sites_label_a_batch_and_each_keeps_its_own_books(self, running: Running) -> None:
        run = running.set_up()
        release = run.ask((0, 1, 2))
        run.close()
        assert release.labels.tolist() == [MARKER] * 3
        for place in range(3):
            assert charged(running, place) == ["committed"]
            told = [record.act for record in audit_of(running.hospitals.sites[place])]
            assert told == [
                *(SiteAct.PIN_ADDED, SiteAct.PIN_ADDED, SiteAct.ASKED, SiteAct.APPROVED),
                *(SiteAct.SETTINGS_CHANGED, SiteAct.DATA_CHANGED, SiteAct.RUN_ACCEPTED),
                *(SiteAct.CHARGED, SiteAct.BATCH_ANSWERED, SiteAct.SETTLED),
                SiteAct.RUN_CLOSED,
            ]
        ends = [audit_of(site)[-1].facts for site in running.hospitals.sites]
        head = run.round.transcript.head
        assert all(end["head"] == head and end["parties"] == 3 for end in ends)

    def test_trained_teachers_are_ready_before_the_first_message(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(tmp_path)
        hospitals.approve(0)
        service = PartyService(hospitals.sites[0])
        stack.callback(service.close)
        assert [path.name for path in hospitals.sites[0].path("teachers").iterdir()] == [
            hospitals.task.digest.hex()
        ]
        [task] = service._tasks.by_pool.values()
        batch = QueryBatch((0, 1), hospitals.task.inputs[:2])
        assert np.asarray(task.vote(batch)).shape == (TEACHERS, 2)

    def test_while_teachers_are_made_ready_the_status_says_that_it_starts(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(tmp_path)
        hospitals.approve(0)
        site = hospitals.sites[0]
        write_status(site.path(STATUS_FILE), Status("stopped", 1.0, 1, trouble="PF-350"))
        seen: list[Status | None] = []

        def vote_of(*_: object) -> Vote:
            seen.append(read_status(site.path(STATUS_FILE)))
            return lambda batch: np.zeros((TEACHERS, len(batch)), dtype=np.int64)

        stack.callback(PartyService(site, vote_of=vote_of, clock=lambda: 7.0).close)
        assert seen == [Status("starting", 7.0, os.getpid())]

    def test_settings_on_record_are_those_in_use(self, tmp_path: Path, stack: ExitStack) -> None:
        """Somebody may edit them between the start's reading them and the doctor's last word."""
        site = Site.open(make_hospitals(tmp_path).sites[0].folder)
        in_use = hashlib.sha256(site.path(SETTINGS_FILE).read_bytes()).digest()
        site.save(replace(site.settings, policy={"least_parties": 5}))
        stack.callback(PartyService(site).close)
        [noted] = [each for each in audit_of(site) if each.act is SiteAct.SETTINGS_CHANGED]
        assert noted.facts["digest"] == in_use

    def test_one_process_at_a_time_is_a_sites_node(self, running: Running) -> None:
        with pytest.raises(JournalLockedError):
            running.open(0)

    def test_files_of_a_site_are_for_the_owner_alone(self, running: Running) -> None:
        running.set_up(0)
        for path in running.hospitals.sites[0].folder.rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


class TestApproval:
    def test_a_run_of_an_unknown_pool_is_refused_before_any_vote_and_waits_for_a_person(
        self, running: Running
    ) -> None:
        site, pool = running.hospitals.sites[1], running.hospitals.task.pool.digest
        tampered(running, 1, "DELETE FROM approvals")
        for _ in range(3):
            with pytest.raises(PartyRefusedError, match=Reason.POOL):
                running.set_up()
        with records_of(site) as records:
            [asked] = records.approvals()
            assert (asked.subject, asked.digest, asked.state.value) == ("pool", pool, "pending")
            assert len(asked.seats) == 3
            records.approve(
                asked.subject, asked.digest, coordinator=asked.coordinator, by="M. Curie"
            )
        # However often it is offered, it is put on record once.
        told = [record.act for record in audit_of(site)]
        assert told.count(SiteAct.RUN_REFUSED) == 1
        run = running.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]

    def test_each_run_waits_for_a_person_where_the_site_says_so(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(tmp_path, approval="each run")
        hospitals.approve_all()
        running = Running(hospitals, stack)
        for place in range(3):
            with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
                running.set_up()
            for each in range(3):
                with records_of(hospitals.sites[each]) as records:
                    for asked in records.approvals():
                        if asked.subject is Subject.RUN and each <= place:
                            records.approve(
                                asked.subject,
                                asked.digest,
                                coordinator=asked.coordinator,
                                by="M. Curie",
                            )
        run = running.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]
        # Other terms are another run.
        hospitals.changes = {"sigma2": 4.5}
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            running.set_up()

    def test_a_rejected_pool_is_asked_about_no_more_not_even_in_an_open_run(
        self, running: Running
    ) -> None:
        run = running.set_up()
        with records_of(running.hospitals.sites[2]) as records:
            records.reject(
                Subject.POOL,
                running.hospitals.task.pool.digest,
                coordinator=running.hospitals.coordinator.public.fingerprint,
                by="M. Curie",
            )
        with pytest.raises(VoidBatchError, match=Reason.REJECTED):
            run.ask((0,))
        assert charged(running, 2) == []
        assert not any(
            holds_vector(answer) for node, answer in running.transport.answers if node == 2
        )


class TestManyOffers:
    """A coordinator may offer what it likes, as often as it likes."""

    @pytest.fixture
    def asking(self, tmp_path: Path, stack: ExitStack) -> Running:
        hospitals = make_hospitals(tmp_path, approval="each run")
        hospitals.approve_all()
        return Running(hospitals, stack)

    def offer(self, running: Running, number: int) -> str:
        running.hospitals.changes = {"sigma2": 4.0 + number / 1000}
        with pytest.raises(PartyRefusedError) as refused:
            running.set_up()
        return str(refused.value.cause)

    @pytest.mark.slow
    def test_they_push_nothing_out_that_waits_and_are_told_that_there_is_no_room(
        self, asking: Running
    ) -> None:
        codes = [self.offer(asking, number) for number in range(MOST_PENDING + 5)]
        assert codes == [Reason.APPROVAL] * MOST_PENDING + [Reason.PENDING] * 5
        for site in asking.hospitals.sites:
            with records_of(site) as records:
                first, second, *others = records.approvals(ApprovalState.PENDING)
                assert len(others) == MOST_PENDING - 2
                # What waits the longest is the offer that came first.
                records.approve(
                    first.subject, first.digest, coordinator=first.coordinator, by="M. Curie"
                )
                records.reject(
                    second.subject, second.digest, coordinator=second.coordinator, by="M. Curie"
                )
        codes = [self.offer(asking, MOST_PENDING + number) for number in range(3)]
        assert codes == [Reason.APPROVAL, Reason.APPROVAL, Reason.PENDING]
        asking.hospitals.changes = {"sigma2": 4.0}
        run = asking.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]

    @pytest.mark.slow
    def test_those_that_alternate_are_each_on_record_once(self, asking: Running) -> None:
        for number in (0, 1) * 6:
            self.offer(asking, number)
        told = [record.act for record in audit_of(asking.hospitals.sites[0])]
        assert told.count(SiteAct.RUN_REFUSED) == 2
        assert told.count(SiteAct.ASKED) == 3  # the pool, and two runs


class TestApprovalOfRuns:
    """A person's yes is good for one run, with one budget over all times that it is set up."""

    @pytest.fixture
    def asking(self, tmp_path: Path, stack: ExitStack) -> Running:
        """Hospitals whose people were asked about a run, and said yes."""
        return self.open(make_hospitals(tmp_path, approval="each run"), stack)

    def open(self, hospitals: Hospitals, stack: ExitStack) -> Running:
        hospitals.approve_all()
        running = Running(hospitals, stack)
        self.refused(running)
        self.approve(running)
        return running

    def refused(self, running: Running) -> None:
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            running.set_up()

    def asked(self, running: Running, place: int) -> list[Approval]:
        with records_of(running.hospitals.sites[place]) as records:
            return [one for one in records.approvals() if one.subject is Subject.RUN]

    def approve(self, running: Running) -> None:
        for place, site in enumerate(running.hospitals.sites):
            with records_of(site) as records:
                for one in self.asked(running, place):
                    if one.state is ApprovalState.PENDING:
                        records.approve(
                            one.subject, one.digest, coordinator=one.coordinator, by="M. Curie"
                        )

    def told(self, running: Running, place: int, kind: SiteAct) -> int:
        records = audit_of(running.hospitals.sites[place])
        return [record.act for record in records if record.facts.get("subject") != "pool"].count(
            kind
        )

    @sampled()
    @pytest.mark.parametrize("closes", [True, False], ids=["closed", "left open"])
    def test_a_run_that_is_set_up_again_has_what_it_left_and_no_more(
        self, tmp_path: Path, stack: ExitStack, closes: bool
    ) -> None:
        hospitals = make_hospitals(tmp_path, approval="each run")
        hospitals.changes = {"max_asks": 3, "max_answers": 3}
        asking = self.open(hospitals, stack)
        run = asking.set_up(0, 1)
        if closes:
            run.close()
        asking.restart(0)  # what was spent is no matter of one life
        again = asking.set_up(2)  # its coordinator claims to have forgotten the first time
        votes_before = len(asking.transport.answers)
        with pytest.raises(VoidBatchError, match=Reason.QUERIES):
            again.ask((3,))
        late = asking.transport.answers[votes_before:]
        assert late
        assert not any(holds_vector(answer) for _, answer in late)
        for place in range(3):
            assert len(charged(asking, place)) == 3
            assert self.told(asking, place, SiteAct.ASKED) == 1

    def test_a_run_of_another_name_is_asked_about(self, asking: Running) -> None:
        asking.set_up(0).close()
        asking.hospitals.changes["name"] = "another"
        votes_before = len(asking.transport.answers)
        for _ in range(2):
            self.refused(asking)
        late = asking.transport.answers[votes_before:]
        assert not any(holds_vector(answer) for _, answer in late)
        for place in range(3):
            first, second = self.asked(asking, place)
            assert (first.state, second.state) == (ApprovalState.APPROVED, ApprovalState.PENDING)
            assert self.told(asking, place, SiteAct.ASKED) == 2
        self.approve(asking)
        asking.set_up(2).close()
        assert len(charged(asking, 0)) == 2

    def test_an_approval_that_is_taken_back_while_a_batch_is_judged_answers_nothing(
        self, asking: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = asking.set_up()
        monkeypatch.setattr(asking.services[0], "_refresh", lambda: None)
        [one] = self.asked(asking, 0)
        with records_of(asking.hospitals.sites[0]) as records:
            records.reject(one.subject, one.digest, coordinator=one.coordinator, by="M. Curie")
        with pytest.raises(VoidBatchError, match=Reason.REJECTED):
            run.ask((0,))
        assert not any(holds_vector(a) for node, a in asking.transport.answers if node == 0)
        assert self.told(asking, 0, SiteAct.BATCH_ANSWERED) == 0

    def test_a_run_that_is_rejected_is_refused_its_next_batch(self, asking: Running) -> None:
        run = asking.set_up(0)
        [one] = self.asked(asking, 0)
        with records_of(asking.hospitals.sites[0]) as records:
            records.reject(one.subject, one.digest, coordinator=one.coordinator, by="M. Curie")
        with pytest.raises(VoidBatchError, match=Reason.REJECTED):
            run.ask((1,))
        assert charged(asking, 0) == ["committed"]

    def test_the_same_terms_under_another_form_need_an_approval_of_their_own(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(
            tmp_path,
            approval="each run",
            policy={"forms": ["additive", "masked"]},
            names=("North", "South", "West", "East", "Port"),
            ports=(9094, 9095, 9096, 9097, 9098),
        )
        running = self.open(hospitals, stack)
        hospitals.form = MaskedSum()
        self.refused(running)
        additive, masked = self.asked(running, 0)
        assert (additive.form, masked.form) == ("additive", "masked")
        assert (additive.terms, additive.seats) == (masked.terms, masked.seats)
        assert additive.suite == masked.suite == DEFAULT_SUITE
        assert masked.state is ApprovalState.PENDING
        hospitals.form = AdditiveSum()
        running.set_up(0)


@pytest.mark.slow
def test_a_changed_file_of_own_teachers_is_refused_before_anything_is_charged(
    tmp_path: Path, stack: ExitStack
) -> None:
    hospitals = make_hospitals(tmp_path)
    site = hospitals.sites[0]
    code = site.settings.data_folders[0] / "hearts.py"
    code.write_text("from sklearn.naive_bayes import GaussianNB as teacher\n")
    name = pinned("hearts:teacher", site.settings.data_folders)
    hospitals.sites[0] = site.save(replace(site.settings, teacher_model=name))
    hospitals.approve_all()
    running = Running(hospitals, stack)
    running.restart(0, None).idle()
    assert status_of(running, 0).trouble == ""
    code.write_text(f"{code.read_text()}# changed\n")
    running.restart(0, None).idle()
    assert status_of(running, 0).trouble == InvalidParameterError.code
    with pytest.raises(PartyRefusedError, match=Reason.POOL):
        running.set_up(0)
    assert [charged(running, place) for place in range(3)] == [[], [], []]


class TestPause:
    def test_a_paused_site_refuses_the_next_batch_before_any_vote(self, running: Running) -> None:
        run = running.set_up(0)
        site = running.hospitals.sites[0]
        with records_of(site) as records:
            records.state.pause(by="M. Curie")
        answers = len(running.transport.answers)
        with pytest.raises(VoidBatchError, match=Reason.PAUSED):
            run.ask((1,))
        late = running.transport.answers[answers:]
        assert not any(holds_vector(answer) for node, answer in late if node == 0)
        assert charged(running, 0) == ["committed"]  # nothing was reserved for what was refused
        status = status_of(running, 0)
        assert (status.state, status.federations[SLUG].last_refusal) == ("paused", "PF-323")
        with records_of(site) as records:
            records.state.resume(by="M. Curie")
        assert MOST_VOID_BATCHES > 1
        assert run.ask((2,)).labels.tolist() == [MARKER]

    @sampled()
    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param("DROP TABLE standing", id="no table"),
            pytest.param("DROP TABLE approvals", id="no approvals"),
        ],
    )
    def test_where_what_people_decided_cannot_be_read_nothing_is_answered(
        self, running: Running, spoil: str
    ) -> None:
        running.set_up()
        tampered(running, 0, spoil)
        answers = len(running.transport.answers)
        with pytest.raises(StorageError):
            running.services[0].receive(wire.pack([]))
        assert len(running.transport.answers) == answers
        status = status_of(running, 0)
        assert status.federations[SLUG].last_fault == "PF-350"

    def test_a_pause_that_says_something_else_is_a_pause(self, running: Running) -> None:
        with records_of(running.hospitals.sites[0]) as records:
            records.state.pause(by="M. Curie")
        tampered(running, 0, "UPDATE standing SET value = 'no' WHERE name = 'pause'")
        with pytest.raises(PartyRefusedError, match=Reason.PAUSED):
            running.set_up()


class TestRestart:
    def test_a_site_killed_after_it_sent_sends_the_same_bytes_and_asks_no_teacher_again(
        self, running: Running
    ) -> None:
        run = running.set_up()
        plans: list[bytes] = []

        def on_query(node: int, packet: bytes) -> bytes:
            if node == 0 and "Plan" in kinds(packet):
                plans.append(packet)
            return packet

        running.transport.on_query = on_query
        run.ask((0, 1))
        [sent] = [a for node, a in running.transport.answers if node == 0 and holds_vector(a)]

        def no_vote(*_: object) -> object:
            def vote(batch: QueryBatch) -> object:
                raise AssertionError("asked again")

            return vote

        service = running.restart(0, no_vote)
        assert service.receive(plans[0]) == sent
        assert charged(running, 0) == ["reserved"]  # until it hears how the batch ended

    def test_a_new_run_charges_what_a_killed_one_left_open_once(self, running: Running) -> None:
        run = running.set_up()
        run.ask((0, 1))
        running.restart(0)
        again = running.set_up(2)
        again.close()
        assert charged(running, 0) == ["reserved", "committed"]

    def test_a_ledger_that_is_gone_stops_a_site_that_answered(self, running: Running) -> None:
        running.set_up(0)
        tampered(running, 0, "DELETE FROM entries")
        tampered(running, 0, "DELETE FROM budget")
        with pytest.raises(RecordError, match="there"):
            running.restart(0)

    def test_a_database_that_is_gone_is_not_made_anew(self, running: Running) -> None:
        running.services[0].close()
        for path in running.hospitals.sites[0].folder.glob(f"{DATABASE_FILE}*"):
            path.unlink()
        with pytest.raises(StorageError, match="file"):
            running.open(0)
        status = status_of(running, 0)
        assert (status.state, status.trouble) == ("stopped", "PF-350")


class TestOrder:
    def test_what_is_answered_is_on_record_before_teachers_are_asked(
        self, running: Running
    ) -> None:
        seen: list[list[str]] = []

        def watching(*_: object) -> object:
            def vote(batch: QueryBatch) -> object:
                records = audit_of(running.hospitals.sites[0])
                seen.append([records[-1].act, *charged(running, 0)])
                return np.full((TEACHERS, len(batch)), MARKER)

            return vote

        running.restart(0, watching)
        running.set_up(0)
        assert seen == [["batch answered", "reserved"]]

    def test_what_cannot_be_put_on_record_is_not_answered(self, running: Running) -> None:
        asked: list[object] = []

        def watching(*_: object) -> object:
            return asked.append

        running.restart(0, watching)
        run = running.set_up()
        tampered(running, 0, "DROP TABLE audit")
        with pytest.raises(VoidBatchError, match=Reason.STORAGE):
            run.ask((0,))
        assert asked == []
        assert not any(holds_vector(a) for node, a in running.transport.answers if node == 0)

    def test_a_status_that_cannot_be_written_stops_nothing(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("party.site.status_file.write_status", no_room)
        run = running.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]


class TestPeers:
    def test_a_peer_that_is_known_by_hearsay_is_known_and_counts_for_nothing(
        self, running: Running
    ) -> None:
        stranger, service = SigningIdentity.generate().public, running.services[0]
        service.federation().hear(
            membership_of(running.hospitals.sites[0].identity.fingerprint, {"Else": stranger})
        )
        service.receive(wire.pack([]))
        assert stranger.fingerprint in service.federation().node._known_peers
        assert stranger.fingerprint not in service.federation().node._guard.checked_peers
        assert len(service.federation().node._guard.checked_peers) == 2

    def test_without_a_word_on_its_owner_a_hospital_is_its_own(self, running: Running) -> None:
        service = running.services[0]
        policy = service.federation().node._guard.policy
        assert policy.own_body == NAMES[0]
        assert policy.other_bodies([NAMES[0], NAMES[1]], operator_body="") == {NAMES[1].lower()}

    @pytest.mark.parametrize("state", ["member", "revoked"])
    def test_the_status_says_how_we_stand_with_the_coordinator(
        self, running: Running, state: str
    ) -> None:
        service = running.services[0]
        service.federation().hear(
            membership_of(running.hospitals.sites[0].identity.fingerprint, state=state)
        )
        service.receive(wire.pack([]))
        status = status_of(running, 0)
        said = status.federations[SLUG]
        assert (said.membership, said.heard_at) == (state, running.now)


class Line:
    """The way from the first hospital to a coordinator that keeps its heads, cut at will."""

    def __init__(self, running: Running, folder: Path) -> None:
        self._running, self.is_cut = running, False
        site = running.hospitals.sites[0]
        home = make_home(folder)
        # The one that its hospitals know.
        home.path("identity.key").write_text(running.hospitals.coordinator.private_bytes.hex())
        database = Database(home.database_url)
        running.stack.callback(database.close)
        self._enrollment = Enrollment(
            home, database, random_bytes=secrets.token_bytes, clock=utc_now
        )
        token = self._enrollment.invite(site.membership().settings.party).token
        join(site, token, self._enrollment)
        transport = httpx.MockTransport(self._carry)
        self.later_s = 0
        self._door = CoordinatorDoor(
            site.membership(), clock=lambda: time.time() + self.later_s, transport=transport
        )
        running.stack.callback(self._door.close)
        self.kept = b""

    @property
    def votes(self) -> int:
        """As many as the coordinator has heard of."""
        [party] = self._enrollment.parties()
        return party.votes

    def ask(self) -> None:
        """Have the node ask about itself."""
        self._running.services[0].federation().ask(self._door)

    def _carry(self, request: httpx.Request) -> httpx.Response:
        answer = self._enrollment.answer_membership(request.read())
        self.kept = wire.expect(wire.decode(answer), Membership).audit_head
        if self.is_cut:
            raise httpx.ReadError("the answer was lost")
        return httpx.Response(200, content=answer)


def join(site: Site, token: bytes, enrollment: Enrollment) -> None:
    """Have a hospital's request answered."""

    def carry(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=enrollment.answer_join(request.read()))

    with closing(
        CoordinatorDoor(site.membership(), clock=time.time, transport=httpx.MockTransport(carry))
    ) as door:
        door.join(token)


class TestWitness:
    """The coordinator holds the head that the site signed last, and gives it back."""

    def ask(self, running: Running) -> None:
        run = running.set_up(0)
        run.close()

    def put_back(self, running: Running, copy: Path) -> None:
        """Put yesterday's database in the place of today's."""
        running.services[0]._database.close()
        for path in running.hospitals.sites[0].folder.glob(f"{DATABASE_FILE}-*"):
            path.unlink()
        shutil.copyfile(copy, running.file(0, DATABASE_FILE))
        running.services[0] = running.transport.doors[0] = running.open(0)

    def copied(self, running: Running, copy: Path) -> Path:
        with closing(sqlite3.connect(running.file(0, DATABASE_FILE))) as file:
            file.execute("VACUUM INTO ?", (str(copy),))
        return copy

    def test_a_log_that_goes_on_from_its_own_head_is_nothing_new(self, running: Running) -> None:
        site, service = running.hospitals.sites[0], running.services[0]
        held = service.federation().signed_head()
        self.ask(running)
        for head in (b"", held, service.federation().signed_head()):
            service.federation().hear(membership_of(site.identity.fingerprint, audit_head=head))
        self.ask_again(running)

    def ask_again(self, running: Running) -> None:
        running.set_up(1)

    @sampled()
    @pytest.mark.parametrize("grows", [False, True], ids=["shorter", "grown past it"])
    def test_yesterdays_database_stops_the_node_before_any_run_and_at_every_start(
        self, running: Running, tmp_path: Path, grows: bool
    ) -> None:
        site = running.hospitals.sites[0]
        yesterday = self.copied(running, tmp_path / "yesterday.db")
        self.ask(running)
        held = running.services[0].federation().signed_head()
        self.put_back(running, yesterday)
        if grows:
            with records_of(site) as records:
                for _ in range(5):
                    records.state.pause(by="M. Curie")
                    records.state.resume(by="M. Curie")
        service = running.services[0]
        service.federation().hear(membership_of(site.identity.fingerprint, audit_head=held))
        with pytest.raises(BrokenSiteLogError):
            service.receive(wire.pack([]))
        running.now += 5
        service.idle()
        assert service.status.trouble == "PF-353"
        charged_before = charged(running, 0)
        # An answer without a head, or with an older one, changes nothing.
        service.federation().hear(membership_of(site.identity.fingerprint))
        with pytest.raises(BrokenSiteLogError):
            service.receive(wire.pack([]))
        with pytest.raises(BrokenSiteLogError):
            running.restart(0)
        status = status_of(running, 0)
        assert (status.state, status.trouble) == ("stopped", "PF-353")
        assert charged(running, 0) == charged_before

    @sampled()
    @pytest.mark.parametrize("answers_lost", [1, 4])
    def test_a_log_that_was_put_back_is_noticed_though_answers_were_lost(
        self, running: Running, tmp_path: Path, answers_lost: int
    ) -> None:
        """Both ends as they are; an answer that is lost is lost after the coordinator gave it."""
        site = running.hospitals.sites[0]
        line = Line(running, tmp_path / "federation")
        yesterday = self.copied(running, tmp_path / "yesterday.db")
        line.ask()
        self.ask(running)
        line.ask()
        line.ask()  # what is kept now, the database of yesterday never held
        self.put_back(running, yesterday)
        line.is_cut = True
        for _ in range(answers_lost):
            with records_of(site) as records:
                for _ in range(10):  # past what the coordinator holds
                    records.state.pause(by="M. Curie")
                    records.state.resume(by="M. Curie")
            with pytest.raises(JoinError):
                line.ask()
            assert not running.services[0].federation().has_heard
            # Nor does it come back by a restart.
            running.restart(0)
        line.is_cut = False
        line.ask()
        with pytest.raises(BrokenSiteLogError):
            running.services[0].receive(wire.pack([]))

    def test_the_coordinator_hears_the_votes_of_the_table_in_use(
        self, running: Running, tmp_path: Path
    ) -> None:
        line, site = Line(running, tmp_path / "federation"), running.hospitals.sites[0]
        assert line.votes == 0
        line.ask()
        assert line.votes == TEACHERS
        larger = write_own_table(tmp_path / "larger.csv", patients=120)
        add(Site.open(site.folder), larger, label=LABEL, patient_id=PATIENT)
        running.services[0].receive(wire.pack([]))
        line.later_s = 1
        line.ask()
        assert line.votes == 12

    def test_a_node_that_runs_gives_its_newest_head_again_and_again(
        self, running: Running, tmp_path: Path
    ) -> None:
        line, service = Line(running, tmp_path / "federation"), running.services[0]
        for place in range(3):
            with records_of(running.hospitals.sites[0]) as records:
                records.state.pause(by=f"M. Curie {place}")
                records.state.resume(by=f"M. Curie {place}")
            line.ask()
            assert line.kept == service.federation().signed_head()
            line.is_cut = True
            with pytest.raises(JoinError):
                line.ask()
            line.is_cut = False
        service.receive(wire.pack([]))

    def test_records_written_anew_while_the_node_runs_are_noticed(self, running: Running) -> None:
        site, service = running.hospitals.sites[0], running.services[0]
        held = service.federation().signed_head()
        tampered(
            running,
            0,
            "UPDATE audit SET link = zeroblob(32) WHERE number = (SELECT max(number) FROM audit)",
        )
        service.federation().hear(membership_of(site.identity.fingerprint, audit_head=held))
        with pytest.raises(BrokenSiteLogError):
            service.receive(wire.pack([]))


class TestTrouble:
    def test_teachers_that_cannot_be_used_leave_their_pool_out_and_are_named(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(tmp_path)
        hospitals.approve(0)
        site = hospitals.sites[0]
        Path(site.settings.data.file).write_text("age\n1\n", encoding="utf-8")
        service = PartyService(site)
        stack.callback(service.close)
        service.idle()
        assert service.status.tasks == 0
        assert service.status.trouble == "PF-345"
        assert service.federation().node._guard.policy.approved_pools == frozenset()


class TestNothingLeaks:
    def test_an_exception_anywhere_leaves_as_a_code(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = "votes 17 of 23"

        def broken(*_: object, **__: object) -> bytes:
            raise ValueError(secret)

        monkeypatch.setattr(running.services[0].federation().node, "receive", broken)
        with pytest.raises(SetupError) as refused:
            answer_by_flower(running)
        assert "PF-301" in str(refused.value)
        assert secret not in str(refused.value)

    def test_no_file_of_a_site_holds_a_vote_but_its_masked_y(self, running: Running) -> None:
        run = running.set_up()
        run.ask((0, 1))
        status = json.loads(running.file(0, STATUS_FILE).read_text("utf-8"))
        assert set(status) == {
            *("schema_version", "state", "at", "pid", "tasks", "waiting", "trouble"),
            "federations",
        }
        assert set(status["federations"][SLUG]) == {
            *("state", "run", "round_state", "transcript_head", "last_message_at"),
            "last_refusal",
            *("last_refusal_at", "runs_accepted", "batches_answered", "batches_refused"),
            *("last_fault", "last_fault_at", "membership", "heard_at", "supernode_starts"),
        }
        assert status["pid"] == os.getpid()


def answer_by_flower(running: Running) -> None:
    """Send one packet through the party's Flower app, as an executor does."""
    from coordinator.flower.local_grid import LocalGrid  # noqa: PLC0415
    from coordinator.flower.server_app import GridTransport  # noqa: PLC0415

    app = party.flower.client_app.build(lambda node: running.services[node])
    transport = GridTransport(LocalGrid(app, nodes=3, workers=1), nodes=3, timeout_s=120)
    running.hospitals.run(transport, clock=lambda: running.now).set_up()
