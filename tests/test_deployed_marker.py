"""No vote is in all traffic and all files of a run of real services, where it would be found.

Nor is a secret of either side: a private key, an invitation's token, or what Flower's parts must
know to hand out tasks is in the one file that keeps it, and nowhere else.

A run of shares is undisturbed, and another has SuperLink, service and a hospital killed; in one of
verified votes it is coordinator, tally and a hospital, one after the other. What kills leave behind
is looked at as well. What each change is tried by are `test_marker` and `test_marker_runs`, without
processes, and `test_federation_demo`, for the secrets.

Hospitals' teachers vote histograms that are recognized in whatever form. Recorded is every byte
between hospitals, coordinator and tally, what TLS hides too (the packets of Flower's messages, as
they enter and leave each process, and the tally's calls), every file, every cell of every database,
and every log, at the level that says most.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import httpx
import numpy as np
import pytest

from coordinator.errors import TallyUnreachableError
from coordinator.runs.queue import Run
from coordinator.runs.stages import BatchStage
from coordinator.tally.book_rows import run_standings
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from pate_fed.accounting import Outcomes
from pate_fed.data.new_task import make_task
from protocols.fingerprint_words import spoken
from protocols.forms import Verified
from protocols.identity import SigningIdentity
from protocols.membership_messages import NamedTally
from tests.support.command import labels_in
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
from tests.support.loopback_home import add_tally, free_ports, launched, make_home
from tests.support.marker import (
    MARKED_TEACHERS,
    MARKERS,
    REPORT_HEAD,
    Y_HEAD,
    files_with_secrets,
    findings_within,
    found_in_files,
    holds_row,
    is_database,
    private_forms,
    rows_in_memory,
    rows_within,
    secrets_kept_in,
    secrets_within,
)
from tests.support.mortal_hospital import exchanges_in, plans_voted_on, records_in
from tests.support.recording_proxy import Recording, recording_proxy
from tests.support.waiting import wait_for
from tests.support.whole_federation import children_of
from tests.support.worked_tally import require_one_coin

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

CLASSES = ("none", "mild", "severe")
QUERIES = 4
PATIENCE_S = 600.0
Row = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        rows: What each hospital's teachers vote: the first row on queries at even places of the
            pool, the second, if there is one, on the others.
        marked: Rows that nobody but their hospital may hold.
        public: A row that everybody knows, and that the same search finds.
        found: Names what is found in data of some rows.
        said: Its options at the command line.
        disturb: What is done to it.
    """

    form: str
    batch: int
    rows: Mapping[str, tuple[Row, ...]]
    marked: tuple[Row, ...]
    public: Row
    found: Callable[[bytes, tuple[Row, ...]], list[str]]
    said: tuple[object, ...]
    disturb: Callable[[Services], None]

    @property
    def sums(self) -> tuple[Row, ...]:
        """Exact sums of all hospitals' rows."""
        together = zip(*self.rows.values(), strict=True)
        return tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in together)

    @property
    def secrets(self) -> tuple[Row, ...]:
        """Votes and exact sums."""
        return (*self.marked, *self.sums)

    @property
    def is_verified(self) -> bool:
        return self.form == Verified.name

    def found_in(self, data: bytes) -> list[str]:
        """Name every secret in data."""
        return self.found(data, self.secrets)

    def public_in(self, data: bytes) -> list[str]:
        """Name what may be there."""
        return self.found(data, (self.public,))


@dataclass
class Capture:
    """What a run left behind.

    Attributes:
        folder: Folders of coordinator, tally and hospitals, logs, and files of packets.
        wires: What passed between hospitals and coordinator, and between it and its tally.
        packets: For each process that saw packets, all of them.
        secrets: Forms of each side's secrets, by their names.
    """

    folder: Path
    kind: Kind
    wires: list[Recording]
    packets: dict[str, list[bytes]] = field(default_factory=dict)
    secrets: dict[str, set[bytes]] = field(default_factory=dict)

    @property
    def streams(self) -> list[bytes]:
        """All that passed, of each connection in each direction."""
        return [bytes(stream) for wire in self.wires for stream in wire.streams]


