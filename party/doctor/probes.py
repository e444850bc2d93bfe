"""The machine and the network as the doctor meets them; tests put others in their place."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from party.site.joining import ask_membership
from party.site.membership import SiteMembership
from party.site.site import DATABASE_FILE, Site
from party.storage import has_node
from pate_fed.nodes import free_disk
from protocols.membership_messages import Membership

_TIMEOUT_S = 10.0
_MEMORY_FILE = Path("/proc/meminfo")
_CARD_FILES = ("nvidia[0-9]*", "kfd", "dxg")
"""Files that drivers of graphics cards put below /dev, on Linux and in its place on Windows."""


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=_TIMEOUT_S)


def _free_memory() -> int | None:
    try:
        lines = _MEMORY_FILE.read_text("ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _graphics_cards() -> Sequence[str]:
    if not any(next(Path("/dev").glob(one), None) for one in _CARD_FILES):
        return ()
    from pate_fed.teachers.torch_ensemble import graphics_cards  # noqa: PLC0415 - takes seconds

    return graphics_cards()


def _require_room(site: Site) -> None:
    with site.open_database() as database:
        database.require_room()


def _has_node(site: Site) -> bool:
    return has_node(site.path(DATABASE_FILE))


def _port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's
    return True


@dataclass(frozen=True, slots=True)
class PartyProbes:
    """The doctor's questions to the world.

    `resolve` and `connect` raise `OSError`, `membership` `JoinError`, `require_room`
    `StorageError`. `free_memory` is None where nobody says; `user` is our own number.
    """

    clock: Callable[[], float] = time.time
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    resolve: Callable[[str, int], Sequence[str]] = _resolve
    connect: Callable[[str, int], socket.socket] = _connect
    membership: Callable[[SiteMembership], Membership] = ask_membership
    free_disk: Callable[[Path], int] = free_disk
    require_room: Callable[[Site], None] = _require_room
    has_node: Callable[[Site], bool] = _has_node
    free_memory: Callable[[], int | None] = _free_memory
    graphics_cards: Callable[[], Sequence[str]] = _graphics_cards
    port_is_free: Callable[[int], bool] = _port_is_free
    is_running: Callable[[int], bool] = _is_running
    version_of: Callable[[str], str] = version
    python: str = field(default_factory=platform.python_version)
    user: int = field(default_factory=os.geteuid)
