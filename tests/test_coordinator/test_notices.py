"""What the operator is told by message: each fact once, and no private word of a hospital."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from coordinator.database.federation_schema import MemberRow
from coordinator.federation.home import utc_now
from coordinator.operator import Coordinator
from coordinator.operator_news import news_of
from coordinator.runs.queue import RunState
from coordinator.runs.run_hospitals import HospitalAnswer
from pate_fed.nodes.notices import Notifier, Notify
from pate_fed.nodes.settings_file import settings_text
from tests.support.command import Command, pate_fed
from tests.support.console import add_hospitals, add_runs, opened
from tests.support.receivers import Mails, mail_server
from tests.test_coordinator.test_service_parts import Serving

__all__ = ["pate_fed"]

NAMES = ("East", "North", "South")
MARKERS = ("74839", "Smith-with-HIV", "PF-999")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with opened(tmp_path / "federation") as made:
        add_hospitals(made, *NAMES, votes=int(MARKERS[0]))
        yield made


def told(coordinator: Coordinator, *, minutes: float = 60) -> dict[str, tuple[str, str]]:
    since = utc_now() - timedelta(minutes=minutes)
    found = {}
    for one in news_of(coordinator, since=since):
        subject, lines = one.words()
        assert one.key not in found
        found[one.key] = one.kind, "\n".join([subject, *lines])
    return found


def kinds(coordinator: Coordinator, **more: float) -> list[str]:
    return sorted(kind for kind, _ in told(coordinator, **more).values())


@pytest.mark.parametrize("state", sorted(RunState))
def test_the_end_of_a_run_is_news_and_its_reason_is_not(
    state: RunState, coordinator: Coordinator
) -> None:
    add_runs(coordinator, "brain7", hospitals=NAMES, state=state, reason=" ".join(MARKERS))
    found = told(coordinator)
    ends = {RunState.DONE, RunState.STOPPED, RunState.FAILED, RunState.INCOMPLETE}
    assert [kind for kind, _ in found.values()] == [f"run {state}"] * (state in ends)
    assert not any(one in text for one in MARKERS for _, text in found.values())


def test_a_rejection_is_told_at_once_and_an_approval_once_all_are_there(
    coordinator: Coordinator,
) -> None:
    add_runs(coordinator, "brain7", hospitals=NAMES, state=RunState.WAITING)
    party = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    note, now = coordinator.queue.hospitals.note_answers, utc_now()
    said = HospitalAnswer("PF-328", now, " ".join(MARKERS))
    note("brain7", {party["East"]: HospitalAnswer(), party["North"]: said})
    [(kind, text)] = told(coordinator).values()
    assert kind == "run rejected"
    assert "North" in text
    assert not any(one in text for one in MARKERS)
    note("brain7", {party["North"]: HospitalAnswer()})
    assert kinds(coordinator) == []
    note("brain7", {party["South"]: HospitalAnswer()})
    assert kinds(coordinator) == ["run approved"]


def test_a_hospital_is_away_only_after_the_service_could_hear_it(
    coordinator: Coordinator,
) -> None:
    party = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    now = utc_now()
    coordinator.queue.hospitals.note_presence(there=(), away=[party["South"]], now=now)
    assert kinds(coordinator) == []  # not yet
    heard(coordinator, {"East": now - timedelta(hours=1)})
    assert kinds(coordinator, minutes=1) == []
    [(kind, text)] = told(coordinator).values()
    assert kind == "hospital away"
    assert "East" in text


def heard(coordinator: Coordinator, moments: Mapping[str, datetime]) -> None:
    """Let hospitals have been heard last at some moments."""
    with coordinator._database.transaction() as connection:
        for name, moment in moments.items():
            row = MemberRow.name == name
            connection.execute(update(MemberRow).where(row).values(seen_at=moment))


def test_a_hundred_hospitals_that_go_away_within_two_minutes_get_two_mails_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    with opened(tmp_path / "federation") as made, mail_server(Mails()) as mails:
        add_hospitals(made, *(f"H{number}" for number in range(100)))
        now = utc_now()
        heard(made, {f"H{number}": now - timedelta(seconds=1.2 * number) for number in range(100)})
        notify = Notify(f"smtp://127.0.0.1:{mails.port}", "a@b", ("c@d",))
        began = utc_now()
        notifier = Notifier(notify, folder, node="here", look=lambda: news_of(made, since=began))
        for minute in range(0, 30):
            now = began + timedelta(minutes=minute)
            monkeypatch.setattr("coordinator.operator_news.utc_now", lambda now=now: now)
            notifier.notify()
        lines = [
            line
            for mail in mails.mails
            for line in str(mail.get_payload()).splitlines()
            if line.endswith("is away")
        ]
        assert len(mails.mails) in (1, 2)
        assert sorted(lines) == sorted(f"H{number} is away" for number in range(100))


@pytest.mark.parametrize(("days", "is_told"), [(40, False), (29, True), (6, True), (-1, True)])
def test_a_certificate_that_ends_soon_is_told(
    days: int, is_told: bool, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.operator_news.days_left", lambda *_, **__: days)
    assert kinds(coordinator) == ["certificate ends"] * is_told


@pytest.mark.parametrize(("budget", "is_told"), [(2.4, True), (25.0, False)])
def test_a_budget_with_little_left_is_told(
    budget: float, is_told: bool, coordinator: Coordinator
) -> None:
    coordinator.budget.change(budget)
    add_runs(coordinator, "brain7", hospitals=NAMES, state=RunState.RUNNING)
    assert kinds(coordinator) == ["budget low"] * is_told


def test_a_service_sends_what_is_new_and_a_server_that_is_away_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate_fed.nodes.notices._LOOK_S", 0.01)
    with mail_server(Mails()) as mails:
        notify = Notify(f"smtp://127.0.0.1:{mails.port}", "a@b", ("c@d",))
        made = Serving(tmp_path, monkeypatch, notify=notify)
        with closing(made.coordinator):
            wait_for_file(made.coordinator.home.path("notices.json"))
            add_runs(made.coordinator, "brain7", hospitals=("East",))
            assert mails.came.wait(60)
            assert made.health() == 200
            made.keeper_ends.set()
            made.service.stop()
        assert [mail["Subject"].split(": ")[1] for mail in mails.mails] == ["run brain7 is done"]


def wait_for_file(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert path.exists()


def test_the_command_line_sends_a_test_and_says_what_happened(
    pate_fed: Command, tmp_path: Path
) -> None:
    with opened(tmp_path / "federation") as made:
        home = made.home
    refused = pate_fed("notify", "test", "--home", home.folder)
    assert (refused.code, "PF-105" in refused.err) == (2, True)
    with mail_server(Mails()) as mails:
        server = f"smtp://127.0.0.1:{mails.port}"
        notify = Notify(server, "a@b", ("c@d",), webhook="https://127.0.0.1:1/token")
        settings = replace(home.settings, notify=notify)
        home.path("federation.toml").write_bytes(settings_text(settings, version=1))
        done = pate_fed("notify", "test", "--home", home.folder, "--format", "json")
        assert len(mails.mails) == 1
    found = {one["name"]: one["state"] for one in json.loads(done.out)["checks"]}
    assert (done.code, found) == (4, {"mail": "ok", "webhook": "fail"})
    assert "token" not in done.out + done.err
    with closing(Coordinator.open(home.folder)) as again:
        assert again.home.settings.notify == notify