class Services:
    """The processes of a federation with marked hospitals.

    Attributes:
        while_checking: What was found in both aggregators' memory in the middle of a batch.
    """

    def __init__(self, folder: Path, federation: Deployed, kind: Kind) -> None:
        self.folder = folder
        self.federation = federation
        self.kind = kind
        self.sites: list[Site] = []
        self.hospitals: dict[str, subprocess.Popen[bytes]] = {}
        self.tokens: dict[str, bytes] = {}
        self.while_checking: list[str] | None = None

    @property
    def service(self) -> subprocess.Popen[bytes]:
        assert self.federation.service is not None
        return self.federation.service

    def serve(self, stage: str = "", passes: int = 1, number: int = signal.SIGKILL) -> None:
        """Start the service; where a stage is named, it sends itself a signal there."""
        home = str(self.federation.home.folder)
        module = ("-m", "tests.support.recorded_service", home, str(self.folder / "coordinator"))
        words = (*module, stage, str(passes), str(int(number)))
        self.federation.service = self._start(words, "service.log")
        self.federation.wait_until_served()

    def enroll(self) -> None:
        """Let all hospitals join; each has checked the others, and approved the pool."""
        coordinator = self.federation.coordinator
        for (name, rows), port in zip(self.kind.rows.items(), free_ports(3), strict=True):
            invitation = coordinator.invite(name)
            self.tokens[f"token of {name}"] = invitation.token
            site = Site.create(self.folder / name, invitation)
            policy = {"least_checked_peers": 2, "most_epsilon": 1000.0}
            settings = replace(
                site.settings.with_setting(
                    site.membership().name, node_port=port, operator_body="study office"
                ),
                approval="pool",
                lifetime_epsilon=1000.0,
                policy=policy,
            )
            if self.federation.tally is not None:
                named = NamedTally(
                    self.federation.tally.card.name, self.federation.tally.identity.public
                )
                settings = settings.with_tally(site.membership().name, named, body="data trust")
            site = with_teachers(site.save(settings), sum(rows[0]))
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

    def start(self, *names: str, dies_at: int = 0) -> None:
        """Start hospitals; each kills itself before its so many-th share or report is sent."""
        for name in names:
            rows = [",".join(map(str, row)) for row in self.kind.rows[name]]
            module = ("-m", "tests.support.marked_hospital", str(self.folder / name))
            words = (*module, str(self.folder / f"{name} packets"), str(dies_at), *rows)
            self.hospitals[name] = self._start(words, f"{name}.log")

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
            return Seen(self.kind.form, tuple(hospitals), runs_seen(coordinator))

    def found_in_memory(self) -> list[str]:
        """Look into the memory of the coordinator's processes, and of the tally's."""
        tally = [] if self.federation.tallying is None else [self.federation.tallying.pid]
        processes = [self.service.pid, *children_of(self.service.pid), *tally]
        return [what for pid in processes for what in rows_in_memory(pid, self.kind.secrets)]

    def _start(self, arguments: tuple[str, ...], log: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *arguments]
        return launched(command, self.folder / log, variables=environment(self.folder))

    def stop(self) -> None:
        """End all, hospitals first."""
        aggregators = [self.federation.service, self.federation.tallying]
        for process in (*self.hospitals.values(), *aggregators):
            if process is None:
                continue
            assert process.stdin is not None
            process.stdin.close()  # a hospital's service ends with it
            if process in aggregators:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(180)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def marked_federation(folder: Path, kind: Kind) -> Iterator[tuple[Services, list[Recording]]]:
    home = make_home(folder / "federation")
    with ExitStack() as stack:
        wires = [stack.enter_context(recording_proxy(home.settings.port))]
        # Hospitals are told the proxy's address, by their invitations.
        settings = replace(home.settings, address=f"127.0.0.1:{wires[0].port}")
        home = replace(home, settings=settings)
        queries = write_public_table(folder / "public.csv")
        task = make_task(queries, label=LABEL, classes=CLASSES)
        services = Services(folder, Deployed(folder, home, task, queries), kind)
        if kind.is_verified:
            [port] = free_ports(1)
            wires.append(stack.enter_context(recording_proxy(port)))
            services.federation.tally = add_tally(
                home, folder / "tally", port=port, reached_at=wires[1].port
            )
        stack.callback(services.stop)
        yield services, wires


