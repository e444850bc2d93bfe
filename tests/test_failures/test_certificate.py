"""A server certificate that has expired: nobody speaks to it, and what waits says so."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.certificates import SERVER_LIFETIME
from coordinator.federation.home import FederationHome, utc_now
from coordinator.operator import Coordinator
from coordinator.runs.queue import Run, RunState
from coordinator.service import Service
from party.errors import JoinError
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from pate_fed.data.new_task import make_task
from tests.support.asking import asked_run
from tests.support.deployed import (
    CLASSES,
    LABEL,
    NAMES,
    environment,
    write_public_table,
)
from tests.support.hospital_site import with_teachers
from tests.support.loopback_home import is_open, make_home
from tests.support.process_federation import enroll
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> FederationHome:
    """A federation whose server certificate ended yesterday."""
    made = make_home(tmp_path / "federation")
    made.renew_server_certificate(now=utc_now() - SERVER_LIFETIME - timedelta(days=1))
    return made


@pytest.fixture
def coordinator(home: FederationHome) -> Iterator[Coordinator]:
    with closing(Coordinator(home)) as opened:
        yield opened


def test_the_service_does_not_start_and_says_what_to_do(
    home: FederationHome, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "serve", "--home", home.folder],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=300,
        check=False,
    )
    assert ended.returncode == 5
    assert "PF-431" in ended.stderr
    assert "pate-fed renew" in ended.stderr


@pytest.mark.exhaustive
def test_hospitals_hang_up_and_a_run_waits_with_the_reason_until_it_is_renewed(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it expires under a service that runs."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    home = coordinator.home
    sites = [Site.create(tmp_path / name, coordinator.invite(name)) for name in NAMES]
    for site in sites:
        enroll(coordinator, with_teachers(site, 4))
    queries = write_public_table(tmp_path / "public.csv")
    task = make_task(queries, label=LABEL, classes=CLASSES)
    asked_run(coordinator, "first", task, queries=4)
    service = Service(coordinator)
    service.start()
    try:
        wait_for(lambda: is_open(home.settings.port))
        with closing(CoordinatorDoor(sites[0].membership(), clock=time.time)) as door:
            with pytest.raises(JoinError) as caught:
                door.membership()
            assert caught.value.code == "PF-341"
        run = wait_until_waiting(coordinator, "first")
        assert "certificate" in run.reason
        assert "pate-fed renew" in run.reason
        assert not service.superlink.is_ready
        home.renew_server_certificate(now=utc_now())
    finally:
        service.stop()
    # From the next start on hospitals come in again.
    second = Service(coordinator)
    second.start()
    try:
        assert second.superlink.wait_until_ready(180)
        with closing(CoordinatorDoor(sites[0].membership(), clock=time.time)) as door:
            assert door.membership().state == "member"
    finally:
        second.stop()


def wait_until_waiting(coordinator: Coordinator, name: str) -> Run:
    deadline = time.monotonic() + 120
    while (run := coordinator.queue.find(name)).state is not RunState.WAITING:
        assert time.monotonic() < deadline, run.state
        time.sleep(0.1)
    return run
