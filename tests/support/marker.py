"""Looks for a marker histogram in whatever a run leaves behind.

A party's votes are made so odd that they are recognized wherever they turn up: as text, as JSON,
as CBOR, and as integers of 4 or 8 bytes in either order, which is also what a pickle holds. Four
bytes alone are found by chance in a megabyte of random ones about once in 4,000 searches: they
count only near another count in the same form. With the head that CBOR and pickle write (for
numbers of 65,536 and more) they are five, and count alone.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import lru_cache
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from numpy.typing import NDArray

from pate_fed.queries import QueryBatch
from protocols.values import encode_value

MARKERS = (104_729, 224_737, 350_377)
"""Votes of three classes at the marked party, primes that nothing else comes to."""

MORE_MARKERS = (99_991, 200_003, 350_381)
"""The same, for another row."""

MARKED_TEACHERS = sum(MARKERS)


def released_tallies(database: Path) -> NDArray[np.int64]:
    """The noisy counts of all evaluations, row by row, in a coordinator's database."""
    with closing(sqlite3.connect(database)) as opened:
        stored = opened.execute("select release from run_batches where release is not null")
        releases = [json.loads(text) for [text] in stored]
    return np.concatenate([one["tallies"] for one in releases if "tallies" in one])


def not_in(released: NDArray[Any], markers: tuple[int, ...] = MARKERS) -> tuple[int, ...]:
    """Return the markers that noise hid: one of 0 leaves a count as it is, and tells nothing."""
    return tuple(sorted(set(markers) - set(released.ravel().tolist())))


_NOT_A_NUMBER_AROUND = rb"(?<![0-9A-Fa-f])(?<![0-9]\.)%s(?:\.0*)?(?![0-9A-Fa-f])"
"""So that the digits of a hash are no finding, nor those of a second's fraction."""


def marked_votes(batch: QueryBatch) -> NDArray[np.int64]:
    """Teachers whose histogram is `MARKERS` for every query."""
    column = np.repeat(np.arange(len(MARKERS)), MARKERS)
    return np.repeat(column[:, None], len(batch), axis=1)


def _cbor_of(number: int) -> bytes:
    head, argument = (b"\x1a", number) if number >= 0 else (b"\x3a", -1 - number)
    return head + struct.pack(">I", argument % 2**32)


@lru_cache(maxsize=2**12)
def forms_of(number: int) -> dict[str, bytes]:
    """Byte forms of one count that are looked for literally."""
    return {
        "4 bytes, little-endian": struct.pack("<I", number % 2**32),
        "4 bytes, big-endian": struct.pack(">I", number % 2**32),
        "CBOR": _cbor_of(number),
        "pickle": b"J" + struct.pack("<i", (number + 2**31) % 2**32 - 2**31),
        "8 bytes, little-endian": struct.pack("<q", number),
        "8 bytes, big-endian": struct.pack(">q", number),
        "float, little-endian": struct.pack("<d", float(number)),
        "float, big-endian": struct.pack(">d", float(number)),
    }


def forms_of_words(number: int) -> list[bytes]:
    """Byte forms of a vector whose words are all this number; a short one twice, side by side."""
    return [2 * form if len(form) == _SHORT else form for form in forms_of(number).values()]


_APART = b"\n\0\n"
"""Stands between things that are searched at once: no number goes on across it."""

_SHORT = 4
_NEAR = 64
"""Bytes within which another count has to begin for a form of `_SHORT` bytes to be no chance."""


def findings(data: bytes, numbers: tuple[int, ...] = MARKERS, *, least: int = 1) -> list[str]:
    """Name every form in which counts of one row are in `data`.

    Args:
        data: What is searched.
        numbers: The counts.
        least: How many of them have to be there in one form. Of many numbers that are drawn anew in
            each run, and are not odd in themselves, one is found by chance now and then.
    """
    found = []
    for name in forms_of(0):
        there = _counts_there(data, {number: forms_of(number)[name] for number in numbers})
        if len(there) >= least:
            found += [f"{number} as {name}" for number in there]
    texts = _texts(data, numbers)
    return found + [text for each in texts.values() for text in each if len(texts) >= least]


