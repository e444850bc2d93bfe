"""Logs: a line of JSON or text, no values, and nobody outside decides how much of them there is."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pate_fed.nodes.logs import Calm, JsonFormatter, facts, log_line, pass_on, write_logs
from tests.support.command import logs_as_they_were

PEM = "b'-----BEGIN PUBLIC KEY-----\\nMHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE'"
REFUSED = f"[/v1/fleet/activate-node][ApiError:2004] Attempted to register SuperNode: {PEM}"


def record(text: str, *, at: float = 0.0) -> logging.LogRecord:
    made = logging.LogRecord("flwr", logging.ERROR, "here", 1, text, (), None)
    made.created = at
    return made


def said(calm: Calm, text: str, *, at: float) -> str:
    """What of a line gets through; nothing if it does not."""
    line = record(text, at=at)
    if not calm.filter(line):
        return ""
    shown: str = json.loads(JsonFormatter().format(line))["message"]
    return shown


def test_who_knocks_every_second_is_written_down_once_a_minute_with_how_often() -> None:
    calm = Calm()
    lines = [said(calm, REFUSED, at=1000.0 + second) for second in range(180)]
    shown = [line for line in lines if line]
    assert len(shown) == 3
    assert "ApiError:2004" in shown[0]
    assert [line.endswith(")") and "(and 59 " in line for line in shown] == [False, True, True]
    assert not any("BEGIN" in line or "MHYw" in line for line in shown)


def test_other_things_are_said_meanwhile() -> None:
    calm = Calm()
    assert said(calm, REFUSED, at=0.0)
    assert said(calm, "[/v1/fleet/activate-node][ApiError:2005] another", at=0.1)
    assert said(calm, "gone", at=0.2) == "gone"


def test_texts_that_always_differ_fill_neither_memory_nor_disk_at_once() -> None:
    calm = Calm()
    for number in range(10_000):
        assert len(said(calm, f"{number} " + "x" * 10_000, at=float(number))) <= 300
    assert len(calm._last) <= 100


def test_what_flower_always_says_is_not_news() -> None:
    assert said(Calm(), "EXPERIMENTAL: SuperExec authentication is experimental", at=0.0) == ""


@pytest.mark.parametrize("text", ["100 % done", "%s", "%d of %s"])
def test_a_text_with_signs_of_formatting_is_written_as_it_is(text: str) -> None:
    assert said(Calm(), text, at=0.0) == text


@contextmanager
def a_process(capsys: pytest.CaptureFixture[str]) -> Iterator[list[dict[str, Any]]]:
    """Log as a service's process does; in the end there is each line that it printed, read."""
    said: list[dict[str, Any]] = []
    with logs_as_they_were():
        write_logs("coordinator")
        yield said
    said += [json.loads(line) for line in capsys.readouterr().err.splitlines()]


