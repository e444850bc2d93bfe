"""Types of a message's fields: each carries its bounds, and each message checks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from protocols.errors import MalformedMessageError
from protocols.party_names import MOST_LETTERS, is_party_name

KIB = 1024
MAX_PARTIES = 1024
MAX_WORDS = 2**26
MAX_TERMS_BYTES = 512 * KIB
MAX_CERTIFICATE_BYTES = 144 * KIB
MOST_WORDS_LETTERS = 500
VERDICT_MAC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Length:
    """Allowed length of bytes or text, or number of items of a tuple: `least` to `most`.

    Text is printable ASCII: it reaches logs and screens, where letters may look alike.
    """

    least: int
    most: int

    def require(self, value: Any, name: str) -> None:
        """Check a field's value."""
        if not self.least <= len(value) <= self.most:
            raise MalformedMessageError(
                f"{name} must have length {self.least} to {self.most}", len(value)
            )
        if isinstance(value, str) and not self._is_text(value):
            raise MalformedMessageError(f"{name} must be text of its kind")

    def _is_text(self, value: str) -> bool:
        return value.isascii() and value.isprintable()


@dataclass(frozen=True, slots=True)
class Letters(Length):
    """Name of a hospital or federation, of letters of any script; see `protocols.party_names`."""

    def _is_text(self, value: str) -> bool:
        return not value or is_party_name(value)


@dataclass(frozen=True, slots=True)
class Line(Length):
    """One line that a person wrote, in letters of any script: it may be empty."""

    def _is_text(self, value: str) -> bool:
        return value.isprintable()


@dataclass(frozen=True, slots=True)
class Between:
    """Allowed integers: `least` to `most`."""

    least: int
    most: int

    def require(self, value: Any, name: str) -> None:
        """Check a field's value."""
        if not self.least <= value <= self.most:
            raise MalformedMessageError(
                f"{name} must be between {self.least} and {self.most}", value
            )


DIGEST_BYTES = 32
Digest = Annotated[bytes, Length(DIGEST_BYTES, DIGEST_BYTES)]
Digests = Annotated[bytes, Length(DIGEST_BYTES, DIGEST_BYTES * MAX_PARTIES)]
Key = Annotated[bytes, Length(32, 32)]
KeyOrNone = Annotated[bytes, Length(0, 32)]
SealingPublicKey = Annotated[bytes, Length(32, 2 * KIB)]
SealingPublicKeyOrNone = Annotated[bytes, Length(0, 2 * KIB)]  # how long exactly, the suite says
Nonce = Annotated[bytes, Length(32, 32)]
Mac = Annotated[bytes, Length(32, 32)]
Count = Annotated[int, Between(0, 2**32 - 1)]
UnixTime = Annotated[int, Between(0, 2**40)]
Name = Annotated[str, Length(1, 64)]
PartyName = Annotated[str, Letters(1, MOST_LETTERS)]
PartyNameOrNone = Annotated[str, Letters(0, MOST_LETTERS)]
Frame = Annotated[bytes, Length(1, 4 * KIB)]
FrameOrNone = Annotated[bytes, Length(0, 4 * KIB)]
SmallFrame = Annotated[bytes, Length(1, 256)]
SmallFrameOrNone = Annotated[bytes, Length(0, 256)]
VerdictMacOrNone = Annotated[bytes, Length(0, VERDICT_MAC_BYTES)]
DigestOrNone = Annotated[bytes, Length(0, 32)]
Signature = Annotated[bytes, Length(64, 64)]


class Message:
    """Base of all messages: frozen values that check their fields.

    They have a number on the wire, the purpose of a signature over them, empty for a container of
    signed messages, and the size of the largest frame that a receiver accepts.
    """

    TYPE: ClassVar[int]
    PURPOSE: ClassVar[str]
    MAX_BYTES: ClassVar[int]

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, allowed in _field_rules(type(self)):  # type: ignore[arg-type]
            _check(getattr(self, name), allowed, name)


M = TypeVar("M", bound=Message)


@dataclass_transform(frozen_default=True)
def message(
    number: int, purpose: str = "", *, most_bytes: int = 4 * KIB
) -> Callable[[type[M]], type[M]]:
    """Make a class a `Message`, with these values of the class attributes."""

    def made(cls: type[M]) -> type[M]:
        cls.TYPE, cls.PURPOSE, cls.MAX_BYTES = number, purpose, most_bytes
        return dataclass(frozen=True, slots=True)(cls)

    return made


@cache
def field_types(message_type: type[Message]) -> dict[str, object]:
    """Return the annotated type of each field, in order."""
    hints = get_type_hints(message_type, include_extras=True)
    return {field.name: hints[field.name] for field in fields(message_type)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A field's type taken apart: its classes, its bound, and the same of a tuple's items."""

    bases: tuple[type, ...]
    bound: Length | Between | None
    item: _Allowed | None


@cache
def _field_rules(message_type: type[Message]) -> tuple[tuple[str, _Allowed], ...]:
    return tuple((name, _allowed(hint)) for name, hint in field_types(message_type).items())  # type: ignore[arg-type]


def _allowed(hint: Any) -> _Allowed:
    base, bound, item = hint, None, None
    if get_origin(hint) is Annotated:
        base, bound = get_args(hint)[:2]
    if get_origin(base) is tuple:
        base, item = tuple, _allowed(get_args(base)[0])
    bases = get_args(base) if isinstance(base, UnionType) else (base,)
    return _Allowed(bases, bound, item)


def _check(value: object, allowed: _Allowed, name: str) -> None:
    """Check a value against a field's type: exact types only, no subclass, no bool for int."""
    bases, bound, item = allowed.bases, allowed.bound, allowed.item
    if type(value) not in bases:
        raise MalformedMessageError(f"{name} must be {bases[0].__name__}", type(value).__name__)
    if bound is not None:
        bound.require(value, name)
    if item is not None and isinstance(value, tuple) and not _are_bytes_that_fit(value, item):
        for element in value:
            _check(element, item, name)


def _are_bytes_that_fit(items: tuple[object, ...], allowed: _Allowed) -> bool:
    """Check many byte strings at once: there may be thousands in a message."""
    bound, kinds = allowed.bound, set(map(type, items))
    if allowed.bases != (bytes,) or not isinstance(bound, Length) or kinds != {bytes}:
        return False
    sizes = set(map(len, items))  # type: ignore[arg-type]  # all are bytes
    return bound.least <= min(sizes) and max(sizes) <= bound.most
