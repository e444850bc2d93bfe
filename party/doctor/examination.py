"""All checks, in the order in which people would mend what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from party.doctor.check import FAIL, Check
from party.doctor.machine import (
    check_disk,
    check_graphics_card,
    check_memory,
    check_port,
    check_rights,
    check_versions,
)
from party.doctor.network import check_network
from party.doctor.records import check_data, check_teacher
from party.doctor.standing import (
    check_certificate,
    check_database,
    check_membership,
    check_peers,
    check_tasks,
)
from party.doctor.surroundings import Surroundings
from party.site import Site

_Checks = tuple[tuple[str, Callable[[Site, Surroundings], Check]], ...]

_STANDING: _Checks = (
    ("database", check_database),
    ("membership", check_membership),
    ("peers", check_peers),
    ("CA", check_certificate),
    ("approved pools", check_tasks),
)

_CHECKS: _Checks = (
    ("versions", check_versions),
    ("file rights", check_rights),
    ("disk", check_disk),
    ("memory", check_memory),
    ("graphics card", check_graphics_card),
    ("port", check_port),
    ("data", check_data),
    ("teacher", check_teacher),
    *_STANDING,
)


def examine(site: Site, around: Surroundings) -> Iterator[Check]:
    """Make all checks, whatever each of them finds.

    Args:
        site: The hospital's folder.
        around: The machine and the network.
    """
    yield from _made(_CHECKS, site, around)
    yield from check_network(site, around)


def examine_standing(site: Site, around: Surroundings) -> Iterator[Check]:
    """Make the checks that need no network and take no time: how the site stands.

    Args:
        site: The hospital's folder.
        around: The machine.
    """
    return _made(_STANDING, site, around)


def _made(checks: _Checks, site: Site, around: Surroundings) -> Iterator[Check]:
    for name, check in checks:
        try:
            yield check(site, around)
        except Exception as error:  # one that cannot be made must not hide the others
            yield Check(
                name,
                FAIL,
                f"This check could not be made ({type(error).__name__}).",
                "If installation and site's folder are as they were made, report it.",
            )
