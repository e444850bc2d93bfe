"""Logs: one JSON object a line, no values, and nobody outside decides how much of them there is."""

from __future__ import annotations

import json
import logging

import pytest

from coordinator.logs import Calm, JsonFormatter

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
    assert [line.endswith("(and 59 more like it)") for line in shown] == [False, True, True]
    assert not any("BEGIN" in line or "MHYw" in line for line in shown)


def test_other_things_are_said_meanwhile() -> None:
    calm = Calm()
    assert said(calm, REFUSED, at=0.0)
    assert said(calm, "[/v1/fleet/activate-node][ApiError:2005] another", at=0.1)
    assert said(calm, "the database is gone", at=0.2) == "the database is gone"


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
