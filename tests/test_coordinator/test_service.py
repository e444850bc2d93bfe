"""The service's threads over a SuperLink that is none: what they take up, note, and give up."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from coordinator import service as service_module
from coordinator.errors import DatabaseError, SuperLinkError
from coordinator.federation.home import utc_now
from coordinator.runs import results
from coordinator.runs.queue import Progress, Run, RunState
from coordinator.runs.stages import BatchStage
from coordinator.service import _MOST_FAILURES, Service
from party.decision.guard import Guard
from party.errors import Reason, RefusalError
from pate_fed.errors import RunDirectoryError
from pate_fed.run_folder import writing
from pate_fed.terms import RunTerms
from protocols.run_scope import RunScope
from tests.support.console import add_hospitals
from tests.support.deployed import NAMES
from tests.support.door import Door
from tests.support.loopback_home import make_home
from tests.support.markers import sampled
from tests.support.worked import Worked

_PATIENCE_S = 300.0


class Link(Door):
    """A SuperLink that is no process."""

    def __init__(self) -> None:
        super().__init__(first=0)
        self._is_ready = self.is_kept = True
        self.looks: Counter[str] = Counter()
        self.restarts = 0

    @property
    def is_ready(self) -> bool:
        self.looks[threading.current_thread().name] += 1
        return self._is_ready

    @is_ready.setter
    def is_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to end."""

    def register(self, public_key: bytes, *, name: str) -> int:
        if not self.is_ready:
            raise SuperLinkError("the SuperLink must answer", "none")
        return super().register(public_key, name=name)


