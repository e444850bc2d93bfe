"""The folder of a tally: its settings, keys, pinned coordinator, and database. Made once."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from coordinator.certificates import KeyedCertificate, make_pinned_certificate
from coordinator.errors import ServiceError, TallySetupError
from coordinator.tally.cards import TallyCard, TallyInvite
from coordinator.tally.heads import begin_heads
from coordinator.tally.tally_database import TallyDatabase
from pate_fed.nodes import is_locked, read_named, read_settings, take_lock, write_named
from pate_fed.nodes.owner_files import make_folder, read_secret
from pate_fed.nodes.ports import LAST_PORT, host_and_port, is_host
from pate_fed.nodes.settings_file import settings_text
from protocols.identity import SigningIdentity
from protocols.party_names import NAME_RULE, is_party_name

SETTINGS_VERSION: Final = 1
TALLY_SETTINGS: Final = "tally.toml"
TALLY_DATABASE: Final = "tally.db"
_IDENTITY, _KEY, _CERTIFICATE = "identity.key", "tally.key", "tally.crt"
_COORDINATOR: Final = "coordinator.json"
TALLY_FILES: Final = (_IDENTITY, _KEY, _CERTIFICATE, _COORDINATOR, TALLY_DATABASE)
TALLY_LOCK: Final = "service.lock"
_ONCE: Final = "a tally is made once, in a new folder"
_ANEW: Final = "make the tally anew, and let the coordinator begin a new federation"


@dataclass(frozen=True, slots=True)
class TallySettings:
    """What a tally's people decide; may be edited in its file later.

    Attributes:
        address: Where the coordinator reaches it, "host:port"; the certificate is for this host.
        host: Address that its socket is bound to.
        port: Port of that socket.
        name: Your organisation, as hospitals are told.
        audit_days: Days after the end of a run for which keys and messages are kept for an audit.
    """

    address: str
    host: str = "0.0.0.0"  # noqa: S104 - the coordinator is elsewhere, and alone is let in
    port: int = field(default=8448, metadata={"ge": 0, "le": LAST_PORT})
    name: str = "tally"
    audit_days: int = field(default=90, metadata={"ge": 0, "le": 3650})

    def __post_init__(self) -> None:
        if host_and_port(self.address) is None:
            raise TallySetupError("address must be 'host:port'", ascii(self.address))
        if not is_host(self.host):
            raise TallySetupError("host must be an IP address or a name", ascii(self.host))
        if not is_party_name(self.name):
            raise TallySetupError(f"name must be {NAME_RULE}", ascii(self.name))


@dataclass(frozen=True, slots=True, repr=False)
class TallyFolder:
    """A tally's folder; what cannot be read is a `TallySetupError`."""

    folder: Path
    settings: TallySettings

    @classmethod
    def create(
        cls, folder: Path, settings: TallySettings, invite: TallyInvite, *, now: datetime
    ) -> TallyFolder:
        """Make a tally for a coordinator whose words were compared.

        Raises:
            TallySetupError: the folder exists, or cannot be made; nothing is left behind.
        """
        made = cls(folder, settings)
        place = host_and_port(settings.address)
        assert place is not None
        name = f"{invite.federation} tally"
        served = make_pinned_certificate(name, host=place[0], now=now)
        make_folder(folder, exists=_ONCE, fault=TallySetupError)
        try:
            made._write(_COORDINATOR, invite.to_json().encode())
            made._write(_IDENTITY, SigningIdentity.generate().private_bytes.hex().encode())
            made._write(_KEY, served.private_key)
            made._write(_CERTIFICATE, served.certificate)
            with closing(TallyDatabase(made._database_url, is_new=True)) as database:
                begin_heads(database)
            # Last: without it the folder is no tally.
            made._write(TALLY_SETTINGS, settings_text(settings, version=SETTINGS_VERSION))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return made

    @staticmethod
    def require_new(folder: Path) -> None:
        """Refuse, with `TallySetupError`, a folder that is there."""
        if os.path.lexists(folder):
            raise TallySetupError(_ONCE, str(folder))

    @classmethod
    def open(cls, folder: Path) -> TallyFolder:
        """Open a tally's folder, which may lack everything but its settings."""
        settings = read_settings(
            folder / TALLY_SETTINGS,
            TallySettings,
            version=SETTINGS_VERSION,
            advice=f"a tally's folder must hold {TALLY_SETTINGS}: `pate-fed tally init` makes one",
            fault=TallySetupError,
        )
        return cls(folder, settings)

    @property
    def identity(self) -> SigningIdentity:
        """The tally's identity."""
        text = read_secret(self.path(_IDENTITY), _IDENTITY, anew=_ANEW, fault=TallySetupError)
        try:
            return SigningIdentity.from_private_bytes(bytes.fromhex(text.decode().strip()))
        except ValueError as error:
            raise TallySetupError(f"{_IDENTITY} must hold a private key") from error

    @property
    def key(self) -> KeyedCertificate:
        """Key and certificate that it serves with."""
        key = read_secret(self.path(_KEY), _KEY, anew=_ANEW, fault=TallySetupError)
        return KeyedCertificate(self._read(_CERTIFICATE), key)

    @property
    def coordinator(self) -> TallyInvite:
        """The pinned coordinator."""
        return TallyInvite.read(self.path(_COORDINATOR))

    @property
    def card(self) -> TallyCard:
        """What the coordinator pins."""
        return TallyCard(
            self.coordinator.federation,
            self.identity.public.key,
            self._read(_CERTIFICATE).decode(),
            self.settings.address,
            self.settings.name,
        )

    def database(self) -> TallyDatabase:
        """Open its database; `DatabaseError` if that is gone or damaged."""
        return TallyDatabase(self._database_url)

    def lock(self) -> int:
        """Take the folder for one service; `ServiceError` if another one has it."""
        try:
            return take_lock(self.path(TALLY_LOCK))
        except BlockingIOError as error:
            raise ServiceError("one service must have the folder", "another one has it") from error
        except OSError as error:
            raise ServiceError("the folder's lock must be made", error.strerror) from error

    @property
    def is_served(self) -> bool:
        """Whether a service has it."""
        return is_locked(self.path(TALLY_LOCK))

    def path(self, name: str) -> Path:
        """Return the path of one of its files."""
        return self.folder / name

    @property
    def _database_url(self) -> str:
        return f"sqlite:///{self.path(TALLY_DATABASE).absolute()}"

    def _read(self, name: str) -> bytes:
        return read_named(self.path(name), name, fault=TallySetupError)

    def _write(self, name: str, content: bytes) -> None:
        write_named(self.path(name), name, content, fault=TallySetupError)

    def __repr__(self) -> str:
        return f"TallyFolder({os.fspath(self.folder)})"
