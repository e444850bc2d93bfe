"""Runs in the database: what the operator may ask of them, and what a service works on next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event

from coordinator.cli.following import follow
from coordinator.database import Database, RunAttempt, SqlCoordinatorJournal
from coordinator.errors import RunQueueError, RunRequestError
from coordinator.runs.queue import ENDED, PAUSE, Progress, Run, RunQueue, RunState
from protocols.rounds.coordinator_journal import RunEnded
from tests.support.markers import sampled

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture
def queue(database: Database) -> RunQueue:
    return RunQueue(database, clock=Clock())


def state(queue: RunQueue, name: str) -> RunState:
    return queue.find(name).state


def test_a_new_run_is_queued_and_keeps_what_was_asked(queue: RunQueue) -> None:
    queue.add("first", '{"a":1}')
    run = queue.find("first")
    assert (run.state, run.reason, run.is_begun) == (RunState.QUEUED, "", False)
    assert queue.request("first") == '{"a":1}'
    assert run.created_at == NOW + timedelta(seconds=1)


def test_a_name_is_taken_once(queue: RunQueue) -> None:
    queue.add("first", "{}")
    with pytest.raises(RunRequestError):
        queue.add("first", "{}")


def test_an_unknown_run_is_said_to_be_unknown(queue: RunQueue) -> None:
    for call in (queue.find, queue.request, queue.pause, queue.resume, queue.stop, queue.take_up):
        with pytest.raises(RunQueueError, match="nobody"):
            call("nobody")


def begin(queue: RunQueue, name: str) -> RunAttempt:
    """Let the hospitals of a run be offered it."""
    attempt = queue.take_up(name)
    SqlCoordinatorJournal(attempt).append(RunEnded(b"c"))
    queue.enter(name, RunState.RUNNING)
    return attempt


def test_what_was_begun_comes_before_what_was_not_and_what_ends_before_that(
    queue: RunQueue,
) -> None:
    for name in ("one", "two", "three", "four"):
        queue.add(name, "{}")
    for name in ("two", "three"):
        begin(queue, name)
        assert queue.find(name).is_begun
    queue.pause("two")
    queue.rest("two")
    queue.resume("two")
    queue.enter("three", RunState.WAITING, "for North")
    for _ in range(3):  # between two batches of it there is none of another
        assert queue.next() == queue.find("three")
        queue.take_up("three")
    queue.stop("four")
    assert queue.next() == queue.find("four")
    for name in ("three", "four"):
        queue.enter(name, RunState.DONE)
    assert queue.next() == queue.find("two")
    queue.enter("two", RunState.DONE)
    assert queue.next() == queue.find("one")
    queue.pause("one")
    assert queue.next() is None


def test_runs_that_are_to_be_begun_take_turns(queue: RunQueue) -> None:
    for name in ("one", "two"):
        queue.add(name, "{}")
    tried = []
    for _ in range(5):
        run = queue.next()
        assert run is not None
        tried.append(run.name)
        attempt = queue.take_up(run.name)
        SqlCoordinatorJournal(attempt).append(RunEnded(b"c"))
        attempt.give_up("waits for North")
        queue.enter(run.name, RunState.WAITING, "waits for North")
        if len(tried) == 2:
            queue.add("three", "{}")  # who comes later stands behind who was there
    assert tried == ["one", "two", "one", "two", "three"]


@sampled()
@pytest.mark.parametrize("ended", sorted(ENDED), ids=str)
def test_what_has_ended_is_over(queue: RunQueue, ended: RunState) -> None:
    queue.add("first", "{}")
    queue.enter("first", ended, "why")
    assert queue.next() is None
    for call in (queue.pause, queue.resume, queue.stop):
        with pytest.raises(RunQueueError):
            call("first")
    assert queue.find("first").reason == "why"


def test_a_run_under_way_is_asked_to_pause_and_may_be_told_otherwise(queue: RunQueue) -> None:
    queue.add("first", "{}")
    queue.enter("first", RunState.RUNNING)
    assert queue.pause("first").wanted == PAUSE
    assert state(queue, "first") is RunState.RUNNING
    assert queue.resume("first").wanted == ""
    queue.pause("first")
    queue.enter("first", RunState.PAUSED, "by the operator")
    assert queue.find("first").wanted == ""
    assert queue.resume("first").state is RunState.QUEUED


def test_a_run_rests_only_if_that_is_wanted_still(queue: RunQueue) -> None:
    """The service looked, and rests it; in between the operator resumes it."""
    queue.add("first", "{}")
    queue.enter("first", RunState.RUNNING)
    queue.pause("first")
    queue.resume("first")
    assert not queue.rest("first")
    assert state(queue, "first") is RunState.RUNNING
    queue.pause("first")
    assert queue.rest("first")
    run = queue.find("first")
    assert (run.state, run.wanted) == (RunState.PAUSED, "")
    assert queue.rest("first")  # it does
    assert queue.resume("first").state is RunState.QUEUED


def test_a_run_waits_since_it_began_to_until_it_goes_on_rests_or_is_resumed(
    queue: RunQueue,
) -> None:
    queue.add("first", "{}")
    later = [NOW + timedelta(days=day) for day in range(9)]
    assert queue.wait_since("first", now=later[0]) == later[0]
    assert queue.wait_since("first", now=later[1]) == later[0]
    queue.enter("first", RunState.WAITING, "for North")
    queue.enter("first", RunState.RUNNING)
    assert queue.wait_since("first", now=later[2]) == later[0]
    queue.end_wait("first")
    assert queue.wait_since("first", now=later[3]) == later[3]
    queue.enter("first", RunState.PAUSED, "its patience is over")
    queue.resume("first")
    assert queue.wait_since("first", now=later[4]) == later[4]
    queue.enter("first", RunState.WAITING)
    queue.pause("first")
    queue.resume("first")
    assert queue.wait_since("first", now=later[5]) == later[5]


def test_what_the_operator_said_meanwhile_holds(queue: RunQueue) -> None:
    """The service read the run before, and writes after."""
    queue.add("first", "{}")
    queue.pause("first")
    assert queue.enter("first", RunState.RUNNING).state is RunState.PAUSED
    queue.resume("first")
    queue.enter("first", RunState.RUNNING)
    queue.stop("first")
    queue.enter("first", RunState.WAITING, "South is silent")
    assert state(queue, "first") is RunState.STOPPING
    assert queue.find("first").reason == "South is silent"
    assert queue.enter("first", RunState.STOPPED).state is RunState.STOPPED


def test_what_was_asked_is_not_read_where_runs_are_looked_at(
    queue: RunQueue, database: Database
) -> None:
    """That is done several times a second, and requests are as long as their queries are many."""
    queue.add("first", "{}")
    read: list[str] = []
    event.listen(
        database._engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *rest: read.append(statement),
    )
    for look in (
        queue.all,
        queue.next,
        lambda: queue.find("first"),
        lambda: queue.note("first", Progress()),
    ):
        look()
    assert len(read) >= 4
    assert not any("request" in statement for statement in read)
    queue.request("first")
    assert any("request" in statement for statement in read)


def test_progress_is_kept_as_it_was_noted(queue: RunQueue) -> None:
    queue.add("first", "{}")
    queue.note("first", Progress(answered=3, epsilon=1.25))
    assert queue.find("first").progress == Progress(answered=3, epsilon=1.25)
    with pytest.raises(ValueError, match="JSON"):
        queue.note("first", Progress(epsilon=float("inf")))


def test_a_void_batch_and_the_end_of_a_run_are_told_of_once(
    queue: RunQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="coordinator")
    queue.add("first", "{}")
    queue.enter("first", RunState.RUNNING)
    for _ in range(2):
        queue.enter("first", RunState.WAITING, "for North")
        queue.enter("first", RunState.RUNNING)
        queue.note("first", Progress(void=1, epsilon=0.5))
    for _ in range(2):
        queue.enter("first", RunState.FAILED, "PF-411: why")
    told = [getattr(one, "facts", {}) for one in caplog.records]
    names = ("queries", "asked", "answered", "refused", "batches", "share", "tests_delta")
    counts = {**dict.fromkeys(names, 0), "void": 1, "epsilon": 0.5}
    assert told == [
        {"event": "run started", "run": "first"},
        {"event": "batch void", "run": "first", **counts},
        {"event": "run done", "run": "first", "state": "failed", "reason": "PF-411: why"},
    ]


def test_who_follows_a_run_that_waits_is_told_once_though_it_is_offered_again_and_again(
    queue: RunQueue,
) -> None:
    queue.add("first", "{}")
    steps = iter(
        [
            *[(RunState.RUNNING, ""), (RunState.WAITING, "for North")] * 3,
            (RunState.RUNNING, ""),
            (RunState.WAITING, "for South"),
            (RunState.RUNNING, ""),
            (RunState.DONE, ""),
        ]
    )
    told: list[Run] = []
    follow(queue, "first", tell=told.append, sleep=lambda _: queue.enter("first", *next(steps)))
    assert [(one.state, one.reason) for one in told] == [
        (RunState.QUEUED, ""),
        (RunState.RUNNING, ""),
        (RunState.WAITING, "for North"),
        (RunState.WAITING, "for South"),
        (RunState.DONE, ""),
    ]
