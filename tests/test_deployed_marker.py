"""No vote is in all traffic and all files of a run of real services, where it would be found.

Nor is a secret of either side: a private key, an invitation's token, or what Flower's parts must
know to hand out tasks is in the one file that keeps it, and nowhere else.

It is run once as it is, and once where SuperLink, service and a hospital are killed in its middle:
what kills leave behind is looked at as well. What each change is tried by are `test_marker` and
`test_marker_runs`, without processes, and `test_federation_demo`, for the secrets.

One hospital's teachers vote a histogram that is recognized in whatever form. Recorded is every
byte between hospitals and coordinator, what TLS hides too (the packets of Flower's messages, as
they enter and leave each process), every file, every cell of every database, and every log, at the
level that says most.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from coordinator.runs.queue import Run
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from pate_fed.data.new_task import make_task
from protocols.fingerprint_words import spoken
from protocols.identity import SigningIdentity
from tests.support.deployed import (
    LABEL,
    NAMES,
    Deployed,
    environment,
    write_public_table,
)
from tests.support.hospital_services import Hospitals, ledger_of, records_of
from tests.support.hospital_site import tell_votes, with_teachers
from tests.support.invariants import HospitalSeen, Seen, require_sound, runs_seen
from tests.support.loopback_home import free_ports, launched, make_home
from tests.support.marker import (
    MARKED_TEACHERS,
    MARKERS,
    Y_HEAD,
    files_with_secrets,
    findings_within,
    found_in_files,
    holds_row,
    is_database,
    private_forms,
    rows_in_memory,
    secrets_kept_in,
    secrets_within,
)
from tests.support.mortal_hospital import exchanges_in, plans_voted_on, records_in
from tests.support.recording_proxy import Recording, recording_proxy
from tests.support.whole_federation import children_of

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

CLASSES = ("none", "mild", "severe")
PLAIN = (12, 0, 0)
VOTES = {NAMES[0]: MARKERS, NAMES[1]: PLAIN, NAMES[2]: PLAIN}
SUMS = tuple(sum(counts) for counts in zip(*VOTES.values(), strict=True))
SECRETS = tuple(sorted({*MARKERS, *SUMS}))
"""One hospital's votes, and the exact sum of all hospitals."""

QUERIES = 4
PATIENCE_S = 600.0


@dataclass
class Capture:
    """What a run left behind.

    Attributes:
        folder: Folders of coordinator and hospitals, logs, and files of packets.
        wire: What passed between hospitals and coordinator.
        labels: What was released, as a file.
        packets: For each process that saw packets, all of them.
        secrets: Forms of each side's secrets, by their names.
    """

    folder: Path
    wire: Recording
    labels: str = ""
    packets: dict[str, list[bytes]] = field(default_factory=dict)
    secrets: dict[str, set[bytes]] = field(default_factory=dict)


