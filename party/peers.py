"""Whom this hospital's own people checked, and how.

The coordinator says who takes part, and that is hearsay: it may have made a peer up, to be left
alone with one hospital's votes. A peer counts once somebody here compared its words with its own
people, on a line that the coordinator does not hold, and wrote down how.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from party.errors import PinError, WordsDifferError
from protocols.fingerprint_words import is_same
from protocols.identity import PublicIdentity
from protocols.messages import Membership

SCHEMA_VERSION = 1
PINS_FILE = "peers.toml"
MOST_LETTERS = 200
_OWNER_ONLY = 0o600
_FIELDS = ("name", "body", "key", "how", "by", "at")


@dataclass(frozen=True, slots=True)
class Pin:
    """A peer that was checked.

    Attributes:
        name: What people call it.
        body: Whom it belongs to: parties of one body count once.
        identity: Its identity.
        how: How it was checked.
        by: Who of our people checked it.
        at: When, with its zone.
    """

    name: str
    body: str
    identity: PublicIdentity
    how: str
    by: str
    at: datetime

    def __post_init__(self) -> None:
        for text in (self.name, self.body, self.how, self.by):
            if not (text.strip() and text.isprintable() and len(text) <= MOST_LETTERS):
                raise PinError(
                    f"name, body, how and by whom must be 1 to {MOST_LETTERS} printable letters",
                    f"{len(text)}",
                )
        if self.at.tzinfo is None:
            raise PinError("a time must have its zone", "none")


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a peer, for people.

    Attributes:
        name: What people call it.
        identity: Its identity, as pinned; else as the coordinator says.
        pin: Who checked it and how; None: nobody, and it counts for nothing.
        is_member: Whether the coordinator names this identity as a member.
    """

    name: str
    identity: PublicIdentity
    pin: Pin | None
    is_member: bool


class Pins:
    """The pins of one hospital, in a file of its own.

    Args:
        path: The file; absent where nobody was pinned.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pins = _read(path)

    def all(self) -> tuple[Pin, ...]:
        """Return all pins, by name."""
        return tuple(sorted(self._pins, key=lambda pin: pin.name))

    def pins(self) -> Mapping[bytes, PublicIdentity]:
        """Return the identities by fingerprint."""
        return {pin.identity.fingerprint: pin.identity for pin in self._pins}

    def checked(self) -> Mapping[bytes, str]:
        """Return by fingerprint whom each belongs to."""
        return {pin.identity.fingerprint: pin.body for pin in self._pins}

    def add(self, pin: Pin) -> None:
        """Keep a pin.

        Raises:
            PinError: its name or its identity is pinned, or the file cannot be written.
        """
        for known in self._pins:
            if pin.name == known.name or pin.identity == known.identity:
                raise PinError(
                    "a peer must be pinned once: remove the old pin first", f"{known.name!r} again"
                )
        self._keep((*self._pins, pin))

    def remove(self, name: str) -> Pin:
        """Drop a pin, and return it.

        Raises:
            PinError: nobody of this name is pinned, or the file cannot be written.
        """
        for pin in self._pins:
            if pin.name == name:
                self._keep(tuple(other for other in self._pins if other is not pin))
                return pin
        raise PinError("a peer must be pinned to be removed", f"no pin of {name!r}")

    def _keep(self, pins: tuple[Pin, ...]) -> None:
        text = tomli_w.dumps({"schema_version": SCHEMA_VERSION, "peers": [_table(p) for p in pins]})
        partial = self._path.with_name(f".{self._path.name}.partial")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(partial, flags, _OWNER_ONLY), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)
        except OSError as error:
            raise PinError(f"{self._path.name} must be writable", error.strerror) from error
        self._pins = pins


def named_by(membership: Membership, name: str) -> PublicIdentity:
    """Return the identity that the coordinator says a member has: to be compared, not believed.

    Raises:
        PinError: it names no such member, or more than one.
    """
    pairs = zip(membership.peer_names, membership.peer_keys, strict=True)
    found = [PublicIdentity(key) for known, key in pairs if known == name]
    if len(found) != 1:
        raise PinError(
            "a peer must be one member of this name, as the coordinator lists them",
            f"{len(found)} called {name!r}",
        )
    return found[0]


def require_compared(identity: PublicIdentity, compared: str) -> None:
    """Hold an identity to what its own people said: the words, or all 64 digits.

    Raises:
        WordsDifferError: it is another's.
    """
    digits = compared.replace(" ", "").replace(":", "").lower()
    if not (is_same(identity.fingerprint, compared) or digits == identity.fingerprint.hex()):
        raise WordsDifferError(
            "the words must be those that the peer's own people read aloud", "others"
        )


def standings(pins: Pins, membership: Membership | None) -> tuple[Standing, ...]:
    """Put what we checked beside what the coordinator says, by name.

    Args:
        pins: Ours.
        membership: The coordinator's; None if it was not asked.
    """
    named: dict[bytes, tuple[str, PublicIdentity]] = {}
    if membership is not None:
        for name, key in zip(membership.peer_names, membership.peer_keys, strict=True):
            identity = PublicIdentity(key)
            named[identity.fingerprint] = name, identity
    ours = {pin.identity.fingerprint: pin for pin in pins.all()}
    checked = [
        Standing(pin.name, pin.identity, pin, fingerprint in named)
        for fingerprint, pin in ours.items()
    ]
    heard = [
        Standing(name, identity, None, is_member=True)
        for fingerprint, (name, identity) in named.items()
        if fingerprint not in ours
    ]
    return tuple(sorted((*checked, *heard), key=lambda one: (one.name, one.pin is None)))


def _table(pin: Pin) -> dict[str, Any]:
    return {
        "name": pin.name,
        "body": pin.body,
        "key": pin.identity.key.hex(),
        "how": pin.how,
        "by": pin.by,
        "at": pin.at,
    }


def _read(path: Path) -> tuple[Pin, ...]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise PinError(f"{path.name} must be readable", type(error).__name__) from error
    if table.get("schema_version") != SCHEMA_VERSION or set(table) - {"schema_version", "peers"}:
        raise PinError(f"{path.name} must be of version {SCHEMA_VERSION}", "another")
    pins = tuple(_pin(path, entry) for entry in table.get("peers", []))
    if len({pin.name for pin in pins}) != len(pins) or len({pin.identity for pin in pins}) != len(
        pins
    ):
        raise PinError(f"{path.name} must pin every peer once", "one twice")
    return pins


def _pin(path: Path, entry: Any) -> Pin:
    try:
        name, body, key, how, by, at = (entry[field] for field in _FIELDS)
        identity = PublicIdentity(bytes.fromhex(key))
        good = len(entry) == len(_FIELDS) and type(at) is datetime
        pin = Pin(name, body, identity, how, by, at) if good else None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PinError(f"{path.name} must hold pins as they were written", "another") from error
    if pin is None:
        raise PinError(f"{path.name} must hold pins as they were written", "another")
    return pin
