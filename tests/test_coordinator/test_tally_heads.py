"""An older database of a tally, or of its coordinator, that is put in the place of a newer one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from html import unescape
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from coordinator.console import words
from coordinator.database import Database
from coordinator.database.federation_schema import TallyPresenceRow
from coordinator.errors import CoordinatorError, TallyBehindError
from coordinator.people.people import Role
from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from coordinator.runs.tally_presence import TallyPresence
from coordinator.tally.book_rows import take_restored
from coordinator.tally.heads import FIRST, Head, HeadMemory
from coordinator.tally.tally_client import TallyClient
from protocols.vote_messages import ReportList, SumShare
from tests.support.command import Command, pate_fed
from tests.support.console import browser
from tests.support.invariants import shown_by_status
from tests.support.tallied import TalliedBatch, TalliedRun
from tests.support.worked_tally import WorkedWithTally, require_one_coin
from tests.test_coordinator.test_tally_book import Tally, tally

__all__ = ["pate_fed", "tally"]


def copy_of(file: Path, to: Path) -> Path:
    """Copy a database in use, as the page on backups says."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM INTO ?", (str(to),))
    return to


def put_back(copy: Path, file: Path) -> None:
    for path in file.parent.glob(f"{file.name}-*"):
        path.unlink()
    file.write_bytes(copy.read_bytes())


def head_of(tally: Tally) -> Head:
    head = Head.of_bytes(tally.book.head)
    assert head is not None
    return head


def code_of(call: Callable[[], object]) -> str:
    """The code with which a call fails; "" where it does not."""
    try:
        call()
    except CoordinatorError as error:
        return error.code
    return ""


