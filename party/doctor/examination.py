"""All checks, in the order in which people would mend what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

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
from party.errors import EnrollmentError
from party.site import Site
from protocols.messages import Membership

_Checks = tuple[tuple[str, Callable[[Site, Surroundings], Check]], ...]

_FOLDER: _Checks = (
    ("database", check_database),
    ("peers", check_peers),
    ("CA", check_certificate),
    ("approved pools", check_tasks),
)

_MEMBERSHIP: _Checks = (("membership", check_membership),)

_CHECKS: _Checks = (
    ("versions", check_versions),
    ("file rights", check_rights),
    ("disk", check_disk),
    ("memory", check_memory),
    ("graphics card", check_graphics_card),
    ("port", check_port),
    ("data", check_data),
    ("teacher", check_teacher),
    *_FOLDER,
)


def examine(site: Site, around: Surroundings) -> Iterator[Check]:
    """Make all checks, whatever each of them finds.

    Args:
        site: The hospital's folder.
        around: The machine and the network.
    """
    yield from _made(_CHECKS, site, around)
    has_arrived = True
    for check in check_network(site, around):
        has_arrived = has_arrived and check.state != FAIL
        yield check
    if not has_arrived:
        around = replace(around, membership=_nobody)
    yield from _made(_MEMBERSHIP, site, around)


def examine_standing(site: Site, around: Surroundings) -> Iterator[Check]:
    """Make the checks that take no time: how the site stands.

    Args:
        site: The hospital's folder.
        around: The machine, and what the coordinator says; nothing else is asked of the network.
    """
    return _made((*_MEMBERSHIP, *_FOLDER), site, around)


def _nobody(_: Site) -> Membership:
    raise EnrollmentError("the way to the coordinator must be open", "one that ended before")


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