class Served:
    """A federation and the service that works on its runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_POLL_S", "_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
            monkeypatch.setattr(service_module, name, 0.01)
        monkeypatch.setattr(service_module, "be_quiet", lambda home: None)
        self.federation = Worked(folder, home=make_home(folder / "federation"))
        self.queue = self.federation.coordinator.queue
        self.link = Link()
        monkeypatch.setattr(self.federation.coordinator, "superlink", lambda: self.link)
        self.service = Service(self.federation.coordinator)
        self.service.superlink = self.link  # type: ignore[assignment]
        self.service._worker = self.federation.worker()

    def start(self) -> None:
        self.service.start()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, [run.as_table() for run in self.queue.all()]
            time.sleep(0.01)

    def wait_until_looked(self, thread: str) -> None:
        """Wait until a thread of the service looked whether it can do anything as things are."""
        before = self.link.looks[thread]
        self.wait_for(lambda: self.link.looks[thread] > before + 5)

    def stop(self) -> None:
        """End the service, and whatever its threads are at."""
        self.service.stop()
        for thread in self.service._threads:
            thread.join(_PATIENCE_S)
            assert not thread.is_alive()
        self.federation.coordinator.close()

    def wait_until(self, name: str, state: RunState) -> None:
        self.wait_for(lambda: self.queue.find(name).state is state)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    made = Served(tmp_path, monkeypatch)
    yield made
    made.stop()


def test_runs_are_worked_on_one_after_the_other_until_none_is_left(served: Served) -> None:
    for name in ("first", "second"):
        served.federation.ask(name, queries=4)
    served.start()
    for name in ("first", "second"):
        served.wait_until(name, RunState.DONE)
    assert served.queue.find("first").progress.answered == 4
    assert all(len(one.asked) == 4 for one in served.federation.hospitals.values())


def test_monitoring_is_told_of_members_by_their_state(served: Served) -> None:
    served.start()
    members = served.service._probe().members
    before = members()
    add_hospitals(served.federation.coordinator, "East", "West", state="requested")
    add_hospitals(served.federation.coordinator, "Gone", state="revoked")
    assert members() == {**before, "requested": 2, "revoked": 1}
    assert before["member"] == len(NAMES)


@pytest.mark.slow
def test_runs_and_batches_are_told_of_in_the_log_by_counts_alone(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="coordinator")
    # Stages pass by the service's own ear, as where the worker is its own.
    served.federation.on_stage = served.service._forgetting(lambda stage: None)
    served.federation.ask(queries=8)
    served.start()
    served.wait_until("first", RunState.DONE)

    def told_of() -> list[dict[str, Any]]:
        facts = [getattr(one, "facts", {}) for one in list(caplog.records)]
        return [one for one in facts if one.get("run") == "first"]

    # The run is done before the log says so.
    served.wait_for(lambda: "run done" in [one["event"] for one in told_of()])
    told = told_of()
    assert [one["event"] for one in told] == [
        *("run started", "batch asked", "batch done", "batch asked", "batch done", "run done"),
    ]
    done = [one for one in told if one["event"] == "batch done"]
    assert [(one["answered"], one["refused"], one["queries"]) for one in done] == [
        *((4, 0, 8), (8, 0, 8)),
    ]
    assert told[-1]["state"] == "done"
    kept = {"event", "run", "state", "reason"}
    counts = {
        "batches",
        "void",
        "queries",
        "asked",
        "answered",
        "refused",
        "epsilon",
        "share",
        "tests_delta",
    }
    assert set().union(*told) <= kept | counts


def test_only_another_process_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower interrupts its own process where it gives up a run of its own."""
    home = make_home(tmp_path / "federation")
    told = [SimpleNamespace(si_pid=os.getpid()), SimpleNamespace(si_pid=os.getppid())]
    steps: list[str] = []
    link = SimpleNamespace(wait_until_ready=lambda seconds: True)

    class Stand:
        superlink = link

        def __init__(self, *_: object, **__: object) -> None:
            steps.append("made")

        def start(self) -> None:
            steps.append("started")

        def stop(self) -> None:
            steps.append(f"stopped, {len(told)} signals left")

    monkeypatch.setattr(service_module, "Service", Stand)
    monkeypatch.setattr(service_module.signal, "sigwaitinfo", lambda signals: told.pop(0))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    service_module.serve(home.folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert steps == ["made", "started", "stopped, 0 signals left"]
    assert [one.levelname for one in caplog.records if one.name == "coordinator.service"] == [
        "WARNING"
    ]


def test_a_database_that_is_gone_while_an_interruption_is_noted_is_told_of(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.federation.ask("first")
    run = served.queue.find("first")
    served.start()
    assert served.service._probe().is_ready()["database"]

    def gone(name: str) -> Run:
        raise DatabaseError("the database must be there and writable", name)

    with monkeypatch.context() as patch:
        patch.setattr(served.queue, "find", gone)
        served.service._note_interruption(run, ConnectionError())
    assert not served.service._stores


@pytest.mark.slow
def test_an_interruption_is_noted_at_the_run_that_it_befell(served: Served) -> None:
    """The operator stops another one meanwhile, which is then the next to be worked on."""
    for name in ("first", "second"):
        served.federation.ask(name)
    are_noted = threading.Event()
    enter = served.queue.enter

    def break_down(number: int) -> None:
        if number == 5 and not are_noted.is_set():
            served.queue.stop("second")
            raise ConnectionError

    def entered(name: str, state: RunState, reason: str = "") -> object:
        if reason.startswith("interrupted"):
            said.append((name, reason))
            are_noted.set()
        return enter(name, state, reason)

    said: list[tuple[str, str]] = []
    served.federation.on_exchange = break_down
    served.queue.enter = entered  # type: ignore[method-assign,assignment]
    served.start()
    served.wait_for(are_noted.is_set)
    served.wait_until("second", RunState.STOPPED)
    served.wait_until("first", RunState.DONE)
    assert [name for name, _ in said] == ["first"]
    assert "PF-490" in said[0][1]


@pytest.mark.slow
def test_while_the_superlink_is_silent_a_run_says_that_it_waits_for_it(served: Served) -> None:
    served.federation.ask()
    served.link.is_ready = False
    served.start()
    served.wait_for(lambda: "SuperLink" in served.queue.find("first").reason)
    assert served.queue.find("first").state is RunState.WAITING
    assert not any(one.asked for one in served.federation.hospitals.values())
    served.link.is_ready = True
    served.wait_until("first", RunState.DONE)


def test_where_the_certificate_expired_a_run_says_that_it_waits_for_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "end_of", lambda certificate: utc_now())
    served.federation.ask()
    served.link.is_ready = False
    served.start()
    served.wait_for(lambda: "`pate-fed renew`" in served.queue.find("first").reason)
    assert served.queue.find("first").state is RunState.WAITING


def test_what_the_end_of_the_service_cuts_off_is_no_interruption(served: Served) -> None:
    """The next service goes on with it: the run is as it was."""
    served.federation.ask()
    is_cut = threading.Event()

    def cut(number: int) -> None:
        served.service._stopped.set()
        is_cut.set()
        raise ConnectionError

    served.federation.on_exchange = cut
    served.start()
    served.wait_for(is_cut.is_set)
    served.service._threads[0].join(_PATIENCE_S)
    run = served.queue.find("first")
    assert (run.state, run.reason) == (RunState.RUNNING, "")


def test_a_run_that_lets_go_of_flower_leaves_no_message_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Path] = []
    monkeypatch.setattr(service_module, "forget_delivered", forgotten.append)
    given: list[Callable[[], bool]] = []

    @contextmanager
    def grid(*, is_over: Callable[[], bool]) -> Iterator[object]:
        given.append(is_over)
        yield object()

    monkeypatch.setattr(served.link, "grid", grid, raising=False)
    served.start()
    with suppress(ConnectionError), served.service._open_transport([7]):
        assert not forgotten
        raise ConnectionError
    assert forgotten == [served.service.home.path("superlink.db")]
    assert [is_over() for is_over in given] == [False]
    served.service._stopped.set()
    assert [is_over() for is_over in given] == [True]