def bury(process: subprocess.Popen[bytes]) -> None:
    """Wait for the death of one that kills itself."""
    with process:
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL; its child ends with the pipe that it held."""
    with process:
        process.kill()


def kill_one_after_the_other(services: Services) -> None:
    """After each death the run goes on; the coordinator's deaths make no batch void."""
    federation = services.federation
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
        [superlink] = children_of(services.service.pid)
        os.kill(superlink, signal.SIGKILL)
        after(2)
        address = f"http://127.0.0.1:{federation.home.settings.metrics_port}/metrics"
        metrics = httpx.get(address, trust_env=False, timeout=PATIENCE_S).text
        assert "pate_fed_superlink_restarts_total 1.0" in metrics
        kill(services.service)
        services.serve()
        run = after(3)
    assert (run.reason, run.progress.void) == ("", 0)
    kill(services.hospitals[NAMES[1]])
    services.start(NAMES[1])


def kill_all_three(services: Services) -> None:
    """Kill all of them in the first batch; look into both aggregators in the middle of the second.

    A hospital dies with its report stored, the tally with its last answer but one: neither was
    sent. While it waits for the tally the coordinator dies, too.
    """
    federation = services.federation
    bury(services.hospitals[NAMES[0]])
    services.start(NAMES[0])
    assert federation.tallying is not None
    bury(federation.tallying)
    with closing(federation.coordinator) as coordinator:
        wait_for(
            lambda: TallyUnreachableError.code in coordinator.queue.find("marked").reason,
            seconds=PATIENCE_S,
        )
        tally = federation.tally.identity.public.fingerprint if federation.tally else b""
        assert coordinator.queue.tally.standing(tally).away_since is not None
    kill(services.service)
    federation.start_tally()
    services.serve(BatchStage.AGREED, ANSWERS, signal.SIGSTOP)
    stat = Path(f"/proc/{services.service.pid}/stat")
    wait_for(lambda: ") T " in stat.read_text("ascii"), seconds=PATIENCE_S)
    services.while_checking = services.found_in_memory()
    services.service.send_signal(signal.SIGCONT)


DIES_AT = "after 3"
"""When a tally has stored the third of its four answers about a batch."""

ANSWERS = 4
"""So many more take the coordinator to the middle of the next batch."""


def counts_within(data: bytes, rows: tuple[Row, ...]) -> list[str]:
    """Name every count of some rows in data: each is odd enough to be searched for alone."""
    return findings_within(data, tuple(sorted(set(chain(*rows)))))


