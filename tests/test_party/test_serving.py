"""One hospital's node as a process in two federations, each with a SuperLink of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from coordinator.database import Database
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.home import FederationHome, utc_now
from coordinator.flower.server_app import GridTransport
from coordinator.flower.superlink_client import SuperLinkClient
from party.site.joining import CoordinatorDoor
from party.site.own_table import add
from party.site.site import Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import Status, read_status
from protocols import wire
from protocols.fingerprint_words import spoken
from tests.support.hospital_services import decide_budget
from tests.support.hospital_site import LABEL, PATIENT, write_own_table
from tests.support.loopback_home import environment, free_ports, installed, launched, make_home
from tests.test_party.test_service_processes import end, wait_for

pytestmark = [
    pytest.mark.exhaustive,  # in-process tests of memberships try the same
    # Flower's, when it packs the stub.
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

NAMES = ("lung-study", "lung-study-2")


class Link:
    """A coordinator's SuperLink, as a process."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.home: FederationHome = make_home(folder)
        self.log = folder.with_suffix(".log")
        self.process = start(self.log, variables, "coordinator.flower.superlink_process", folder)
        self.client = SuperLinkClient(
            f"127.0.0.1:{self.home.settings.admin_port}",
            ca_certificate=self.home.ca_certificate,
            secret=self.home.superlink_secret,
        )

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text("utf-8")
        try:
            self.client.nodes()
        except Exception:
            return False
        return True

    def enroll(self, site: Site | None, folder: Path) -> Site:
        """Invite the hospital, let it join and in."""
        with closing(Database(self.home.database_url)) as database:
            enrollment = Enrollment(
                self.home, database, random_bytes=secrets.token_bytes, clock=utc_now
            )
            invitation = enrollment.invite("North")
            made = Site.create(folder, invitation) if site is None else site.add(invitation)
            joined = made.memberships[-1]
            with closing(CoordinatorDoor(joined, clock=time.time)) as door:
                door.join(invitation.token)
            enrollment.approve("North", words=spoken(made.identity.public.fingerprint))
            enrollment.settle(self.client)
        return made

    def online(self) -> int:
        return sum(node.status == "online" for node in self.client.nodes())


def start(log: Path, variables: dict[str, str], *arguments: object) -> subprocess.Popen[bytes]:
    return launched([sys.executable, "-m", *arguments], log, variables=variables)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_node_answers_both_its_coordinators_and_ends_with_all_its_processes(
    tmp_path: Path, stack: ExitStack
) -> None:
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = os.pathsep.join((variables["PYTHONPATH"], str(installed(tmp_path))))
    links = [Link(tmp_path / name, variables) for name in ("first", "anew")]
    for link in links:
        stack.callback(end, link.process, signal.SIGTERM)
    site: Site | None = None
    for link in links:
        wait_for(link.is_up)
        site = link.enroll(site, tmp_path / "site")
    assert site is not None
    settings = site.settings
    for name, port in zip(NAMES, free_ports(2), strict=True):
        settings = settings.with_setting(name, node_port=port)
    table = write_own_table(tmp_path / "own.csv")
    site, _ = add(site.save(settings), table, label=LABEL, patient_id=PATIENT)

    decide_budget(site)
    log = tmp_path / "site.log"
    node = start(log, variables, "party.cli", "start", "--site", site.folder)
    stack.callback(end, node, signal.SIGTERM)

    def status() -> Status | None:
        assert node.poll() is None, log.read_text("utf-8")
        return read_status(site.path(STATUS_FILE))

    for link in links:
        wait_for(lambda link=link: status() is not None and link.online() == 1)  # type: ignore[misc]
        with link.client.grid() as grid:
            transport = GridTransport(grid, nodes=1, timeout_s=120.0)
            empty = wire.pack([])
            answers = transport.exchange(dict.fromkeys(transport.nodes(), empty))
            assert list(answers.values()) == [empty]
    said = status()
    assert said is not None
    assert {name: one.membership for name, one in said.federations.items()} == dict.fromkeys(
        NAMES, "member"
    )
    assert {one.supernode_starts for one in said.federations.values()} == {1}
    for joined in site.memberships:
        assert joined.supernode_log.exists()

    assert end(node, signal.SIGTERM) == 0
    for link in links:
        wait_for(lambda link=link: link.online() == 0)  # type: ignore[misc]
    last = read_status(site.path(STATUS_FILE))
    assert last is not None
    assert last.state == "stopped"
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(one) for one in lines)
    assert sum("is up" in one["message"] for one in lines) == len(links)
    assert lines[-1]["message"].startswith("Stopped")
