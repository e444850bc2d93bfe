"""The hospital's command line, against a coordinator's real port on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from coordinator.errors import DatabaseError
from party import cli
from party.site.site import Site
from party.site.status_file import Status, write_status
from party.storage.site_audit_log import SiteAct
from pate_fed import __version__
from protocols.fingerprint_words import spoken
from protocols.identity import SigningIdentity
from protocols.invitation import Invitation
from tests.support.command import Ended, logs_as_they_were
from tests.support.hospital_services import audit_of, records_of
from tests.support.hospital_site import LABEL, PATIENT, key_files, with_membership, write_own_table
from tests.support.loopback_tls import proxy_server, tls_server
from tests.support.markers import sampled
from tests.support.served_federation import ServedFederation, served_federation

LINE = re.compile(r"pate-party: (PF-\d{3}): [^\n]+\n")

PateParty = Callable[..., Ended]


class Terminal(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def pate_party(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> PateParty:
    """Run `pate-party` with these arguments, and what a person types."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, typed: str = "", at_terminal: bool = False) -> Ended:
        monkeypatch.setattr("sys.argv", ["pate-party", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", (Terminal if at_terminal else io.StringIO)(typed))
        capsys.readouterr()
        with logs_as_they_were(), pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        code = end.value.code
        assert isinstance(code, int)
        return Ended(code, shown.out, shown.err)

    return run


def error_code(ended: Ended) -> str:
    """The code of the one line on standard error that an error is."""
    assert ended.out == ""
    last = ended.err.splitlines(keepends=True)[-1]
    if last.startswith('{"code"'):  # of `start`, whose log it is
        return str(json.loads(last)["code"])
    line = LINE.fullmatch(last)
    assert line, ended.err
    return line[1]


def the_only(pate_party: PateParty, folder: Path) -> dict[str, Any]:
    """How a hospital stands in its only federation, as programs read it."""
    [one] = pate_party("status", "--site", folder, "--format", "json").json["federations"]
    assert isinstance(one, dict)
    return one


def go_offline(patch: pytest.MonkeyPatch) -> None:
    """Send everything to a proxy that is not there, whatever this machine exempts."""
    patch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        patch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFederation]:
    with served_federation(tmp_path_factory.mktemp("coordinator") / "federation") as served:
        yield served


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A hospital that no other test has."""
    return f"H {abs(hash(request.node.nodeid)) % 10**12}"


@dataclass(frozen=True)
class Newcomer:
    """A hospital that no other test has, before it joins the federation."""

    federation: ServedFederation
    run: PateParty
    folder: Path
    name: str

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def compared(self) -> tuple[str, str]:
        return "--compared", spoken(self.federation.home.fingerprint)

    def invitation(self, **changed: Any) -> Path:
        """An invitation, with these fields changed."""
        made = replace(self.federation.enrollment.invite(self.name), **changed)
        path = self.folder / f"{len(list(self.folder.iterdir()))}.json"
        path.write_text(made.to_json(), encoding="utf-8")
        return path

    def join(self, invitation: Path, site: Path | None = None) -> Ended:
        return self.run("join", invitation, "--site", site or self.site, *self.compared)


@pytest.fixture
def newcomer(
    federation: ServedFederation, pate_party: PateParty, tmp_path: Path, name: str
) -> Newcomer:
    return Newcomer(federation, pate_party, tmp_path, name)


@pytest.fixture
def joined(newcomer: Newcomer) -> Path:
    """A hospital that asked to join."""
    ended = newcomer.join(newcomer.federation.invite(newcomer.folder, newcomer.name))
    assert ended.code == 0, ended.err
    return newcomer.site


@pytest.fixture
def member(federation: ServedFederation, joined: Path, name: str) -> Path:
    """A hospital that was approved."""
    federation.approve(name, Site.open(joined).identity.public.fingerprint)
    return joined


class TestRoot:
    def test_version_is_the_distributions(self, pate_party: PateParty) -> None:
        ended = pate_party("--version")
        assert (ended.code, ended.out) == (0, f"pate-party {__version__}\n")

    def test_tracebacks_never_show_local_variables(self) -> None:
        assert cli.app.pretty_exceptions_enable is False
        for group in cli.app.registered_groups:
            assert group.typer_instance is not None
            assert group.typer_instance.pretty_exceptions_enable is False

    def test_help_says_what_each_argument_is(self, pate_party: PateParty) -> None:
        assert "INVITE" in pate_party("join", "--help").out.upper()

    def test_no_arguments_show_the_help(self, pate_party: PateParty) -> None:
        ended = pate_party()
        assert ended.code == 0
        for command in ("join", "status", "data", "peers", "doctor", "service", "policy", "leave"):
            assert command in ended.out

    @pytest.mark.parametrize(
        "arguments",
        [
            pytest.param(["jion"], id="an unknown command"),
            pytest.param(["data", "add"], id="no file"),
            pytest.param(["status", "--format", "xml"], id="an unknown format"),
            pytest.param(["join", "no-such-file.json"], id="an invitation that is not there"),
        ],
    )
    def test_a_wrong_line_is_one_line(self, pate_party: PateParty, arguments: list[str]) -> None:
        ended = pate_party(*arguments)
        assert (ended.code, error_code(ended)) == (2, "PF-302")

    @pytest.mark.parametrize(
        "arguments", [("stauts",), ("status", "--sit", "x"), ("peers", "lits")]
    )
    def test_a_typing_error_is_guessed_at_once(
        self, pate_party: PateParty, arguments: tuple[str, ...]
    ) -> None:
        ended = pate_party(*arguments)
        assert (ended.code, error_code(ended)) == (2, "PF-302")
        assert ended.err.count("?") == 1

    def test_an_error_is_an_object_where_json_was_asked_for(
        self, pate_party: PateParty, tmp_path: Path
    ) -> None:
        ended = pate_party("status", "--site", tmp_path, "--format", "json")
        assert ended.code == 5
        said = json.loads(ended.err)
        assert set(said) == {"code", "must", "got"}
        assert said["code"] == "PF-340"

    def test_a_fault_says_kind_and_place_only(
        self, pate_party: PateParty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> Any:
            raise ZeroDivisionError("SECRET")

        monkeypatch.setattr(Site, "open", broken)
        ended = pate_party("status", "--site", tmp_path)
        assert (ended.code, error_code(ended)) == (1, "PF-349")
        assert "SECRET" not in ended.err
        assert "ZeroDivisionError" in ended.err


class TestJoin:
    def test_a_hospital_joins_after_its_people_compared(self, newcomer: Newcomer) -> None:
        ended = newcomer.run("join", newcomer.invitation(), "--site", newcomer.site, typed="y\n")
        assert ended.code == 0
        site, federation = Site.open(newcomer.site), newcomer.federation
        assert spoken(federation.home.fingerprint) in ended.err
        assert spoken(site.identity.public.fingerprint) in ended.out
        (asked,) = [one for one in federation.enrollment.parties() if one.name == newcomer.name]
        assert (asked.state, asked.identity) == ("requested", site.identity.public)
        for key in key_files(site):
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            assert key.read_bytes().hex() not in ended.out + ended.err

    @pytest.mark.parametrize(
        ("typed", "options", "code", "exit_code"),
        [
            pytest.param("n\n", (), "PF-348", 3, id="a no"),
            pytest.param("", (), "PF-348", 3, id="nobody there"),
            pytest.param("\n", (), "PF-348", 3, id="no answer"),
            pytest.param("", ("--compared", "zoo " * 12), "PF-342", 4, id="other words"),
            pytest.param("", ("--compared", ""), "PF-342", 4, id="no words"),
        ],
    )
    def test_without_it_nothing_is_made(
        self, newcomer: Newcomer, typed: str, options: tuple[str, ...], code: str, exit_code: int
    ) -> None:
        invite = newcomer.invitation()
        ended = newcomer.run("join", invite, "--site", newcomer.site, *options, typed=typed)
        assert (ended.code, error_code(ended)) == (exit_code, code)
        assert not newcomer.site.exists()
        parties = newcomer.federation.enrollment.parties()
        assert newcomer.name not in [one.name for one in parties]

    def test_a_request_that_got_lost_is_sent_again(
        self, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        invite = newcomer.invitation()
        with monkeypatch.context() as offline:
            go_offline(offline)
            ended = newcomer.join(invite)
            # The fixture's federation stands, and the way to it does not.
            assert (ended.code, error_code(ended)) == (4, "PF-341")
        key = (newcomer.site / "identity.key").read_bytes()
        for _ in range(2):
            assert newcomer.join(invite).code == 0
        assert (newcomer.site / "identity.key").read_bytes() == key

    def test_a_coordinator_that_takes_nothing_leaves_no_second_membership(
        self, newcomer: Newcomer, joined: Path
    ) -> None:
        known = Invitation.from_json((newcomer.folder / f"{newcomer.name}.json").read_text("utf-8"))
        other = replace(known, coordinator_key=SigningIdentity.generate().public.key)
        path, before = newcomer.folder / "other.json", Site.open(joined).settings
        path.write_text(other.to_json(), encoding="utf-8")
        words = ("--compared", spoken(other.fingerprint))
        ended = newcomer.run("join", path, "--site", joined, *words)
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        assert "lung-study-2" in ended.err
        assert Site.open(joined).settings == before
        assert not (joined / "memberships" / "lung-study-2").exists()

    def test_an_invitation_that_ended_makes_nothing(self, newcomer: Newcomer) -> None:
        ended = newcomer.join(newcomer.invitation(expires_at=int(time.time()) - 86400))
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        assert not newcomer.site.exists()

    def test_nobody_telephones_about_an_invitation_that_ended(self, newcomer: Newcomer) -> None:
        """It is refused before any words are asked for or compared."""
        path = newcomer.invitation(expires_at=int(time.time()) - 86400)
        for words in ((), ("--compared", "other words")):
            refused = newcomer.run("join", path, "--site", newcomer.site, *words)
            assert (refused.code, error_code(refused)) == (4, "PF-341")

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"{}", id="empty"),
            pytest.param(b"\xff\xfe\0", id="binary"),
            pytest.param(b"[" * 20_000, id="long"),
        ],
    )
    def test_a_spoiled_invitation_is_one_line(
        self, pate_party: PateParty, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "invite.json"
        path.write_bytes(content)
        ended = pate_party("join", path, "--site", tmp_path / "site", typed="y\n")
        assert (ended.code, error_code(ended)) == (5, "PF-250")

    def test_a_request_that_is_refused_leaves_nothing_and_the_next_invitation_is_used(
        self, newcomer: Newcomer
    ) -> None:
        ended = newcomer.join(newcomer.invitation(token=bytes(16)))
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        assert f"{newcomer.site} is removed" in ended.err
        assert not newcomer.site.exists()
        renamed = newcomer.federation.invite(newcomer.folder, f"{newcomer.name} two")
        assert newcomer.join(renamed).code == 0

    def test_a_folder_that_was_there_is_kept_whatever_is_answered(
        self, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = newcomer.invitation(token=bytes(16))
        with monkeypatch.context() as offline:
            go_offline(offline)
            assert error_code(newcomer.join(used)) == "PF-341"
        key = (newcomer.site / "identity.key").read_bytes()
        assert error_code(newcomer.join(used)) == "PF-341"
        assert (newcomer.site / "identity.key").read_bytes() == key

    def test_a_request_that_the_coordinator_could_not_work_on_is_not_taken_for_refused(
        self, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        invite = newcomer.invitation()

        def full(*_: object, **__: object) -> bytes:
            raise DatabaseError("a database must be writable", "a full disk")

        with monkeypatch.context() as broken:  # after the request was written down
            broken.setattr(newcomer.federation.enrollment, "_membership", full)
            ended = newcomer.join(invite)
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        assert "status 503" in ended.err
        assert newcomer.join(invite).code == 0

    @pytest.mark.parametrize("variable", ["HTTPS_PROXY", "ALL_PROXY"])
    @pytest.mark.parametrize("address", ["socks5://127.0.0.1:1", "ftp://127.0.0.1:1"])
    def test_what_is_no_proxy_is_said_before_anything_is_made(
        self, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch, variable: str, address: str
    ) -> None:
        go_offline(monkeypatch)
        monkeypatch.delenv("HTTPS_PROXY")
        monkeypatch.setenv(variable, address)
        ended = newcomer.join(newcomer.invitation())
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        assert f"{variable} " in ended.err
        assert not newcomer.site.exists()

    def test_another_server_under_the_coordinators_address_is_refused(
        self, newcomer: Newcomer, tmp_path: Path
    ) -> None:
        with served_federation(tmp_path / "other") as other:
            ended = newcomer.join(newcomer.invitation(address=other.home.settings.address))
            assert (ended.code, error_code(ended)) == (4, "PF-341")
            assert not other.enrollment.parties()

    def test_behind_tls_inspection_it_says_at_once_whose_certificate_came(
        self, newcomer: Newcomer
    ) -> None:
        box, context = (
            trustme.CA(organization_name="Middlebox Ltd"),
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        )
        shown = box.issue_cert("127.0.0.1")
        shown.configure_cert(context)
        der = ssl.PEM_cert_to_DER_cert(shown.cert_chain_pems[0].bytes().decode())
        with tls_server(context, now=time.time()) as port:
            inspected = newcomer.invitation(address=f"127.0.0.1:{port}")
            ended = newcomer.join(inspected)
        assert (ended.code, error_code(ended)) == (4, "PF-341")
        for said in (
            "Middlebox Ltd",
            hashlib.sha256(der).hexdigest(),
            "inspection",
            f"127.0.0.1, TCP port {port}",
        ):
            assert said in ended.err
        assert "doctor" not in ended.err
        # Exempted, the same hospital joins with the keys that it made.
        key = (newcomer.site / "identity.key").read_bytes()
        site, address = Site.open(newcomer.site), newcomer.federation.home.settings.address
        joined = replace(site.membership().settings, address=address)
        site.save(site.settings.with_membership(site.membership().name, joined))
        exempted = replace(Invitation.from_json(inspected.read_text("utf-8")), address=address)
        inspected.write_text(exempted.to_json(), encoding="utf-8")
        ended = newcomer.join(inspected)
        assert ended.code == 0, ended.err
        assert (newcomer.site / "identity.key").read_bytes() == key

    @pytest.mark.parametrize(
        "address", ["bad host:8443", "a..b:8443", "coordinator:0", "[::1:8443"]
    )
    def test_an_address_that_cannot_be_makes_nothing(
        self, newcomer: Newcomer, address: str
    ) -> None:
        invite = newcomer.invitation(address=address)
        ended = newcomer.run("join", invite, "--site", newcomer.site, typed="y\n")
        assert (ended.code, error_code(ended)) == (5, "PF-340")
        assert repr(address) in ended.err
        assert not newcomer.site.exists()


class TestStatus:
    def test_it_follows_the_operator(
        self, federation: ServedFederation, pate_party: PateParty, joined: Path, name: str
    ) -> None:
        asked = the_only(pate_party, joined)
        assert (asked["state"], asked["party"]) == ("requested", name)
        shown = pate_party("status", "--site", joined, "--format", "json").json
        assert (shown["teachers"], shown["tasks_with_teachers"]) == (0, 0)
        assert "0, trained for 0 task(s)" in pate_party("status", "--site", joined).out
        federation.approve(name, Site.open(joined).identity.public.fingerprint)
        assert the_only(pate_party, joined)["state"] == "member"
        federation.enrollment.revoke(name)
        assert "revoked" in pate_party("status", "--site", joined).out

    def test_without_a_coordinator_it_says_why(
        self, pate_party: PateParty, joined: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_offline(monkeypatch)
        shown = the_only(pate_party, joined)
        assert shown["state"] is None
        assert "PF-341" in shown["reason"]

    def node(self, pate_party: PateParty, folder: Path) -> tuple[str, str]:
        """The node's state as programs read it, and its line."""
        state = the_only(pate_party, folder)["node"]
        [line] = [
            line
            for line in pate_party("status", "--site", folder).out.splitlines()
            if line.startswith("Connection ")
        ]
        return state, line

    def test_a_node_is_ready_while_it_is_heard_and_let_in(
        self,
        federation: ServedFederation,
        pate_party: PateParty,
        joined: Path,
        name: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        now = time.time()
        running = with_membership("running", now, 7, tasks=1, membership="requested", heard_at=now)
        write_status(joined / "status.json", running)
        assert self.node(pate_party, joined)[0] == "not let in"
        federation.approve(name, Site.open(joined).identity.public.fingerprint)
        assert self.node(pate_party, joined)[0] == "ready"
        federation.enrollment.revoke(name)
        state, line = self.node(pate_party, joined)
        assert (state, line.split(maxsplit=1)[1]) == ("not let in", state)

    @sampled()
    @pytest.mark.parametrize(
        ("node", "state"), [("running", "ready"), ("paused", "paused")], ids=["ready", "paused"]
    )
    def test_a_node_whose_coordinator_is_gone_is_not_connected(
        self,
        pate_party: PateParty,
        member: Path,
        monkeypatch: pytest.MonkeyPatch,
        node: str,
        state: str,
    ) -> None:
        now = time.time()
        running = with_membership(
            node, now, 7, membership="member", heard_at=now - 45, supernode_starts=3
        )
        write_status(member / "status.json", running)
        assert self.node(pate_party, member)[0] == state
        go_offline(monkeypatch)
        assert self.node(pate_party, member)[0] == "not connected"
        shown = pate_party("status", "--site", member).out
        assert (
            f"Last heard      {datetime.fromtimestamp(now - 45, UTC):%Y-%m-%d %H:%M} UTC" in shown
        )
        assert "SuperNode       started 3 times" in shown

    def test_a_node_that_does_not_hear_though_others_do_is_not_connected(
        self, pate_party: PateParty, member: Path
    ) -> None:
        now = time.time()
        running = with_membership("running", now, 7, membership="member", heard_at=now - 600)
        write_status(member / "status.json", running)
        assert self.node(pate_party, member)[0] == "not connected"
        silent = with_membership("running", now, 7, membership="member")
        write_status(member / "status.json", silent)
        assert re.search(r"^Last heard +not ", pate_party("status", "--site", member).out, re.M)

    def test_a_pause_is_shown_whether_a_node_runs_or_not(
        self, pate_party: PateParty, member: Path
    ) -> None:
        assert "Paused" not in pate_party("status", "--site", member).out
        assert pate_party("pause", "--by", "M. Curie", "--site", member).code == 0
        shown = pate_party("status", "--site", member).out
        assert re.search(r"^Node +never ", shown, re.M)
        assert "by M. Curie: pate-party resume" in shown
        paused = pate_party("status", "--site", member, "--format", "json").json["paused"]
        assert paused["by"] == "M. Curie"
        write_status(member / "status.json", Status("stopped", 1.0, 7))
        assert "Paused          since" in pate_party("status", "--site", member).out
        assert pate_party("resume", "--by", "M. Curie", "--site", member).code == 0
        assert "Paused" not in pate_party("status", "--site", member).out

    def test_a_proxy_for_plain_http_is_none_of_ours(
        self, pate_party: PateParty, joined: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1")
        assert the_only(pate_party, joined)["reason"] == ""

    def test_the_proxy_that_is_set_is_used(
        self, pate_party: PateParty, joined: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heads: list[bytes] = []
        go_offline(monkeypatch)
        with proxy_server(heads=heads) as port:
            monkeypatch.setenv("HTTPS_PROXY", f"http://us:pa%20ssword@127.0.0.1:{port}")
            shown = the_only(pate_party, joined)
        assert shown["state"] == "requested"
        assert heads[0].startswith(f"CONNECT {shown['coordinator']} HTTP/1.1\r\n".encode())
        assert b"Basic dXM6cGEgc3N3b3Jk" in heads[0]

    def test_a_revoked_hospital_whose_node_never_started_is_in_trouble(
        self, federation: ServedFederation, pate_party: PateParty, member: Path, name: str
    ) -> None:
        assert "Trouble         membership" not in pate_party("status", "--site", member).out
        federation.enrollment.revoke(name)
        shown = pate_party("status", "--site", member).out
        assert "Trouble         membership: " in shown


class TestData:
    def test_a_table_is_registered(
        self, pate_party: PateParty, joined: Path, tmp_path: Path
    ) -> None:
        table = write_own_table(tmp_path / "own.csv")
        line = ("data", "add", table, "--label", LABEL, "--patient-id", PATIENT, "--site", joined)
        shown = pate_party(*line, "--format", "json").json
        assert (shown["rows"], shown["patients"]) == (80, 40)
        assert shown["classes"] == {"no": 20, "yes": 20}
        ended = pate_party(*line)
        assert "40 patients" in ended.out
        assert Site.open(joined).settings.data.digest in ended.out

    def test_nobody_is_spoken_to(
        self,
        pate_party: PateParty,
        joined: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("a connection")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        table = write_own_table(tmp_path / "own.csv")
        assert pate_party("data", "add", table, "--label", LABEL, "--site", joined).code == 0
        noted = pate_party("audit", "list", "--last", "1", "--site", joined).out
        assert "data changed; by " in noted
        # The same refusal stops what does speak to somebody.
        assert pate_party("renew", "--site", joined).code != 0

    def test_small_counts_are_not_shown(
        self, pate_party: PateParty, joined: Path, tmp_path: Path
    ) -> None:
        table = write_own_table(tmp_path / "own.csv", patients=6)
        ended = pate_party("data", "add", table, "--label", LABEL, "--site", joined)
        assert ended.out.count("fewer than 10") == 2

    def test_a_wrong_column_is_one_line(
        self, pate_party: PateParty, joined: Path, tmp_path: Path
    ) -> None:
        table = write_own_table(tmp_path / "own.csv")
        ended = pate_party("data", "add", table, "--label", "ill", "--site", joined)
        assert (ended.code, error_code(ended)) == (5, "PF-112")


class TestPeers:
    @pytest.fixture
    def south(self, newcomer: Newcomer) -> Site:
        """Another member."""
        other, folder = f"South of {newcomer.name}", newcomer.folder / "south"
        assert newcomer.join(newcomer.federation.invite(newcomer.folder, other), folder).code == 0
        site = Site.open(folder)
        newcomer.federation.approve(other, site.identity.public.fingerprint)
        return site

    def listed(self, pate_party: PateParty, folder: Path, name: str) -> dict[str, Any]:
        shown = pate_party("peers", "list", "--site", folder, "--format", "json").json
        (found,) = [one for one in shown["peers"] if one["name"] == name]
        assert isinstance(found, dict)
        return found

    def test_a_peer_is_checked_by_our_own_people(
        self, pate_party: PateParty, member: Path, south: Site
    ) -> None:
        name = south.membership().settings.party
        assert self.listed(pate_party, member, name)["checked"] is None
        assert f"{name}: not checked" in pate_party("peers", "list", "--site", member).out
        words = spoken(south.identity.public.fingerprint)
        ended = pate_party(
            *("peers", "add", name, "--compared", words, "--how", "telephone", "--by", "M. Curie"),
            *("--site", member),
        )
        assert ended.code == 0
        assert self.listed(pate_party, member, name)["checked"]["by"] == "M. Curie"
        assert "checked by M. Curie" in pate_party("peers", "list", "--site", member).out
        assert pate_party("peers", "remove", name, "--site", member).code == 0
        assert self.listed(pate_party, member, name)["checked"] is None

    def test_other_words_pin_nobody(self, pate_party: PateParty, member: Path, south: Site) -> None:
        own = spoken(Site.open(member).identity.public.fingerprint)
        ended = pate_party(
            *("peers", "add", south.membership().settings.party, "--compared", own),
            *("--how", "telephone", "--by", "M. Curie", "--site", member),
        )
        assert (ended.code, error_code(ended)) == (4, "PF-342")
        with records_of(Site.open(member)) as records:
            assert records.pins() == ()

    def test_whom_nobody_names_is_not_pinned(self, pate_party: PateParty, member: Path) -> None:
        ended = pate_party(
            *("peers", "add", "Nobody", "--compared", "zoo", "--how", "telephone"),
            *("--by", "M. Curie", "--site", member),
        )
        assert (ended.code, error_code(ended)) == (2, "PF-343")

    def test_removing_nobody_is_one_line(self, pate_party: PateParty, member: Path) -> None:
        ended = pate_party("peers", "remove", "Nobody", "--site", member)
        assert (ended.code, error_code(ended)) == (2, "PF-343")

    def test_pins_are_listed_without_a_coordinator(
        self, pate_party: PateParty, member: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_offline(monkeypatch)
        ended = pate_party("peers", "list", "--site", member, "--format", "json")
        assert ended.json == {"asked": False, "peers": []}
        assert "PF-341" in ended.err


class TestMachine:
    def test_the_doctor_looks_at_a_real_coordinator(
        self, pate_party: PateParty, member: Path, tmp_path: Path
    ) -> None:
        table = write_own_table(tmp_path / "own.csv")
        pate_party(
            "data", "add", table, "--label", LABEL, "--patient-id", PATIENT, "--site", member
        )
        for _ in range(5):
            ended = pate_party("doctor", "--site", member, "--format", "json")
            states = {one["name"]: one["state"] for one in ended.json["checks"]}
            if states["clock"] == "ok":
                break  # else the server stood still, and tells what time it was before
        for name in ("name", "connection", "tls", "clock", "data", "teacher", "file rights"):
            assert states[name] == "ok", name
        assert ended.code == ended.json["exit"]

    def test_the_doctor_asks_whether_the_hospital_was_let_in(
        self,
        federation: ServedFederation,
        pate_party: PateParty,
        joined: Path,
        tmp_path: Path,
        name: str,
    ) -> None:
        def membership() -> tuple[str, str]:
            checks = pate_party("doctor", "--site", joined, "--format", "json").json["checks"]
            [found] = [one for one in checks if one["name"] == "membership"]
            return found["state"], found["said"]

        assert membership()[0] == "warn"
        federation.approve(name, Site.open(joined).identity.public.fingerprint)
        assert membership()[0] == "ok"
        federation.enrollment.revoke(name)
        revoked = membership()
        assert revoked[0] == "fail"
        # Another identity is one that nobody enrolled.
        stranger = SigningIdentity.generate().private_bytes.hex()
        (joined / "identity.key").write_text(stranger, encoding="ascii")
        unknown = membership()
        assert (unknown[0], unknown[1] == revoked[1]) == ("fail", False)

    def test_the_doctor_fails_where_something_does(
        self, pate_party: PateParty, member: Path
    ) -> None:
        ended = pate_party("doctor", "--site", member)
        assert ended.code == 4
        assert "FAIL  data" in ended.out

    def test_the_unit_is_shown_and_written(
        self,
        pate_party: PateParty,
        joined: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        owner = SimpleNamespace(pw_uid=4242)
        monkeypatch.setattr("pwd.getpwnam", lambda _: owner)
        monkeypatch.setattr("party.cli.systemd.owner_of", lambda _: 4242)
        line = ("service", "install", "--site", joined, "--user", "pate")
        shown = pate_party(*line, "--print")
        assert f'ReadWritePaths="{joined}"' in shown.out
        unit = tmp_path / "pate-party.service"
        assert pate_party(*line, "--unit", unit).code == 0
        assert unit.read_text("utf-8") == shown.out

    def test_no_unit_is_written_for_a_user_that_is_not_there(
        self, pate_party: PateParty, joined: Path, tmp_path: Path
    ) -> None:
        unit = tmp_path / "pate-party.service"
        ended = pate_party(
            *("service", "install", "--site", joined, "--user", "no-such-user", "--unit", unit)
        )
        assert (ended.code, error_code(ended)) == (5, "PF-347")
        assert not unit.exists()

    def test_root_runs_no_node(self, pate_party: PateParty, joined: Path) -> None:
        ended = pate_party("service", "install", "--print", "--site", joined, "--user", "root")
        assert (ended.code, error_code(ended)) == (5, "PF-347")


class TestLeaving:
    def test_keys_go_and_memory_stays(self, pate_party: PateParty, member: Path) -> None:
        ended = pate_party("leave", "--site", member, typed="y\n")
        assert ended.code == 0
        assert not any(key.exists() for key in key_files(Site.open(member)))
        told = [record.act for record in audit_of(Site.open(member))]
        assert told == [SiteAct.JOINED, SiteAct.LEFT]
        status = the_only(pate_party, member)
        assert (status["state"], status["reason"].partition(":")[0]) == (None, "left")
        again = pate_party("leave", "--site", member, "--yes")
        assert (again.code, error_code(again)) == (5, "PF-340")

    def test_a_node_that_runs_has_the_keys_in_its_memory(
        self, pate_party: PateParty, member: Path
    ) -> None:
        with Site.open(member).open_database() as running:
            running.become_node()
            ended = pate_party("leave", "--site", member, "--yes")
        assert (ended.code, error_code(ended)) == (5, "PF-331")
        assert all(key.exists() for key in key_files(Site.open(member)))

    def test_whoever_must_leave_can_though_the_database_is_damaged(
        self, pate_party: PateParty, joined: Path
    ) -> None:
        (joined / "party.db").write_bytes(b"no database at all" * 1000)
        ended = pate_party("leave", "--site", joined, "--yes")
        assert ended.code == 0
        assert "PF-352" in ended.err
        assert not any(key.exists() for key in key_files(Site.open(joined)))
        shown = pate_party("status", "--site", joined, "--format", "json").json
        found = {one["name"]: one["said"] for one in shown["troubles"]}
        assert "PF-352" in found["database"]
        assert "keys" in found["membership"]

    @pytest.mark.parametrize("typed", ["", "n\n"])
    def test_a_person_must_agree(self, pate_party: PateParty, joined: Path, typed: str) -> None:
        ended = pate_party("leave", "--site", joined, typed=typed)
        assert (ended.code, error_code(ended)) == (3, "PF-348")
        assert all(key.exists() for key in key_files(Site.open(joined)))

    def test_renew_reads_membership_and_certificates(
        self, pate_party: PateParty, member: Path
    ) -> None:
        ended = pate_party("renew", "--site", member, "--format", "json")
        assert ended.code == 0
        assert ended.json["state"] == "member"
        assert ended.json["ca_days_left"] >= 3648
        assert ended.json["server"]["state"] == "ok"

    def test_renew_says_who_is_no_member(self, pate_party: PateParty, joined: Path) -> None:
        ended = pate_party("renew", "--site", joined)
        assert ended.code == 1
        assert "member" in ended.err
        assert "certificate" not in ended.err

    def test_renew_says_what_it_does(self, pate_party: PateParty) -> None:
        assert "changes nothing" in " ".join(pate_party("renew", "--help").out.split())
