"""Checks of the machine: disk, memory, graphics card, versions, file rights, ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from party.doctor.probes import PartyProbes
from party.site.membership import MEMBERSHIPS_FOLDER, NODE_KEYS, SiteMembership
from party.site.site import DATABASE_FILE, IDENTITY_KEY, Site
from party.site.status_file import FILE, known_status
from pate_fed.nodes import GIB, check_owner_only, check_room, unlocked_libraries
from pate_fed.nodes.checks import Finding, fail, ok, warn
from pate_fed.nodes.notices import MAIL_SECRET, WEBHOOK_SECRET
from pate_fed.version import __version__

LEAST_MEMORY, WANTED_MEMORY = GIB, 2 * GIB
FLOWER = "1.41"
LEAST_PYTHON = (3, 11)
_GUARDED = IDENTITY_KEY, DATABASE_FILE, MAIL_SECRET, WEBHOOK_SECRET


def check_disk(site: Site, around: PartyProbes) -> Finding:
    """See `check_room`."""
    return check_room(around.free_disk(site.folder), folder="the site's folder")


def check_memory(site: Site, around: PartyProbes) -> Finding:  # noqa: ARG001 - checks look alike
    """Look for memory."""
    free = around.free_memory()
    if free is None:
        return warn(
            "This system does not say how much memory is free.",
            f"See that it is {WANTED_MEMORY // GIB} GiB.",
        )
    said = f"{free / GIB:.1f} GiB of memory are free."
    if free < LEAST_MEMORY:
        return fail(said, f"Free {LEAST_MEMORY // GIB} GiB or more.")
    if free < WANTED_MEMORY:
        return warn(said, f"{WANTED_MEMORY // GIB} GiB are better for training.")
    return ok(said)


def check_graphics_card(site: Site, around: PartyProbes) -> Finding:  # noqa: ARG001
    """Tell of graphics cards; none is needed."""
    cards = around.graphics_cards()
    if not cards:
        return ok("There is no graphics card, and none is needed.")
    return ok(f"{len(cards)} graphics card(s) are there, and none is needed.")


def check_versions(site: Site, around: PartyProbes) -> Finding:  # noqa: ARG001
    """Check that the versions understand each other."""
    flower = around.version_of("flwr")
    said = f"pate-fed {__version__}, Flower {flower}, Python {around.python}."
    if tuple(int(part) for part in around.python.split(".")[:2]) < LEAST_PYTHON:
        return fail(said, "Install Python 3.11 or later.")
    if not f"{flower}.".startswith(f"{FLOWER}."):
        return fail(
            said, f"Install Flower {FLOWER}: another one is turned away by the coordinator."
        )
    others = unlocked_libraries(around.version_of)
    if others:
        return warn(
            f"{said} Other versions than those of requirements.txt: {', '.join(others)}.",
            "Install the program again as the how-to says, with `pip install --require-hashes`.",
        )
    return ok(f"{said} All libraries have the versions of requirements.txt.")


def check_rights(site: Site, around: PartyProbes) -> Finding:
    """See `check_owner_only`."""
    anew = "leave the federation and join it anew"
    return check_owner_only(site.folder, _guarded(site), user=around.user, anew=anew)


def check_port(joined: SiteMembership, around: PartyProbes) -> Finding:
    """Check that the port between our two processes is free, or in use by them."""
    port = joined.settings.node_port
    if around.port_is_free(port):
        return ok(f"Port {port} on loopback is free.")
    node = known_status(joined.site.path(FILE))
    if node is not None and node.is_alive(now=around.clock()) and around.is_running(node.pid):
        return ok(f"Port {port} on loopback is this site's own: its node runs.")
    return fail(
        f"Port {port} on loopback is taken.",
        "Choose another (`pate-party policy set node_port`), or end the program that has it.",
    )


def _guarded(site: Site) -> Iterator[Path]:
    yield site.folder
    for path in sorted(site.folder.iterdir()):
        if path.is_dir() or path.name in _GUARDED:
            yield path
    for path in sorted(site.path(MEMBERSHIPS_FOLDER).glob("*")):
        yield path
        yield from (path / name for name in NODE_KEYS if (path / name).exists())