class Services:
    """The processes of a federation with a marked hospital."""

    def __init__(self, folder: Path, federation: Deployed) -> None:
        self.folder = folder
        self.federation = federation
        self.sites: list[Site] = []
        self.hospitals: dict[str, subprocess.Popen[bytes]] = {}
        self.tokens: dict[str, bytes] = {}

    def serve(self) -> None:
        home = str(self.federation.home.folder)
        module = ("-m", "tests.support.recorded_service", home, str(self.folder / "coordinator"))
        self.federation.service = self._start(module, "service.log")
        self.federation.wait_until_served()

    def enroll(self) -> None:
        """Let all hospitals join; each has checked the others, and approved the pool."""
        coordinator = self.federation.coordinator
        for (name, counts), port in zip(VOTES.items(), free_ports(3), strict=True):
            invitation = coordinator.invite(name)
            self.tokens[f"token of {name}"] = invitation.token
            site = Site.create(self.folder / name, invitation)
            policy = {"least_checked_peers": 2, "most_epsilon": 1000.0}
            settings = replace(
                site.settings.with_setting(site.membership().name, node_port=port),
                approval="pool",
                lifetime_epsilon=1000.0,
                policy=policy,
            )
            site = with_teachers(site.save(settings), sum(counts))
            with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
                door.join(invitation.token)
            words = spoken(site.identity.fingerprint)
            coordinator.approve(name, words=words)
            tell_votes(coordinator.enrollment, site)
            self.sites.append(site)
        coordinator.close()
        for site in self.sites:
            with records_of(site) as records:
                for other in self.sites:
                    if other is not site:
                        key = other.identity.public
                        records.add_pin(
                            other.membership().settings.party, key, how="telephone", by="M. Curie"
                        )
        known = Hospitals(SigningIdentity.generate(), self.sites, self.federation.task)
        known.approve_all()

    def start(self, *names: str) -> None:
        for name in names:
            counts = [str(count) for count in VOTES[name]]
            module = ("-m", "tests.support.marked_hospital", str(self.folder / name))
            packets = str(self.folder / f"{name} packets")
            self.hospitals[name] = self._start((*module, packets, *counts), f"{name}.log")

    def look(self) -> Seen:
        """Read what both sides show."""
        hospitals = []
        for site in self.sites:
            name = site.membership().settings.party
            witness = self.folder / f"{name} packets"
            seen = HospitalSeen(
                name, ledger_of(site), exchanges_in(witness), plans_voted_on(witness)
            )
            hospitals.append(seen)
        with closing(self.federation.coordinator) as coordinator:
            return Seen("additive", tuple(hospitals), runs_seen(coordinator))

    def _start(self, arguments: tuple[str, ...], log: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *arguments]
        return launched(command, self.folder / log, variables=environment(self.folder))

    def stop(self) -> None:
        """End all, hospitals first."""
        service = self.federation.service
        for process in (*self.hospitals.values(), *([] if service is None else [service])):
            assert process.stdin is not None
            process.stdin.close()  # a hospital's service ends with it
            if process is service:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(180)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def marked_federation(folder: Path) -> Iterator[tuple[Services, Recording]]:
    home = make_home(folder / "federation")
    with recording_proxy(home.settings.port) as wire:
        # Hospitals are told the proxy's address, by their invitations.
        settings = replace(home.settings, address=f"127.0.0.1:{wire.port}")
        home = replace(home, settings=settings)
        queries = write_public_table(folder / "public.csv")
        task = make_task(queries, label=LABEL, classes=CLASSES)
        services = Services(folder, Deployed(folder, home, task, queries))
        try:
            yield services, wire
        finally:
            services.stop()


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL; its child ends with the pipe that it held."""
    with process:
        process.kill()


@pytest.fixture(scope="module", params=[False, True], ids=["undisturbed", "killed"])
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Services, Recording]]:
    """A run that comes to its end; SuperLink, service and a hospital are killed in its middle."""
    with marked_federation(tmp_path_factory.mktemp("marked")) as (services, wire):
        services.serve()
        services.enroll()
        services.start(*NAMES)
        federation = services.federation
        asked = federation.command(
            *("run", "--name", "marked", "--queries", federation.queries, "--label", LABEL),
            *("--classes", ",".join(CLASSES), "--ask", QUERIES, "--batch-size", 1),
            *("--mechanism", "gnmax", "--sigma2", 3, "--epsilon", 500),
            *("--home", federation.home.folder, "--detach"),
        )
        (services.folder / "run.log").write_text(asked.stdout + asked.stderr)
        assert asked.returncode == 0, asked.stdout + asked.stderr + federation.log
        if request.param:
            kill_one_after_the_other(services)
        run = federation.wait_for_run("marked", states=("done", "failed"), timeout_s=PATIENCE_S)
        assert run.state.value == "done", federation.log
        yield services, wire


def kill_one_after_the_other(services: Services) -> None:
    """After each death the run goes on; the coordinator's deaths make no batch void."""
    federation = services.federation
    assert federation.service is not None
    with closing(federation.coordinator) as coordinator:

        def after(answers: int) -> Run:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                run = coordinator.queue.find("marked")
                if run.progress.answered >= answers:
                    return run
                time.sleep(0.2)
            raise AssertionError(federation.log)

        after(1)
        [superlink] = children_of(federation.service.pid)
        os.kill(superlink, signal.SIGKILL)
        after(2)
        address = f"http://127.0.0.1:{federation.home.settings.metrics_port}/metrics"
        metrics = httpx.get(address, trust_env=False, timeout=PATIENCE_S).text
        assert "pate_fed_superlink_restarts_total 1.0" in metrics
        kill(federation.service)
        services.serve()
        run = after(3)
    assert (run.reason, run.progress.void) == ("", 0)
    kill(services.hospitals[NAMES[1]])
    services.start(NAMES[1])


def test_no_memory_of_the_coordinators_processes_holds_the_exact_sum(
    ran: tuple[Services, Recording],
) -> None:
    service = ran[0].federation.service
    assert service is not None
    for pid in (service.pid, *children_of(service.pid)):
        assert rows_in_memory(pid, [SUMS, MARKERS]) == []


@pytest.fixture(scope="module")
def capture(ran: tuple[Services, Recording]) -> Capture:
    services, wire = ran
    folder, federation = services.folder, services.federation
    out = folder / "out"
    assert not federation.command(
        "export", "marked", "--private", "--out", out, "--home", federation.home.folder
    ).returncode
    shown = [federation.command(*words) for words in asked_beside(federation)]
    (folder / "shown.log").write_text("".join(one.stdout + one.stderr for one in shown))
    services.stop()
    found = Capture(folder, wire, (out / "labels.csv").read_text("utf-8"))
    tokens = {name: private_forms(token) for name, token in services.tokens.items()}
    found.secrets = secrets_kept_in(folder) | tokens
    for name in ("coordinator", *(f"{name} packets" for name in NAMES)):
        found.packets[name] = [packet for _, packet in records_in(folder / name)]
    return found