class TestAProcess:
    """Whatever is printed in a process that has such a log, each line is one JSON object."""

    def test_ours_says_all_that_it_has_to_with_its_facts(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        log = logging.getLogger("coordinator.service")
        with a_process(capsys) as said:
            for _ in range(2):  # nothing of ours is left out
                log.info("a batch\nis done", extra=facts("batch done", run="first", answered=4))
            log.debug("no news")
        assert len(said) == 2
        expected = {"event": "batch done", "run": "first", "answered": 4, "level": "info"}
        assert expected.items() <= said[1].items()
        assert said[1]["message"] == "a batch\nis done"

    def test_others_warn_once_a_minute(self, capsys: pytest.CaptureFixture[str]) -> None:
        with a_process(capsys) as said:
            for name in ("flwr", "uvicorn.error", "asyncio"):
                for _ in range(2):
                    logging.getLogger(name).warning("somebody knocks at %s", name)
                logging.getLogger(name).info("no news")
        assert [one["logger"] for one in said] == ["flwr", "uvicorn.error", "asyncio"]

    def test_a_handler_that_flower_brought_is_gone(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with logs_as_they_were():
            logging.getLogger("flwr").addHandler(logging.StreamHandler())
            with a_process(capsys) as said:
                logging.getLogger("flwr").warning("once")
        assert [one["message"] for one in said] == ["once"]

    def test_warnings_of_python_are_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            with a_process(capsys) as said:
                warnings.warn("an old way", FutureWarning, stacklevel=1)
        [line] = said
        assert line["logger"] == "py.warnings"
        assert "an old way" in line["message"]

    def test_what_nobody_catches_is_named_by_kind_and_place_never_by_text(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> None:
            raise ValueError("7919 votes of patient 4711")

        with a_process(capsys) as said:
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
        [line] = said
        assert "a ValueError at test_nodes_logs.py:" in line["message"]
        assert "4711" not in str(line)

    def test_a_line_that_cannot_be_written_adds_none_that_is_no_json(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with a_process(capsys) as said:
            [handler] = logging.getLogger().handlers
            for name in ("flwr", "coordinator"):
                args = ("one",)
                handler.handle(logging.LogRecord(name, 30, "", 1, "%d of %d", args, None))
        assert [one["message"] for one in said] == ["%d of %d"] * 2

    def test_a_childs_log_line_is_passed_on_as_it_is_and_other_text_is_wrapped(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = log_line("hello", level=logging.INFO, code="PF-448")
        with a_process(capsys) as said:
            for text in (line, line, "Traceback (most recent call last):\n", "17\n", "\n"):
                pass_on(text, said_by="the SuperLink")
        assert said[:2] == [json.loads(line)] * 2
        assert [one["message"] for one in said[2:]] == [
            "the SuperLink printed: Traceback (most recent call last):",
            "the SuperLink printed: 17",
        ]


@contextmanager
def at_a_terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Log as a service's process does at a terminal; in the end there is each line."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch, logs_as_they_were():
        patch.setattr(sys.stderr, "isatty", lambda: True)
        write_logs("coordinator")
        yield said
    said += capsys.readouterr().err.splitlines()


HOSTILE = [
    pytest.param({"message": "\x1b[2J\nroot\u202e: all is well"}, id="signs for a terminal"),
    pytest.param({"message": {"a": [1]}, "level": None, "time": 7}, id="other types"),
    pytest.param({}, id="nothing"),
    pytest.param({"message": json.loads("[" * 800 + "]" * 800)}, id="deep"),
    pytest.param({"message": "x", "exception": ["\x07"], "level": "\r"}, id="in other fields"),
]


class TestAtATerminal:
    """Where standard error is a terminal, each line is text: one printable line."""

    def test_a_line_has_time_level_and_message(self, capsys: pytest.CaptureFixture[str]) -> None:
        with at_a_terminal(capsys) as said:
            logging.getLogger("coordinator").info("done", extra=facts("batch done", run="r"))
        [line] = said
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  info      done", line)

    def test_an_exception_is_named_by_its_kind_alone(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with at_a_terminal(capsys) as said:
            try:
                int("7919 votes")
            except ValueError:
                logging.getLogger("coordinator").exception("failed")
        [line] = said
        assert line.endswith("  error     failed (ValueError)")

    def test_a_childs_line_reads_as_ours(self, capsys: pytest.CaptureFixture[str]) -> None:
        with at_a_terminal(capsys) as said:
            made = JsonFormatter().format(record("done", at=86_400.0))
            pass_on(made, said_by="the console")
            pass_on("Traceback", said_by="the console")
        assert said[0] == "1970-01-02 00:00:00 UTC  error     done"
        assert said[1].endswith("  warning   the console printed: Traceback")

    @pytest.mark.parametrize("table", HOSTILE)
    def test_a_childs_line_cannot_steer_the_terminal(
        self, capsys: pytest.CaptureFixture[str], table: dict[str, object]
    ) -> None:
        with at_a_terminal(capsys) as said:
            pass_on(json.dumps(table), said_by="the SuperLink")
        [line] = said
        assert line.isprintable()
        assert " UTC  " in line

    def test_the_error_of_a_service_is_text_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        with at_a_terminal(capsys):
            line = log_line("[PF-448] gone", level=logging.ERROR, code="PF-448")
        assert line.endswith(" UTC  error     [PF-448] gone")


def test_a_process_without_standard_error_logs_nothing_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with logs_as_they_were():
        write_logs("coordinator")
        logging.getLogger("coordinator").warning("nobody reads it")
        assert [type(one.formatter) for one in logging.getLogger().handlers] == [JsonFormatter]
