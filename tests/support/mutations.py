"""Broken inputs, thousands a second: bytes changed blindly, and values changed knowingly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cbor2

# Heads of CBOR: long ones, endless ones, those that claim too much, and what we have no use for.
_HEADS = [
    bytes.fromhex(head)
    for head in (
        "00",
        "17",
        "1818",
        "18ff",
        "19ffff",
        "1affffffff",
        "1b7fffffffffffffff",
        "1bffffffffffffffff",
        "20",
        "3bffffffffffffffff",
        "40",
        "5820",
        "5affffffff",
        "5b7fffffffffffffff",
        "5f",
        "60",
        "61ff",
        "7bffffffffffffffff",
        "7f",
        "80",
        "81",
        "9a00ffffff",
        "9bffffffffffffffff",
        "9f",
        "a0",
        "a1",
        "bf",
        "bbffffffffffffffff",
        "c0",
        "c1",
        "c249010000000000000000",
        "c4820000",
        "d81c",
        "d81d00",
        "d8236161",
        "d9d9f7",
        "dbffffffffffffffff",
        "f4",
        "f5",
        "f6",
        "f7",
        "f820",
        "f97e00",
        "fa7fc00000",
        "f97c00",
        "fb7ff0000000000001",
        "fb3ff0000000000000",
        "ff",
        "1c",
        "fc",
        "eda080",
    )
]
_ODD: list[Any] = [
    None, False, True, 0, 1, -1, 23, 24, 255, 256, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, -(2**63),
    0.0, -0.0, 1.5, float("inf"), float("nan"), 1e300, "", "x", "x" * 65, "\x00", "PF\n301",
    "\u202e", "additive", b"", b"\x00", bytes(31), bytes(32), bytes(33), bytes(64), bytes(4097),
    [], [[]], {}, {"": None}, [0] * 1025, ["x"], [b""], [bytes(32)] * 3, {"a": [1]},
]  # fmt: skip


def mutated(chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One input: something of the corpus with a few changes, or plain random bytes."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.choice((0, 1, 2, 3, 8, 40, 200, 2_000)))
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(chance, data, corpus)
    return bytes(data)


def _change(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    place = chance.randrange(len(data) + 1)
    match chance.randrange(9):
        case 0 if place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        case 1 if place < len(data):
            data[place] = chance.randrange(256)
        case 2:
            del data[place:]
        case 3:
            del data[place : place + chance.choice((1, 1, 2, 8, 32))]
        case 4:
            data[place:place] = chance.randbytes(chance.choice((1, 1, 2, 32)))
        case 5:
            head = chance.choice(_HEADS)
            data[place : place + chance.choice((0, 1, len(head)))] = head
        case 6:
            other = chance.choice(corpus)
            start = chance.randrange(len(other) + 1)
            data[place:] = other[start : start + 10_000]
        case 7:
            size = chance.choice((1, 4, 32, 100))
            data[place:place] = data[max(place - size, 0) : place] * chance.choice((1, 2, 20))
        case _:
            # A head near the front is where types, versions and lengths are.
            front = chance.randrange(min(len(data), 12) + 1)
            data[front : front + 1] = chance.choice(_HEADS)
    del data[200_000:]


def mutated_value(chance: random.Random, value: Any) -> Any:
    """A value with odd values put in places of it: what a careful liar writes canonically."""
    if chance.random() < 0.25 or not isinstance(value, list | dict) or not value:
        return chance.choice(_ODD)
    if isinstance(value, dict):
        changed = dict(value)
        key = chance.choice(list(changed))
        match chance.randrange(4):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(("", "extra", key + "s"))] = chance.choice(_ODD)
            case _:
                changed[key] = mutated_value(chance, changed[key])
        return changed
    items = list(value)
    place = chance.randrange(len(items))
    match chance.randrange(5):
        case 0:
            del items[place]
        case 1:
            items.insert(place, chance.choice(_ODD))
        case 2:
            items[place:place] = [items[place]] * chance.choice((1, 2, 1_025))
        case _:
            items[place] = mutated_value(chance, items[place])
    return items


def encoded(value: Any) -> bytes:
    """The canonical bytes of a value; not every value that CBOR can hold is one of ours."""
    return cbor2.dumps(value, canonical=True)
