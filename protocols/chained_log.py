"""An append-only file of chained records: what was reported as written is there after any crash.

Both ends of a run keep what they must remember in one. The file is a first line, then records::

    length (4) | check (8) | body | link (32)

numbers big-endian. The body is a deterministic CBOR list, its first item a word. The link is
SHA-256 of the link before, the length and the body; the check is the first 8 bytes of a SHA-256 of
the link before and the length, so that a damaged length is not taken for an unfinished record. A
call returns when its record is on disk (fsync). A record that a crash left unfinished at the end
was never reported as written: it is dropped. Anything else that does not fit is damage.

Whoever opens a log names its first line, its domain, and the errors of its own that are raised.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocols import wire
from protocols.errors import MalformedMessageError

MAX_RECORD_BYTES = 2**24
_LENGTH_BYTES, _CHECK_BYTES, _LINK_BYTES = 4, 8, 32
_HEADER_BYTES = _LENGTH_BYTES + _CHECK_BYTES
_OWNER_ONLY = 0o600
_CHUNK = 2**20

Fault = Callable[[str, object], Exception]


@dataclass(frozen=True, slots=True)
class LogFaults:
    """The errors that a log raises, each made from what must hold and what came.

    Attributes:
        locked: Another process, or object, has it open.
        damaged: It does not fit itself.
        storage: It cannot be read or written.
    """

    locked: Fault
    damaged: Fault
    storage: Fault


@dataclass(frozen=True, slots=True)
class LogFormat:
    """What one kind of log is called on disk.

    Attributes:
        first_line: Its first line, with the line's end.
        domain: Separates its hashes from all others.
    """

    first_line: bytes
    domain: bytes

    @property
    def first_link(self) -> bytes:
        """Link before the first record, 32 bytes."""
        return hashlib.sha256(self.domain + self.first_line).digest()

    def header(self, link: bytes, length: int) -> bytes:
        """Return what stands in front of a body of `length` bytes after `link`."""
        prefix = length.to_bytes(_LENGTH_BYTES, "big")
        check = hashlib.sha256(self.domain + b"length\0" + link + prefix).digest()
        return prefix + check[:_CHECK_BYTES]

    def record(self, link: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the record of a body after `link`, and its own link."""
        header = self.header(link, len(body))
        following = hashlib.sha256(
            self.domain + b"record\0" + link + header[:_LENGTH_BYTES] + body
        ).digest()
        return header + body + following, following


