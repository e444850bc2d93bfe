"""Looks for a marker histogram in whatever a run leaves behind.

A party's votes are made so odd that they are recognized wherever they turn up: as text, as JSON,
as CBOR, and as integers of 4 or 8 bytes in either order, which is also what a pickle holds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.queries import QueryBatch

MARKERS = (104_729, 224_737, 350_377)
"""Votes of three classes at the marked party, primes that nothing else comes to."""

MARKED_TEACHERS = sum(MARKERS)

_NOT_A_NUMBER_AROUND = rb"(?<![0-9A-Fa-f])%s(?:\.0*)?(?![0-9A-Fa-f])"
"""So that the digits of a hash are no finding."""


def marked_votes(batch: QueryBatch) -> NDArray[np.int64]:
    """Teachers whose histogram is `MARKERS` for every query."""
    column = np.repeat(np.arange(len(MARKERS)), MARKERS)
    return np.repeat(column[:, None], len(batch), axis=1)


def forms_of(number: int) -> dict[str, bytes]:
    """Byte forms of one count that are looked for literally.

    A 4-byte form turns up by chance once in 4e9 places; a run has some 1e5 random bytes.
    """
    return {
        "4 bytes, little-endian": struct.pack("<I", number % 2**32),
        "4 bytes, big-endian": struct.pack(">I", number % 2**32),
        "float, little-endian": struct.pack("<d", float(number)),
        "float, big-endian": struct.pack(">d", float(number)),
    }


def findings(data: bytes, numbers: tuple[int, ...] = MARKERS) -> list[str]:
    """Name every form in which one of the counts is in `data`."""
    found = []
    for number in numbers:
        found += [f"{number} as {name}" for name, form in forms_of(number).items() if form in data]
        digits = hex(abs(number))[2:]
        for text in (str(number), f"{number:_}", f"{number:,}", digits):
            around = rb"\b0x%s\b" if text == digits else _NOT_A_NUMBER_AROUND
            # The plain search is quick, and finds next to nothing in next to all data.
            if text.encode() in data and re.search(around % re.escape(text.encode()), data):
                found.append(f"{number} as text {text}")
    return found


def findings_in_files(folder: Path, numbers: tuple[int, ...] = MARKERS) -> list[str]:
    """Look into every file below a folder, and at their names."""
    found = []
    for path in sorted(folder.rglob("*")):
        found += [f"{path.name}: {what}" for what in findings(path.name.encode(), numbers)]
        if path.is_file():
            found += [f"{path.name}: {what}" for what in findings(path.read_bytes(), numbers)]
    return found


OURS = ("pate_fed", "protocols", "party", "coordinator", "tests")


def reachable(*roots: Any) -> Iterator[Any]:
    """Walk objects of ours, containers, arrays and bytes that are reachable from `roots`."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        yield item
        waiting.extend(_parts(item))


def _parts(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if not type(item).__module__.startswith(OURS):
        closure = getattr(item, "__closure__", None) or ()
        bound = getattr(item, "__self__", None)
        return [cell.cell_contents for cell in closure] + ([bound] if bound is not None else [])
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [getattr(item, name) for name in slots if hasattr(item, name)]
    return [*values, *getattr(item, "__dict__", {}).values()]


def held_in_memory(*roots: Any, rows: Iterable[tuple[int, ...]] = (MARKERS,)) -> list[str]:
    """Name the arrays and bytes reachable from `roots` that hold one of the rows of counts."""
    wanted = [set(row) for row in rows]
    numbers = tuple(sorted(set().union(*wanted)))
    found = []
    for item in reachable(*roots):
        if isinstance(item, np.ndarray) and item.dtype.kind in "iuf" and item.ndim:
            there = set(item.ravel()[np.isin(item.ravel(), numbers)].tolist())
            if any(row <= there for row in wanted):
                found.append(f"an array of shape {item.shape}")
        elif isinstance(item, bytes | bytearray) and findings(bytes(item), numbers):
            found.append(f"{len(item)} bytes")
    return found


def printed(*roots: Any) -> Iterator[str]:
    """What `repr` and `str` say of every object of ours, and of every container of them."""
    for item in reachable(*roots):
        if isinstance(item, np.ndarray | bytes | bytearray):
            continue
        if isinstance(item, dict | list | tuple | set) and any(
            isinstance(part, np.ndarray | bytes) for part in _parts(item)
        ):
            continue
        yield repr(item)
        yield str(item)