class TestCalls:
    """At the tally's port."""

    @staticmethod
    def restored(tally: Tally, copy: Path) -> None:
        tally.stop()
        put_back(copy, tally.folder.path("tally.db"))
        tally.start()

    def test_an_older_copy_answers_nothing_more_and_draws_no_second_coin(
        self, tally: Tally, tmp_path: Path
    ) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0, 1)
        request = batch.collect()
        copy = copy_of(tally.folder.path("tally.db"), tmp_path / "copy.db")
        told = batch.ask(request)
        newest = copy_of(tally.folder.path("tally.db"), tmp_path / "newest.db")
        self.restored(tally, copy)
        before = tally.content()
        for call in (
            lambda: batch.ask(request),
            lambda: tally.client.state(run.offer),
            lambda: TalliedBatch(run, 3).until(ReportList) and TalliedBatch(run, 4).open(),
        ):
            assert code_of(call) == "PF-456"
        assert tally.content() == before
        self.restored(tally, newest)
        assert batch.ask(request) == told

    def test_a_copy_that_went_on_by_itself_is_noticed_though_it_is_as_long(
        self, tally: Tally, tmp_path: Path
    ) -> None:
        run = tally.run()
        copy = copy_of(tally.folder.path("tally.db"), tmp_path / "copy.db")
        known = tally.heads.read()
        TalliedBatch(run, 0).open()
        told = tally.heads.read()
        self.restored(tally, copy)
        other = HeadMemory.volatile()
        other.keep(known)
        client, tally.client = tally.client, TallyClient(tally.card, tally.key, heads=other)
        TalliedBatch(run, 1).open()
        assert head_of(tally).number == told.number
        assert code_of(lambda: client.state(run.offer)) == "PF-456"

    def test_a_new_tally_db_is_no_tally_that_was_never_asked(
        self, tally: Tally, tmp_path: Path
    ) -> None:
        copy = copy_of(tally.folder.path("tally.db"), tmp_path / "copy.db")
        run = tally.run()
        self.restored(tally, copy)
        assert code_of(lambda: tally.client.state(run.offer)) == "PF-456"

    @pytest.mark.parametrize("told", [FIRST, Head(1, bytes(32))], ids=["none", "an invented one"])
    def test_a_coordinator_that_forgot_is_told_nothing(self, tally: Tally, told: Head) -> None:
        run = tally.run()
        TalliedBatch(run, 0).open()
        before = tally.content()
        older = HeadMemory(lambda: told, lambda _: None, tally.heads.turn)
        client = TallyClient(tally.card, tally.key, heads=older)
        assert code_of(lambda: client.state(run.offer)) == "PF-457"
        assert tally.content() == before

    def test_the_same_call_has_the_same_answer_and_head_until_something_else_is_done(
        self, tally: Tally
    ) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0)
        request = batch.until(SumShare)
        answer = batch.ask(request)
        head = tally.heads.read()
        for _ in range(3):
            assert (batch.ask(request), tally.heads.read()) == (answer, head)
        TalliedBatch(run, 1).open()
        assert batch.ask(request) == answer
        assert tally.heads.read() > head

    def test_a_coordinator_and_its_older_copy_are_not_both_answered(
        self, tally: Tally, pate_fed: Command
    ) -> None:
        """Both processes run: one that was restored from a backup, and the one before it."""
        run = tally.run()
        copied = HeadMemory.volatile()
        copied.keep(tally.heads.read())
        batch = TalliedBatch(run, 0)
        batch.open()
        copy = TallyClient(tally.card, tally.key, heads=copied)
        before = tally.content()
        for _ in range(3):
            assert code_of(lambda: copy.state(run.offer)) == "PF-457"
            assert tally.client.state(run.offer) == run.statement
        assert tally.content() == before
        tally.stop()  # the newer one is lost, as it seems
        named = ("tally", "restored", "coordinator", "--folder", tally.folder.folder)
        assert pate_fed(*named).code == 0
        tally.start()
        copy = TallyClient(tally.card, tally.key, heads=copied)
        assert copy.state(run.offer) == run.statement
        before = tally.content()
        assert code_of(lambda: TalliedBatch(run, 1).open()) == "PF-456"
        assert tally.content() == before
        assert copy.state(run.offer) == run.statement

    def test_two_processes_of_one_database_overtake_each_other_and_go_on(
        self, tally: Tally, tmp_path: Path
    ) -> None:
        """An old process ends while a new one begins. Each call here makes a step."""

        def offers(heads: HeadMemory) -> None:
            client = TallyClient(tally.card, tally.key, heads=replace(heads, turn=Lock()))
            TalliedRun(tally.coordinator, client.state, client.check)

        with Database(f"sqlite:///{tmp_path / 'federation.db'}", is_new=True) as database:
            shared, held = TallyPresence(database).heads(b"t" * 32), list[Head]()
            # An answer is stored after those of two later calls.
            offers(replace(shared, keep=held.append))
            offers(shared)
            offers(shared)
            newest = shared.read()
            shared.keep(held[-1])
            assert shared.read() == newest > held[-1]
            offers(shared)
            # A call comes after two others that were begun later: it carries an older head.
            carried = shared.read()
            offers(shared)
            offers(replace(shared, read=lambda: carried))
            offers(shared)
            offers(shared)
            before = tally.content()
            assert code_of(lambda: offers(replace(shared, read=lambda: carried))) == "PF-457"
            assert tally.content() == before
            offers(shared)  # tried again, it reads where the database stands
            assert head_of(tally) == shared.read()

    def test_an_answer_that_was_lost_changes_nothing(self, tally: Tally) -> None:
        """The coordinator dies between any answer and its own note of the head."""
        run = tally.run()
        batch = TalliedBatch(run, 0)
        lost = HeadMemory(tally.heads.read, lambda _: None, tally.heads.turn)
        client, deaf = tally.client, TallyClient(tally.card, tally.key, heads=lost)
        request = batch.collect()
        while request:
            told = deaf.check(batch.packet(request))
            assert client.check(batch.packet(request)) == told
            request = batch.machine.receive(told)
        assert batch.machine.opened is not None

    @pytest.mark.parametrize("content", [b"?", bytes(39), bytes(41), b"\xff" * 40])
    def test_what_is_no_head_is_refused(self, tally: Tally, content: bytes) -> None:
        class Odd:
            def to_bytes(self) -> bytes:
                return content

        said: Any = Odd()
        memory = HeadMemory(lambda: said, lambda _: None, tally.heads.turn)
        client = TallyClient(tally.card, tally.key, heads=memory)
        assert code_of(lambda: client.state(b"")) == "PF-452"

    def test_an_answer_without_a_head_or_with_an_older_one_is_not_taken(self) -> None:
        memory = HeadMemory.volatile()
        carried = Head(4, b"a" * 32)
        for older in (Head(3, b"a" * 32), Head(4, b"b" * 32), FIRST):
            with pytest.raises(TallyBehindError):
                memory.take(carried, older.to_bytes())
        assert code_of(lambda: memory.take(carried, b"")) == "PF-451"
        assert memory.read() == FIRST
        memory.take(carried, Head(5, b"b" * 32).to_bytes())
        assert memory.read() == Head(5, b"b" * 32)

    def test_erased_keys_that_come_back_are_noticed(self, tally: Tally, tmp_path: Path) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0)
        batch.open()
        copy = copy_of(tally.folder.path("tally.db"), tmp_path / "copy.db")
        tally.now += 2000
        assert tally.book.erase_ended(days=0) == 1
        tally.client.state(run.offer)
        self.restored(tally, copy)
        assert code_of(lambda: tally.client.state(run.offer)) == "PF-456"

    def test_the_command_ends_the_runs_of_an_older_copy_and_goes_on_with_a_new_one(
        self, tally: Tally, tmp_path: Path, pate_fed: Command
    ) -> None:
        named = ("tally", "restored", "--folder", tally.folder.folder)
        run = tally.run()
        copy = copy_of(tally.folder.path("tally.db"), tmp_path / "copy.db")
        batch = TalliedBatch(run, 0)
        request = batch.collect()
        batch.ask(request)
        held = tally.folder.lock()
        assert "PF-448" in pate_fed(*named, "tally").err
        os.close(held)
        tally.stop()
        put_back(copy, tally.folder.path("tally.db"))
        assert pate_fed(*named, "hospital").code == 2
        assert pate_fed(*named, "tally", "--format", "json").json == {"end": "tally", "ended": 1}
        tally.start()
        with pytest.raises(CoordinatorError) as caught:
            batch.ask(request)
        assert "PF-454" in str(caught.value)
        TalliedBatch(tally.run(), 0).open()

    def test_the_command_for_an_older_coordinator_ends_nothing(
        self, tally: Tally, pate_fed: Command
    ) -> None:
        run = tally.run()
        batch = TalliedBatch(run, 0)
        request = batch.until(SumShare)
        told = batch.ask(request)
        tally.heads.keep(FIRST)
        assert code_of(lambda: batch.ask(request)) == "PF-457"
        tally.stop()
        named = ("tally", "restored", "coordinator", "--folder", tally.folder.folder)
        assert pate_fed(*named).code == 0
        tally.start()
        assert batch.ask(request) == told
        assert tally.heads.read() == FIRST
        TalliedBatch(run, 1).open()
        assert tally.heads.read() > FIRST


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[WorkedWithTally]:
    made = WorkedWithTally(tmp_path)
    yield made
    made.stop_tally()


