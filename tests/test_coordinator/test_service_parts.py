"""The service's parts: one that has ended is told of, and one that fails once goes on."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from coordinator import service as service_module
from coordinator.flower.superlink_child import SuperLinkChild
from coordinator.operator import Coordinator
from coordinator.service import Service
from pate_fed.nodes.forwarding import Forwarding
from pate_fed.nodes.notices import Notify
from tests.support.loopback_home import make_home

PATIENCE_S = 60.0


class Serving:
    """A service whose SuperLink is no process: its thread waits until it is told to end."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        audit: Forwarding | None = None,
        notify: Notify | None = None,
    ) -> None:
        self.keeper_ends = threading.Event()
        monkeypatch.setattr(
            SuperLinkChild, "_keep", lambda child: self.keeper_ends.wait(5 * PATIENCE_S)
        )
        monkeypatch.setattr(service_module, "_POLL_S", 0.01)
        monkeypatch.setattr(service_module, "_FIRST_PAUSE_S", 0.01)
        home = make_home(folder / "federation")
        settings = replace(home.settings, audit=audit or Forwarding(), notify=notify or Notify())
        self.coordinator = Coordinator(replace(home, settings=settings))
        self.service = Service(self.coordinator)
        self.service.start()

    def health(self) -> int:
        port = self.coordinator.home.settings.metrics_port
        address = f"http://127.0.0.1:{port}/healthz"
        return httpx.get(address, trust_env=False, timeout=PATIENCE_S).status_code


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    made = Serving(tmp_path, monkeypatch)
    with closing(made.coordinator):
        yield made
        made.keeper_ends.set()
        made.service.stop()


def test_a_service_that_keeps_its_superlink_no_more_is_not_alive(serving: Serving) -> None:
    assert serving.health() == 200
    serving.keeper_ends.set()
    serving.service.superlink._thread.join(PATIENCE_S)
    assert serving.health() == 503


def test_letting_in_goes_on_after_whatever_failed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else no hospital would be let in or put out until the next start."""
    caplog.set_level(logging.WARNING)
    failed, went_on = threading.Event(), threading.Event()

    def settle(door: object) -> None:
        if not failed.is_set():
            failed.set()
            raise KeyError("a word that nobody needs")
        went_on.set()

    monkeypatch.setattr(serving.coordinator, "superlink", object)
    monkeypatch.setattr(serving.coordinator.enrollment, "settle", settle)
    monkeypatch.setattr(SuperLinkChild, "is_ready", True)
    assert failed.wait(PATIENCE_S)
    assert went_on.wait(PATIENCE_S)
    assert serving.health() == 200
    assert re.search("PF-490: .*KeyError", caplog.text)
    assert "nobody needs" not in caplog.text


def test_acts_are_copied_elsewhere_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate_fed.nodes.forwarding._LOOK_S", 0.01)
    copy = tmp_path / "copy.jsonl"
    made = Serving(tmp_path, monkeypatch, audit=Forwarding(file=str(copy)))
    with closing(made.coordinator):
        made.coordinator.invite("East")
        end = time.monotonic() + PATIENCE_S
        while not (copy.exists() and copy.read_text("ascii")) and time.monotonic() < end:
            time.sleep(0.01)
        made.keeper_ends.set()
        made.service.stop()
        tables = list(made.coordinator.audit_log.tables())
    assert [json.loads(line) for line in copy.read_text("ascii").splitlines()] == tables
    assert tables[0]["subject"] == "East"
