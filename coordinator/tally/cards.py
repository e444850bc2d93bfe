"""What coordinator and tally tell each other once, as files: an invitation, and a card in return.

Neither file is secret. Whoever takes one compares its 12 words by telephone: equal words prove that
nobody changed the keys in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from coordinator.errors import TallySetupError
from pate_fed.nodes.owner_files import as_fault
from pate_fed.nodes.ports import host_and_port
from pate_fed.regular_files import read_regular
from protocols.errors import ProtocolError
from protocols.fingerprint_words import first_difference, is_same, whose_words
from protocols.identity import KEY_BYTES, PublicIdentity
from protocols.invitation import certificate_fingerprint
from protocols.party_names import NAME_RULE, is_party_name

SCHEMA_VERSION: Final = 1
_MOST_BYTES: Final = 16 * 1024
_DOMAIN: Final = b"pate-fed/1/tally\0"


@dataclass(frozen=True, slots=True)
class PinnedEnd:
    """One end as the other one pins it.

    Attributes:
        federation: Name of the federation.
        identity_key: Of its signatures, 32 bytes.
        certificate: Of its TLS, PEM.
    """

    federation: str
    identity_key: bytes
    certificate: str
    whose: ClassVar[str]
    _role: ClassVar[bytes]

    @property
    def identity(self) -> PublicIdentity:
        """The identity."""
        return PublicIdentity(self.identity_key)

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint to compare by telephone, of identity and certificate, 32 bytes."""
        said = certificate_fingerprint(self.certificate) + self.identity.fingerprint
        return hashlib.sha256(_DOMAIN + self._role + said).digest()

    def require_words(self, heard: str, others: Mapping[str, bytes]) -> None:
        """Refuse, with `TallySetupError`, other words than this end's.

        `others` are fingerprints whose words could be typed instead, by whose they are.
        """
        if not is_same(self.fingerprint, heard):
            differs = f"{first_difference(self.fingerprint, heard)}: ask for a new file if it stays"
            taken_for = whose_words(heard, others) or differs
            raise TallySetupError(f"the 12 words must be {self.whose}", taken_for)

    def to_json(self) -> str:
        """Return it as the text of a file."""
        table = {**asdict(self), "identity_key": self.identity_key.hex()}
        return json.dumps({"schema_version": SCHEMA_VERSION, **table}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; `TallySetupError` where it is none."""
        with as_fault(TallySetupError, f"{path.name} must be readable"):
            content = read_regular(path, most_bytes=_MOST_BYTES)
        try:
            return cls._from_table(json.loads(content))
        except (ValueError, LookupError, TypeError, RecursionError, ProtocolError) as error:
            raise TallySetupError(f"{path.name} must be a file as it was made") from error

    @classmethod
    def _from_table(cls, table: dict[str, Any]) -> Self:
        if table.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError
        if table.keys() != {one.name for one in fields(cls)}:
            raise ValueError
        if not all(isinstance(value, str) for value in table.values()):
            raise TypeError
        made = cls(**{**table, "identity_key": bytes.fromhex(table["identity_key"])})
        if not is_party_name(made.federation) or len(made.identity_key) != KEY_BYTES:
            raise ValueError
        _ = made.fingerprint  # refuses what is no certificate
        return made


@dataclass(frozen=True, slots=True)
class TallyInvite(PinnedEnd):
    """The coordinator, as its tally pins it: it alone may call."""

    whose: ClassVar[str] = "those of the coordinator's `pate-fed tally invite`"
    _role: ClassVar[bytes] = b"coordinator\0"


@dataclass(frozen=True, slots=True)
class TallyCard(PinnedEnd):
    """The tally, as its coordinator pins it.

    Attributes:
        address: Where it serves, "host:port".
        name: Its organisation, as hospitals are told.
    """

    address: str
    name: str = "tally"
    whose: ClassVar[str] = "those 'for coordinator' of the tally's `pate-fed tally words`"
    _role: ClassVar[bytes] = b"tally\0"

    def __post_init__(self) -> None:
        if host_and_port(self.address) is None:
            raise TallySetupError("address must be 'host:port'", ascii(self.address))
        if not is_party_name(self.name):
            raise TallySetupError(f"a tally's name must be {NAME_RULE}", ascii(self.name))
