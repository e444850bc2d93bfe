"""The operator's doctor: each check can fail, hides no other, and changes nothing."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from coordinator.certificates import issue_server_certificate, make_ca
from coordinator.database import Database
from coordinator.doctor import CoordinatorProbes, examine
from coordinator.doctor.machine import check_tally
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.home import FederationHome
from coordinator.runs.queue import RunState
from coordinator.tally.tally_client import TallyClient
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from pate_fed.nodes import FAIL, GIB, OK, WARN, Check, exit_code
from tests.support.command import Command, pate_fed
from tests.support.loopback_home import free_ports, make_home
from tests.support.loopback_tls import tls_server
from tests.support.worked import Worked

__all__ = ["pate_fed"]

LOCAL = (
    *("settings", "files", "file rights", "identity", "secret", "CA", "certificate", "disk"),
    *("service", "tally", "notifications", "database"),
)
STANDING = ("hospitals", "invitations", "runs")


@pytest.fixture
def home(tmp_path: Path) -> FederationHome:
    return make_home(tmp_path / "federation")


def found(home: FederationHome, **around: Any) -> dict[str, Check]:
    """What the doctor finds, by name."""
    checks = list(examine(home.folder, CoordinatorProbes(**around)))
    assert len({one.name for one in checks}) == len(checks)
    for one in checks:
        assert one.said.endswith("."), one
        assert one.state == OK or one.advice, one
    return {one.name: one for one in checks}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def is_only(checks: dict[str, Check], name: str, state: str) -> bool:
    """Whether one check stands so, and all others of the folder and the machine are well."""
    return {one for one in LOCAL if checks[one].state != OK} == {name} and (
        checks[name].state == state
    )


class TestAFolder:
    def test_one_that_was_just_made_is_well_and_left_as_it_was(self, home: FederationHome) -> None:
        before = contents(home.folder)
        checks = found(home)
        assert tuple(checks) == LOCAL + STANDING
        assert [checks[name].state for name in LOCAL] == [OK] * len(LOCAL)
        assert (checks["hospitals"].state, "needs 3" in checks["hospitals"].advice) == (WARN, True)
        assert contents(home.folder) == before

    def test_settings_that_cannot_be_read_are_all_that_is_found(self, home: FederationHome) -> None:
        home.path("federation.toml").write_text("schema_version = 1\n", encoding="utf-8")
        checks = found(home)
        assert {name: one.state for name, one in checks.items()} == {"settings": FAIL}
        assert "name" in checks["settings"].said

    @pytest.mark.parametrize(
        "name",
        [
            *("identity.key", "server.key", "superlink.secret", "ca.crt", "server.crt"),
            *("coordinator.db", "pools"),
        ],
    )
    def test_what_is_missing_is_named(self, home: FederationHome, name: str) -> None:
        path = home.path(name)
        path.rmdir() if path.is_dir() else path.unlink()
        checks = found(home)
        assert (checks["files"].state, name in checks["files"].said) == (FAIL, True)
        assert exit_code(checks.values()) == 4

    @pytest.mark.parametrize(
        ("is_there", "days", "state"), [(True, 0, OK), (False, 0, FAIL), (True, 3640, WARN)]
    )
    def test_a_pinned_tally_is_asked_for(
        self, home: FederationHome, tmp_path: Path, is_there: bool, days: int, state: str
    ) -> None:
        now = datetime.now(UTC)
        settings = TallySettings("127.0.0.1:8450", host="127.0.0.1", name="Data Trust")
        tally = TallyFolder.create(
            tmp_path / "tally", settings, home.invite_tally(now=now), now=now
        )
        home.accept_tally(tally.card)
        found = check_tally(
            home,
            CoordinatorProbes(
                clock=lambda: now + timedelta(days=days), is_tally_there=lambda _: is_there
            ),
        )
        assert (found.state, "Data Trust" in found.said) == (state, True)

    def test_a_port_where_no_tally_is_is_no_tally(
        self, home: FederationHome, tmp_path: Path
    ) -> None:
        (port,) = free_ports(1)
        now = datetime.now(UTC)
        settings = TallySettings(f"127.0.0.1:{port}", host="127.0.0.1", port=port)
        tally = TallyFolder.create(
            tmp_path / "tally", settings, home.invite_tally(now=now), now=now
        )
        assert not TallyClient(tally.card, home.tally_key).is_there(timeout_s=0.5)

    def test_the_ca_s_key_may_be_away(self, home: FederationHome) -> None:
        home.path("ca.key").unlink()
        checks = found(home)
        assert (checks["files"].state, checks["CA"].state) == (OK, OK)
        assert "kept elsewhere" in checks["files"].said

    @pytest.mark.parametrize("name", ["identity.key", "server.key", "coordinator.db", "."])
    def test_what_others_may_read_is_named(self, home: FederationHome, name: str) -> None:
        home.path(name).chmod(home.path(name).stat().st_mode | 0o044)
        checks = found(home)
        assert checks["file rights"].state == FAIL
        assert ("the folder" if name == "." else name) in checks["file rights"].said

    def test_another_users_folder_is_not_opened(self, home: FederationHome) -> None:
        checks = found(home, user=os.geteuid() + 1)
        for name in ("file rights", "database"):
            assert (checks[name].state, "user" in checks[name].advice) == (FAIL, True)
        assert len({checks[name].said for name in STANDING}) == 1  # none was looked at

    @pytest.mark.parametrize(
        ("name", "check"),
        [
            *(("identity.key", "identity"), ("superlink.secret", "secret"), ("ca.crt", "CA")),
            *(("ca.key", "CA"), ("server.crt", "certificate"), ("server.key", "certificate")),
        ],
    )
    def test_garbage_is_found(self, home: FederationHome, name: str, check: str) -> None:
        home.path(name).write_bytes(b"garbage")
        checks = found(home)
        assert checks[check].state == FAIL, checks[check]

    def test_a_key_of_another_ca_is_found(self, home: FederationHome) -> None:
        other = make_ca("other", now=datetime.now(UTC))
        home.path("ca.key").write_bytes(other.private_key)
        checks = found(home)
        assert is_only(checks, "CA", FAIL)
        assert "ca.crt" in checks["CA"].said


class TestItsCertificate:
    @pytest.fixture
    def write(self, home: FederationHome) -> Callable[..., None]:
        def write(*, ca: Any = None, hosts: tuple[str, ...] = ("127.0.0.1",)) -> None:
            from coordinator.certificates import KeyedCertificate  # noqa: PLC0415

            ours = KeyedCertificate(home.ca_certificate, home.path("ca.key").read_bytes())
            made = issue_server_certificate(ca or ours, hosts=hosts, now=datetime.now(UTC))
            home.path("server.crt").write_bytes(made.certificate)
            home.path("server.key").write_bytes(made.private_key)

        return write

    def test_one_of_another_key_is_found(self, home: FederationHome) -> None:
        before = home.server_certificate
        home.renew_server_certificate(now=datetime.now(UTC))
        home.path("server.crt").write_bytes(before)
        checks = found(home)
        assert is_only(checks, "certificate", FAIL)
        assert "server.key" in checks["certificate"].said

    def test_one_of_another_ca_is_found(
        self, home: FederationHome, write: Callable[..., None]
    ) -> None:
        write(ca=make_ca("other", now=datetime.now(UTC)))
        checks = found(home)
        assert is_only(checks, "certificate", FAIL)
        assert "sign" in checks["certificate"].said

    def test_one_for_other_hosts_is_found(
        self, home: FederationHome, write: Callable[..., None]
    ) -> None:
        write(hosts=("elsewhere.example.org",))
        checks = found(home)
        assert is_only(checks, "certificate", FAIL)
        assert "127.0.0.1" in checks["certificate"].said

    @pytest.mark.parametrize(("days", "state"), [(0, OK), (380, WARN), (400, FAIL)])
    def test_its_days_are_counted(self, home: FederationHome, days: int, state: str) -> None:
        now = datetime.now(UTC) + timedelta(days=days)
        assert found(home, clock=lambda: now)["certificate"].state == state

    @pytest.mark.parametrize(("days", "state"), [(3600, OK), (3640, WARN), (3660, FAIL)])
    def test_the_cas_days_are_counted(self, home: FederationHome, days: int, state: str) -> None:
        now = datetime.now(UTC) + timedelta(days=days)
        assert found(home, clock=lambda: now)["CA"].state == state


class TestTheMachine:
    @pytest.mark.parametrize(("free", "state"), [(9 * GIB, OK), (2 * GIB, WARN), (1000, FAIL)])
    def test_disk(self, home: FederationHome, free: int, state: str) -> None:
        checks = found(home, free_disk=lambda _: free)
        assert checks["disk"].state == state

    def test_a_port_that_somebody_has_is_named(self, home: FederationHome) -> None:
        with socket.create_server(("127.0.0.1", home.settings.port)):
            checks = found(home)
        assert is_only(checks, "service", FAIL)
        assert f"{home.settings.port} of 127.0.0.1 (Address already" in checks["service"].said

    def test_a_host_that_is_not_the_machines_is_found(self, home: FederationHome) -> None:
        elsewhere = replace(home.settings, host="192.0.2.1")
        text = home.path("federation.toml").read_text("utf-8")
        text = text.replace('host = "127.0.0.1"', f'host = "{elsewhere.host}"')
        home.path("federation.toml").write_text(text, encoding="utf-8")
        checks = found(home)
        assert is_only(checks, "service", FAIL)
        assert "192.0.2.1" in checks["service"].said

    def test_an_older_database_is_found_and_not_touched(self, home: FederationHome) -> None:
        with closing(Database(home.database_url)) as database, database.session() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
        before = contents(home.folder)
        checks = found(home)
        assert is_only(checks, "database", FAIL)
        assert "pate-fed upgrade" in checks["database"].said
        assert contents(home.folder) == before

    def test_a_database_that_is_none_is_found(self, home: FederationHome) -> None:
        home.path("coordinator.db").write_bytes(b"garbage" * 1000)
        checks = found(home)
        assert is_only(checks, "database", FAIL)
        assert "PF-440" in checks["database"].said

    def test_a_database_that_another_program_keeps_for_itself_is_found(
        self, home: FederationHome, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: Database) -> None:
            from coordinator.errors import DatabaseError  # noqa: PLC0415

            raise DatabaseError("the database must store what it is given", "a full disk")

        monkeypatch.setattr(Database, "try_to_write", refuse)
        assert is_only(found(home), "database", FAIL)


@contextmanager
def served(home: FederationHome) -> Iterator[None]:
    """Hold a folder's lock as a service does."""
    descriptor = os.open(home.path("service.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


READY = dict.fromkeys(("superlink", "database", "worker", "certificate"), True)


class TestAServiceThatRuns:
    @pytest.fixture(autouse=True)
    def _served(self, home: FederationHome) -> Iterator[None]:
        with served(home):
            yield

    def test_one_that_answers_is_well(self, home: FederationHome) -> None:
        checks = found(
            home, readiness=lambda _: READY, certificate=lambda one: one.server_certificate
        )
        assert checks["service"].state == OK

    def test_one_that_says_nothing_is_found(self, home: FederationHome) -> None:
        assert is_only(found(home), "service", FAIL)

    def test_one_with_a_part_that_is_missing_is_found(self, home: FederationHome) -> None:
        checks = found(home, readiness=lambda _: {**READY, "superlink": False})
        assert is_only(checks, "service", FAIL)
        assert "SuperLink" in checks["service"].said

    def test_a_public_port_that_is_silent_is_found(self, home: FederationHome) -> None:
        checks = found(home, readiness=lambda _: READY)
        assert is_only(checks, "service", FAIL)
        assert "(ConnectionRefusedError)" in checks["service"].said

    def test_a_certificate_of_before_the_renewal_is_found_at_the_port(
        self, home: FederationHome
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(home.path("server.crt"), home.path("server.key"))
        with tls_server(context, now=0.0) as port:
            path = home.path("federation.toml")
            before = path.read_text("utf-8")
            path.write_text(before.replace(f"\nport = {home.settings.port}", f"\nport = {port}"))
            assert found(home, readiness=lambda _: READY)["service"].state == OK
            home.renew_server_certificate(now=datetime.now(UTC))
            checks = found(home, readiness=lambda _: READY)
        assert is_only(checks, "service", WARN)
        assert "Restart it" in checks["service"].advice


class TestTheFederation:
    @pytest.fixture
    def federation(self, tmp_path: Path, home: FederationHome) -> Iterator[Worked]:
        made = Worked(tmp_path, home=home)
        yield made
        made.coordinator.close()

    def test_with_three_members_nothing_is_to_be_done(
        self, federation: Worked, home: FederationHome
    ) -> None:
        checks = found(home)
        assert exit_code(checks.values()) == 0
        assert checks["hospitals"].said == "Members: 3."
        assert checks["invitations"].said.endswith(": none.")
        assert checks["runs"].said.endswith(": none.")

    def test_who_waits_for_approval_and_who_is_away_are_named(
        self, federation: Worked, home: FederationHome
    ) -> None:
        federation.join("East")
        assert "Not connected" not in found(home)["hospitals"].said  # nobody can know
        with served(home):
            checks = found(home, online=lambda _: frozenset({0, 2}))
        said = checks["hospitals"].said
        assert checks["hospitals"].state == WARN
        assert re.findall(r": ([A-Z]\w+)\.", said) == ["East", "South"]

    def test_an_invitation_that_ends_soon_is_named(
        self, federation: Worked, home: FederationHome
    ) -> None:
        federation.coordinator.invite("East")
        federation.coordinator.invite("Mid", lifetime=timedelta(hours=5))
        checks = found(home)
        assert checks["invitations"].state == WARN
        assert "Mid (" in checks["invitations"].said
        federation.coordinator.revoke("Mid")
        assert found(home)["invitations"].said.endswith(": East.")

    def test_a_run_that_waits_is_named_with_for_whom(
        self, federation: Worked, home: FederationHome
    ) -> None:
        federation.ask(queries=4)
        assert found(home)["runs"].said.endswith(": first.")
        federation.coordinator.queue.enter("first", RunState.WAITING, "waits for North")
        checks = found(home)
        assert checks["runs"].state == WARN
        assert checks["runs"].said.endswith(": waits for North.")

    def test_one_check_that_cannot_be_made_hides_no_other(
        self, federation: Worked, home: FederationHome, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Enrollment) -> None:
            raise ValueError("a secret")

        monkeypatch.setattr(Enrollment, "invitations", fail)
        checks = found(home)
        assert checks["invitations"].said.endswith("(ValueError).")
        assert (checks["hospitals"].state, checks["runs"].state) == (OK, OK)


def test_the_command_says_it_to_people_and_to_programs(
    pate_fed: Command, home: FederationHome
) -> None:
    shown = pate_fed("doctor", "--home", home.folder)
    assert (shown.code, shown.err) == (1, "")
    assert shown.out.split()[:2] == ["ok", "settings"]
    home.path("identity.key").write_bytes(b"garbage")
    table = pate_fed("doctor", "--home", home.folder, "--format", "json")
    assert (table.code, table.json["exit"]) == (4, 4)
    [one] = [one for one in table.json["checks"] if one["name"] == "identity"]
    assert (one["state"], one["federation"]) == ("fail", "")
    assert "safe" in one["advice"]


def test_a_folder_that_is_none_is_a_finding(pate_fed: Command, tmp_path: Path) -> None:
    shown = pate_fed("doctor", "--home", tmp_path)
    assert shown.code == 4
    assert "FAIL  settings" in shown.out