def asked_beside(federation: Deployed) -> list[tuple[object, ...]]:
    """What else an operator types."""
    home = ("--home", federation.home.folder)
    return [
        (*words, *home) for words in (("status",), ("members",), ("members", "--format", "json"))
    ]


def test_it_costs_each_hospital_every_batch_once_whoever_is_killed(
    ran: tuple[Services, Recording],
) -> None:
    services, _ = ran
    require_sound(services.look(), note=services.federation.log)
    for site in services.sites:
        charges = [entry.state.value for entry in ledger_of(site).entries]
        assert charges.count("committed") == QUERIES, site.folder
        assert set(charges) <= {"committed", "cancelled"}, site.folder


def test_the_run_gave_the_labels_that_the_marked_hospital_decides(capture: Capture) -> None:
    rows = capture.labels.splitlines()
    assert len(rows) == QUERIES + 1
    assert all(row.endswith(f",{CLASSES[2]}") for row in rows[1:])


def test_no_packet_in_the_clear_holds_a_vote_or_the_exact_sum(capture: Capture) -> None:
    for name, packets in capture.packets.items():
        assert len(packets) >= 12, name
        for packet in packets:
            assert findings_within(packet, SECRETS) == [], name
    # What hospitals saw is what the coordinator saw, and the search reads it: that the marked
    # hospital has so many teachers is public.
    sent = {packet for name in NAMES for packet in capture.packets[f"{name} packets"]}
    assert len(sent & set(capture.packets["coordinator"])) >= 24
    assert any(findings_within(packet, (MARKED_TEACHERS,)) for packet in sent)


def test_no_stream_between_hospitals_and_coordinator_holds_a_row_of_counts(
    capture: Capture,
) -> None:
    assert len(capture.wire.streams) > 6
    # All of it went this way: at least every packet.
    assert capture.wire.size > sum(map(len, capture.packets["coordinator"]))
    for stream in capture.wire.streams:
        assert not holds_row(bytes(stream))
        assert not holds_row(bytes(stream), SUMS)


def test_no_file_database_or_log_holds_a_vote_or_the_exact_sum(capture: Capture) -> None:
    files = [path for path in capture.folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"superlink.db", "coordinator.db", "party.db", "service.log", "report.html"} <= names
    assert len([path for path in files if is_database(path)]) >= 5
    assert found_in_files(capture.folder, SECRETS) == []
    # The search reads them: the number of teachers is public, and in files of both kinds.
    public = found_in_files(capture.folder, (MARKED_TEACHERS,))
    assert any("party.toml" in one for one in public)
    assert any("coordinator.db" in one for one in public)


def test_flowers_database_holds_no_y_after_the_run(capture: Capture) -> None:
    assert any(Y_HEAD in packet for packets in capture.packets.values() for packet in packets)
    [database] = capture.folder.rglob("superlink.db")
    for path in database.parent.glob("superlink.db*"):
        assert Y_HEAD not in path.read_bytes()


SLUG = "lung-study"
MEMBERSHIP = f"memberships/{SLUG}"

SECRET_FILES = {
    "federation": {"ca.key", "identity.key", "server.key", "superlink.secret"},
    **{
        name: {"identity.key", f"{MEMBERSHIP}/node.key", f"{MEMBERSHIP}/node.secret"}
        for name in NAMES
    },
}


def test_no_secret_of_either_side_is_anywhere_but_in_its_own_file(capture: Capture) -> None:
    kept = {f"{folder}/{name}" for folder, names in SECRET_FILES.items() for name in names}
    assert set(capture.secrets) == kept | {f"token of {name}" for name in NAMES}
    files = [path for path in capture.folder.rglob("*") if path.is_file()]
    names = {path.relative_to(capture.folder).as_posix() for path in files}
    logs = {"service.log", "run.log", "shown.log", *(f"{name}.log" for name in NAMES)}
    assert names >= kept | logs | {f"{name}/log/supernode-{SLUG}.log" for name in NAMES}
    # Each is found where it is kept, by the same search.
    assert files_with_secrets(capture.folder, capture.secrets) == {name: [name] for name in kept}


def test_no_packet_or_stream_holds_a_secret_of_either_side(capture: Capture) -> None:
    streams = [bytes(stream) for stream in capture.wire.streams]
    for packet in (*streams, *(one for packets in capture.packets.values() for one in packets)):
        assert secrets_within(packet, capture.secrets) == []


@pytest.mark.parametrize(
    "name", ["federation/server.key", f"North/{MEMBERSHIP}/node.key", "North/identity.key"]
)
def test_a_private_key_in_a_log_would_be_found(capture: Capture, name: str) -> None:
    content = (capture.folder / name).read_bytes()
    for printed in (content, repr(content).encode(), base64.b64encode(content)):
        assert secrets_within(b"INFO " + printed, capture.secrets) == [name]
