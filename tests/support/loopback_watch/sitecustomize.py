"""Loaded by every Python process that finds this folder on PYTHONPATH: notes whom it speaks to.

One line for each start of a process and for each name or address that Python resolves, connects
to, sends to or binds, in the file that LOOPBACK_WATCH names. Nothing is hindered.
"""

from __future__ import annotations

import json
import os
import sys

_WATCHED = {
    "socket.connect": 1,
    "socket.bind": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
    "socket.getnameinfo": 0,
}
"""Audit events, and which argument says whom."""


def _note(what: str, whom: object) -> None:
    line = json.dumps([os.getpid(), what, repr(whom)]) + "\n"
    file = os.open(os.environ["LOOPBACK_WATCH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    place = _WATCHED.get(event)
    if place is not None:
        _note(event, arguments[place])


if "LOOPBACK_WATCH" in os.environ:
    _note("started", " ".join(sys.orig_argv))
    sys.addaudithook(_hear)
