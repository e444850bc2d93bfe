"""The folder of a federation at its coordinator: its name, its keys, its files' places.

Made once, and never overwritten. Its secrets are readable by its owner alone.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from coordinator.certificates import (
    KeyedCertificate,
    issue_server_certificate,
    make_ca,
    make_pinned_certificate,
)
from coordinator.errors import HomeError, TallySetupError
from coordinator.federation.connections import PortLimits
from coordinator.tally.cards import TallyCard, TallyInvite
from pate_fed.nodes import read_named, read_settings, with_environment, write_named
from pate_fed.nodes.forwarding import Forwarding
from pate_fed.nodes.notices import MAIL_SECRET, WEBHOOK_SECRET, Notify
from pate_fed.nodes.owner_files import as_fault, make_folder, read_secret
from pate_fed.nodes.ports import LAST_PORT, host_and_port, is_host
from pate_fed.nodes.settings_file import settings_text
from protocols.identity import SigningIdentity
from protocols.invitation import certificate_fingerprint, federation_fingerprint
from protocols.party_names import NAME_RULE, is_party_name, normalized

SCHEMA_VERSION = 1
SETTINGS_FILE = "federation.toml"
DATABASE_FILE = "coordinator.db"
LOOPBACK = "127.0.0.1"
LOCK_FILE = "service.lock"
"""File whose lock a service holds while it has the folder."""

DATABASE_VARIABLE = "PATE_FED_DATABASE_URL"
"""Environment variable with the URL of the federation's database, and the password in it."""

PREFIX = "PATE_FED_"
_PORTS = ("port", "admin_port", "metrics_port", "health_port")
FROM_ENVIRONMENT = ("host", *_PORTS, "limits")
"""Settings that the environment may override: sockets of this machine. Never what hospitals were
told, or the certificate says (`name`, `address`, `hosts`), and no secret.
"""

SECRET_BYTES = 32
FOLDERS = ("pools", "runs")
CA_KEY = "ca.key"
OPENID_SECRET = "openid.secret"  # noqa: S105 - a file's name
OPENID_VARIABLE = "PATE_FED_OPENID_SECRET"
"""Environment variable with the console's password at the OpenID provider, in place of the file."""

TALLY_KEY = "tally-client.key"
TALLY_CERTIFICATE = "tally-client.crt"
TALLY_CARD = "tally.json"
"""The pinned card of the federation's tally, if it has one."""

SECRETS = frozenset(
    {
        *(CA_KEY, MAIL_SECRET, OPENID_SECRET, TALLY_KEY, WEBHOOK_SECRET),
        *("identity.key", "server.key", "superlink.secret"),
    }
)
MAY_BE_AWAY = frozenset({CA_KEY, MAIL_SECRET, OPENID_SECRET, TALLY_KEY, WEBHOOK_SECRET})
_ANEW = "make the federation anew"
_A_PORT = {"ge": 1, "le": LAST_PORT}
_PASSWORDS = ("password", "sslpassword")
"""The passwords in a URL's query for PostgreSQL: its user's, its client key's."""


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """The OpenID provider that people of the console may sign in by.

    Attributes:
        issuer: Its address, https://...; empty for none.
        client_id: The console's name there.
    """

    issuer: str = ""
    client_id: str = ""

    def __post_init__(self) -> None:
        if bool(self.issuer) is not bool(self.client_id):
            raise HomeError("openid must have issuer and client_id, or neither")