class TestRuns:
    """In a run that a worker works on."""

    @pytest.mark.parametrize("passes", [1, 2, 3, 4])
    def test_a_tally_that_forgot_part_of_a_batch_is_waited_for_and_told_nothing(
        self, federation: WorkedWithTally, tmp_path: Path, passes: int
    ) -> None:
        federation.ask()
        file, stages = federation.tally.path("tally.db"), list[BatchStage]()

        def on_stage(stage: BatchStage) -> None:
            stages.append(stage)
            if stages.count(BatchStage.STORED) == 1 and stage is BatchStage.STORED:
                copy_of(file, tmp_path / "copy.db")
            if stages.count(BatchStage.AGREED) == 4 + passes and stage is BatchStage.AGREED:
                federation.stop_tally()
                copy_of(file, tmp_path / "newest.db")
                put_back(tmp_path / "copy.db", file)
                federation.start_tally()

        federation.on_stage = on_stage
        run = federation.work()
        federation.on_stage = lambda _: None
        assert (run.state, "PF-456" in run.reason) == (RunState.WAITING, True)
        charges = federation.charges()
        for _ in range(3):  # however often it is tried
            run = federation.work()
            assert (run.state, "PF-456" in run.reason) == (RunState.WAITING, True)
        assert federation.charges() == charges
        assert federation.tally_standing.code == "PF-456"
        self.require_shown(federation, "PF-456", "pate-fed tally restored tally")
        federation.stop_tally()
        put_back(tmp_path / "newest.db", file)
        federation.start_tally()
        run = federation.work()
        assert (run.state, run.reason) == (RunState.DONE, "")
        require_one_coin(federation.coordinator, federation.tally)

    def test_where_no_newer_copy_is_the_run_ends_and_others_go_on(
        self, federation: WorkedWithTally, tmp_path: Path
    ) -> None:
        federation.ask()
        file, stages = federation.tally.path("tally.db"), list[BatchStage]()

        def on_stage(stage: BatchStage) -> None:
            stages.append(stage)
            if stages.count(BatchStage.AGREED) == 1 and stage is BatchStage.AGREED:
                copy_of(file, tmp_path / "copy.db")
            if stage is BatchStage.STORED:
                federation.stop_tally()
                put_back(tmp_path / "copy.db", file)
                federation.on_stage = lambda _: None
                federation.start_tally()

        federation.on_stage = on_stage
        assert "PF-456" in federation.work().reason
        federation.stop_tally()
        with closing(federation.tally.database()) as database:
            assert take_restored(database, ends_runs=True) == 1
        federation.start_tally()
        run = federation.work()
        assert (run.state, "PF-454" in run.reason) == (RunState.INCOMPLETE, True)
        assert run.progress.answered == 4
        assert federation.tally_standing.code == ""

    def test_a_coordinator_that_forgot_waits(self, federation: WorkedWithTally) -> None:
        federation.ask()
        tally = federation.tally.identity.public.fingerprint
        heads, told = federation.coordinator.queue.tally.heads(tally), list[Head]()

        def on_stage(stage: BatchStage) -> None:
            if stage is BatchStage.STORED:
                told.append(heads.read())
                if len(told) == 2:  # as an older copy of the database has it
                    with federation.coordinator._database.session() as session:
                        row = session.get(TallyPresenceRow, tally)
                        assert row is not None
                        row.head = told[0].to_bytes()

        federation.on_stage = on_stage
        run = federation.work()
        assert (run.state, "PF-457" in run.reason) == (RunState.WAITING, True)
        self.require_shown(federation, "PF-457", "pate-fed tally restored coordinator")
        heads.keep(told[1])
        run = federation.work()
        assert (run.state, run.reason) == (RunState.DONE, "")

    @staticmethod
    def require_shown(federation: WorkedWithTally, code: str, command: str) -> None:
        """Status and console say what is wrong, and what to type."""
        shown, _ = shown_by_status(federation.coordinator, "first")
        assert command in shown
        with closing(browser(federation.coordinator, Role.AUDITOR)) as client:
            pages = {path: unescape(client.get(path).text) for path in ("/", "/hospitals")}
            assert all(words.TALLY[code] in said for said in pages.values())
            assert words.WHY[code] in unescape(client.get("/runs/first").text)
