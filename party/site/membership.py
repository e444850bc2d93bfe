"""A hospital's folder for one federation: its coordinator, its CA, its node's keys, its port.

A hospital has one identity, one journal and one budget, in any number of federations. Only the
files here belong to one of them.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from party.errors import SiteError
from party.site.policy import Aggregators
from pate_fed.nodes import read_named, write_named
from pate_fed.nodes.owner_files import as_fault
from pate_fed.nodes.ports import LAST_PORT, host_and_port
from pate_fed.regular_files import read_regular
from protocols.errors import MalformedMessageError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.invitation import Invitation, certificate_fingerprint, federation_fingerprint
from protocols.membership_messages import NamedTally

if TYPE_CHECKING:
    from party.site.site import Site

MEMBERSHIPS_FOLDER = "memberships"
CA_FILE = "ca.crt"
NODE_KEYS = ("node.key", "node.secret")

FIRST_PORT = 9094
_SECRET_BYTES = 32
_MOST_LETTERS = 40
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The settings of one membership in the file of a site.

    Attributes:
        federation: Name of the federation.
        party: That federation's name for this hospital.
        address: Of its coordinator, "host:port".
        coordinator_key: The coordinator's Ed25519 key, hex.
        node_port: Port on loopback between the node's two processes, one per federation.
        operator_body: Owner of the coordinator: hospitals of its own count as its allies. Empty if
            nobody said it. A tally of the same owner is refused.
        tally_name: Name of the tally that our people compared and pinned; empty for none.
        tally_key: Its Ed25519 key, hex; empty likewise.
        tally_body: Its owner, as our people found it; empty likewise.
    """

    federation: str
    party: str
    address: str
    coordinator_key: str
    node_port: int = field(default=FIRST_PORT, metadata={"ge": 1, "le": LAST_PORT})
    operator_body: str = ""
    tally_name: str = ""
    tally_key: str = ""
    tally_body: str = ""

    def __post_init__(self) -> None:
        place_of(self.address)
        try:
            PublicIdentity(bytes.fromhex(self.coordinator_key))
        except (ValueError, MalformedMessageError) as error:
            raise SiteError("coordinator_key must be 64 hex digits") from error
        try:
            pinned = NamedTally.of(self.tally_name, bytes.fromhex(self.tally_key))
        except (ValueError, MalformedMessageError) as error:
            raise SiteError("tally_name and tally_key must be as they were pinned") from error
        if bool(pinned) is not bool(self.tally_body.strip()):
            raise SiteError("tally_body must name the owner of a pinned tally: `pate-party tally`")

    @property
    def coordinator(self) -> PublicIdentity:
        """The coordinator that it joined."""
        return PublicIdentity(bytes.fromhex(self.coordinator_key))

    @property
    def tally(self) -> NamedTally | None:
        """The tally that our people pinned; None for none."""
        return NamedTally.of(self.tally_name, bytes.fromhex(self.tally_key))

    @property
    def aggregators(self) -> Aggregators:
        """Coordinator and tally as our people found them, for the guard."""
        tally = self.tally
        return Aggregators(
            self.operator_body, None if tally is None else tally.identity, self.tally_body
        )


@dataclass(frozen=True, slots=True, repr=False)
class SiteMembership:
    """One membership of a site, under the hospital's name for it (`is_membership_name`)."""

    site: Site
    name: str
    settings: MembershipSettings

    # Contents ---------------------------------------------------------------------------------

    @property
    def identity(self) -> SigningIdentity:
        """The hospital's identity, the same in every federation."""
        return self.site.identity

    @property
    def coordinator(self) -> PublicIdentity:
        """The coordinator that it joined."""
        return self.settings.coordinator

    @property
    def fingerprint_of_federation(self) -> bytes:
        """The fingerprint that the operator reads aloud on the telephone, 32 bytes."""
        ca = certificate_fingerprint(self._read(CA_FILE).decode())
        return federation_fingerprint(ca, self.coordinator)

    @property
    def node_public_key(self) -> bytes:
        """Public half of the node's key for Flower, PEM."""
        content = self._read("node.key")
        try:
            key = load_ssh_private_key(content, None)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SiteError(
                "node.key must hold the node's private key: put it back from your safe"
            ) from error
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def ca_ends(self) -> datetime:
        """When the federation's CA expires."""
        try:
            content = read_regular(self.path(CA_FILE))
            return x509.load_pem_x509_certificate(content).not_valid_after_utc
        except (OSError, ValueError) as error:
            raise SiteError(f"{CA_FILE} must be a certificate", type(error).__name__) from error

    @property
    def node_secret(self) -> bytes:
        """Secret that our service and its SuperNode share."""
        return self._read("node.secret")

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """Names of its node's keys that are not there."""
        return tuple(name for name in NODE_KEYS if not self.path(name).exists())

    @property
    def has_left(self) -> bool:
        """Whether the hospital left this federation: none of its node's keys is there."""
        return self.missing_keys == NODE_KEYS

    @property
    def supernode_log(self) -> Path:
        """File for its SuperNode's output."""
        return self.site.path("log", f"supernode-{self.name}.log")

    def path(self, *parts: str) -> Path:
        """Return the path of one of its files."""
        return self.site.path(MEMBERSHIPS_FOLDER, self.name, *parts)

    # Calls ------------------------------------------------------------------------------------

    def fits(self, invitation: Invitation) -> bool:
        """Tell whether it was made from this invitation, and has its keys to repeat the request."""
        return (
            self.settings.party == invitation.party
            and self.settings.address == invitation.address
            and self.fingerprint_of_federation == invitation.fingerprint
            and not self.missing_keys
        )

    def make_files(self, ca_certificate: str) -> None:
        """Make its folder, and new keys of its node in it."""
        with as_fault(SiteError, "a membership's folder must be makeable"):
            self.path().mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP384R1())
        self._write(CA_FILE, ca_certificate.encode())
        self._write(
            "node.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        )
        self._write("node.secret", secrets.token_bytes(_SECRET_BYTES))

    def _read(self, name: str) -> bytes:
        return read_named(self.path(name), self._called(name), fault=SiteError)

    def _write(self, name: str, content: bytes) -> None:
        write_named(self.path(name), self._called(name), content, fault=SiteError)

    def _called(self, name: str) -> str:
        return f"{MEMBERSHIPS_FOLDER}/{self.name}/{name}"

    def __repr__(self) -> str:
        return f"SiteMembership({self.name})"


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of a coordinator: nodes would try one that is none again and again."""
    place = host_and_port(address)
    if place is None:
        raise SiteError(
            "address must be host:port, its host a name such as coordinator.example.org, or an "
            "address such as 192.0.2.7 or [2001:db8::7]",
            repr(address),
        )
    return place


def is_membership_name(text: str) -> bool:
    """Tell whether a text can name a membership: small letters, digits, single hyphens between."""
    return len(text) <= _MOST_LETTERS and _NAME.fullmatch(text) is not None


def free_name(federation: str, taken: Collection[str]) -> str:
    """Return a name, made from the federation's, that is not `taken` by another membership."""
    plain = unicodedata.normalize("NFKD", federation).encode("ascii", "ignore").decode().lower()
    # Room for a number at the end.
    first = re.sub(r"[^a-z0-9]+", "-", plain)[: _MOST_LETTERS - 5].strip("-") or "federation"
    name, number = first, 1
    while name in taken:
        number += 1
        name = f"{first}-{number}"
    return name


def free_port(taken: Collection[int]) -> int:
    """Return a port on loopback that no other membership of the site has."""
    return next(port for port in range(FIRST_PORT, LAST_PORT) if port not in taken)