@dataclass(frozen=True, slots=True)
class FederationSettings:
    """The operator's decisions when a federation is made; may be edited in its file later.

    Attributes:
        name: The federation's name, in letters of any language; see `protocols.party_names`.
        address: Where hospitals reach it, "host:port".
        host: Address that its public socket is bound to.
        port: Port of that socket.
        admin_port: Port on loopback for its own use.
        metrics_port: Port on loopback for health and metrics.
        health_port: Port on loopback of the standard gRPC health service.
        database: URL of its database; empty for SQLite in its folder. It has a password only if the
            operator wrote one into the file, which only the operator can read.
        hosts: Names and addresses that its certificate is for.
        audit_days: Days after the end of a run for which keys and reports of verified votes are
            kept for an audit.
        limits: The limits of its public socket.
        audit: Where the entries of the operator's audit log are copied.
        notify: Where messages to the operator are sent.
        openid: The provider that people of the console may sign in by.
    """

    name: str
    address: str
    host: str = "0.0.0.0"  # noqa: S104 - hospitals are elsewhere; the gate limits the paths
    port: int = field(default=8443, metadata=_A_PORT)
    admin_port: int = field(default=8444, metadata=_A_PORT)
    metrics_port: int = field(default=8445, metadata=_A_PORT)
    health_port: int = field(default=8446, metadata=_A_PORT)
    database: str = field(default="", repr=False)
    hosts: tuple[str, ...] = ()
    audit_days: int = field(default=90, metadata={"ge": 0, "le": 3650})
    limits: PortLimits = field(default_factory=PortLimits)
    audit: Forwarding = field(default_factory=Forwarding)
    notify: Notify = field(default_factory=Notify)
    openid: OpenIdSettings = field(default_factory=OpenIdSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", normalized(self.name))
        if not is_party_name(self.name):
            raise HomeError(f"name must be {NAME_RULE}", ascii(self.name))
        place = host_and_port(self.address)
        if place is None:
            raise HomeError(
                "address must be 'host:port', a name or an IP address and a port",
                ascii(self.address),
            )
        if not is_host(self.host):
            raise HomeError(
                "host must be an IP address or a name of this machine; 0.0.0.0 serves all",
                ascii(self.host),
            )
        ports = tuple(getattr(self, name) for name in _PORTS)
        if len(set(ports)) != len(ports):
            raise HomeError(f"{', '.join(_PORTS)} must differ", str(ports))
        if not self.hosts:
            object.__setattr__(self, "hosts", (place[0],))

    @property
    def certified_hosts(self) -> tuple[str, ...]:
        """Hosts of the server's certificate: the coordinator itself comes over loopback."""
        return (*self.hosts, *({LOOPBACK} - set(self.hosts)))


@dataclass(frozen=True, slots=True, repr=False)
class FederationHome:
    """A federation's folder, and the settings in its file; what cannot be read is a `HomeError`."""

    folder: Path
    settings: FederationSettings

    # Opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, settings: FederationSettings, *, now: datetime) -> FederationHome:
        """Make a federation: its CA, server certificate, identity, secrets and database.

        Raises:
            HomeError: the folder exists, or cannot be made or filled, or the environment names
                another database; nothing is left behind.
            CertificateError: a host cannot be certified; nothing is left behind.
            DatabaseError: its database cannot be reached, or is in use; nothing is left behind.
        """
        home = cls(folder, settings)
        _ = home.database_url  # another one in the environment is refused before anything is made
        ca = make_ca(settings.name, now=now)
        server = issue_server_certificate(ca, hosts=settings.certified_hosts, now=now)
        make_folder(folder, exists="a federation is made once, in a new folder", fault=HomeError)
        try:
            home._fill(ca, server)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # nobody has seen its words or keys yet
            raise
        return home

    @classmethod
    def open(cls, folder: Path) -> FederationHome:
        """Open a federation's folder."""
        home = cls.of_settings(folder)
        if not home.settings.database and not home.path(DATABASE_FILE).exists():
            # A new one would know no member, no answer and no charge.
            raise HomeError(f"{DATABASE_FILE} must be there: it was made with the folder")
        return home

    @classmethod
    def of_settings(cls, folder: Path) -> FederationHome:
        """Open a federation's folder, which may lack everything but its file."""
        settings = read_settings(
            folder / SETTINGS_FILE,
            FederationSettings,
            version=SCHEMA_VERSION,
            advice=f"a federation's folder must hold {SETTINGS_FILE}: `pate-fed init` makes one",
            fault=HomeError,
        )
        return cls(
            folder,
            with_environment(
                settings,
                prefix=PREFIX,
                only=FROM_ENVIRONMENT,
                fault=HomeError,
                others={one.removeprefix(PREFIX) for one in (DATABASE_VARIABLE, OPENID_VARIABLE)},
            ),
        )

    # Contents ---------------------------------------------------------------------------------

    @property
    def identity(self) -> SigningIdentity:
        """The coordinator's identity."""
        try:
            text = self._read("identity.key").decode()
            return SigningIdentity.from_private_bytes(bytes.fromhex(text.strip()))
        except ValueError as error:
            raise HomeError("identity.key must hold a private key") from error

    @property
    def ca_certificate(self) -> bytes:
        """The CA's certificate, PEM."""
        return self._read("ca.crt")

    @property
    def server_certificate(self) -> bytes:
        """The server's certificate, PEM."""
        return self._read("server.crt")

    @property
    def server_key(self) -> bytes:
        """The server's private key, PEM."""
        return self._read("server.key")

    @property
    def superlink_secret(self) -> bytes:
        """The secret for taking tasks from the SuperLink."""
        return self._read("superlink.secret")

    @property
    def openid_secret(self) -> str:
        """The console's password at the OpenID provider."""
        return os.environ.get(OPENID_VARIABLE, "") or self._read(OPENID_SECRET).decode().strip()

    @property
    def tally(self) -> TallyCard | None:
        """The tally that was accepted; None where the federation has none."""
        path = self.path(TALLY_CARD)
        return TallyCard.read(path) if path.exists() else None

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint to read aloud on the telephone, 32 bytes."""
        ca = certificate_fingerprint(self.ca_certificate.decode())
        return federation_fingerprint(ca, self.identity.public)

    @property
    def database_url(self) -> str:
        """URL of its database, as SQLAlchemy takes it. Secret: it may hold a password.

        Raises:
            HomeError: the environment names another database than the federation's own file: they
                would hold different runs.
        """
        given, kept = os.environ.get(DATABASE_VARIABLE, ""), self.settings.database
        if not given:
            return kept or f"sqlite:///{self.path(DATABASE_FILE).absolute()}"
        if not kept or without_password(given) != without_password(kept):
            raise HomeError(f"{DATABASE_VARIABLE} must name the database of {SETTINGS_FILE}")
        return given

    def path(self, *parts: str) -> Path:
        """Return the path of one of its files."""
        return self.folder.joinpath(*parts)

    def results(self, run: str) -> Path:
        """Return the path of a run's directory, present or future."""
        return self.path("runs", run, "results")

    # Calls ------------------------------------------------------------------------------------

    def require_secrets(self) -> None:
        """Check that secrets are here, and readable only by their owner; some may be away."""
        for name in sorted(SECRETS):
            if name not in MAY_BE_AWAY or self.path(name).exists():
                self._read(name)

    def renew_server_certificate(self, *, now: datetime) -> None:
        """Issue the server another certificate; the CA stays, so hospitals still trust it.

        Raises:
            HomeError: the CA's key is not here.
            CertificateError: the CA has ended.
        """
        if not self.path(CA_KEY).exists():
            raise HomeError(
                f"{CA_KEY} must be here while the certificate is renewed: put it back from where "
                f"it is kept, and take it away again",
            )
        ca = KeyedCertificate(self.ca_certificate, self._read(CA_KEY))
        server = issue_server_certificate(ca, hosts=self.settings.certified_hosts, now=now)
        self._write("server.key", server.private_key)
        self._write("server.crt", server.certificate)

    def invite_tally(self, *, now: datetime) -> TallyInvite:
        """Return the file for a tally; make this end's key and certificate for it, once."""
        key, certificate = self.path(TALLY_KEY), self.path(TALLY_CERTIFICATE)
        if not (key.exists() and certificate.exists()):
            made = make_pinned_certificate(f"{self.settings.name} coordinator", now=now)
            self._write(TALLY_KEY, made.private_key)
            self._write(TALLY_CERTIFICATE, made.certificate)
        shown = self._read(TALLY_CERTIFICATE).decode()
        return TallyInvite(self.settings.name, self.identity.public.key, shown)

    def require_tally(self, card: TallyCard) -> None:
        """Refuse a card that cannot be pinned.

        Raises:
            TallySetupError: it is of another federation, or another tally is pinned: the pinned one
                alone knows what was opened. It may have moved to another address.
        """
        if card.federation != self.settings.name:
            raise TallySetupError("a card must be of this federation", card.federation)
        known = self.tally
        if known is not None and known.fingerprint != card.fingerprint:
            raise TallySetupError(f"a federation must keep its tally: {TALLY_CARD} has another")

    def accept_tally(self, card: TallyCard) -> None:
        """Pin a tally whose words were compared; see `require_tally`."""
        self.require_tally(card)
        self._write(TALLY_CARD, card.to_json().encode())

    @property
    def tally_key(self) -> KeyedCertificate:
        """Key and certificate that the tally knows this end by."""
        return KeyedCertificate(self._read(TALLY_CERTIFICATE), self._read(TALLY_KEY))

    def _fill(self, ca: KeyedCertificate, server: KeyedCertificate) -> None:
        from coordinator.database import Database  # noqa: PLC0415 - keeps --help fast

        for name in FOLDERS:
            with as_fault(HomeError, f"{name} must be writable"):
                self.path(name).mkdir(mode=0o700)
        self._write("ca.crt", ca.certificate)
        self._write(CA_KEY, ca.private_key)
        self._write("server.crt", server.certificate)
        self._write("server.key", server.private_key)
        self._write("identity.key", SigningIdentity.generate().private_bytes.hex().encode())
        self._write("superlink.secret", secrets.token_bytes(SECRET_BYTES))
        Database(self.database_url, is_new=True).close()
        # Last: without it the folder is no federation.
        self._write(SETTINGS_FILE, settings_text(self.settings, version=SCHEMA_VERSION))

    def _read(self, name: str) -> bytes:
        if name in SECRETS:
            return read_secret(self.path(name), name, anew=_ANEW, fault=HomeError)
        return read_named(self.path(name), name, fault=HomeError)

    def _write(self, name: str, content: bytes) -> None:
        write_named(self.path(name), name, content, fault=HomeError)

    def __repr__(self) -> str:
        return f"FederationHome({self.settings.name})"


FOR_HOSPITALS = "the federation's, for hospitals"
TALLY_FOR_HOSPITALS = "the tally's, for hospitals"


def fingerprints_of(home: FederationHome, tally: TallyCard | None) -> dict[str, bytes]:
    """Return the fingerprints whose words its operator reads or hears, by whose they are."""
    found = {FOR_HOSPITALS: home.fingerprint}
    if home.path(TALLY_CERTIFICATE).exists():
        shown = home.tally_key.certificate.decode()
        made = TallyInvite(home.settings.name, home.identity.public.key, shown)
        found[made.whose] = made.fingerprint
    if tally is not None:
        found[tally.whose] = tally.fingerprint
        found[TALLY_FOR_HOSPITALS] = tally.identity.fingerprint
    return found


def has_password(url: str) -> bool:
    """Tell whether a database's URL holds a password."""
    parsed = _parsed(url)
    return parsed.password is not None or any(name in parsed.query for name in _PASSWORDS)


def without_password(url: str) -> str:
    """Return a database's URL as it may be kept and shown."""
    parsed = _parsed(url)
    parsed = parsed._replace(drivername=parsed.get_backend_name(), password=None)
    return parsed.difference_update_query(_PASSWORDS).render_as_string(hide_password=False)


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:  # a port that is no number
        raise HomeError("a database must have a URL") from error


def utc_now() -> datetime:
    """Return the time, with its zone."""
    return datetime.now(UTC)