PLAIN = (12, 0, 0)
SHARED = Kind(
    form="additive",
    batch=1,
    rows={NAMES[0]: (MARKERS,), NAMES[1]: (PLAIN,), NAMES[2]: (PLAIN,)},
    marked=(MARKERS,),
    public=(MARKED_TEACHERS,),
    found=counts_within,
    said=("--sum", "additive", "--sigma2", 3),
    disturb=lambda _: None,
)
EVEN = {NAMES[0]: (97, 251, 652), NAMES[1]: (89, 212, 699), NAMES[2]: (149, 173, 678)}
ODD = {NAMES[0]: (631, 251, 118), NAMES[1]: (571, 307, 122), NAMES[2]: (743, 110, 147)}
CHECKED = Kind(
    form="verified",
    batch=QUERIES // 2,
    rows={name: (EVEN[name], ODD[name]) for name in NAMES},
    marked=(*EVEN.values(), *ODD.values()),
    public=(1, sum(EVEN[NAMES[0]])),  # a run's terms say it so: teachers of weight 1
    found=rows_within,
    said=("--sigma2", 40),
    disturb=kill_all_three,
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SHARED, id="undisturbed"),
        pytest.param(replace(SHARED, disturb=kill_one_after_the_other), id="killed"),
        pytest.param(CHECKED, id="verified"),
    ],
)
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Services, list[Recording]]]:
    """A run that comes to its end, whatever is done to it."""
    kind: Kind = request.param
    with marked_federation(tmp_path_factory.mktemp("marked"), kind) as (services, wires):
        services.serve()
        services.enroll()
        if kind.is_verified:
            services.federation.start_tally(DIES_AT)
        services.start(NAMES[0], dies_at=int(kind.is_verified))
        services.start(*NAMES[1:])
        federation = services.federation
        asked = federation.command(
            *("run", "--name", "marked", "--queries", federation.queries, "--label", LABEL),
            *("--classes", ",".join(CLASSES), "--ask", QUERIES, "--batch-size", kind.batch),
            *("--mechanism", "gnmax", "--epsilon", 500, *kind.said),
            *("--home", federation.home.folder, "--detach"),
        )
        (services.folder / "run.log").write_text(asked.stdout + asked.stderr)
        assert asked.returncode == 0, asked.stdout + asked.stderr + federation.log
        kind.disturb(services)
        run = federation.wait_for_run("marked", states=("done", "failed"), timeout_s=PATIENCE_S)
        assert run.state.value == "done", federation.log
        yield services, wires


def test_no_memory_of_an_aggregators_processes_holds_votes_or_an_exact_sum(
    ran: tuple[Services, list[Recording]],
) -> None:
    services, _ = ran
    assert services.found_in_memory() == []
    if services.kind.is_verified:
        assert services.while_checking == []
        # The same search finds what a hospital has.
        name = NAMES[0]
        assert rows_in_memory(services.hospitals[name].pid, services.kind.rows[name])


@pytest.fixture(scope="module")
def capture(ran: tuple[Services, list[Recording]]) -> Capture:
    services, wires = ran
    folder, federation = services.folder, services.federation
    out = folder / "out"
    assert not federation.command(
        "export", "marked", "--private", "--out", out, "--home", federation.home.folder
    ).returncode
    shown = [federation.command(*words) for words in asked_beside(federation)]
    (folder / "shown.log").write_text("".join(one.stdout + one.stderr for one in shown))
    services.stop()
    found = Capture(folder, services.kind, wires)
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
    ran: tuple[Services, list[Recording]],
) -> None:
    services, _ = ran
    require_sound(services.look(), note=services.federation.log)
    for site in services.sites:
        charges = [entry.state.value for entry in ledger_of(site).entries]
        assert charges.count("committed") == QUERIES // services.kind.batch, site.folder
        assert set(charges) <= {"committed", "cancelled"}, site.folder


