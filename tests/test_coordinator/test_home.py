"""A federation's folder: made once, secrets for its owner alone, certificates that hold."""

from __future__ import annotations

import errno
import json
import logging
import re
import ssl
import stat
import unicodedata
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from coordinator.certificates import (
    KeyedCertificate,
    days_left,
    issue_server_certificate,
    make_ca,
    read_certificate,
)
from coordinator.errors import CertificateError, DatabaseError, HomeError, ServiceError
from coordinator.federation.connections import PortLimits
from coordinator.federation.home import (
    FederationHome,
    FederationSettings,
    has_password,
    without_password,
)
from coordinator.operator import Coordinator
from coordinator.service import require_certificate, serve
from party.site.site import Site
from pate_fed.nodes import JsonFormatter, owner_files, typed_in
from protocols.invitation import Invitation
from tests.support.everything_said import everything_said

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SETTINGS = FederationSettings("lung study", "coordinator.example.org:8443")


def verify(home: FederationHome, host: str, *, at: datetime) -> None:
    """Do as a client does, by a verifier that is not ours."""
    ca = read_certificate(home.ca_certificate)
    verifier = PolicyBuilder().store(Store([ca])).time(at)
    server = verifier.build_server_verifier(x509.DNSName(host))
    server.verify(read_certificate(home.server_certificate), [])


@pytest.fixture
def home(tmp_path: Path) -> FederationHome:
    return FederationHome.create(tmp_path / "fed", SETTINGS, now=NOW)


class TestAFederationIsMade:
    def test_what_is_opened_is_what_was_made(self, home: FederationHome) -> None:
        opened = FederationHome.open(home.folder)
        assert opened.settings == SETTINGS
        assert opened.identity.public == home.identity.public
        assert opened.fingerprint == home.fingerprint

    def test_a_database_that_is_gone_is_not_made_anew_with_nothing_in_it(
        self, home: FederationHome
    ) -> None:
        home.path("coordinator.db").unlink()
        with pytest.raises(HomeError, match=r"coordinator\.db"):
            FederationHome.open(home.folder)
        assert not home.path("coordinator.db").exists()

    def test_two_federations_have_nothing_in_common(
        self, home: FederationHome, tmp_path: Path
    ) -> None:
        other = FederationHome.create(tmp_path / "other", SETTINGS, now=NOW)
        assert home.fingerprint != other.fingerprint
        assert home.superlink_secret != other.superlink_secret
        assert home.ca_certificate != other.ca_certificate

    def test_it_never_overwrites(self, home: FederationHome) -> None:
        before = {path.name: path.read_bytes() for path in home.folder.iterdir() if path.is_file()}
        with pytest.raises(HomeError):
            FederationHome.create(home.folder, SETTINGS, now=NOW)
        after = {path.name: path.read_bytes() for path in home.folder.iterdir() if path.is_file()}
        assert after == before

    @pytest.mark.parametrize("host", ["10.0.0.300", "klinik-köln.example"])
    def test_a_host_that_cannot_be_certified_is_named_and_leaves_nothing(
        self, tmp_path: Path, host: str
    ) -> None:
        settings = FederationSettings("lung study", "h.example.org:8443", hosts=(host,))
        with pytest.raises(CertificateError, match=re.escape(repr(host))):
            FederationHome.create(tmp_path / "fed", settings, now=NOW)
        assert not (tmp_path / "fed").exists()

    def test_a_database_that_cannot_be_made_is_said_and_leaves_nothing(
        self, tmp_path: Path
    ) -> None:
        nobody = f"postgresql://pate@/none?host={tmp_path}"
        settings = FederationSettings("lung study", "h.example.org:8443", database=nobody)
        with pytest.raises(DatabaseError):
            FederationHome.create(tmp_path / "fed", settings, now=NOW)
        assert not (tmp_path / "fed").exists()

    def test_a_full_disk_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[str] = []

        def write(path: Path, content: bytes) -> None:
            written.append(path.name)
            if path.name == "superlink.secret":
                raise OSError(errno.ENOSPC, "No space left on device")
            path.write_bytes(content)

        monkeypatch.setattr(owner_files, "write_file", write)
        with pytest.raises(HomeError, match="No space left"):
            FederationHome.create(tmp_path / "fed", SETTINGS, now=NOW)
        assert "ca.key" in written
        assert not (tmp_path / "fed").exists()

    @pytest.mark.parametrize("name", ["identity.key", "server.key", "superlink.secret", "ca.key"])
    def test_a_secret_that_others_may_read_is_not_used(
        self, home: FederationHome, name: str
    ) -> None:
        home.path(name).chmod(0o640)
        with pytest.raises(HomeError, match=f"{name} .*owner"):
            serve(home.folder)
        home.path(name).chmod(0o600)
        home.require_secrets()
        home.path("ca.key").unlink()
        home.require_secrets()

    def test_only_its_owner_may_read_it(self, home: FederationHome) -> None:
        assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
        for path in home.folder.iterdir():
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path.name

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            pytest.param("name", "", id="no name"),
            pytest.param("name", "a\nb", id="a name of two lines"),
            pytest.param("name", "x" * 65, id="a long name"),
            pytest.param("name", "a\u202eb", id="a name that turns its direction"),
            pytest.param("name", "a\x1b[2Jb", id="a name that steers a terminal"),
            pytest.param("address", "host", id="no port"),
            pytest.param("address", ":8443", id="no host"),
            pytest.param("address", "host:70000", id="a port beyond all"),
            pytest.param("address", "not a host:8443", id="an address with spaces"),
            pytest.param("address", "h.example.org:\u0661", id="a port in digits of elsewhere"),
            pytest.param("host", "", id="no host to serve at"),
            pytest.param("host", "10.0.0.300", id="an address that is none"),
            pytest.param("host", "not a host", id="a host with spaces"),
            pytest.param("host", "köln", id="a host that DNS has not"),
            pytest.param("port", 0, id="port 0"),
            pytest.param("admin_port", 8443, id="two sockets on one port"),
        ],
    )
    def test_settings_that_cannot_be_are_refused(self, name: str, value: object) -> None:
        given = {"name": "study", "address": "host:8443", name: value}
        with pytest.raises(HomeError):
            typed_in(FederationSettings, given, fault=HomeError)

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("", id="empty"),
            pytest.param("not toml", id="no TOML"),
            pytest.param("schema_version = 2\n", id="another version"),
            pytest.param('schema_version = 1\nname = "x"\n', id="no address"),
            pytest.param(
                'schema_version = 1\nname = "x"\naddress = "h:1"\nnoise = 0\n', id="unknown setting"
            ),
            pytest.param('schema_version = 1\nname = 7\naddress = "h:1"\n', id="a number as name"),
        ],
    )
    def test_a_spoiled_file_is_refused(self, home: FederationHome, text: str) -> None:
        home.path("federation.toml").write_text(text)
        with pytest.raises(HomeError):
            FederationHome.open(home.folder)

    @pytest.mark.parametrize(
        ("line", "key", "got"),
        [
            pytest.param('port = "1"', "port", "'1'", id="port as text"),
            pytest.param("port = 0", "port", "0", id="port 0"),
            pytest.param(
                'hosts = "h"',
                "hosts",
                "'h'",
                id="letters for a list",
            ),
            pytest.param(
                'database = ["postgresql://me:password@h/d"]',
                *("database", "another kind of value"),
                id="a password",
            ),
        ],
    )
    def test_a_setting_that_cannot_be_is_named_with_its_key(
        self, home: FederationHome, line: str, key: str, got: str
    ) -> None:
        text = f'schema_version = 1\nname = "x"\naddress = "h:1"\n{line}\n'
        home.path("federation.toml").write_text(text)
        with pytest.raises(HomeError) as caught:
            FederationHome.open(home.folder)
        error = caught.value
        assert (error.code, error.got) == ("PF-432", got)
        assert error.must.startswith(f"federation.toml: {key} ")


