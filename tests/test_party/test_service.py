"""A hospital's node with its state on disk: approvals, pauses, restarts, what it writes down."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import party.flower_app
from coordinator.errors import PartyRefusedError, SetupError, VoidBatchError
from coordinator.labeling import LabelingRun
from party.approvals import Approvals, Pause, State, Subject
from party.audit_file import read_verified
from party.errors import (
    JournalLockedError,
    LedgerFileError,
    Reason,
)
from party.ledger_file import read_ledger
from party.service import APPROVALS_FILE, AUDIT, LEDGER_FILE, PAUSE_FILE, PartyService
from party.status_file import FILE as STATUS_FILE
from party.status_file import read_status
from pate_fed.data.task import LearningTask
from pate_fed.federation import MOST_VOID_BATCHES
from pate_fed.queries import QueryBatch
from protocols import wire
from protocols.identity import SigningIdentity
from tests.support.federation import MemoryTransport, holds_vector, kinds
from tests.support.hospital_services import TEACHERS, Hospitals, make_hospitals

MARKER = 1


def votes(_: object, task: LearningTask) -> object:
    """Teachers that all know the answer, and vote for one class."""
    return lambda batch: np.full((TEACHERS, len(batch)), MARKER)


class Running:
    """Three services over a transport in memory."""

    def __init__(self, hospitals: Hospitals, stack: ExitStack) -> None:
        self.hospitals, self.stack, self.now = hospitals, stack, time.time()
        self.services = [self.open(place) for place in range(3)]
        self.transport = MemoryTransport(self.services, [])

    def open(self, place: int, vote_of: object = votes) -> PartyService:
        service = PartyService(
            self.hospitals.sites[place],
            clock=lambda: self.now,
            vote_of=vote_of,  # type: ignore[arg-type]
        )
        self.stack.callback(service.close)
        return service

    def restart(self, place: int, vote_of: object = votes) -> PartyService:
        """What a crash leaves is read by another process."""
        old = self.services[place]
        old._audit.close()
        old._journal.close()
        self.services[place] = self.transport.doors[place] = self.open(place, vote_of)
        return self.services[place]

    def run(self) -> LabelingRun:
        return self.hospitals.run(self.transport, clock=lambda: self.now, sleep=self.wait)

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
    for place in range(3):
        hospitals.approve(place)
    return Running(hospitals, stack)


def charged(running: Running, place: int) -> list[str]:
    ledger = read_ledger(running.file(place, LEDGER_FILE))
    return [entry.state.value for entry in ledger.entries]


class TestRun:
    def test_three_sites_label_a_batch_and_each_keeps_its_own_books(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        release = run.ask((0, 1, 2))
        run.close()
        assert release.labels.tolist() == [MARKER] * 3
        for place in range(3):
            assert charged(running, place) == ["committed"]
            kinds_noted = [r.kind for r in read_verified(running.file(place, *AUDIT))]
            for kind in ("approved", "pins", "run accepted", "batch answered", "batch settled"):
                assert kinds_noted.count(kind) == 1, (kind, kinds_noted)

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
        [task] = service._tasks.values()
        batch = QueryBatch((0, 1), hospitals.task.inputs[:2])
        assert np.asarray(task.vote(batch)).shape == (TEACHERS, 2)

    def test_one_process_at_a_time_is_a_sites_node(self, running: Running) -> None:
        with pytest.raises(JournalLockedError):
            running.open(0)

    def test_files_of_a_site_are_for_the_owner_alone(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        run.ask((0,))
        for path in running.hospitals.sites[0].folder.rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


class TestApproval:
    def test_a_run_of_an_unknown_pool_is_refused_before_any_vote_and_waits_for_a_person(
        self, running: Running
    ) -> None:
        approvals = Approvals(running.file(1, APPROVALS_FILE))
        [known] = approvals.all()
        running.file(1, APPROVALS_FILE).unlink()
        with pytest.raises(PartyRefusedError, match=Reason.POOL):
            running.run().set_up()
        [asked] = approvals.pending()
        assert (asked.subject, asked.digest) == (Subject.POOL, known.digest)
        approvals.decide(asked, State.APPROVED, by="M. Curie", at=3.0)
        run = running.run()
        run.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]

    def test_each_run_waits_for_a_person_where_the_site_says_so(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(tmp_path, approval="each run")
        for place in range(3):
            hospitals.approve(place)
        running = Running(hospitals, stack)
        for place in range(3):
            with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
                running.run().set_up()
            for each in range(3):
                approvals = Approvals(running.file(each, APPROVALS_FILE))
                for asked in approvals.pending():
                    assert asked.subject is Subject.RUN
                    if each <= place:
                        approvals.decide(asked, State.APPROVED, by="M. Curie", at=3.0)
        run = running.run()
        run.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]
        # Other terms are another run.
        hospitals.changes = {"sigma2": 4.5}
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            running.run().set_up()

    def test_a_rejected_pool_is_asked_about_no_more_not_even_in_an_open_run(
        self, running: Running
    ) -> None:
        run = running.run()
        run.set_up()
        approvals = Approvals(running.file(2, APPROVALS_FILE))
        approvals.decide(approvals.all()[0], State.REJECTED, by="M. Curie", at=4.0)
        with pytest.raises(VoidBatchError, match=Reason.POOL):
            run.ask((0,))
        assert charged(running, 2) == []
        assert not any(
            holds_vector(answer) for node, answer in running.transport.answers if node == 2
        )

    def test_what_waits_does_not_fill_the_disk(self, tmp_path: Path) -> None:
        approvals = Approvals(tmp_path / APPROVALS_FILE)
        for number in range(60):
            digest = number.to_bytes(32, "big")
            approvals.ask(Subject.RUN, digest, terms=b"t", seats=(), at=1.0)
        assert [one.digest[-1] for one in approvals.pending()] == list(range(40, 60))


class TestPause:
    def test_a_paused_site_refuses_the_next_batch_before_any_vote(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        run.ask((0,))
        pause = Pause(running.file(0, PAUSE_FILE))
        pause.set(True, by="M. Curie", at=5.0)
        answers = len(running.transport.answers)
        with pytest.raises(VoidBatchError, match=Reason.PAUSED):
            run.ask((1,))
        late = running.transport.answers[answers:]
        assert not any(holds_vector(answer) for node, answer in late if node == 0)
        assert charged(running, 0) == ["committed"]  # nothing was reserved for what was refused
        status = read_status(running.file(0, STATUS_FILE))
        assert status is not None
        assert (status.state, status.last_refusal) == ("paused", "PF-323")
        pause.set(False, by="M. Curie", at=6.0)
        assert MOST_VOID_BATCHES > 1
        assert run.ask((2,)).labels.tolist() == [MARKER]

    def test_a_pause_that_cannot_be_read_is_a_pause(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        running.file(0, PAUSE_FILE).write_text("{", encoding="utf-8")
        app = party.flower_app.build(lambda _: running.services[0])
        assert app is not None
        with pytest.raises(Exception, match=r"pause\.json"):
            running.services[0].receive(b"")


class TestRestart:
    def test_a_site_killed_after_it_sent_sends_the_same_bytes_and_asks_no_teacher_again(
        self, running: Running
    ) -> None:
        run = running.run()
        run.set_up()
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
        assert charged(running, 0) == ["reserved"]

    def test_a_new_run_charges_what_a_killed_one_left_open_once(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        run.ask((0, 1))
        running.restart(0)
        again = running.run()
        again.set_up()
        again.ask((2,))
        again.close()
        assert charged(running, 0) == ["forfeited", "committed"]

    def test_a_ledger_that_is_gone_stops_a_site_that_answered(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        run.ask((0,))
        running.file(0, LEDGER_FILE).unlink()
        with pytest.raises(LedgerFileError, match="must be there"):
            running.restart(0)


class TestOrder:
    def test_what_is_answered_is_on_record_before_teachers_are_asked(
        self, running: Running
    ) -> None:
        seen: list[list[str]] = []

        def watching(*_: object) -> object:
            def vote(batch: QueryBatch) -> object:
                records = read_verified(running.file(0, *AUDIT))
                ledger = read_ledger(running.file(0, LEDGER_FILE))
                seen.append([records[-1].kind, ledger.entries[-1].state.value])
                return np.full((TEACHERS, len(batch)), MARKER)

            return vote

        running.restart(0, watching)
        run = running.run()
        run.set_up()
        run.ask((0,))
        assert seen == [["batch answered", "reserved"]]

    def test_what_cannot_be_put_on_record_is_not_answered(self, running: Running) -> None:
        asked: list[object] = []

        def watching(*_: object) -> object:
            return asked.append

        running.restart(0, watching)
        run = running.run()
        run.set_up()
        running.services[0]._audit.close()
        with pytest.raises(VoidBatchError, match=Reason.FAULT):
            run.ask((0,))
        assert asked == []
        assert not any(holds_vector(a) for node, a in running.transport.answers if node == 0)

    def test_a_status_that_cannot_be_written_stops_nothing(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("party.service.write_status", no_room)
        run = running.run()
        run.set_up()
        assert run.ask((0,)).labels.tolist() == [MARKER]


class TestPeers:
    def test_a_peer_that_is_known_by_hearsay_is_known_and_counts_for_nothing(
        self, running: Running
    ) -> None:
        stranger, service = SigningIdentity.generate().public, running.services[0]
        service.hear({stranger.fingerprint: stranger})
        service.receive(wire.pack([]))
        assert stranger.fingerprint in service._node._pins
        assert stranger.fingerprint not in service._node._guard.checked_peers
        assert len(service._node._guard.checked_peers) == 2


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
        assert service._node._guard.policy.approved_pools == frozenset()


class TestNothingLeaks:
    def test_an_exception_anywhere_leaves_as_a_code(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = "votes 17 of 23"

        def broken(*_: object, **__: object) -> bytes:
            raise ValueError(secret)

        monkeypatch.setattr(running.services[0]._node, "receive", broken)
        with pytest.raises(SetupError) as refused:
            answer_by_flower(running)
        assert "PF-301" in str(refused.value)
        assert secret not in str(refused.value)

    def test_no_file_of_a_site_holds_a_vote_but_its_masked_y(self, running: Running) -> None:
        run = running.run()
        run.set_up()
        run.ask((0, 1))
        status = json.loads(running.file(0, STATUS_FILE).read_text("utf-8"))
        assert set(status) == {
            *("schema_version", "state", "at", "pid", "run", "round_state", "last_message_at"),
            *("last_refusal", "last_refusal_at", "runs_accepted", "batches_answered"),
            *("batches_refused", "tasks", "waiting", "trouble", "supernode_starts"),
        }
        assert status["pid"] == os.getpid()


def answer_by_flower(running: Running) -> None:
    """Send one packet through the party's Flower app, as an executor does."""
    from coordinator.flower_app import GridTransport  # noqa: PLC0415
    from coordinator.local_grid import LocalGrid  # noqa: PLC0415

    app = party.flower_app.build(lambda node: running.services[node])
    transport = GridTransport(LocalGrid(app, nodes=3, workers=1), nodes=3, timeout_s=5)
    running.hospitals.run(transport, clock=lambda: running.now).set_up()
