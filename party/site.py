"""The folder of a hospital's node: who it is, its keys, what its owner allows, where things lie.

Made once when it joins, and never overwritten. What is secret is readable by its owner alone.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from party.errors import SiteError
from party.guard import Policy
from pate_fed.nodes import VERSION_KEY, digested_settings, of_kind, write_file
from protocols.enrollment import Invitation, certificate_fingerprint, federation_fingerprint
from protocols.identity import PublicIdentity, SigningIdentity

if TYPE_CHECKING:
    from party.storage import PartyDatabase

SCHEMA_VERSION = 1
SETTINGS_FILE = "party.toml"
DATABASE_FILE = "party.db"
_SECRET_BYTES = 32
_IDENTITY_KEY = "identity.key"
KEYS = (_IDENTITY_KEY, "node.key", "node.secret")
"""What whoever holds it can speak with for the hospital."""

_FOLDERS = ("teachers", "pools", "log")
# Not for a file: which pools and runs are approved, the site's own records say.
_NOT_IN_FILE = ("approved_pools", "simulated")
_RULES = {name: hint for name, hint in get_type_hints(Policy).items() if name not in _NOT_IN_FILE}


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The hospital's own records, as `data add` found them.

    Attributes:
        file: Path of the table; empty before `data add`.
        label: Column that is predicted.
        patient_id: Column that says whose a row is; empty if each row is a patient's only one.
        digest: SHA-256 of the file, hex.
        rows: Number of rows.
        floor: Smallest count of patients' rows that is shown to anybody.
    """

    file: str = ""
    label: str = ""
    patient_id: str = ""
    digest: str = ""
    rows: int = 0
    floor: int = 10

    def __post_init__(self) -> None:
        for name in ("rows", "floor"):
            if getattr(self, name) < 0:
                raise SiteError(f"{name} must be at least 0", getattr(self, name))


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """What the file of a site says.

    Attributes:
        federation: Name of the federation.
        party: What people call this hospital.
        address: Of the coordinator, "host:port".
        coordinator_key: Its Ed25519 key, hex.
        node_port: Port on loopback between our two processes.
        teachers: Teachers that are trained here.
        teacher_model: Kind of teacher.
        lifetime_epsilon: Most that may be charged over all runs.
        delta: For that number.
        approval: "each run" if a person approves every run, "pool" if an approved pool will do.
        policy: What its owner allows.
        data: Its records.
    """

    federation: str
    party: str
    address: str
    coordinator_key: str
    node_port: int = 9094
    teachers: int = 10
    teacher_model: str = "auto"
    lifetime_epsilon: float = 5.0
    delta: float = 1e-5
    approval: str = "each run"
    policy: dict[str, Any] = field(default_factory=dict)
    data: DataSettings = DataSettings()

    def __post_init__(self) -> None:
        if self.approval not in ("each run", "pool"):
            raise SiteError("approval must be 'each run' or 'pool'", repr(self.approval))
        if not 0 < self.node_port < 2**16:
            raise SiteError("node_port must be between 1 and 65535", self.node_port)
        if self.teachers < 1:
            raise SiteError("teachers must be at least 1", self.teachers)
        if not self.lifetime_epsilon > 0:
            raise SiteError("lifetime_epsilon must be above 0", self.lifetime_epsilon)
        if not 0 < self.delta < 1:
            raise SiteError("delta must be in (0, 1)", self.delta)
        unknown = sorted(set(self.policy) - set(_RULES))
        if unknown:
            raise SiteError("every rule of [policy] must be known", ", ".join(unknown))
        self.policy_for(frozenset())  # refuses what is of another kind

    def policy_for(self, pools: frozenset[bytes]) -> Policy:
        """Return what the owner allows, with the pools that were approved.

        Raises:
            SiteError: a rule has a value of another kind.
        """
        rules = {
            name: of_kind(value, _RULES[name], key=f"[policy] {name}", fault=SiteError)
            for name, value in self.policy.items()
        }
        return Policy(approved_pools=pools, **rules)


