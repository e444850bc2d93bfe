"""Plain data as bytes: deterministic CBOR (RFC 8949, section 4.2), for terms, results and digests.

Decoding is strict: it refuses tags, trailing bytes, indefinite lengths, and all bytes that differ
from those of `encode_value`.
"""

from __future__ import annotations

import hashlib
from typing import Any, NoReturn

import cbor2

from protocols.errors import MalformedMessageError

_DIGEST_DOMAIN = b"pate-fed/1/message\0"
_MAX_DEPTH = 8

Value = None | bool | int | float | str | bytes | list[Any] | dict[str, Any]
"""Values for `encode_value`; tuples are written as lists."""

Piece = bytes | memoryview


def encode_value(value: Value) -> bytes:
    """Encode plain data in the same canonical form, for terms and results."""
    return cbor2.dumps(value, canonical=True)


def decode_value(data: bytes) -> Any:
    """Decode plain data, strictly, or raise `MalformedMessageError`; see `encode_value`."""
    value = loads(data)
    _require_plain(value)
    if encode_value(value) != data:
        raise MalformedMessageError("data must be in canonical form")
    return value


def digest_of_values(label: str, values: Value) -> bytes:
    """Return SHA-256 over labelled plain data, 32 bytes."""
    return digest(encode_value([label, values]))


def digest(*pieces: Piece) -> bytes:
    """Return SHA-256 over pieces of canonical data, 32 bytes."""
    state = hashlib.sha256(_DIGEST_DOMAIN)
    for piece in pieces:
        state.update(piece)
    return state.digest()


def loads(data: bytes) -> Any:
    """Read CBOR without tags, of bounded depth, or raise `MalformedMessageError`.

    It need not be canonical.
    """
    try:
        return cbor2.loads(
            data,
            tag_hook=_refuse_tag,
            semantic_decoders=_REFUSED_TAGS,
            max_depth=_MAX_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
        )
    except (cbor2.CBORDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedMessageError("bytes must be deterministic CBOR") from error


def _require_plain(value: object) -> None:
    """Refuse CBOR values outside `Value`: undefined, simple values, keys that are no text."""
    if type(value) is list:
        for item in value:
            _require_plain(item)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise MalformedMessageError("keys must be text", type(key).__name__)
            _require_plain(item)
    elif value is not None and type(value) not in (bool, int, float, str, bytes):
        raise MalformedMessageError("data must be plain", type(value).__name__)


def _refuse_tag(*_: object) -> NoReturn:
    raise MalformedMessageError("CBOR tags must be absent")


# Tags that the library would otherwise turn into dates, regular expressions, huge fractions ...
_REFUSED_TAGS = dict.fromkeys([*range(512), 1004, 43000, 55799], _refuse_tag)
