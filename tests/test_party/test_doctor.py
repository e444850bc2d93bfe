"""The doctor: each check can fail, says so in one plain sentence, and none hides another."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import trustme

from benchmarks.lock import LOCK, entries
from party.doctor import FAIL, OK, WARN, Check, PartyProbes, examine, exit_code, network
from party.doctor.network import NAMES
from party.doctor.records import check_columns
from party.errors import JoinError, SiteError
from party.site.membership import SiteMembership
from party.site.own_table import add
from party.site.people_decisions import PeopleDecisions
from party.site.site import Site
from party.site.status_file import Status, write_status
from party.storage import LedgerStore
from pate_fed.accounting import PrivacyLedger
from pate_fed.nodes import GIB
from protocols.identity import SigningIdentity
from protocols.membership_messages import Membership
from tests.support.hospital_services import make_hospitals
from tests.support.hospital_site import (
    LABEL,
    PATIENT,
    at_address,
    make_site,
    membership_of,
    with_membership,
    write_own_table,
)
from tests.support.loopback_tls import listening, proxy_server, tls_server
from tests.support.markers import sampled

CLOCK = datetime.now(tz=UTC).timestamp()


def ca_bytes(ca: trustme.CA) -> bytes:
    return ca.cert_pem.bytes()


def context_of(
    ca: trustme.CA, host: str = "127.0.0.1", *, until: datetime | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host, not_after=until).configure_cert(context)
    return context


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA(organization_name="Lung study")


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[int]:
    with tls_server(context_of(ca), now=CLOCK) as port:
        yield port


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA, server: int) -> Site:
    made = make_site(tmp_path / "site", address=f"127.0.0.1:{server}", ca=ca_bytes(ca))
    for number in range(made.settings.policy_for(frozenset()).least_checked_peers):
        check_peer(made, f"Peer {number}")
    table = write_own_table(tmp_path / "own.csv")
    return add(made, table, label=LABEL, patient_id=PATIENT)[0]


def check_peer(site: Site, name: str, *, body: str = "") -> None:
    with site.open_database() as database:
        records = PeopleDecisions(database, clock=lambda: CLOCK)
        identity = SigningIdentity.generate().public
        records.add_pin(name, identity, body=body, how="telephone", by="M. Curie")


def says(state: str) -> Callable[[SiteMembership], Membership]:
    """What the coordinator says of a hospital."""
    return lambda site: membership_of(
        site.identity.fingerprint, state=state, answered_at=int(CLOCK)
    )


def locked_version(name: str) -> str:
    """The version of a library in `requirements.txt`."""
    [version] = [known for listed, known, _ in entries(LOCK.read_text("utf-8")) if listed == name]
    return version


def installed(**versions: str) -> Callable[[str], str]:
    """A machine with these libraries."""

    def version_of(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return version_of


def well(**changes: Any) -> PartyProbes:
    """A machine that has all it needs."""
    good = PartyProbes(
        clock=lambda: CLOCK,
        environment={},
        membership=says("member"),
        free_disk=lambda _: 50 * GIB,
        free_memory=lambda: 8 * GIB,
        graphics_cards=lambda: (),
        port_is_free=lambda _: True,
        version_of=installed(flwr=locked_version("flwr")),
        python="3.11.2",
    )
    return replace(good, **changes)


def found(site: Site, **changes: Any) -> dict[str, Check]:
    checks = list(examine(site, well(**changes)))
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.said.endswith(".")
        assert "\n" not in check.said
        assert bool(check.advice) == (check.state != OK)
    return {check.name: check for check in checks}


def failing(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.state != OK}


def moved(site: Site, port: int) -> Site:
    return at_address(site, f"127.0.0.1:{port}")


class TestAllIsWell:
    def test_every_check_of_the_list_is_made(self, site: Site) -> None:
        checks = found(site)
        assert list(checks) == [
            "versions",
            "file rights",
            "disk",
            "memory",
            "graphics card",
            "data",
            "teacher",
            "columns",
            "database",
            "storing",
            "approved pools",
            "requests",
            "notifications",
            "port",
            "CA",
            *NAMES,
            "membership",
            "peers",
            "tally",
        ]
        assert failing(checks) == set()
        assert exit_code(checks.values()) == 0

    def test_this_machine_can_be_looked_at(self, site: Site) -> None:
        around = PartyProbes()
        assert around.free_disk(site.folder) > 0
        assert around.version_of("flwr").startswith("1.41")
        assert around.resolve("127.0.0.1", 80) == ["127.0.0.1"]
        assert isinstance(around.graphics_cards(), tuple)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            assert not around.port_is_free(taken.getsockname()[1])
        assert around.is_running(os.getpid())
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
        assert not around.is_running(ended.pid)

    @pytest.mark.parametrize(
        ("states", "code"),
        [
            pytest.param([], 0, id="none"),
            pytest.param([OK, OK], 0, id="all well"),
            pytest.param([OK, WARN], 1, id="a warning"),
            pytest.param([WARN, FAIL, OK], 4, id="one fails"),
        ],
    )
    def test_exit_codes(self, states: Sequence[Any], code: int) -> None:
        assert exit_code(Check("x", state, "Said.") for state in states) == code


class TestMachine:
    @sampled()
    @pytest.mark.parametrize(
        ("name", "changes", "state"),
        [
            pytest.param("disk", {"free_disk": lambda _: GIB - 1}, FAIL, id="a full disk"),
            pytest.param("disk", {"free_disk": lambda _: 3 * GIB}, WARN, id="a fuller disk"),
            pytest.param("memory", {"free_memory": lambda: GIB - 1}, FAIL, id="no memory"),
            pytest.param("memory", {"free_memory": lambda: 3 * GIB // 2}, WARN, id="less memory"),
            pytest.param("memory", {"free_memory": lambda: None}, WARN, id="unknown memory"),
            pytest.param("port", {"port_is_free": lambda _: False}, FAIL, id="a port taken"),
            pytest.param("versions", {"python": "3.10.9"}, FAIL, id="an old Python"),
            pytest.param(
                "versions",
                {"version_of": installed(flwr="1.4.1")},
                FAIL,
                id="another Flower",
            ),
            pytest.param("versions", {"version_of": installed()}, FAIL, id="no Flower"),
            pytest.param(
                "versions",
                {"version_of": installed(flwr=locked_version("flwr"), torch="2.13.0")},
                WARN,
                id="another build of torch",
            ),
            pytest.param("file rights", {"user": 12345}, FAIL, id="another's files"),
        ],
    )
    def test_what_is_missing_is_said(
        self, site: Site, name: str, changes: dict[str, Any], state: str
    ) -> None:
        checks = found(site, **changes)
        assert failing(checks) == {name}
        assert checks[name].state == state

    @pytest.mark.parametrize(
        ("status", "is_running", "state"),
        [
            pytest.param(Status("running", CLOCK - 1, 7), True, OK, id="its own node's"),
            pytest.param(Status("running", CLOCK - 1, 7), False, FAIL, id="after a kill"),
            pytest.param(
                Status("running", CLOCK - 999, 7), True, FAIL, id="another has its number"
            ),
            pytest.param(Status("stopped", CLOCK - 1, 7), True, FAIL, id="stopped"),
        ],
    )
    def test_a_port_that_is_taken_is_well_while_the_sites_own_node_has_it(
        self, site: Site, status: Status, is_running: bool, state: str
    ) -> None:
        write_status(site.path("status.json"), status)
        checks = found(site, port_is_free=lambda _: False, is_running=lambda _: is_running)
        assert checks["port"].state == state

    def test_a_graphics_card_is_told_of(self, site: Site) -> None:
        check = found(site, graphics_cards=lambda: ("H100",))["graphics card"]
        assert (check.state, check.said[:1]) == (OK, "1")

    @sampled()
    @pytest.mark.parametrize(
        "name",
        [
            *("identity.key", "party.db", "teachers", "memberships", "memberships/lung-study", "."),
            *("memberships/lung-study/node.key", "memberships/lung-study/node.secret"),
        ],
    )
    def test_what_others_may_read_is_named(self, site: Site, name: str) -> None:
        path = site.path(name)
        path.chmod(path.stat().st_mode | 0o040)
        check = found(site)["file rights"]
        assert check.state == FAIL
        assert f" {'the folder' if name == '.' else name}." in check.said


class TestRecords:
    def test_no_table(self, tmp_path: Path, ca: trustme.CA, server: int) -> None:
        checks = found(make_site(tmp_path / "new", address=f"127.0.0.1:{server}", ca=ca_bytes(ca)))
        assert failing(checks) == {"data", "teacher", "peers"}
        assert "data add" in checks["data"].advice

    def test_a_changed_table(self, site: Site) -> None:
        table = Path(site.settings.data.file)
        table.write_text(table.read_text("utf-8") + "p99,50,male,yes\n", encoding="utf-8")
        assert failing(found(site)) == {"data", "teacher"}

    def test_more_teachers_than_patients_who_teach(self, site: Site) -> None:
        assert re.findall(r"\d+", found(site)["data"].said)[:2] == ["40", "4"]
        counted = replace(site.settings.data, patients=50_000)  # at `data add`, and removed since
        check = found(site.save(replace(site.settings, data=counted)))["data"]
        assert check.state == FAIL
        assert re.findall(r"\d+", check.said) == ["40", "5000"]
        assert "records_per_teacher" in check.advice

    @pytest.mark.parametrize(("of_limit", "state"), [(1.0, OK), (1.01, WARN)])
    def test_a_large_delta_for_so_many_patients(
        self, site: Site, of_limit: float, state: str
    ) -> None:
        [patients] = re.findall(r"(\d+) patients", found(site)["data"].said)
        changed = site.save(replace(site.settings, delta=of_limit * 0.1 / int(patients)))
        check = found(changed)["data"]
        assert check.state == state
        assert ("delta" in check.advice) is (state == WARN)

    def test_a_table_that_is_gone(self, site: Site) -> None:
        Path(site.settings.data.file).unlink()
        assert failing(found(site)) == {"data", "teacher"}

    def test_a_table_that_nothing_can_be_learned_from(self, site: Site, tmp_path: Path) -> None:
        table = tmp_path / "flat.csv"
        rows = [f"p{row},7,{'yes' if row % 2 else 'no'}" for row in range(20)]
        table.write_text("\n".join(["patient,age,sick", *rows]), encoding="utf-8")
        site, _ = add(site, table, label=LABEL, patient_id=PATIENT)
        checks = found(site)
        assert failing(checks) == {"teacher"}


class TestStanding:
    def test_fewer_checked_bodies_than_the_policy_wants_is_a_warning(
        self, tmp_path: Path, site: Site, ca: trustme.CA
    ) -> None:
        fresh = make_site(
            tmp_path / "fresh", address=site.membership().settings.address, ca=ca_bytes(ca)
        )
        assert (found(fresh)["peers"].state, "PF-311" in found(fresh)["peers"].advice) == (
            WARN,
            True,
        )
        check_peer(fresh, "South clinic", body="South")
        check_peer(fresh, "South ward", body="South")
        fresh = fresh.save(replace(fresh.settings, policy={"least_checked_peers": 2}))
        assert found(fresh)["peers"].state == WARN
        check_peer(fresh, "Operator's clinic", body="University")
        assert found(fresh)["peers"].state == OK
        operated = fresh.settings.with_setting(fresh.membership().name, operator_body="University")
        assert found(fresh.save(operated))["peers"].state == WARN
        # A sister of our own owner is no other body, however its name is typed.
        sister = {"least_checked_peers": 2, "own_body": " university"}
        assert found(fresh.save(replace(fresh.settings, policy=sister)))["peers"].state == WARN

    def test_who_takes_verified_runs_alone_needs_no_peers(
        self, tmp_path: Path, site: Site, ca: trustme.CA
    ) -> None:
        fresh = make_site(
            tmp_path / "fresh", address=site.membership().settings.address, ca=ca_bytes(ca)
        )
        for forms, state in ((["verified"], OK), (["verified", "masked"], WARN)):
            ruled = fresh.save(replace(fresh.settings, policy={"forms": forms}))
            assert found(ruled)["peers"].state == state

    def test_no_policy_does_with_fewer_than_two_checked_bodies(
        self, tmp_path: Path, site: Site, ca: trustme.CA
    ) -> None:
        fresh = make_site(
            tmp_path / "fresh", address=site.membership().settings.address, ca=ca_bytes(ca)
        )
        check_peer(fresh, "South")
        with pytest.raises(SiteError, match=r"least_checked_peers .* 2, got 0"):
            replace(fresh.settings, policy={"least_checked_peers": 0})
        fresh = fresh.save(replace(fresh.settings, policy={"least_checked_peers": 2}))
        assert re.findall(r"\d+", found(fresh)["peers"].said)[:2] == ["1", "2"]
        assert found(fresh)["peers"].state == WARN

    @sampled()
    @pytest.mark.parametrize(
        ("state", "found_state", "words"),
        [
            pytest.param("member", OK, "member", id="a member"),
            pytest.param("requested", WARN, "approve", id="not approved yet"),
            pytest.param("revoked", FAIL, "revoked", id="revoked"),
            pytest.param("suspended", WARN, "suspended", id="suspended"),
        ],
    )
    def test_the_coordinator_is_asked_and_what_it_said_before_counts_for_nothing(
        self, site: Site, state: str, found_state: str, words: str
    ) -> None:
        before = "revoked" if state == "member" else "member"
        write_status(
            site.path("status.json"), with_membership("running", CLOCK, 7, membership=before)
        )
        check = found(site, membership=says(state))["membership"]
        assert (check.state, words in check.said) == (found_state, True)

    @sampled()
    @pytest.mark.parametrize("content", [b"", b"garbage", bytes(range(256))])
    def test_a_node_key_that_is_none(self, site: Site, content: bytes) -> None:
        site.membership().path("node.key").write_bytes(content)
        check = found(site)["membership"]
        assert check.state == FAIL
        assert "node.key" in check.said

    def test_whom_the_coordinator_does_not_know_is_told_so(self, site: Site) -> None:
        def refuses(_: SiteMembership) -> Membership:
            raise JoinError("a hospital must be known", "status 403", is_refusal=True)

        write_status(
            site.path("status.json"), with_membership("running", CLOCK, 7, membership="member")
        )
        check = found(site, membership=refuses)["membership"]
        assert (check.state, "know" in check.said) == (FAIL, True)

    @sampled()
    @pytest.mark.parametrize(
        ("heard", "found_state"),
        [("member", OK), ("requested", WARN), ("revoked", FAIL), ("", WARN)],
    )
    def test_where_it_cannot_be_asked_what_it_said_last_counts(
        self, site: Site, heard: str, found_state: str
    ) -> None:
        asked: list[SiteMembership] = []

        def ask(joined: SiteMembership) -> Membership:
            asked.append(joined)
            raise JoinError("the coordinator must answer", "status 503")

        write_status(
            site.path("status.json"), with_membership("running", CLOCK, 7, membership=heard)
        )
        assert found(site, membership=ask)["membership"].state == found_state
        assert asked == [site.membership()]
        assert found(site, membership=ask, connect=refuse)["membership"].state == found_state
        assert asked == [site.membership()], "the way to it ended before"

    @pytest.mark.parametrize("name", ["node.key", "node.secret"])
    def test_a_key_that_is_missing_is_named_and_nobody_left(self, site: Site, name: str) -> None:
        site.membership().path(name).unlink()
        check = found(site)["membership"]
        assert (check.state, check.said) == (FAIL, f"memberships/lung-study has no {name}.")

    @sampled()
    @pytest.mark.parametrize(
        "changed", [{"lifetime_epsilon": 9.0}, {"delta": 1e-6}, {"delta_for_tests": 1e-6}]
    )
    def test_a_budget_for_life_that_changed_since_the_first_start(
        self, site: Site, changed: dict[str, float]
    ) -> None:
        with site.open_database() as database:
            database.become_node()
            budget = PrivacyLedger.for_life(site.settings.lifetime_epsilon, site.settings.delta)
            LedgerStore(database, budget=budget)
        assert failing(found(site)) == set()
        check = found(site.save(replace(site.settings, **changed)))["database"]
        assert check.state == FAIL
        assert "epsilon 5 at delta 1e-05" in check.said
        assert "PF-354" in check.said

    def test_whoever_has_no_identity_left(self, site: Site) -> None:
        site.path("identity.key").unlink()
        check = found(site)["membership"]
        assert check.state == FAIL
        assert "left" in check.said


def refuse(*_: object) -> Any:
    raise ConnectionRefusedError


def unknown(*_: object) -> Any:
    raise socket.gaierror(-2, "Name or service not known")


class TestNetwork:
    @sampled()
    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            pytest.param("name", {"resolve": unknown}, id="no such name"),
            pytest.param("connection", {"connect": refuse}, id="a firewall"),
            pytest.param("proxy", {"environment": {"HTTPS_PROXY": "socks5://x:1"}}, id="a proxy"),
        ],
    )
    def test_where_the_way_ends_the_rest_is_not_looked_at(
        self, site: Site, name: str, changes: dict[str, Any]
    ) -> None:
        checks = found(site, **changes)
        place = NAMES.index(name)
        assert failing(checks) == {*NAMES[place:], "membership"}
        assert checks[name].state == FAIL
        assert {checks[other].state for other in NAMES[place + 1 :]} <= {WARN}

    def test_a_name_is_shown_with_its_address(self, site: Site) -> None:
        port = site.membership().settings.address.rpartition(":")[2]
        named = at_address(site, f"coordinator.example.org:{port}")
        asked: list[str] = []

        def connect(host: str, port: int) -> socket.socket:
            asked.append(host)
            return socket.create_connection(("127.0.0.1", port), timeout=60)

        checks = found(named, resolve=lambda *_: ["192.0.2.7"], connect=connect)
        assert "coordinator.example.org is 192.0.2.7" in checks["name"].said
        assert set(asked) == {"coordinator.example.org"}
        # The certificate is for the address, and the name is what was asked for.
        assert failing(checks) == {"tls", "clock", "membership"}

    def test_an_inspecting_middlebox_is_named(self, site: Site) -> None:
        box = trustme.CA(organization_name="Middlebox Ltd")
        with tls_server(context_of(box), now=CLOCK) as port:
            check = found(moved(site, port))["tls"]
        assert check.state == FAIL
        assert "Middlebox Ltd" in check.said
        assert re.search(r"its SHA-256 is [0-9a-f]{64}\.", check.said)
        assert f"exempt 127.0.0.1, TCP port {port}," in check.advice

    def test_a_certificate_for_another_host(self, site: Site, ca: trustme.CA) -> None:
        with tls_server(context_of(ca, "other.example.org"), now=CLOCK) as port:
            check = found(moved(site, port))["tls"]
        assert (check.state, "not for 127.0.0.1" in check.said) == (FAIL, True)

    def test_a_certificate_that_ended(self, site: Site, ca: trustme.CA) -> None:
        ended = datetime(2020, 1, 1, tzinfo=UTC)
        with tls_server(context_of(ca, until=ended), now=CLOCK) as port:
            check = found(moved(site, port))["tls"]
        assert check.state == FAIL
        assert "time" in check.said

    def test_a_certificate_that_soon_ends(self, site: Site, ca: trustme.CA) -> None:
        soon = datetime.fromtimestamp(CLOCK + 20 * 86400, UTC)
        with tls_server(context_of(ca, until=soon), now=CLOCK) as port:
            checks = found(moved(site, port))
        assert failing(checks) == {"tls"}
        assert checks["tls"].state == WARN

    def test_no_tls_at_all(self, site: Site) -> None:
        with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")) as port:
            check = found(moved(site, port))["tls"]
        assert (check.state, "No TLS" in check.said) == (FAIL, True)

    def test_a_missing_ca_is_a_finding(self, site: Site) -> None:
        site.membership().path("ca.crt").unlink()
        checks = found(site)
        assert failing(checks) == {"CA", "tls", "clock", "membership"}
        assert checks["tls"].state == FAIL

    @sampled()
    @pytest.mark.parametrize(
        ("ahead", "state"),
        [
            pytest.param(0.0, OK, id="equal"),
            pytest.param(4.0, WARN, id="a little ahead"),
            pytest.param(60.0, FAIL, id="ahead"),
            pytest.param(-60.0, WARN, id="behind"),
            pytest.param(-290.0, FAIL, id="far behind"),
        ],
    )
    def test_clocks_are_compared(
        self, site: Site, ca: trustme.CA, ahead: float, state: str
    ) -> None:
        with tls_server(context_of(ca), now=int(CLOCK)) as port:
            check = found(moved(site, port), clock=lambda: int(CLOCK) + ahead)["clock"]
        assert check.state == state

    @pytest.mark.parametrize(
        ("dated", "state"),
        [
            pytest.param(-60, FAIL, id="before it was asked"),
            pytest.param(20, OK, id="meanwhile"),
            pytest.param(100, WARN, id="after it was heard"),
        ],
    )
    def test_an_answer_that_takes_long_makes_no_clock_wrong(
        self,
        site: Site,
        ca: trustme.CA,
        monkeypatch: pytest.MonkeyPatch,
        dated: int,
        state: str,
    ) -> None:
        now, read = [CLOCK], network._read_head

        def read_slowly(connection: socket.socket) -> bytes:
            now[0] += 40
            return read(connection)

        monkeypatch.setattr(network, "_read_head", read_slowly)
        with tls_server(context_of(ca), now=int(CLOCK) + dated) as port:
            check = found(moved(site, port), clock=lambda: now[0])["clock"]
        assert check.state == state

    def test_a_coordinator_that_tells_no_time(self, site: Site, ca: trustme.CA) -> None:
        with tls_server(context_of(ca), now=CLOCK, date=False) as port:
            assert found(moved(site, port))["clock"].state == WARN


class TestProxy:
    def test_the_way_through_a_proxy_is_gone(self, site: Site) -> None:
        heads: list[bytes] = []
        with proxy_server(heads=heads) as port:
            environment = {"HTTPS_PROXY": f"http://us:pa%20ssword@127.0.0.1:{port}"}
            checks = found(site, environment=environment)
        assert failing(checks) == set()
        assert f"127.0.0.1:{port}" in checks["proxy"].said
        assert heads[0].startswith(
            f"CONNECT {site.membership().settings.address} HTTP/1.1\r\n".encode()
        )
        assert b"Proxy-Authorization: Basic dXM6cGEgc3N3b3Jk\r\n" in heads[0]
        assert not any("ssword" in check.said + check.advice for check in checks.values())

    def test_a_proxy_that_refuses(self, site: Site) -> None:
        with proxy_server(status="403 Forbidden") as port:
            environment = {"https_proxy": f"http://127.0.0.1:{port}"}
            check = found(site, environment=environment)["connection"]
        assert (check.state, "answers 403" in check.said) == (FAIL, True)

    @sampled()
    @pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
    def test_a_proxy_that_is_down_is_what_is_blamed(self, site: Site, variable: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]  # nobody's, once it is closed
        check = found(site, environment={variable: f"http://127.0.0.1:{port}"})["connection"]
        assert check.state == FAIL
        assert f"127.0.0.1:{port}" in check.said
        assert variable in check.advice
        assert (
            site.membership().settings.address.rpartition(":")[2] not in check.said + check.advice
        )

    def test_a_proxy_whose_name_is_unknown_is_what_is_blamed(self, site: Site) -> None:
        environment = {"https_proxy": "http://proxy.example.org:3128"}
        check = found(site, environment=environment, resolve=unknown)["name"]
        assert "proxy.example.org" in check.said
        assert "https_proxy" in check.advice

    @sampled()
    @pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
    def test_a_wrong_address_is_blamed_on_the_variable_that_holds_it(
        self, site: Site, variable: str
    ) -> None:
        check = found(site, environment={variable: "ftp://proxy.example.org:21"})["proxy"]
        assert (check.state, check.said.startswith(f"{variable} ")) == (FAIL, True)

    @pytest.mark.parametrize("text", ["http://user:SECRET@", "http://user:SECRET@x:99999"])
    def test_a_password_in_a_wrong_address_is_not_shown(self, site: Site, text: str) -> None:
        checks = found(site, environment={"HTTPS_PROXY": text})
        assert checks["proxy"].state == FAIL
        assert not any("SECRET" in check.said + check.advice for check in checks.values())

    def test_an_exempt_coordinator_is_reached_directly(self, site: Site) -> None:
        environment = {"HTTPS_PROXY": "http://nowhere.example.org:1", "NO_PROXY": "127.0.0.1"}
        assert failing(found(site, environment=environment)) == set()

    def test_a_proxy_for_plain_http_is_none_of_ours(self, site: Site) -> None:
        # What our processes say on loopback is kept off it by `start`.
        checks = found(site, environment={"HTTP_PROXY": "http://nowhere.example.org:1"})
        assert failing(checks) == set()


def test_a_check_that_breaks_hides_no_other(site: Site) -> None:
    def broken(_: Path) -> int:
        raise ZeroDivisionError("SECRET")

    checks = found(site, free_disk=broken)
    assert failing(checks) == {"disk"}
    assert "SECRET" not in checks["disk"].said


def test_a_key_in_the_folder_is_never_shown(site: Site) -> None:
    secrets = [site.path("identity.key").read_text("ascii"), site.membership().node_secret.hex()]
    changes: list[dict[str, Callable[..., Any]]] = [{}, {"connect": refuse}]
    for change in changes:
        text = "".join(check.said + check.advice for check in found(site, **change).values())
        assert not any(secret in text for secret in secrets)


class TestColumns:
    def test_columns_of_approved_pools_in_which_own_rows_look_alike_are_named(
        self, tmp_path: Path
    ) -> None:
        hospitals = make_hospitals(tmp_path)
        site = hospitals.sites[0]
        assert check_columns(site, well()).state == OK  # nothing is approved
        hospitals.approve(0)
        assert check_columns(site, well()).state == OK
        own = Path(site.settings.data.file)
        header, *lines = own.read_text("utf-8").splitlines()
        assert header.split(",")[1] == "age"
        older = [
            ",".join((one, f"{500 + row}", *rest))
            for row, (one, _, *rest) in enumerate(line.split(",") for line in lines)
        ]
        own.write_text("\n".join([header, *older]) + "\n", "utf-8")
        changed = check_columns(site, well())
        assert (changed.state, " age." not in changed.said) == (WARN, True)
        found = check_columns(add(site, own, label=LABEL, patient_id=PATIENT)[0], well())
        assert (found.state, " age." in found.said) == (WARN, True)