@dataclass(frozen=True, slots=True, repr=False)
class Site:
    """A hospital's folder.

    Attributes:
        folder: Where it is.
        settings: What its file says.
        settings_digest: SHA-256 of that file as it was read or written; empty before it is.
    """

    folder: Path
    settings: SiteSettings
    settings_digest: bytes = b""

    # Opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, invitation: Invitation) -> Site:
        """Make a site for one federation: its identity, its node's key, its database.

        Raises:
            SiteError: the folder exists, or cannot be made.
            StorageError: the database cannot be made.
        """
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError as error:
            raise SiteError(
                "a site is made once, in a new folder: remove a half-made one, or take another "
                "--site",
                folder,
            ) from error
        except OSError as error:
            raise SiteError("the folder must be one that can be made", error.strerror) from error
        settings = SiteSettings(
            federation=invitation.federation,
            party=invitation.party,
            address=invitation.address,
            coordinator_key=invitation.coordinator_key.hex(),
        )
        site = cls(folder, settings)
        for name in _FOLDERS:
            (folder / name).mkdir(mode=0o700)
        node_key = ec.generate_private_key(ec.SECP384R1())
        site._write("ca.crt", invitation.ca_certificate.encode())
        site._write("identity.key", SigningIdentity.generate().private_bytes.hex().encode())
        site._write(
            "node.key",
            node_key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        )
        site._write("node.secret", secrets.token_bytes(_SECRET_BYTES))
        from party.storage import PartyDatabase  # noqa: PLC0415 - keeps --help fast

        PartyDatabase.create(folder / DATABASE_FILE).close()
        return site.save(settings)  # last: without it the folder is no site

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open a site's folder.

        Raises:
            SiteError: it is none, or its file cannot be read.
        """
        settings, digest = digested_settings(
            folder / SETTINGS_FILE,
            SiteSettings,
            version=SCHEMA_VERSION,
            advice=f"a site's folder must hold {SETTINGS_FILE}: `pate-party join` makes one",
            fault=SiteError,
        )
        return cls(folder, settings, digest)

    # What it holds ----------------------------------------------------------------------------

    @property
    def identity(self) -> SigningIdentity:
        """The hospital's identity."""
        try:
            text = self._read("identity.key").decode()
            return SigningIdentity.from_private_bytes(bytes.fromhex(text.strip()))
        except ValueError as error:
            raise SiteError("identity.key must hold a private key", "another text") from error

    @property
    def coordinator(self) -> PublicIdentity:
        """The coordinator that it joined."""
        return PublicIdentity(bytes.fromhex(self.settings.coordinator_key))

    @property
    def fingerprint_of_federation(self) -> bytes:
        """What the operator reads aloud on the telephone, 32 bytes."""
        ca = certificate_fingerprint(self._read("ca.crt").decode())
        return federation_fingerprint(ca, self.coordinator)

    @property
    def node_public_key(self) -> bytes:
        """Public half of the node's key for Flower, PEM."""
        key = load_ssh_private_key(self._read("node.key"), None)
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def node_secret(self) -> bytes:
        """What our two processes know, and nobody else."""
        return self._read("node.secret")

    def open_database(self) -> PartyDatabase:
        """Open what the node remembers. It is made once: a new one would have forgotten all.

        Raises:
            StorageDamagedError: it does not fit itself, or was emptied.
            StorageError: it is not there, or cannot be opened or written.
        """
        from party.storage import PartyDatabase  # noqa: PLC0415 - keeps --help fast

        return PartyDatabase.at(self.path(DATABASE_FILE))

    def path(self, *parts: str) -> Path:
        """Return where something of it lies."""
        return self.folder.joinpath(*parts)

    # Calls ------------------------------------------------------------------------------------

    def save(self, settings: SiteSettings) -> Site:
        """Write other settings, whole or not at all; return the site that has them."""
        table = {one.name: getattr(settings, one.name) for one in fields(settings)}
        table["data"] = {one.name: getattr(settings.data, one.name) for one in fields(DataSettings)}
        content = tomli_w.dumps({VERSION_KEY: SCHEMA_VERSION, **table}).encode()
        self._write(SETTINGS_FILE, content)
        return Site(self.folder, settings, hashlib.sha256(content).digest())

    @property
    def has_keys(self) -> bool:
        """Whether it can still speak for the hospital: it is the identity that `leave` ends."""
        return self.path(_IDENTITY_KEY).exists()

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """Names of the keys that are not there."""
        return tuple(name for name in KEYS if not self.path(name).exists())

    def remove_keys(self) -> None:
        """Remove the keys for good; everything else stays.

        Raises:
            SiteError: there are none, or they cannot be removed.
        """
        left = [self.path(name) for name in KEYS if self.path(name).exists()]
        if not left:
            raise SiteError("a site must have keys to leave", "none: it left before")
        try:
            for path in left:
                path.unlink()
        except OSError as error:
            raise SiteError("the keys must be removable", error.strerror) from error

    def _read(self, name: str) -> bytes:
        try:
            return self.path(name).read_bytes()
        except OSError as error:
            raise SiteError(f"{name} must be readable", error.strerror) from error

    def _write(self, name: str, content: bytes) -> None:
        try:
            write_file(self.path(name), content)
        except OSError as error:
            raise SiteError(f"{name} must be writable", error.strerror) from error

    def __repr__(self) -> str:
        return f"Site({self.settings.party})"
