"""All checks, in the order in which people would mend faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from party.doctor import machine, records, site_state
from party.doctor.network import check_network
from party.doctor.probes import PartyProbes
from party.errors import JoinError
from party.site.membership import SiteMembership
from party.site.site import Site
from pate_fed.nodes import FAIL, Check, made_checks
from pate_fed.nodes.checks import Finding
from protocols.membership_messages import Membership

_SiteChecks = tuple[tuple[str, Callable[[Site, PartyProbes], Finding]], ...]
_MembershipChecks = tuple[tuple[str, Callable[[SiteMembership, PartyProbes], Finding]], ...]
_Asking = Callable[[SiteMembership], Membership]

_FOLDER: _SiteChecks = (
    ("database", site_state.check_database),
    ("storing", site_state.check_storing),
    ("approved pools", site_state.check_tasks),
    ("requests", site_state.check_requests),
    ("notifications", site_state.check_notifications),
)

_MACHINE: _SiteChecks = (
    ("versions", machine.check_versions),
    ("file rights", machine.check_rights),
    ("disk", machine.check_disk),
    ("memory", machine.check_memory),
    ("graphics card", machine.check_graphics_card),
)

_RECORDS: _SiteChecks = (
    ("data", records.check_data),
    ("teacher", records.check_teacher),
    ("columns", records.check_columns),
)

_LOCAL: _MembershipChecks = (("port", machine.check_port), ("CA", site_state.check_certificate))

_MEMBERSHIP: _MembershipChecks = (("membership", site_state.check_membership),)

_OTHERS: _MembershipChecks = (("peers", site_state.check_peers), ("tally", site_state.check_tally))

LOCAL_NAMES = tuple(name for name, _ in _LOCAL)
"""Checks of a membership on this machine alone."""


def examine(site: Site, around: PartyProbes) -> Iterator[Check]:
    """Make all checks of the site, then of every membership; a fault does not stop the rest."""
    yield from made_checks((*_MACHINE, *_RECORDS, *_FOLDER), site, around)
    if not site.memberships:
        yield _in_none()
    for joined in site.memberships:
        for check in _examine_one(joined, around):
            yield replace(check, federation=joined.name)


def examine_standing(site: Site, around: PartyProbes) -> Iterator[Check]:
    """Make the checks that take no time: of the network only `around.membership` is asked."""
    if not site.memberships:
        yield _in_none()
    for joined in site.memberships:
        once = replace(around, membership=_asked_once(around.membership))
        current = () if joined.has_left else (*_OTHERS, *_LOCAL[1:])
        for check in made_checks((*_MEMBERSHIP, *current), joined, once):
            yield replace(check, federation=joined.name)
    yield from made_checks(_FOLDER, site, around)


def _examine_one(joined: SiteMembership, around: PartyProbes) -> Iterator[Check]:
    if not joined.has_left:
        yield from made_checks(_LOCAL, joined, around)
        has_arrived = True
        for check in check_network(joined, around):
            has_arrived = has_arrived and check.state != FAIL
            yield check
        if not has_arrived:
            around = replace(around, membership=_nobody)
    around = replace(around, membership=_asked_once(around.membership))
    current = () if joined.has_left else _OTHERS
    yield from made_checks((*_MEMBERSHIP, *current), joined, around)


def _in_none() -> Check:
    said = "This hospital is in no federation."
    return Check("membership", FAIL, said, "`pate-party join` with an operator's invitation.")


def _asked_once(ask: _Asking) -> _Asking:
    """Give all checks of a membership the same answer, or the same error."""
    known: list[Membership | JoinError] = []

    def answered(joined: SiteMembership) -> Membership:
        if not known:
            try:
                known.append(ask(joined))
            except JoinError as error:
                known.append(error)
        if isinstance(known[0], JoinError):
            raise known[0]
        return known[0]

    return answered


def _nobody(_: SiteMembership) -> Membership:
    raise JoinError("the way to the coordinator must be open", "one that ended before")