def _counts_there(data: bytes, forms: Mapping[int, bytes]) -> list[int]:
    """Return the counts of which the form is in the data; a short one near another only."""
    there = [number for number, form in forms.items() if form in data]
    if not there or len(forms[there[0]]) > _SHORT:
        return there
    places = sorted((place, number) for number in there for place in _places(data, forms[number]))
    near = {
        number
        for (place, one), (later, other) in pairwise(places)
        if one != other and later - place <= _NEAR
        for number in (one, other)
    }
    return [number for number in there if number in near]


def _places(data: bytes, form: bytes) -> Iterator[int]:
    return (found.start() for found in re.finditer(re.escape(form), data))


def _texts(data: bytes, numbers: tuple[int, ...]) -> dict[int, list[str]]:
    """Name every way in which counts are written in `data`, by count."""
    found: dict[int, list[str]] = {}
    for number in numbers:
        for text, pattern in _texts_of(number):
            # The plain search is quick, and finds next to nothing in next to all data.
            if text in data and re.search(pattern, data):
                found.setdefault(number, []).append(f"{number} as text {text.decode()}")
    return found


@lru_cache(maxsize=2**12)
def _texts_of(number: int) -> list[tuple[bytes, bytes]]:
    """Every way in which a count is written, and its pattern."""
    digits = hex(abs(number))[2:]
    texts = [text.encode() for text in (str(number), f"{number:_}", f"{number:,}")]
    written = [(text, _NOT_A_NUMBER_AROUND % re.escape(text)) for text in texts]
    return [*written, (digits.encode(), rb"\b0x%s\b" % digits.encode())]


def findings_in_files(
    folder: Path, numbers: tuple[int, ...] = MARKERS, *, least: int = 1
) -> list[str]:
    """Look into every file below a folder, and at their names; arguments as `findings` has them."""
    parts = [
        (path.name, part)
        for path in sorted(folder.rglob("*"))
        for part in (path.name.encode(), path.read_bytes() if path.is_file() else b"")
    ]
    # All at once: there is hardly ever a finding to tell the place of.
    if not findings(_APART.join(part for _, part in parts), numbers, least=least):
        return []
    return [
        f"{name}: {what}" for name, part in parts for what in findings(part, numbers, least=least)
    ]


def private_forms(secret: bytes) -> set[bytes]:
    """Byte forms of a secret that is kept as these bytes: raw, hexadecimal, Base64."""
    texts = {base64.b64encode(secret), base64.urlsafe_b64encode(secret)}
    digits = secret.hex().encode()
    return {secret, digits, digits.upper(), *(text.rstrip(b"=") for text in texts)}


