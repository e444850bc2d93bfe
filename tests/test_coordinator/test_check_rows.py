"""The coordinator's end of verified votes in its database: durable, fenced, and erased in time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, func, select, update

from coordinator.database import (
    Database,
    RunAttempt,
    check_journal_of,
    erase_checks,
    sealing_key_of,
)
from coordinator.database.check_rows import SqlCheckJournal, steps_in
from coordinator.database.federation_schema import CheckStepRow, RunState, SealingKeyRow
from coordinator.errors import DatabaseError, RunDamagedError, RunLockedError
from coordinator.runs.queue import RunQueue
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519, SUITES
from protocols.verified import CheckStep, CheckStopped, Exchanged, ReportTaken, SecretsDrawn
from tests.support.checking import OverspentError
from tests.support.killing import NOON, failing_commits

PLAN, OTHER = b"p" * 32, b"q" * 32
STEPS: tuple[CheckStep, ...] = (
    ReportTaken(b"report"),
    SecretsDrawn(b"n" * 32, b"s" * 32),
    Exchanged(b"", b"list"),
    Exchanged(b"receipt", b"answers"),
    CheckStopped(b"PF-223", b"frame"),
)


class Clocked:
    """A database in a file, its queue, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "coordinator.db"
        self.now = NOON
        self.open(is_new=True)
        self.queue.add("run", "{}")

    def open(self, *, is_new: bool = False) -> None:
        self.database = Database(f"sqlite:///{self.path}", is_new=is_new)
        self.queue = RunQueue(self.database, clock=lambda: self.now)

    def attempt(self) -> RunAttempt:
        return self.queue.take_up("run")

    def holds(self, secret: bytes) -> bool:
        return any(secret in one.read_bytes() for one in self.path.parent.glob("coordinator.db*"))


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Clocked]:
    made = Clocked(tmp_path)
    yield made
    made.database.close()


def steps_of(database: Database, plan: bytes = PLAN) -> tuple[CheckStep, ...]:
    with database.transaction() as connection:
        return steps_in(connection, CheckStepRow, plan)


def append_all(journal: SqlCheckJournal) -> None:
    for step in STEPS:
        journal.append(step)


def test_steps_of_each_plan_are_there_after_a_restart(stored: Clocked) -> None:
    run = stored.attempt()
    append_all(check_journal_of(run, PLAN))
    check_journal_of(run, OTHER).append(STEPS[0])
    stored.database.close()
    stored.open()
    run = stored.attempt()
    assert check_journal_of(run, PLAN).steps() == STEPS
    assert steps_of(stored.database) == STEPS
    assert check_journal_of(run, OTHER).steps() == STEPS[:1]
    assert steps_of(stored.database, b"n" * 32) == ()


def test_who_lost_the_run_writes_no_step(stored: Clocked) -> None:
    first = check_journal_of(stored.attempt(), PLAN)
    first.append(STEPS[0])
    append_all(check_journal_of(stored.attempt(), OTHER))
    with pytest.raises(RunLockedError):
        first.append(STEPS[1])
    assert steps_of(stored.database) == first.steps() == STEPS[:1]


def test_a_step_that_could_not_be_stored_is_none(stored: Clocked) -> None:
    journal = check_journal_of(stored.attempt(), PLAN)
    with failing_commits(stored.database), pytest.raises(DatabaseError):
        journal.append(STEPS[0])
    assert journal.steps() == steps_of(stored.database) == ()


def test_two_journals_of_a_plan_never_both_write(stored: Clocked) -> None:
    run = stored.attempt()
    one, other = check_journal_of(run, PLAN), check_journal_of(run, PLAN)
    one.append(STEPS[1])
    with pytest.raises(DatabaseError):
        other.append(SecretsDrawn(b"m" * 32, b"t" * 32))
    assert steps_of(stored.database) == STEPS[1:2]


class TestCharge:
    """A charge and its step are one transaction."""

    def journal(self, stored: Clocked, *, refuses: bool) -> SqlCheckJournal:
        def charge(connection: Connection, step: Exchanged, accepted: tuple[bytes, ...]) -> None:
            assert (step, accepted) == (STEPS[2], (PLAN,))
            connection.execute(delete(SealingKeyRow))
            if refuses:
                raise OverspentError

        transaction, more = stored.database.transaction, {"attempt": 1}
        return SqlCheckJournal(transaction, CheckStepRow, PLAN, more=more, charge=charge)

    def keys(self, stored: Clocked) -> int:
        with stored.database.transaction() as connection:
            return connection.scalar(select(func.count()).select_from(SealingKeyRow)) or 0

    def test_both_are_there(self, stored: Clocked) -> None:
        sealing_key_of(stored.attempt(), SUITE_X25519)
        step = STEPS[2]
        assert isinstance(step, Exchanged)
        self.journal(stored, refuses=False).append_charged(step, accepted=(PLAN,))
        assert (self.keys(stored), steps_of(stored.database)) == (0, (step,))

    def test_or_neither(self, stored: Clocked) -> None:
        sealing_key_of(stored.attempt(), SUITE_X25519)
        step = STEPS[2]
        assert isinstance(step, Exchanged)
        for failing in (False, True):
            journal = self.journal(stored, refuses=not failing)
            if failing:
                with failing_commits(stored.database), pytest.raises(DatabaseError):
                    journal.append_charged(step, accepted=(PLAN,))
            else:
                with pytest.raises(OverspentError):
                    journal.append_charged(step, accepted=(PLAN,))
            assert journal.steps() == ()
            assert (self.keys(stored), steps_of(stored.database)) == (1, ())


