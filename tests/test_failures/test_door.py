"""Who should not come in at the public port does not: over TLS, at a real SuperLink."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.federation.enrollment import NodeAtLink
from coordinator.federation.home import FederationHome
from coordinator.flower.superlink import arguments
from coordinator.flower.superlink_child import SuperLinkChild
from coordinator.operator import Coordinator
from party.errors import JoinError
from party.flower.executor import supernode_command
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from protocols.fingerprint_words import spoken
from protocols.invitation import Invitation
from tests.support.loopback_home import environment, free_ports, is_open, launched, make_home
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

GIVES_UP_S = 300.0


@dataclass
class Served:
    """A coordinator with its SuperLink; no run is asked."""

    folder: Path
    coordinator: Coordinator

    @property
    def home(self) -> FederationHome:
        return self.coordinator.home

    def site(self, name: str, invitation: Invitation | None = None) -> Site:
        """A hospital's folder; it asked nobody yet."""
        folder = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        return Site.create(folder, invitation or self.coordinator.invite(name))

    def join(self, site: Site, token: bytes) -> str:
        """Ask to join over the public port."""
        with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
            return door.join(token).state

    def member(self, name: str) -> Site:
        """A hospital that joined and was approved; its node is let in."""
        invitation = self.coordinator.invite(name)
        site = self.site(name, invitation)
        assert self.join(site, invitation.token) == "requested"
        self.coordinator.approve(name, words=spoken(site.identity.fingerprint))
        return site

    def start_node(self, site: Site) -> subprocess.Popen[bytes]:
        """A SuperNode as the hospital's service starts it."""
        command = supernode_command(site.membership(), port=free_ports(1)[0])
        log = site.path("log", "supernode")
        return launched(command, log, variables=environment(site.folder))

    def online(self) -> list[NodeAtLink]:
        return [node for node in self.coordinator.superlink().nodes() if node.status == "online"]

    def flwr(self, port: int, app: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A stock Flower command of somebody who has the CA's certificate, as every hospital."""
        home = app.parent / f"flower-{port}"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "pate"\n\n[superlink.pate]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{self.home.path("ca.crt")}"\n',
            encoding="utf-8",
        )
        return subprocess.run(
            [Path(sys.executable).with_name("flwr"), *arguments],
            capture_output=True,
            text=True,
            env={**environment(app.parent), "FLWR_HOME": str(home)},
            timeout=GIVES_UP_S,
            check=False,
        )


def ends(node: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a SuperNode that nobody ends."""
    try:
        return node.wait(GIVES_UP_S)
    finally:
        stop(node)


def stop(node: subprocess.Popen[bytes]) -> None:
    assert node.stdin is not None
    node.stdin.close()
    if node.poll() is None:
        node.kill()
        node.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("door")
    before = dict(os.environ)
    for name in [name for name in before if "proxy" in name.lower()]:
        del os.environ[name]
    child = SuperLinkChild(make_home(folder / "federation"))
    child.start()
    try:
        assert child.wait_until_ready(180)
        with closing(Coordinator.open(folder / "federation")) as coordinator:
            yield Served(folder, coordinator)
    finally:
        child.stop()
        os.environ.clear()
        os.environ.update(before)


def test_a_node_with_a_key_that_nobody_enrolled_is_turned_away(served: Served) -> None:
    site = served.site("Stranger")
    assert ends(served.start_node(site)) != 0
    assert served.online() == []


def test_a_member_is_let_in_and_once_revoked_put_out_for_good(served: Served) -> None:
    site = served.member("North")
    node = served.start_node(site)
    try:
        deadline = time.monotonic() + GIVES_UP_S
        while not served.online():
            assert node.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        served.coordinator.revoke("North")
        assert served.online() == []
        ends(node)
    finally:
        stop(node)
    assert ends(served.start_node(site)) != 0  # the same key again
    assert served.online() == []
    with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
        said = door.membership()
        assert (said.state, said.peer_names) == ("revoked", ())
        with pytest.raises(JoinError):
            door.fetch_pool(bytes(32))
    # Nor does its identity come back with another invitation.
    with pytest.raises(JoinError):
        served.join(site, served.coordinator.invite("North").token)


def test_an_invitation_is_good_for_one_hospital_once(served: Served) -> None:
    invitation = served.coordinator.invite("South")
    first, second = served.site("South", invitation), served.site("South", invitation)
    assert served.join(first, invitation.token) == "requested"
    with pytest.raises(JoinError):
        served.join(second, invitation.token)
    with pytest.raises(JoinError):
        served.join(served.site("West", invitation), served.coordinator.invite("East").token)
    assert served.join(first, invitation.token) == "requested"  # its own answer was lost
    asked = [one for one in served.coordinator.enrollment.parties() if one.name == "South"]
    assert [one.identity.fingerprint for one in asked] == [first.identity.fingerprint]


def test_an_invitation_that_expired_is_refused(served: Served) -> None:
    invitation = served.coordinator.invite("Late", lifetime=timedelta(milliseconds=1))
    with pytest.raises(JoinError):
        served.join(served.site("Late", invitation), invitation.token)
    assert "Late" not in [one.name for one in served.coordinator.enrollment.parties()]


def test_an_invitation_of_another_federation_is_refused_and_trusts_nobody_here(
    served: Served, tmp_path: Path
) -> None:
    with closing(Coordinator(make_home(tmp_path / "other"))) as other:
        theirs = other.invite("Guest")
    here = replace(theirs, address=served.home.settings.address)
    with pytest.raises(JoinError):  # whoever serves here is not of that CA
        served.join(served.site("Guest", here), here.token)
    ours = replace(here, ca_certificate=served.home.ca_certificate.decode())
    with pytest.raises(JoinError):  # nor does it answer for that coordinator's key
        served.join(served.site("Guest", ours), ours.token)
    assert "Guest" not in [one.name for one in served.coordinator.enrollment.parties()]


APP = """
[project]
name = "theft"
version = "1.0.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "hospital"
[tool.flwr.app.components]
serverapp = "theft:server"
clientapp = "theft:client"
"""
CODE = """
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()
"""


@pytest.mark.exhaustive
def test_a_stock_flwr_run_from_a_hospital_starts_nothing(served: Served, tmp_path: Path) -> None:
    """A hospital's machine reaches the public port alone: what pushes code is not behind it.

    Nor does it pass at the admin port, for another user of the coordinator's machine.
    """
    app = tmp_path / "theft"
    app.mkdir()
    (app / "pyproject.toml").write_text(APP, encoding="utf-8")
    (app / "theft.py").write_text(CODE, encoding="utf-8")
    settings = served.home.settings
    for port in (settings.port, settings.admin_port):
        refused = served.flwr(port, app, "run", str(app), "pate")
        assert refused.returncode != 0, refused.stdout
    # The command is a good one: without our gate it works.
    with stock_superlink(served, tmp_path) as port:
        started = served.flwr(port, app, "run", str(app), "pate")
        assert started.returncode == 0, started.stdout + started.stderr


@contextmanager
def stock_superlink(served: Served, folder: Path) -> Iterator[int]:
    """Flower's own SuperLink, with our certificate and options; gives its port."""
    port = free_ports(1)[0]
    options = arguments(served.home, port=port, database=folder / "stock.db")
    program = Path(sys.executable).with_name("flower-superlink")
    log = folder / "stock.log"
    process = launched([program, *options[1:]], log, variables=environment(folder))

    def is_served() -> bool:
        assert process.poll() is None, log.read_text()
        return is_open(port)

    try:
        wait_for(is_served, seconds=GIVES_UP_S)
        yield port
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        process.wait(120)