@pytest.mark.slow
def test_what_the_operator_wants_is_heard_while_the_superlink_is_silent(served: Served) -> None:
    for name in ("stopped", "paused", "waiting"):
        served.federation.ask(name)
    served.queue.enter("paused", RunState.WAITING, "for North")
    served.queue.stop("stopped")
    served.queue.pause("paused")
    served.link.is_ready = False
    served.start()
    served.wait_until("stopped", RunState.STOPPED)
    served.wait_until("paused", RunState.PAUSED)
    served.wait_until("waiting", RunState.WAITING)
    served.queue.stop("waiting")
    served.wait_until("waiting", RunState.STOPPED)
    assert not any(one.exchanges for one in served.federation.hospitals.values())


def test_a_stopped_run_that_was_begun_is_ended_with_its_hospitals_once_they_can_be_reached(
    served: Served,
) -> None:
    served.federation.ask()

    def stop(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            served.link.is_ready = False
            raise ConnectionError

    served.federation.on_stage = stop
    served.start()
    served.wait_for(lambda: "SuperLink" in served.queue.find("first").reason)
    served.queue.stop("first")
    served.wait_until_looked("worker")
    assert served.queue.find("first").state is RunState.STOPPING
    served.federation.on_stage = lambda stage: None
    served.link.is_ready = True
    served.wait_until("first", RunState.STOPPED)
    assert "PF-" not in served.queue.find("first").reason
    assert served.queue.find("first").progress.answered == 4


def test_members_are_let_in_once_the_superlink_answers(served: Served) -> None:
    served.link.is_ready = False
    served.start()
    served.wait_until_looked("members")
    assert not served.link.keys
    served.link.is_ready = True
    served.wait_for(lambda: len(served.link.keys) == len(NAMES))


# Runs that fail ----------------------------------------------------------------------------------


def failwriting(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> list[str]:
    """Let the results of the run "first" never be written; return where each try is noted."""
    tries: list[str] = []
    writes = results.write_results

    def write(out: Path, **given: Any) -> None:
        if out == served.service.home.results("first"):
            tries.append("first")
            raise error()
        writes(out, **given)

    monkeypatch.setattr(results, "write_results", write)
    return tries


def unwritable() -> Exception:
    """What the run directory says where the disk is full."""
    try:
        with writing(Path("results")):
            raise OSError(28, "No space left on device")
    except RunDirectoryError as error:
        return error
    raise AssertionError


@pytest.mark.slow
def test_a_run_that_fails_each_time_ends_and_lets_the_next_one_begin(served: Served) -> None:
    """It fails between its batches: it keeps what it has."""
    tries: list[int] = []

    def break_down(number: int) -> None:
        if served.queue.find("first").progress.batches == 1:
            tries.append(number)
            raise ValueError("a secret")

    served.federation.ask(queries=8, batch_size=4)
    served.federation.ask("second", queries=8)
    served.federation.on_exchange = break_down
    served.start()
    served.wait_until("first", RunState.INCOMPLETE)
    run = served.queue.find("first")
    assert re.match("PF-490: .*ValueError", run.reason)
    assert "secret" not in run.reason
    assert 1 < len(tries) < 10
    assert run.progress.answered == 4  # what was released is known: see the second run
    served.federation.on_exchange = lambda number: None
    served.wait_until("second", RunState.DONE)
    assert served.queue.find("second").progress.from_store > 0


@pytest.mark.slow
def test_a_run_whose_results_cannot_be_written_is_done_and_lets_the_next_one_begin(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = failwriting(served, monkeypatch, lambda: ValueError("a secret"))
    served.federation.ask(queries=4)
    served.federation.ask("second", queries=8)
    served.start()
    served.wait_until("first", RunState.DONE)
    run = served.queue.find("first")
    assert re.search("PF-490: .*ValueError", run.reason)
    assert "secret" not in run.reason
    assert tries == ["first"]
    served.wait_until("second", RunState.DONE)


@pytest.mark.slow
def test_what_passes_by_itself_ends_no_run_however_long_it_takes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        tries = failwriting(served, patch, unwritable)
        served.federation.ask(queries=4)
        served.start()
        served.wait_for(lambda: len(tries) > 12)
        assert served.queue.find("first").state in (RunState.WAITING, RunState.RUNNING)
    served.wait_until("first", RunState.DONE)


@sampled()
@pytest.mark.parametrize(
    "error",
    [pytest.param(lambda: ValueError("x"), id="ours"), pytest.param(unwritable, id="full disk")],
)
def test_a_run_that_is_told_to_stop_ends_though_its_results_cannot_be_written(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    tries = failwriting(served, monkeypatch, error)
    served.federation.ask(queries=4)

    def stop(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            served.queue.stop("first")

    served.federation.on_stage = stop
    served.start()
    served.wait_until("first", RunState.STOPPED)
    assert tries
    assert "pate-fed export" in served.queue.find("first").reason


def test_a_run_that_is_told_to_stop_ends_with_what_it_gave_though_flower_never_answers_again(
    served: Served,
) -> None:
    served.federation.ask(batch_size=4)

    def stop(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            served.queue.stop("first")

    def break_down(number: int) -> None:
        if served.queue.find("first").state is RunState.STOPPING:
            raise ConnectionError

    served.federation.on_stage, served.federation.on_exchange = stop, break_down
    served.start()
    served.wait_until("first", RunState.STOPPED)
    run = served.queue.find("first")
    assert (run.progress.answered, "ConnectionError" in run.reason) == (4, True)
    assert served.service.home.results("first").is_dir()


@pytest.mark.slow
def test_failures_are_counted_anew_where_a_run_came_further(served: Served) -> None:
    """Each batch fails a few times: it is slow, and no run that fails for ever."""
    served.federation.ask(queries=12, batch_size=4)
    failures: Counter[int] = Counter()

    def break_down(number: int) -> None:
        batch = int(served.queue.find("first").progress.batches)
        if batch and failures[batch] < 3:
            failures[batch] += 1
            raise RuntimeError

    served.federation.on_exchange = break_down
    served.start()
    served.wait_until("first", RunState.DONE)
    assert sum(failures.values()) > _MOST_FAILURES


# Turns --------------------------------------------------------------------------------------------


class PickyGuard(Guard):
    """A hospital whose people have approved every run but that of twelve queries."""

    def review_consent(self, terms: RunTerms, *, scope: RunScope) -> None:
        if terms.caps.most.asks == 12:
            raise RefusalError(Reason.APPROVAL, "a person must approve the run", "none yet")


@pytest.mark.slow
def test_a_run_that_waits_for_approvals_keeps_no_other_back(served: Served) -> None:
    served.federation.ask("first", queries=12)
    served.federation.ask("second", queries=4)
    node = served.federation.hospitals[0].node
    assert node is not None
    guard = node._guard
    picky = PickyGuard(guard.policy, guard.weights, guard.checked_peers)
    decided = {"known_peers": node._known_peers, "tasks": node._tasks}
    node.adopt(guard=picky, **decided)
    waits: list[str] = []

    def wait(seconds: float) -> None:
        waits.append(served.queue.find("first").reason)
        time.sleep(0.05)

    served.federation.on_wait = wait
    served.start()
    served.wait_until("second", RunState.DONE)
    assert any("PF-322" in reason for reason in waits)  # it came first, and was offered
    assert served.queue.find("first").state in (RunState.WAITING, RunState.RUNNING)
    assert served.queue.find("first").progress == Progress()
    node.adopt(guard=guard, **decided)
    served.wait_until("first", RunState.DONE)
    assert served.queue.find("first").progress.void == 0


def test_a_superlink_that_fails_within_an_exchange_is_no_fault_of_the_program() -> None:
    shown = service_module._reason(httpx.HTTPError("https://127.0.0.1/?token=secret"))
    assert re.fullmatch("PF-430: .*, got HTTPError", shown)
