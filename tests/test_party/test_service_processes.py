"""Hospitals as processes over loopback with TLS, killed with -9 and started again.

In runs that are not exhaustive, `test_kills` does the same without Flower.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.database import Database
from coordinator.errors import VoidBatchError
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.home import FederationHome, FederationSettings, utc_now
from coordinator.flower.server_app import GridTransport
from coordinator.flower.superlink_client import SuperLinkClient
from coordinator.runs.transport import Silence
from party.site.joining import CoordinatorDoor
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import read_status
from protocols import wire
from protocols.fingerprint_words import spoken
from tests.support.federation import holds_vector, kinds
from tests.support.hospital_services import (
    Hospitals,
    audit_of,
    decide_budget,
    ledger_of,
    make_hospitals,
)
from tests.support.loopback_home import free_ports, installed, launched
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).parents[2]
BOOT_S = 240.0
EXCHANGE_S, PATIENCE_S = 300.0, 600.0

pytestmark = [
    pytest.mark.exhaustive,
    # Flower's, when it packs the stub.
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


class Deployed:
    """A SuperLink and three hospitals, each a process with children of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = installed(folder)
        port, admin = free_ports(2)
        settings = FederationSettings(
            "lung study", f"127.0.0.1:{port}", host="127.0.0.1", port=port, admin_port=admin
        )
        self.home = FederationHome.create(folder / "federation", settings, now=datetime.now(UTC))
        self.link = self.start("-m", "coordinator.flower.superlink_process", str(self.home.folder))
        self.client = SuperLinkClient(
            f"127.0.0.1:{admin}",
            ca_certificate=self.home.ca_certificate,
            secret=self.home.superlink_secret,
        )
        self.hospitals: Hospitals = make_hospitals(
            folder,
            coordinator=self.home.identity,
            address=settings.address,
            ca=self.home.ca_certificate.decode(),
            ports=tuple(free_ports(3)),
        )
        self.hospitals.approve_all()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, log: str = "superlink.log") -> subprocess.Popen[bytes]:
        environment = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(self.metadata))),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        command, log_file = [sys.executable, *arguments], self.folder / log
        return launched(command, log_file, variables=environment, cwd=self.folder)

    def start_site(self, place: int) -> subprocess.Popen[bytes]:
        site = self.hospitals.sites[place]
        return self.start(
            *("-m", "party.cli", "start", "--site", str(site.folder)), log=f"site-{place}.log"
        )

    def open(self) -> None:
        wait_for(self.is_up, seconds=BOOT_S)
        self.enroll()
        for site in self.hospitals.sites:
            decide_budget(site)
        self.processes = [self.start_site(place) for place in range(3)]
        wait_for(lambda: self.online() == 3, seconds=BOOT_S)

    def enroll(self) -> None:
        """Make all hospitals members: none answers before the coordinator told it so."""
        with closing(Database(self.home.database_url)) as database:
            enrollment = Enrollment(
                self.home, database, random_bytes=secrets.token_bytes, clock=utc_now
            )
            for site in self.hospitals.sites:
                token = enrollment.invite(site.membership().settings.party).token
                with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
                    door.join(token)
                enrollment.approve(
                    site.membership().settings.party,
                    words=spoken(site.identity.public.fingerprint),
                )
            enrollment.settle(self.client)

    def is_up(self) -> bool:
        assert self.link.poll() is None, (self.folder / "superlink.log").read_text("utf-8")
        try:
            self.client.nodes()
        except Exception:
            return False
        return True

    def online(self) -> int:
        for place, process in enumerate(self.processes):
            log = self.folder / f"site-{place}.log"
            assert process.poll() in (None, -signal.SIGKILL), log.read_text("utf-8")
        return sum(node.status == "online" for node in self.client.nodes())

    def kill(self, place: int) -> None:
        end(self.processes[place], signal.SIGKILL)

    def restart(self, place: int) -> None:
        # Its SuperNode ends with it, and says good-bye: it may come back at once.
        wait_for(lambda: self.online() == 2, seconds=BOOT_S)
        self.processes[place] = self.start_site(place)
        wait_for(lambda: self.online() == 3, seconds=BOOT_S)

    def charged(self, place: int) -> list[str]:
        return [entry.state.value for entry in ledger_of(self.hospitals.sites[place]).entries]

    def close(self) -> None:
        for process in self.processes:
            end(process, signal.SIGTERM)
        end(self.link, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], number: int) -> int:
    """Send a signal to a process of ours and wait for its end."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(90)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)
    if process.stdin is not None:
        process.stdin.close()
    return process.returncode


class KillingTransport(GridTransport):
    """Lets a test do something before packets leave, and withhold what came."""

    before: Callable[[Mapping[int, bytes]], None] = staticmethod(lambda packets: None)
    after: Callable[[dict[int, bytes | Silence]], None] = staticmethod(lambda answers: None)

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        self.before(packets)
        answers = super()._carry(packets)
        self.after(answers)
        return answers


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with ExitStack() as stack:
        deployed = Deployed(tmp_path_factory.mktemp("deployed"))
        stack.callback(deployed.close)
        deployed.open()
        yield deployed


def test_hospitals_answer_and_one_that_is_killed_gives_up_or_sends_the_same_again(
    deployed: Deployed,
) -> None:
    hospitals = deployed.hospitals
    with deployed.client.grid() as grid:
        transport = KillingTransport(grid, nodes=3, timeout_s=EXCHANGE_S)
        empty = wire.pack([])
        answers = transport.exchange(dict.fromkeys(transport.nodes(), empty))
        assert list(answers.values()) == [empty] * 3

        # Killed before it shared: it promises never to send, and the batch is void.
        run = hospitals.run(transport, clock=time.time, patience_s=PATIENCE_S)
        run.set_up()
        run.ask((0, 1))
        assert [deployed.charged(place) for place in range(3)] == [["reserved"]] * 3
        killed: list[int] = []

        def kill_before_plan(packets: Mapping[int, bytes]) -> None:
            is_plan = any("Plan" in kinds(packet) for packet in packets.values())
            if is_plan and not killed:
                killed.append(0)
                deployed.kill(0)
            elif killed == [0]:
                killed.append(1)
                deployed.restart(0)

        transport.before = kill_before_plan
        with pytest.raises(VoidBatchError):
            run.ask((2, 3))
        assert killed == [0, 1]
        assert deployed.charged(0) == ["committed"]  # it was told how the first batch ended

        # Killed after it shared, its y lost on the way: the same bytes come again.
        transport.before = lambda packets: None
        again = hospitals.run(transport, clock=time.time, patience_s=PATIENCE_S)
        again.set_up()
        assert deployed.charged(0) == ["committed"]
        vectors: list[bytes] = []
        me = hospitals.sites[0].identity.public.fingerprint

        def lose_vector(answers: dict[int, bytes | Silence]) -> None:
            for node, answer in list(answers.items()):
                if isinstance(answer, bytes) and holds_vector(answer) and is_of(answer, me):
                    vectors.append(answer)
                    if len(vectors) == 1:
                        del answers[node]
                        deployed.kill(0)
                        deployed.restart(0)

        transport.after = lose_vector
        release = again.ask((4, 5))
        assert len(release.labels) == 2
        assert vectors[0] == vectors[1]
        assert len(vectors) == 2
        assert deployed.charged(0) == ["committed", "reserved"]
    for site in hospitals.sites:
        assert audit_of(site)
        status = read_status(site.path(STATUS_FILE))
        assert status is not None
        assert status.tasks == 1


def test_told_to_stop_a_hospital_ends_with_all_its_processes(deployed: Deployed) -> None:
    site = deployed.hospitals.sites[2]
    assert end(deployed.processes[2], signal.SIGTERM) == 0
    status = read_status(site.path(STATUS_FILE))
    assert status is not None
    assert status.state == "stopped"
    with socket.socket() as probe:  # nobody hands out tasks any more
        assert probe.connect_ex(("127.0.0.1", site.membership().settings.node_port)) != 0


def is_of(answer: bytes, party: bytes) -> bool:
    """Whether a packet holds the y of a party."""
    frames = wire.unpack(answer, max_bytes=2**30)
    found = [wire.decode(frame).message for frame in frames]
    return any(getattr(message, "sender", b"") == party for message in found)