def key_forms(content: bytes) -> set[bytes]:
    """Byte forms of a private key that is kept in a file: its number, and the file's own text.

    Args:
        content: PEM, OpenSSH's format, or hexadecimal digits.
    """
    if not content.startswith(b"-----"):
        return private_forms(bytes.fromhex(content.decode()))
    is_ssh = b"OPENSSH" in content
    key = (load_ssh_private_key if is_ssh else load_pem_private_key)(content, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    number = key.private_numbers().private_value
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    body = [line for line in content.splitlines() if not line.startswith(b"-----")]
    # The first lines of OpenSSH's format hold its name and the public key.
    private = body[len(body) // 2 :] if is_ssh else body
    size = (key.curve.key_size + 7) // 8
    lines = {line for line in private if len(line) > _MEANS_SOMETHING}
    return private_forms(number.to_bytes(size, "big")) | {der} | lines


_MEANS_SOMETHING = 16
"""A shorter last line of Base64 may be in anything."""


def secrets_within(data: bytes, secrets: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Name every secret of which a form is in the data, or in what can be read out of it."""
    parts = list(unwrapped(data))
    return [
        name
        for name, forms in secrets.items()
        if any(form in part for part in parts for form in forms)
    ]


def secrets_kept_in(folder: Path) -> dict[str, set[bytes]]:
    """Forms of every private key and every secret below a folder, by its file."""
    forms = {".key": key_forms, ".secret": private_forms}
    return {
        path.relative_to(folder).as_posix(): forms[path.suffix](path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.suffix in forms
    }


def files_with_secrets(
    folder: Path, secrets: Mapping[str, Iterable[bytes]]
) -> dict[str, list[str]]:
    """Name every file below a folder that holds a secret, and which; databases cell by cell too."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # All as they lie, before a database is opened: SQLite removes the log beside it.
    contents = {path: path.read_bytes() for path in files}
    for path in filter(is_database, files):
        with closing(sqlite3.connect(path)) as database:
            cells = "\n".join(database.iterdump()).encode("utf-8", "surrogateescape")
        contents[path] += b"\n" + cells
    found = {
        path.relative_to(folder).as_posix(): secrets_within(content, secrets)
        for path, content in contents.items()
    }
    return {name: what for name, what in found.items() if what}


def is_database(path: Path) -> bool:
    """Whether it is a file of SQLite's."""
    return path.is_file() and path.read_bytes().startswith(b"SQLite format 3\0")


Y_HEAD = b"\x84\x02\x0a\x83\x58\x20"
"""How the frame of every y begins."""

REPORT_HEAD = b"\x84\x02\x18\x25\x83"
"""How the frame of every report begins."""

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


def held_in_memory(
    *roots: Any, rows: Iterable[tuple[int, ...]] = (MARKERS,), least: int = 1
) -> list[str]:
    """Name the arrays and bytes reachable from `roots` that hold one of the rows of counts.

    Args:
        roots: Where to begin.
        rows: The rows.
        least: How many counts of one row have to be in bytes, as `findings` has it; in an array,
            all of a row.
    """
    wanted = [set(row) for row in rows]
    numbers = tuple(sorted(set().union(*wanted)))
    together = [numbers] if least == 1 else [tuple(row) for row in wanted]
    found = []
    texts: list[bytes] = []
    for item in reachable(*roots):
        if isinstance(item, np.ndarray) and item.dtype.kind in "iuf" and item.ndim:
            there = set(item.ravel()[np.isin(item.ravel(), numbers)].tolist())
            if any(row <= there for row in wanted):
                found.append(f"an array of shape {item.shape}")
        elif isinstance(item, bytes | bytearray):
            texts.append(bytes(item))
    at_once = _APART.join(texts)
    for counts in together:
        if findings(at_once, counts, least=least):
            told = (text for text in texts if findings(text, counts, least=least))
            found += [f"{len(text)} bytes" for text in told]
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


def unwrapped(data: bytes) -> Iterator[bytes]:
    """The data, and whatever is in it as hexadecimal digits, as Base64, or compressed."""
    yield data
    for digits in re.findall(rb"(?:[0-9a-fA-F]{2}){8,}", data):
        yield bytes.fromhex(digits.decode())
    for text in re.findall(rb"[A-Za-z0-9+/_-]{16,}={0,2}", data):
        plain = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        if len(plain) % 4 != 1:
            yield base64.b64decode(plain + b"=" * (-len(plain) % 4))
    for place in (
        found.start() for found in re.finditer(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b", data)
    ):
        with suppress(zlib.error):
            yield zlib.decompressobj(wbits=47).decompress(data[place:], 2**24)


def findings_within(data: bytes, numbers: tuple[int, ...] = MARKERS) -> list[str]:
    """Name every count in the data as it is, and in what can be read out of it."""
    return [what for part in unwrapped(data) for what in findings(part, numbers)]


Look = Callable[[bytes], list[str]]
"""Names what is found in data."""


def found_in_files(folder: Path, look: Look) -> list[str]:
    """Look into every file and every database below a folder, and at their names.

    SQLite packs numbers in ways of its own: its databases are read cell by cell, too.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        parts = [name.encode()]
        if path.is_file():
            parts.append(path.read_bytes())
        if is_database(path):
            with closing(sqlite3.connect(path)) as database:
                parts.append("\n".join(database.iterdump()).encode("utf-8", "surrogateescape"))
        found += [f"{name}: {what}" for part in parts for what in look(part)]
    return found


Rows = Iterable[tuple[int, ...]]


def rows_within(data: bytes, rows: Rows) -> list[str]:
    """Name every row of counts that stands side by side in the data, or in what is read out of it.

    Counts may be small: three of them are 6 bytes or more in every form.
    """
    whole = _APART.join(unwrapped(data))
    found = []
    for row in sorted(set(rows)):
        literal, text = _row_forms(row)
        found += [f"{row} as {name}" for name, form in literal.items() if form in whole]
        found += [f"{row} as text"] if re.search(text, whole) else []
    return found


@lru_cache(maxsize=2**8)
def _row_forms(row: tuple[int, ...]) -> tuple[dict[str, bytes], bytes]:
    """Return the byte forms of a row, and the pattern of its text."""
    literal = {
        f"{order}{form}": struct.pack(f"{order}{len(row)}{form}", *row)
        for order in "<>"
        for form in ("hiqd" if max(row) < 2**15 else "iqd")
    }
    literal["CBOR"] = encode_value(list(row))[1:]
    literal["pickle"] = pickle.dumps(list(row)).partition(b"(")[2][:-2]
    text = rb"(?<!\d)%s(?!\d)" % rb"\D{1,8}".join(str(count).encode() for count in row)
    return literal, text


def holds_row(stream: bytes, row: tuple[int, ...] = MARKERS) -> bool:
    """Whether all counts of a histogram are in a stream."""
    found = "\n".join(findings_within(stream, row))
    return all(f"{number} as " in found for number in row)


_ROW_FORMS = "qdi"
_PIECE = 2**20


def rows_in_memory(pid: int, rows: Rows) -> list[str]:
    """Name every copy of a row of counts in a process's heap, freed memory included.

    Its stack is left out: what registers held may lie there until the next calls.

    Args:
        pid: Another process, which may be read: a child of this one. (This one would find what it
            looks for in its own hands.)
        rows: The rows; each as signed integers of 8 or 4 bytes, or as floats, side by side.
    """
    forms = [
        (form, row, struct.pack(f"<{len(row)}{form}", *row))
        for form in _ROW_FORMS
        for row in set(rows)
    ]
    found: dict[int, str] = {}
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for place, piece in _pieces_of(pid, memory):
            for form, row, whole in forms:
                for at in _places_of(piece, whole):
                    found[place + at] = f"{row} as {form} at {place + at:x}"
    return list(found.values())


def secrets_in_memory(pid: int, secrets: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Name every secret of which a form is in another process's heap; see `rows_in_memory`."""
    found: set[str] = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for _, piece in _pieces_of(pid, memory):
            found |= {
                name for name, forms in secrets.items() if any(form in piece for form in forms)
            }
    return sorted(found)


def _places_of(piece: bytes, whole: bytes) -> Iterator[int]:
    """Yield the places of a form; a search is quick for one that does not end in zeros."""
    sought = whole.rstrip(b"\0")
    at = piece.find(sought)
    while at >= 0:
        if piece.startswith(whole, at):
            yield at
        at = piece.find(sought, at + 1)


def _pieces_of(pid: int, memory: FileIO) -> Iterator[tuple[int, bytes]]:
    """Yield the writable memory of a process in pieces that overlap, with their places.

    What was never written to, such as most of each thread's stack, is zeros, and left out.
    """
    for line in Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines():
        bounds, rights, *more = line.split()
        begin, end = (int(number, 16) for number in bounds.split("-"))
        if not rights.startswith("rw") or "[stack]" in more:
            continue
        for place in range(begin, end, _PIECE - _NEAR):
            memory.seek(place)
            with suppress(OSError):  # a device's
                piece = memory.read(min(_PIECE, end - place))
                if piece.count(0) < len(piece):
                    yield place, piece