class ChainedLog:
    """A log that is open in one process. `replay` has to be run through before anything is written.

    Args:
        path: The file; made if it is missing, its folder must be there.
        form: Its first line and its domain.
        faults: What it raises: `locked` here, `damaged` while replaying, `storage` always.
    """

    def __init__(self, path: Path, *, form: LogFormat, faults: LogFaults) -> None:
        self._path = path
        self._form = form
        self._faults = faults
        self._link = form.first_link
        self._file = -1
        self._is_broken = False
        self._process = os.getpid()
        with self.storage("be opened"):
            self._open()

    @property
    def head(self) -> bytes:
        """Link of the last record, 32 bytes: it commits to all of them and to their order."""
        return self._link

    def replay(self) -> Iterator[list[Any]]:
        """Read every record, oldest first; drop one that a crash left unfinished at the end."""
        with self.storage("be read"):
            size = os.fstat(self._file).st_size
            place = self._read_first_line()
        while place < size:
            with self.storage("be read"):
                body, place = self._read_record(place, size)
            if body is not None:
                yield body

    def append(self, body: list[Any]) -> None:
        """Write a record and wait until it is on disk."""
        # A lock is shared with who was forked after it was taken.
        if self._file < 0 or self._is_broken or os.getpid() != self._process:
            raise self._faults.storage("a journal must be open to be written", "one that is not")
        data = wire.encode_value(body)
        if len(data) > MAX_RECORD_BYTES:
            raise self._faults.storage(
                f"a record must have at most {MAX_RECORD_BYTES} bytes", len(data)
            )
        record, link = self._form.record(self._link, data)
        with self.writing():
            _write_all(self._file, record)
            os.fsync(self._file)
        self._link = link

    def close(self) -> None:
        """Let go of the file; nothing more can be written."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """After a write that failed nobody knows what is on disk: only opening anew tells."""
        try:
            with self.storage("be written"):
                yield
        except BaseException:
            self._is_broken = True
            raise

    @contextmanager
    def storage(self, what: str) -> Iterator[None]:
        """Say in an error of the owner's what the operating system could not do."""
        try:
            yield
        except OSError as error:
            raise self._faults.storage(f"a journal must {what}", error.strerror) from error

    # Opening ----------------------------------------------------------------------------------

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, _OWNER_ONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._file, _OWNER_ONLY)
        except BlockingIOError as error:
            self.close()
            raise self._faults.locked("a journal must be open once", "a second time") from error
        except OSError:
            self.close()
            raise

    def _read_first_line(self) -> int:
        first_line = self._form.first_line
        found = os.pread(self._file, len(first_line), 0)
        if found != first_line:
            if not first_line.startswith(found):
                raise self._faults.damaged("a journal must begin with its first line", "another")
            os.ftruncate(self._file, 0)  # a crash cut the very first write short
            _write_all(self._file, first_line)
            os.fsync(self._file)
            sync_folder(self._path.parent)
            sync_folder(self._path.parent.parent)
        return len(first_line)

    def _read_record(self, place: int, size: int) -> tuple[list[Any] | None, int]:
        """Return the record at `place` and where the next one begins; None if it was unfinished."""
        header = os.pread(self._file, _HEADER_BYTES, place)
        if len(header) < _HEADER_BYTES:
            return self._cut(place, size)
        length = int.from_bytes(header[:_LENGTH_BYTES], "big")
        if header != self._form.header(self._link, length) or length > MAX_RECORD_BYTES:
            # A file may grow before its content is there: zeros were never written by us.
            if self._is_zero(place, size):
                return self._cut(place, size)
            raise self._faults.damaged("a record must begin as it was written", "otherwise")
        end = place + _HEADER_BYTES + length + _LINK_BYTES
        if end > size:
            return self._cut(place, size)
        data = os.pread(self._file, length, place + _HEADER_BYTES)
        stored = os.pread(self._file, _LINK_BYTES, end - _LINK_BYTES)
        record, link = self._form.record(self._link, data)
        if stored != link:
            if end == size and not any(stored):
                return self._cut(place, size)
            raise self._faults.damaged("a record must follow from those before it", "another")
        assert len(record) == end - place
        body = self._decoded(data)
        self._link = link
        return body, end

    def _cut(self, place: int, size: int) -> tuple[None, int]:
        os.ftruncate(self._file, place)
        os.fsync(self._file)
        return None, size

    def _decoded(self, data: bytes) -> list[Any]:
        try:
            body = wire.decode_value(data)
        except MalformedMessageError as error:
            raise self._faults.damaged("a record must be readable", "another") from error
        if type(body) is not list:
            raise self._faults.damaged("a record must be a list", "another")
        return body

    def _is_zero(self, place: int, size: int) -> bool:
        while place < size:
            chunk = os.pread(self._file, min(_CHUNK, size - place), place)
            if any(chunk) or not chunk:
                return False
            place += len(chunk)
        return True


def write_file(path: Path, *pieces: bytes) -> None:
    """Write a file whole or not at all, for its owner's eyes, and wait until it is on disk.

    Args:
        path: Where.
        pieces: Its content, one after another.
    """
    partial = path.with_suffix(".partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(partial, flags, _OWNER_ONLY)
    try:
        for piece in pieces:
            _write_all(file, piece)
        os.fsync(file)
    finally:
        os.close(file)
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names of files in a folder are on disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