def test_both_aggregators_have_one_coin_for_each_batch_and_the_tally_charged_it_once(
    ran: tuple[Services, list[Recording]],
) -> None:
    services, _ = ran
    if services.federation.tally is None:
        return
    with closing(services.federation.coordinator) as coordinator:
        require_one_coin(coordinator, services.federation.tally)
        assert coordinator.queue.find("marked").progress.void == 0
    with (
        closing(services.federation.tally.database()) as database,
        database.transaction() as connection,
    ):
        [run] = run_standings(
            connection, coordinator=services.federation.tally.coordinator.identity
        )
    assert run.charged == Outcomes(QUERIES, QUERIES)
    assert list(run.plans.values()) == [True] * (QUERIES // services.kind.batch)
    assert not run.rejected


def test_the_run_gave_the_labels_that_its_hospitals_decide(capture: Capture) -> None:
    labels, sums = labels_in(capture.folder / "out"), capture.kind.sums
    assert len(labels) == QUERIES
    for place, label in labels.items():
        assert label == CLASSES[np.argmax(sums[place % len(sums)])]


def test_no_packet_in_the_clear_holds_a_vote_or_the_exact_sum(capture: Capture) -> None:
    for name, packets in capture.packets.items():
        assert len(packets) >= 12, name
        for packet in packets:
            assert capture.kind.found_in(packet) == [], name
    # What hospitals saw is what the coordinator saw, and the search reads it: how many teachers
    # they have is public.
    sent = {packet for name in NAMES for packet in capture.packets[f"{name} packets"]}
    assert len(sent & set(capture.packets["coordinator"])) >= 24
    assert any(map(capture.kind.public_in, sent))


def test_no_stream_holds_a_row_of_counts(capture: Capture) -> None:
    assert len(capture.wires[0].streams) > 6
    # All of it went this way: at least every packet.
    size = sum(wire.size for wire in capture.wires)
    assert size > sum(map(len, capture.packets["coordinator"]))
    kind = capture.kind
    for stream in capture.streams:
        if kind.is_verified:
            assert kind.found_in(stream) == []
        else:
            assert not any(holds_row(stream, row) for row in kind.secrets)


def test_no_file_database_or_log_holds_a_vote_or_the_exact_sum(capture: Capture) -> None:
    files = [path for path in capture.folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"superlink.db", "coordinator.db", "party.db", "service.log", "report.html"} <= names
    assert len([path for path in files if is_database(path)]) >= 5
    assert found_in_files(capture.folder, capture.kind.found_in) == []
    # The search reads them: the number of teachers is public, and in files of both kinds.
    public = found_in_files(capture.folder, capture.kind.public_in)
    assert any("coordinator.db" in one for one in public)
    other = "tally.db" if capture.kind.is_verified else "party.toml"
    assert any(other in one for one in public)


def test_flowers_database_holds_no_y_and_no_report_after_the_run(capture: Capture) -> None:
    head = REPORT_HEAD if capture.kind.is_verified else Y_HEAD
    assert any(head in packet for packets in capture.packets.values() for packet in packets)
    [database] = capture.folder.rglob("superlink.db")
    for path in database.parent.glob("superlink.db*"):
        assert head not in path.read_bytes()


SLUG = "lung-study"
MEMBERSHIP = f"memberships/{SLUG}"

SECRET_FILES = {
    "federation": {"ca.key", "identity.key", "server.key", "superlink.secret"},
    **{
        name: {"identity.key", f"{MEMBERSHIP}/node.key", f"{MEMBERSHIP}/node.secret"}
        for name in NAMES
    },
}
OF_A_TALLY = {"federation/tally-client.key", "tally/identity.key", "tally/tally.key"}


def test_no_secret_of_either_side_is_anywhere_but_in_its_own_file(capture: Capture) -> None:
    kept = {f"{folder}/{name}" for folder, names in SECRET_FILES.items() for name in names}
    kept |= OF_A_TALLY if capture.kind.is_verified else set()
    assert set(capture.secrets) == kept | {f"token of {name}" for name in NAMES}
    files = [path for path in capture.folder.rglob("*") if path.is_file()]
    names = {path.relative_to(capture.folder).as_posix() for path in files}
    logs = {"service.log", "run.log", "shown.log", *(f"{name}.log" for name in NAMES)}
    assert names >= kept | logs | {f"{name}/log/supernode-{SLUG}.log" for name in NAMES}
    # Each is found where it is kept, by the same search.
    assert files_with_secrets(capture.folder, capture.secrets) == {name: [name] for name in kept}


def test_no_packet_or_stream_holds_a_secret_of_either_side(capture: Capture) -> None:
    packets = (one for packets in capture.packets.values() for one in packets)
    for packet in (*capture.streams, *packets):
        assert secrets_within(packet, capture.secrets) == []


@pytest.mark.parametrize(
    "name", ["federation/server.key", f"North/{MEMBERSHIP}/node.key", "North/identity.key"]
)
def test_a_private_key_in_a_log_would_be_found(capture: Capture, name: str) -> None:
    content = (capture.folder / name).read_bytes()
    for printed in (content, repr(content).encode(), base64.b64encode(content)):
        assert secrets_within(b"INFO " + printed, capture.secrets) == [name]
