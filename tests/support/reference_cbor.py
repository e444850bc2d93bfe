"""Deterministic CBOR by hand, from RFC 8949 (sections 3 and 4.2): a writer and a strict reader.

Imports no CBOR library and nothing of ours: what the page of the wire format says has to suffice.
"""

from __future__ import annotations

import math
import struct
from typing import Any

MOST_NESTED = 8
"""Arrays and maps that may stand inside one another."""

_SIMPLE = {b"\xf4": False, b"\xf5": True, b"\xf6": None}
_FLOATS = ((0xF9, ">e", 2), (0xFA, ">f", 4), (0xFB, ">d", 8))
_LENGTHS = ((24, 1), (25, 2), (26, 4), (27, 8))


class NotDeterministicError(ValueError):
    """Bytes that no writer of this form writes."""


def cbor(value: object) -> bytes:
    """Write a value."""
    match value:
        case None:
            return b"\xf6"
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return _head(0, value) if value >= 0 else _head(1, -1 - value)
        case float():
            return _shortest(value)
        case bytes() | memoryview():
            return _head(2, len(value)) + bytes(value)
        case str():
            return _head(3, len(value.encode())) + value.encode()
        case list() | tuple():
            return _head(4, len(value)) + b"".join(cbor(item) for item in value)
        case dict():
            items = sorted((cbor(key), cbor(item)) for key, item in value.items())
            return _head(5, len(items)) + b"".join(key + item for key, item in items)
    raise TypeError(type(value).__name__)


def read_cbor(data: bytes) -> Any:
    """Read one value that fills all of `data`.

    Raises:
        NotDeterministicError: it is none, or was written another way.
    """
    value, end = _item(data, 0, 0)
    if end != len(data) or cbor(value) != data:
        raise NotDeterministicError("another form")
    return value


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for extra, size in _LENGTHS:
        if number < 1 << (8 * size):
            return bytes([major << 5 | extra]) + number.to_bytes(size, "big")
    raise ValueError("too large")


def _shortest(value: float) -> bytes:
    for first, form, _ in _FLOATS:
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if math.isnan(value) or struct.unpack(form, packed)[0] == value:
            return bytes([first]) + packed
    raise AssertionError("64 bits hold every float")


def _take(data: bytes, place: int, size: int) -> bytes:
    if place + size > len(data):
        raise NotDeterministicError("cut short")
    return data[place : place + size]


def _item(data: bytes, place: int, depth: int) -> tuple[Any, int]:
    first = _take(data, place, 1)
    major, extra = first[0] >> 5, first[0] & 31
    place += 1
    if major == 7:
        return _simple(data, first, place)
    number = extra
    if extra >= 24:
        size = dict(_LENGTHS).get(extra, 0)
        if not size:
            raise NotDeterministicError("indefinite, or reserved")
        number, place = int.from_bytes(_take(data, place, size), "big"), place + size
    if major < 2:
        return (number if major == 0 else -1 - number), place
    if major < 4:
        raw = _take(data, place, number)
        return (raw if major == 2 else _text(raw)), place + number
    if major == 6 or depth == MOST_NESTED:
        raise NotDeterministicError("a tag, or too deep")
    return (_array if major == 4 else _map)(data, place, number, depth + 1)


def _simple(data: bytes, first: bytes, place: int) -> tuple[Any, int]:
    if first in _SIMPLE:
        return _SIMPLE[first], place
    for opening, form, size in _FLOATS:
        if first[0] == opening:
            return struct.unpack(form, _take(data, place, size))[0], place + size
    raise NotDeterministicError("undefined, or another simple value")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise NotDeterministicError("no UTF-8") from error


def _array(data: bytes, place: int, count: int, depth: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, place = _item(data, place, depth)
        items.append(item)
    return items, place


def _map(data: bytes, place: int, count: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    for _ in range(count):
        key, place = _item(data, place, depth)
        if type(key) is not str or key in items:
            raise NotDeterministicError("a key that is no text, or comes twice")
        items[key], place = _item(data, place, depth)
    return items, place
