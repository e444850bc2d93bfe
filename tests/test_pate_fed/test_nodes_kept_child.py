"""A process beside ours: started again whatever it ended with, and never left alone."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pate_fed.nodes import KeptChild, kept_child
from tests.support.markers import sampled
from tests.support.waiting import wait_for

NAME = "the child"
LAST_WORDS = "import sys; sys.stdin.read(); print('the line is cut', flush=True)"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_child, "_LOOK_S", 0.01)


def kept(
    program: str,
    *,
    log: Path | None = None,
    pauses: tuple[float, float] = (0.01, 0.01),
    backs_off: Callable[[float], bool] = lambda _: False,
    may_start: Callable[[], bool] = lambda: True,
) -> KeptChild:
    return KeptChild(
        NAME,
        [sys.executable, "-c", program],
        environment=os.environ,
        logger=logging.getLogger("tests"),
        fault_code="PF-373",
        pauses=pauses,
        backs_off=backs_off,
        may_start=may_start,
        log=log,
    )


@sampled()
@pytest.mark.parametrize(
    ("backs_off", "pauses"),
    [
        pytest.param([False] * 6, [1, 1, 1, 1, 1, 1], id="never"),
        pytest.param([True] * 6, [1, 2, 4, 8, 12, 12], id="always"),
        pytest.param([True, True, False, True, True, True], [1, 2, 1, 2, 4, 8], id="once not"),
    ],
)
def test_one_that_backs_off_is_started_ever_more_seldom(
    backs_off: list[bool], pauses: list[int]
) -> None:
    waited: list[float | None] = []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None and timeout < 1:  # while it lives
                return super().wait(timeout)
            waited.append(timeout)
            if len(waited) == len(pauses):
                self.set()
            return self.is_set()

    answers = iter(backs_off)
    child = kept("pass", pauses=(1.0, 12.0), backs_off=lambda _: next(answers))
    child._stopped = Waits()
    child.start()
    child._thread.join(60)
    assert waited == pauses


def test_one_that_ends_is_started_again_whatever_it_ended_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = kept("import sys; sys.exit(305)")
    child.start()
    wait_for(lambda: child.starts >= 3)
    assert any(f"{305 % 256};" in message for message in caplog.messages)
    assert child.is_kept
    child.stop()
    starts = child.starts
    assert (child.pid, child.is_kept, child.ended_with in (305 % 256, -15)) == (None, False, True)
    time.sleep(0.1)
    assert child.starts == starts


@pytest.mark.parametrize("longest", [600.0, 0.05])
def test_one_that_may_not_start_waits_but_not_for_ever(
    longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_child, "_ASK_S", 0.01)
    asked: list[bool] = []
    may_start = threading.Event()

    def ask() -> bool:
        asked.append(may_start.is_set())
        return asked[-1]

    child = kept("pass", pauses=(0.01, longest), may_start=ask)
    child.start()
    if longest > 60:
        wait_for(lambda: len(asked) > 3)
        assert (child.starts, child.ends) == (1, 1)
        may_start.set()
    wait_for(lambda: child.starts > 1)
    child.stop()
    assert asked


def test_one_that_is_killed_is_started_again() -> None:
    child = kept("import time; time.sleep(600)")
    child.start()
    wait_for(lambda: child.pid is not None)
    first = child.pid
    child._process.kill()  # type: ignore[union-attr]
    wait_for(lambda: child.pid not in (None, first))
    child.stop()
    assert (child.pid, child.ends, child.starts) == (None, 1, 2)


def test_one_that_cannot_be_started_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    child = kept("pass")
    child._command = ["/no/such/secret"]
    child.start()
    wait_for(lambda: len(caplog.messages) > 1)
    child.stop()
    assert re.match(r"\[PF-373\] .*FileNotFound", caplog.messages[0])
    assert "secret" not in caplog.text


def test_one_whose_look_fails_is_ended_and_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once would want the same ports."""
    seen: list[int | None] = []

    def look(child: KeptChild) -> float:
        seen.append(child.pid)
        raise OSError

    monkeypatch.setattr(KeptChild, "look", look)
    child = kept("import time; time.sleep(600)")
    child.start()
    wait_for(lambda: len(seen) > 2)
    child.stop()
    assert len(set(seen)) == len(seen)
    assert child.pid is None


def test_one_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_child, "_END_S", 0.05)
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)"
    log = tmp_path / "child.log"
    child = kept(f"{deaf}; signal.pause()", log=log)
    child.start()
    wait_for(lambda: log.exists() and "deaf" in log.read_text("utf-8"))
    child.stop()
    assert (child.pid, child.ended_with) == (None, -9)
    assert any("killed" in message for message in caplog.messages)


def test_its_life_line_is_ours(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = kept(LAST_WORDS, log=log)
    child.start()
    wait_for(lambda: child.pid is not None)
    child._process.stdin.close()  # type: ignore[union-attr]
    wait_for(lambda: "the line is cut" in log.read_text("utf-8"))
    child.stop()


def test_what_it_prints_goes_to_our_log_where_it_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = kept("print('a last word')")
    child.start()
    wait_for(lambda: child.ends)
    child.stop()
    assert caplog.messages[0] == "the child printed: a last word"


def test_its_log_is_the_owners_and_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_bytes(b"x" * (2**20 + 1))
    child = kept("pass", log=log)
    child.start()
    wait_for(lambda: child.starts)
    child.stop()
    assert (tmp_path / "child.log.1").stat().st_size == 2**20 + 1
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.stat().st_size < 2**20


def test_one_that_was_never_started_can_be_stopped() -> None:
    kept("pass").stop()


def test_a_child_whose_parent_is_gone_is_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, parents = os.pipe()
    told: list[tuple[int, int]] = []
    is_told = threading.Event()

    def tell(process: int, signal_number: int) -> None:
        told.append((process, signal_number))
        is_told.set()

    with os.fdopen(ours) as life_line:
        monkeypatch.setattr(sys, "stdin", life_line)
        monkeypatch.setattr(os, "kill", tell)
        kept_child.end_with_parent()
        os.write(parents, b"whatever it says")
        assert not is_told.is_set()
        os.close(parents)
        assert is_told.wait(60)
    assert told == [(os.getpid(), signal.SIGTERM)]