class TestTheEnvironment:
    """Sockets of this machine may come from it; never names, addresses or secrets."""

    def test_it_overrides_sockets_and_limits_and_no_file_is_written(
        self, home: FederationHome, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = home.path("federation.toml").read_bytes()
        monkeypatch.setenv("PATE_FED_PORT", "7443")
        monkeypatch.setenv("PATE_FED_LIMITS__CONNECTIONS", "50")
        found = FederationHome.open(home.folder).settings
        limits = replace(SETTINGS.limits, connections=50)
        assert found == replace(SETTINGS, port=7443, limits=limits)
        assert home.path("federation.toml").read_bytes() == before

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("name", "Another"),
            ("address", "evil.example.org:1"),
            ("hosts", '["evil.example.org"]'),
            ("database", "sqlite:///elsewhere.db"),
        ],
    )
    def test_it_overrides_nothing_that_hospitals_or_certificates_hold_and_no_database(
        self, home: FederationHome, monkeypatch: pytest.MonkeyPatch, key: str, text: str
    ) -> None:
        monkeypatch.setenv(f"PATE_FED_{key.upper()}", text)
        with pytest.raises(HomeError, match=f"PATE_FED_{key.upper()} "):
            FederationHome.open(home.folder)

    def test_a_slip_is_a_coded_error_and_the_databases_variable_is_none(
        self, home: FederationHome, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATE_FED_DATABASE_URL", "sqlite:///elsewhere.db")
        assert FederationHome.open(home.folder).settings == SETTINGS
        monkeypatch.setenv("PATE_FED_LIMITS_CONNECTIONS", "50")
        with pytest.raises(HomeError, match="mean PATE_FED_LIMITS__CONNECTIONS") as caught:
            FederationHome.open(home.folder)
        assert caught.value.code == "PF-432"

    def test_a_variable_that_cannot_be_is_a_coded_error_without_the_databases_password(
        self, home: FederationHome, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = 'schema_version = 1\nname = "x"\naddress = "h:1"\n'
        kept = 'database = "postgresql://me:horse-battery@h/d"\n'
        home.path("federation.toml").write_text(f"{text}{kept}")
        monkeypatch.setenv("PATE_FED_ADMIN_PORT", "8443")
        with pytest.raises(HomeError, match=r"PATE_FED_ADMIN_PORT: port,") as caught:
            FederationHome.open(home.folder)
        assert caught.value.code == "PF-432"
        assert "horse-battery" not in everything_said(caught.value)


@pytest.mark.parametrize("name", ["Étude pulmonaire", "肺がん研究", "Лёгкие", "\U00020000" * 64])
class TestItsName:
    """Letters of any language, in one form, wherever the name goes."""

    @pytest.mark.parametrize("form", ["NFC", "NFD"])
    def test_it_is_kept_in_one_form_however_it_was_typed(
        self, tmp_path: Path, name: str, form: Literal["NFC", "NFD"]
    ) -> None:
        settings = FederationSettings(unicodedata.normalize(form, name), "h.example.org:8443")
        FederationHome.create(tmp_path / "fed", settings, now=NOW)
        opened = FederationHome.open(tmp_path / "fed")
        assert opened.settings.name == unicodedata.normalize("NFC", name)

    def test_the_ca_names_it_as_far_as_there_is_room_and_clients_accept_the_server(
        self, tmp_path: Path, name: str
    ) -> None:
        settings = FederationSettings(name, "coordinator.example.org:8443")
        home = FederationHome.create(tmp_path / "fed", settings, now=NOW)
        verify(home, "coordinator.example.org", at=NOW)
        [common] = read_certificate(home.ca_certificate).subject
        shown = str(common.value)
        assert len(shown.encode()) <= 64
        assert f"{settings.name} CA".startswith(shown)
        assert len(shown) >= min(len(f"{settings.name} CA"), 16)

    def test_an_invitation_carries_it(self, tmp_path: Path, name: str) -> None:
        settings = FederationSettings(name, "h.example.org:8443")
        with closing(
            Coordinator(FederationHome.create(tmp_path / "fed", settings, now=NOW))
        ) as coordinator:
            invitation = coordinator.invite("North")
        assert Invitation.from_json(invitation.to_json()).federation == settings.name
        site = Site.create(tmp_path / "north", invitation)
        assert Site.open(site.folder).membership().settings.federation == settings.name

    def test_a_log_line_with_it_is_ascii(self, name: str) -> None:
        record = logging.LogRecord("x", logging.INFO, "x", 1, "%s is served", (name,), None)
        line = JsonFormatter().format(record)
        assert line.isascii()
        assert json.loads(line)["message"] == f"{name} is served"


class TestItsDatabase:
    @pytest.mark.parametrize(
        "url",
        [
            pytest.param("postgresql://pate:SECRET@db/pate", id="the user's"),
            pytest.param("postgresql://pate@db/pate?password=SECRET", id="in the query"),
            pytest.param("postgresql://pate@db/pate?sslpassword=SECRET", id="the client key's"),
        ],
    )
    def test_every_password_of_a_url_is_known_for_one_and_never_kept(self, url: str) -> None:
        assert has_password(url)
        assert "SECRET" not in without_password(url)
        assert not has_password(without_password(url))


class TestItsCertificates:
    def test_a_client_that_trusts_the_ca_accepts_the_server(self, home: FederationHome) -> None:
        verify(home, "coordinator.example.org", at=NOW)
        context = ssl.create_default_context(cafile=str(home.path("ca.crt")))
        context.load_cert_chain(home.path("server.crt"), home.path("server.key"))

    @pytest.mark.parametrize(
        ("host", "days"),
        [
            pytest.param("elsewhere.example.org", 0, id="another host"),
            pytest.param("coordinator.example.org", 398, id="after its end"),
            pytest.param("coordinator.example.org", -1, id="before its time"),
        ],
    )
    def test_it_is_good_for_nothing_else(self, home: FederationHome, host: str, days: int) -> None:
        with pytest.raises(VerificationError):
            verify(home, host, at=NOW + timedelta(days=days))

    def test_renewing_keeps_what_hospitals_trust(self, home: FederationHome) -> None:
        fingerprint, server = home.fingerprint, home.server_certificate
        later = NOW + timedelta(days=390)
        assert days_left(server, now=later) == pytest.approx(7)
        home.renew_server_certificate(now=later)
        assert home.fingerprint == fingerprint
        assert days_left(home.server_certificate, now=later) == pytest.approx(397)
        verify(home, "coordinator.example.org", at=later + timedelta(days=300))

    def test_a_server_certificate_cannot_outlive_the_ca(self) -> None:
        ca = make_ca("study", now=NOW)
        late = NOW + timedelta(days=3600)
        server = issue_server_certificate(ca, hosts=("h.example.org",), now=late)
        assert days_left(server.certificate, now=late) == pytest.approx(50)
        with pytest.raises(CertificateError):
            issue_server_certificate(ca, hosts=("h",), now=NOW + timedelta(days=3651))

    def test_the_servers_key_cannot_sign_for_others(self, tmp_path: Path) -> None:
        ca = make_ca("study", now=NOW)
        server = issue_server_certificate(ca, hosts=("h.example.org",), now=NOW)
        rogue = issue_server_certificate(
            KeyedCertificate(server.certificate, server.private_key), hosts=("x.org",), now=NOW
        )
        verifier = PolicyBuilder().store(Store([read_certificate(ca.certificate)])).time(NOW)
        with pytest.raises(VerificationError):
            verifier.build_server_verifier(x509.DNSName("x.org")).verify(
                read_certificate(rogue.certificate), [read_certificate(server.certificate)]
            )


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_service_does_not_start_at_a_host_that_is_not_its_machines(
    tmp_path: Path, host: str
) -> None:
    """It would be tried again and again, and never be there."""
    settings = FederationSettings("lung study", "h.example.org:8443", host=host)
    FederationHome.create(tmp_path / "fed", settings, now=datetime.now(UTC))
    with pytest.raises(ServiceError, match=host):
        serve(tmp_path / "fed")


class TestACertificateThatEnds:
    def test_a_service_does_not_start_with_one_that_has_ended(self, tmp_path: Path) -> None:
        """No hospital would believe it: better to say so here than to be found silent there."""
        folder = tmp_path / "fed"
        home = FederationHome.create(folder, SETTINGS, now=datetime.now(UTC) - timedelta(days=800))
        with pytest.raises(CertificateError, match="renew") as caught:
            serve(folder)
        assert caught.value.code == "PF-431"
        home.renew_server_certificate(now=datetime.now(UTC))
        require_certificate(home, now=datetime.now(UTC))

    def test_a_service_does_not_start_with_one_of_another_key(self, tmp_path: Path) -> None:
        """A renewal that was killed between key and certificate; no handshake would succeed."""
        home = FederationHome.create(tmp_path / "fed", SETTINGS, now=datetime.now(UTC))
        before = home.server_certificate
        home.renew_server_certificate(now=datetime.now(UTC))
        home.path("server.crt").write_bytes(before)
        with pytest.raises(CertificateError, match="key") as caught:
            serve(home.folder)
        assert caught.value.code == "PF-431"
        home.renew_server_certificate(now=datetime.now(UTC))
        require_certificate(home, now=datetime.now(UTC))

    def test_a_service_warns_of_one_that_soon_will(
        self, home: FederationHome, caplog: pytest.LogCaptureFixture
    ) -> None:
        days = days_left(home.server_certificate, now=NOW)
        require_certificate(home, now=NOW)
        assert not caplog.records
        require_certificate(home, now=NOW + timedelta(days=days - 10))
        assert "ends in 10 days: `pate-fed renew`" in caplog.text


class TestLimits:
    """What the public port puts up with stands in the federation's file."""

    def write(self, home: FederationHome, old: str, new: str) -> FederationHome:
        path = home.path("federation.toml")
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        return FederationHome.open(home.folder)

    def test_they_are_there_to_be_changed(self, home: FederationHome) -> None:
        assert FederationHome.open(home.folder).settings.limits == PortLimits()
        changed = self.write(home, "head_s = 20.0", "head_s = 7")
        assert changed.settings.limits == PortLimits(head_s=7.0)

    def test_a_file_without_them_has_the_usual_ones(self, home: FederationHome) -> None:
        text = home.path("federation.toml").read_text("utf-8").partition("[limits]")[0]
        home.path("federation.toml").write_text(text, encoding="utf-8")
        assert FederationHome.open(home.folder).settings.limits == PortLimits()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param("connections = 800", "connections = 0", id="none at all"),
            pytest.param("connections = 800", 'connections = "many"', id="a word"),
            pytest.param("head_s = 20.0", "head_s = inf", id="without end"),
            pytest.param("head_s", "heads_s", id="an unknown one"),
        ],
    )
    def test_what_bounds_nothing_is_refused(self, home: FederationHome, old: str, new: str) -> None:
        with pytest.raises(HomeError):
            self.write(home, old, new)
