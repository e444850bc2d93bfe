"""Copies of an audit log elsewhere: lines of a file, or messages to syslog.

The log in the database is the original. A copy follows it from the first entry on and remembers its
place. While a target is away the place stays, and the copy catches up later. A crash may repeat an
entry, and never leaves one out. It runs beside the acts: none waits for a copy, or fails with it.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pate_fed.errors import InvalidSettingError
from pate_fed.nodes.owner_files import OWNER_ONLY, write_file
from pate_fed.nodes.terminal import one_line, place_of
from pate_fed.regular_files import MOST_SETTINGS_BYTES, read_regular

if TYPE_CHECKING:
    from pate_fed.nodes.audit_log import AuditLog

MOST_AT_ONCE: Final = 500
"""Entries of one look at the log."""

_PRIORITY: Final = 13 * 8 + 5
"""Facility 13, "log audit"; severity 5, "notice". Source: RFC 5424, section 6.2.1."""

_MOST_DATAGRAM_BYTES: Final = 8_000
_LOOK_S: Final = 1.0
_ICMP_S: Final = 0.05
"""Wait for the word of the target's machine that nobody listens there."""

_FLAGS: Final = (
    os.O_RDWR
    | os.O_APPEND
    | os.O_CREAT
    | os.O_NOFOLLOW
    | os.O_CLOEXEC
    | os.O_NONBLOCK  # a pipe without a reader is an error, not a wait
    | os.O_DSYNC
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Where the entries of an audit log are copied.

    Attributes:
        syslog: A syslog server by its IP address, "udp://192.0.2.7:514", or a socket of this
            machine, "unix:///dev/log"; empty for none. UDP is neither encrypted nor confirmed.
        file: Absolute path of a file of JSON lines; empty for none.
    """

    syslog: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if self.syslog:
            _address_of(self.syslog)
        if self.file and not Path(self.file).is_absolute():
            raise InvalidSettingError("file must be an absolute path", repr(self.file))


Deliver = Callable[[Sequence[Mapping[str, Any]]], tuple[int, str]]
"""Delivers entries; returns their number, and the fault that stopped it, if there was one."""


class Forwarder:
    """Copies a log's new entries, again and again.

    The file `places` remembers the last copied entry of each target.
    """

    def __init__(self, settings: Forwarding, log: AuditLog, *, places: Path, program: str) -> None:
        self._log = log
        self._places = places
        self._targets: dict[str, Deliver] = {}
        if settings.file:
            file = Path(settings.file)
            self._targets[f"file {file}"] = lambda tables: _to_file(file, tables)
        if settings.syslog:
            address = settings.syslog
            self._targets[f"syslog {address}"] = lambda tables: _to_syslog(
                address, tables, program=program
            )
        self._faults: dict[str, str] = {}

    def run(self, stopped: threading.Event) -> None:
        """Copy until told to stop; without a target return at once."""
        while self._targets and not stopped.wait(_LOOK_S):
            try:
                self.forward()
            except Exception as error:  # the database may be away: nothing is lost by it
                self._tell("audit log", place_of(error))
            else:
                self._tell("audit log", "")

    def forward(self) -> Mapping[str, str]:
        """Copy the entries that were not copied yet; return the fault of each target, or ""."""
        for name, deliver in self._targets.items():
            self._tell(name, self._forward_to(name, deliver))
        return dict(self._faults)

    def _forward_to(self, name: str, deliver: Deliver) -> str:
        places = _read_places(self._places)
        count, link = places.get(name, (0, b""))
        if (count, link) == self._log.end:
            return ""
        if count and not self._log.goes_on_from(count, link):
            _log.error("the audit log does not go on from its copy in %s: copied anew", name)
            count = 0
        tables = list(islice(self._log.tables(first=count + 1), MOST_AT_ONCE))
        done, fault = deliver(tables) if tables else (0, "")
        if done:
            last = tables[done - 1]
            places[name] = last["number"], bytes.fromhex(last["link"])
            fault = _write_places(self._places, places) or fault
        return fault

    def _tell(self, name: str, fault: str) -> None:
        """Log a fault once, and its end."""
        before = self._faults.get(name, "")
        self._faults[name] = fault
        if fault and fault != before:
            _log.error("audit entries wait: %s cannot be reached: %s", name, fault)
        elif before and not fault:
            _log.warning("audit entries are copied again to %s", name)


def as_line(table: Mapping[str, object]) -> str:
    """Return an entry as one line of ASCII, without its end, whatever texts it holds."""
    return json.dumps(table, sort_keys=True, allow_nan=False)


def syslog_message(table: Mapping[str, object], *, program: str, host: str) -> bytes:
    """Return an entry as one message of RFC 5424; one that is too long loses its texts."""
    kind = re.sub(r"[^a-z0-9]+", "-", str(table["act"]).lower())[:32] or "-"
    head = f"<{_PRIORITY}>1 {table['at']} {host} {program} - {kind} - "
    short = {name: value for name, value in table.items() if name != "body"}
    message = head + as_line(short)
    if len(message) > _MOST_DATAGRAM_BYTES:
        kept = {name: table[name] for name in ("number", "at", "act", "link")}
        message = head + as_line({**kept, "cut": True})
    return message.encode("ascii")


def _to_file(path: Path, tables: Sequence[Mapping[str, object]]) -> tuple[int, str]:
    done = 0
    try:
        descriptor = os.open(path, _FLAGS, OWNER_ONLY)
        try:
            _require_file(descriptor)
            for table in tables:
                _write_line(descriptor, f"{as_line(table)}\n".encode("ascii"))
                done += 1
        finally:
            os.close(descriptor)
    except OSError as error:
        return done, _said(error)
    return done, ""


def _require_file(descriptor: int) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
        _write_line(descriptor, b"\n")  # somebody cut the last line: ours begins a new one


def _write_line(descriptor: int, line: bytes) -> None:
    """Write a line whole, or not at all."""
    size = os.fstat(descriptor).st_size
    if os.write(descriptor, line) != len(line):
        os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _to_syslog(
    address: str, tables: Sequence[Mapping[str, object]], *, program: str
) -> tuple[int, str]:
    done = 0
    family, target = _address_of(address)
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as sender:
            sender.setblocking(False)  # a full queue is a fault, not a wait
            sender.connect(target)
            host = _host_name()
            for table in tables:
                sender.send(syslog_message(table, program=program, host=host))
                done += 1
            if family is not socket.AF_UNIX:
                time.sleep(_ICMP_S)
                refused = sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if refused:
                    return 0, os.strerror(refused)
    except OSError as error:
        # Over UDP the fault is of an earlier message: all go out once more.
        return done if family is socket.AF_UNIX else 0, _said(error)
    return done, ""


def _address_of(text: str) -> tuple[socket.AddressFamily, Any]:
    """Return family and address of a syslog; a name would be looked up, which may take long."""
    fault = InvalidSettingError(
        "syslog must be udp://ADDRESS:PORT with an IP address, or unix:///PATH", repr(text)
    )
    try:
        parts = urlsplit(text)
        if parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1:
            return socket.AF_UNIX, parts.path
        if parts.scheme == "udp" and parts.port and not (parts.path or parts.username):
            host = ipaddress.ip_address(parts.hostname or "")
            family = socket.AF_INET if host.version == 4 else socket.AF_INET6
            return family, (str(host), parts.port)
    except ValueError:
        raise fault from None
    raise fault


def _host_name() -> str:
    return re.sub(r"[^!-~]", "", socket.gethostname())[:255] or "-"


def _said(error: OSError) -> str:
    return one_line(error.strerror or type(error).__name__)


def _read_places(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return the last copied entry of each target; an unreadable file is a copy from the start."""
    try:
        kept = json.loads(read_regular(path, most_bytes=MOST_SETTINGS_BYTES))
        return {str(name): (int(one[0]), bytes.fromhex(one[1])) for name, one in kept.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _write_places(path: Path, places: Mapping[str, tuple[int, bytes]]) -> str:
    content = {name: [count, link.hex()] for name, (count, link) in places.items()}
    try:
        write_file(path, json.dumps(content, sort_keys=True).encode())
    except OSError as error:
        return f"{path.name} cannot be written: {_said(error)}"
    return ""
