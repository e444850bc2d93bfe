"""Types of a message's fields: each carries its bounds, and each message checks them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from protocols.errors import MalformedMessageError
from protocols.party_names import MOST_LETTERS, is_party_name

KIB = 1024
MAX_PARTIES = 1024
MAX_WORDS = 2**26
MAX_TERMS_BYTES = 512 * KIB
MAX_CERTIFICATE_BYTES = 144 * KIB
MOST_WORDS_LETTERS = 500


@dataclass(frozen=True, slots=True)
class Size:
    """Allowed length of bytes or text, or number of items of a tuple: `least` to `most`."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Letters(Size):
    """Name of a hospital or federation, of letters of any script; see `protocols.party_names`."""


@dataclass(frozen=True, slots=True)
class Line(Size):
    """One line that a person wrote, in letters of any script: it may be empty."""


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed integers: `least` to `most`."""

    least: int
    most: int


DIGEST_BYTES = 32
Digest = Annotated[bytes, Size(DIGEST_BYTES, DIGEST_BYTES)]
Digests = Annotated[bytes, Size(DIGEST_BYTES, DIGEST_BYTES * MAX_PARTIES)]
Key = Annotated[bytes, Size(32, 32)]
SealingPublicKey = Annotated[bytes, Size(32, 2 * KIB)]  # how long exactly, the suite says
Nonce = Annotated[bytes, Size(32, 32)]
Mac = Annotated[bytes, Size(32, 32)]
Count = Annotated[int, Range(0, 2**32 - 1)]
UnixTime = Annotated[int, Range(0, 2**40)]
Name = Annotated[str, Size(1, 64)]
PartyName = Annotated[str, Letters(1, MOST_LETTERS)]
Frame = Annotated[bytes, Size(1, 4 * KIB)]
FrameOrNone = Annotated[bytes, Size(0, 4 * KIB)]
SmallFrame = Annotated[bytes, Size(1, 256)]
SmallFrameOrNone = Annotated[bytes, Size(0, 256)]
DigestOrNone = Annotated[bytes, Size(0, 32)]
Signature = Annotated[bytes, Size(64, 64)]


class Message:
    """Base of all messages.

    Class attributes:
        TYPE: Number on the wire. PURPOSE: Purpose of a signature over it; empty for a container of
        signed messages. MAX_BYTES: Largest frame that a receiver accepts.
    """

    TYPE: ClassVar[int]
    PURPOSE: ClassVar[str]
    MAX_BYTES: ClassVar[int] = 4 * KIB

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, allowed in _field_rules(type(self)):  # type: ignore[arg-type]
            _check(getattr(self, name), allowed, name)


@cache
def field_types(message_type: type[Message]) -> dict[str, Any]:
    """Return the annotated type of each field, in order."""
    hints = get_type_hints(message_type, include_extras=True)
    return {field.name: hints[field.name] for field in fields(message_type)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A field's type taken apart: its classes, its bound, and the same of a tuple's items."""

    bases: tuple[type, ...]
    bound: Size | Range | None
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
    if (
        isinstance(bound, Size)
        and isinstance(value, bytes | memoryview | str | tuple)
        and not bound.least <= len(value) <= bound.most
    ):
        raise MalformedMessageError(
            f"{name} must have length {bound.least} to {bound.most}", len(value)
        )
    if isinstance(bound, Letters):
        if isinstance(value, str) and not is_party_name(value):
            raise MalformedMessageError(
                f"{name} must be a name of letters of any script", "another text"
            )
    elif isinstance(bound, Line):
        if isinstance(value, str) and not value.isprintable():  # it reaches screens
            raise MalformedMessageError(f"{name} must be one printable line", "another text")
    elif isinstance(value, str) and not (value.isascii() and value.isprintable()):
        # A name reaches logs and screens: no control characters, no letters that look alike.
        raise MalformedMessageError(f"{name} must be printable ASCII", "another character")
    if (
        isinstance(bound, Range)
        and isinstance(value, int)
        and not bound.least <= value <= bound.most
    ):
        raise MalformedMessageError(
            f"{name} must be between {bound.least} and {bound.most}", "a number outside"
        )
    if item is not None and isinstance(value, tuple) and not _are_bytes_that_fit(value, item):
        for element in value:
            _check(element, item, name)


def _are_bytes_that_fit(items: tuple[object, ...], allowed: _Allowed) -> bool:
    """Check many byte strings at once: there may be thousands in a message."""
    bound = allowed.bound
    if allowed.bases != (bytes,) or not isinstance(bound, Size) or set(map(type, items)) != {bytes}:
        return False
    sizes = set(map(len, items))  # type: ignore[arg-type]  # all are bytes
    return bound.least <= min(sizes) and max(sizes) <= bound.most
