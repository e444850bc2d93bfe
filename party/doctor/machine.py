"""Checks of the machine: disk, memory, graphics card, versions, file rights, ports."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from party.doctor.surroundings import Surroundings
from party.membership import MEMBERSHIPS_FOLDER, NODE_KEYS, SiteMembership
from party.site import DATABASE_FILE, IDENTITY_KEY, Site
from party.status_file import FILE, known_status
from pate_fed import __version__
from pate_fed.nodes import FAIL, OK, WARN, Check

GIB = 2**30
LEAST_DISK, WANTED_DISK = GIB, 5 * GIB
LEAST_MEMORY, WANTED_MEMORY = GIB, 2 * GIB
FLOWER = "1.41"
LEAST_PYTHON = (3, 11)


def check_disk(site: Site, around: Surroundings) -> Check:
    """Look for room: a disk that is full stops a run, for what is charged is written first."""
    free = around.free_disk(site.folder)
    said = f"{free / GIB:.1f} GiB are free where the site's folder is."
    if free < LEAST_DISK:
        return Check("disk", FAIL, said, f"Free {LEAST_DISK // GIB} GiB or more.")
    if free < WANTED_DISK:
        return Check("disk", WARN, said, f"{WANTED_DISK // GIB} GiB last longer.")
    return Check("disk", OK, said)


def check_memory(site: Site, around: Surroundings) -> Check:  # noqa: ARG001 - checks look alike
    """Look for memory."""
    free = around.free_memory()
    if free is None:
        return Check(
            "memory",
            WARN,
            "This system does not say how much memory is free.",
            f"See that it is {WANTED_MEMORY // GIB} GiB.",
        )
    said = f"{free / GIB:.1f} GiB of memory are free."
    if free < LEAST_MEMORY:
        return Check("memory", FAIL, said, f"Free {LEAST_MEMORY // GIB} GiB or more.")
    if free < WANTED_MEMORY:
        return Check("memory", WARN, said, f"{WANTED_MEMORY // GIB} GiB are better for training.")
    return Check("memory", OK, said)


def check_graphics_card(site: Site, around: Surroundings) -> Check:  # noqa: ARG001
    """Tell of graphics cards; none is needed."""
    cards = around.graphics_cards()
    if not cards:
        return Check("graphics card", OK, "There is no graphics card, and none is needed.")
    return Check(
        "graphics card", OK, f"{len(cards)} graphics card(s) are there, and none is needed."
    )


def check_versions(site: Site, around: Surroundings) -> Check:  # noqa: ARG001
    """Hold versions to those that understand each other."""
    flower = around.version_of("flwr")
    said = f"pate-fed {__version__}, Flower {flower}, Python {around.python}."
    if tuple(int(part) for part in around.python.split(".")[:2]) < LEAST_PYTHON:
        return Check("versions", FAIL, said, "Install Python 3.11 or later.")
    if not f"{flower}.".startswith(f"{FLOWER}."):
        return Check(
            "versions",
            FAIL,
            said,
            f"Install Flower {FLOWER}: another one is turned away by the coordinator.",
        )
    return Check("versions", OK, said)


def check_rights(site: Site, around: Surroundings) -> Check:
    """Look who may read what is secret."""
    open_to_others = [
        path.relative_to(site.folder).as_posix() or "."
        for path in _guarded(site)
        if _is_open(path, around.user)
    ]
    if open_to_others:
        return Check(
            "file rights",
            FAIL,
            f"Others than the node's user own or may read: {', '.join(open_to_others)}.",
            "Make the node's user the owner; `chmod -R go= ` the site's folder. If others may "
            "have read a key, leave the federation and join it anew.",
        )
    return Check("file rights", OK, "What is secret can be read by its owner alone.")


def check_port(joined: SiteMembership, around: Surroundings) -> Check:
    """Look whether the port between our two processes is free, or theirs."""
    port = joined.settings.node_port
    if around.port_is_free(port):
        return Check("port", OK, f"Port {port} on loopback is free.")
    node = known_status(joined.site.path(FILE))
    if node is not None and node.is_alive(now=around.clock()) and around.is_running(node.pid):
        return Check("port", OK, f"Port {port} on loopback is this site's own: its node runs.")
    return Check(
        "port",
        FAIL,
        f"Port {port} on loopback is taken.",
        "Choose another (`pate-party policy set node_port`), or end the program that has it.",
    )


def _guarded(site: Site) -> Iterator[Path]:
    yield site.folder
    for path in sorted(site.folder.iterdir()):
        if path.is_dir() or path.name in (IDENTITY_KEY, DATABASE_FILE):
            yield path
    for path in sorted(site.path(MEMBERSHIPS_FOLDER).glob("*")):
        yield path
        yield from (path / name for name in NODE_KEYS if (path / name).exists())


def _is_open(path: Path, user: int) -> bool:
    found = path.lstat()
    return found.st_uid != user or bool(stat.S_IMODE(found.st_mode) & 0o077)