class TestDamage:
    @pytest.mark.parametrize("number", [0, 1, 3])
    def test_a_step_that_is_gone(self, stored: Clocked, number: int) -> None:
        run = stored.attempt()
        append_all(check_journal_of(run, PLAN))
        with stored.database.transaction() as connection:
            connection.execute(delete(CheckStepRow).where(CheckStepRow.number == number))
        with pytest.raises(RunDamagedError):
            check_journal_of(run, PLAN)

    @pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", b"\x82\x61x\x80", b"\x01"])
    def test_a_step_that_is_none(self, stored: Clocked, body: bytes) -> None:
        run = stored.attempt()
        append_all(check_journal_of(run, PLAN))
        with stored.database.transaction() as connection:
            connection.execute(update(CheckStepRow).values(body=body))
        with pytest.raises(RunDamagedError):
            check_journal_of(run, PLAN)


class TestKey:
    @pytest.mark.parametrize("suite", SUITES)
    def test_an_attempt_keeps_its_key(self, stored: Clocked, suite: str) -> None:
        key = sealing_key_of(stored.attempt(), suite)
        stored.database.close()
        stored.open()
        run = stored.attempt()
        again = sealing_key_of(run, suite)
        assert (again.public_bytes, again.suite) == (key.public_bytes, suite)
        run.give_up("nobody came")
        other = sealing_key_of(stored.attempt(), suite)
        assert other.public_bytes != key.public_bytes

    def test_a_key_of_another_suite_is_none(self, stored: Clocked) -> None:
        run = stored.attempt()
        sealing_key_of(run, SUITE_X25519)
        with pytest.raises(RunDamagedError):
            sealing_key_of(run, SUITE_MLKEM768_X25519)
        with stored.database.transaction() as connection:
            connection.execute(update(SealingKeyRow).values(key=b"short"))
        with pytest.raises(RunDamagedError):
            sealing_key_of(run, SUITE_X25519)

    def test_one_that_could_not_be_stored_is_not_shown(self, stored: Clocked) -> None:
        run = stored.attempt()
        with failing_commits(stored.database), pytest.raises(DatabaseError):
            sealing_key_of(run, SUITE_X25519)


class TestErasing:
    SECRET = os.urandom(32)

    def end_of(self, stored: Clocked) -> datetime:
        """Let a run begin and end; return when it began."""
        began, run = stored.now, stored.attempt()
        key = sealing_key_of(run, SUITE_X25519)
        self.private = key.private_bytes
        check_journal_of(run, PLAN).append(SecretsDrawn(b"n" * 32, self.SECRET))
        stored.now += timedelta(days=1)
        stored.queue.enter("run", RunState.DONE, "")
        return began

    def test_keys_and_steps_go_after_the_audit_window_of_a_setup(self, stored: Clocked) -> None:
        began = self.end_of(stored)
        assert erase_checks(stored.database, begun_before=began) == 0
        assert stored.holds(self.private)
        assert stored.holds(self.SECRET)
        later = began + timedelta(seconds=1)
        assert erase_checks(stored.database, begun_before=later) == 1
        assert erase_checks(stored.database, begun_before=later) == 0
        assert steps_of(stored.database) == ()
        assert not stored.holds(self.private)
        assert not stored.holds(self.SECRET)
        with pytest.raises(RunDamagedError):  # never a second key of the attempt
            sealing_key_of(stored.attempt(), SUITE_X25519)


def test_on_a_database_of_each_kind_steps_and_keys_are_kept_and_erased(database: Database) -> None:
    queue = RunQueue(database, clock=lambda: NOON)
    for name in ("run", "other"):
        queue.add(name, "{}")
        run = queue.take_up(name)
        key = sealing_key_of(run, SUITE_X25519)
        assert sealing_key_of(run, SUITE_X25519).public_bytes == key.public_bytes
        append_all(check_journal_of(run, name.encode().ljust(32)))
    one, other = (check_journal_of(run, PLAN) for _ in range(2))
    one.append(STEPS[0])
    with pytest.raises(DatabaseError):
        other.append(STEPS[1])
    assert erase_checks(database, begun_before=NOON) == 0
    assert sealing_key_of(run, SUITE_X25519).public_bytes == key.public_bytes
    assert erase_checks(database, begun_before=NOON + timedelta(days=1)) == 2
    assert [steps_of(database, name.ljust(32)) for name in (b"run", b"other")] == [(), ()]
    with pytest.raises(RunDamagedError):
        sealing_key_of(run, SUITE_X25519)
