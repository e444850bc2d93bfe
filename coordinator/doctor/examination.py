"""All checks, in the order in which an operator would mend faults; none changes a thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from coordinator.doctor.federation_state import check_hospitals, check_invitations, check_runs
from coordinator.doctor.folder import (
    check_ca,
    check_certificate,
    check_files,
    check_identity,
    check_rights,
    check_secret,
)
from coordinator.doctor.machine import (
    check_database,
    check_disk,
    check_notifications,
    check_service,
    check_tally,
)
from coordinator.doctor.probes import CoordinatorProbes
from coordinator.errors import HomeError
from coordinator.federation.home import SETTINGS_FILE, FederationHome
from coordinator.operator import Coordinator
from pate_fed.nodes import FAIL, OK, WARN, Check, made_checks
from pate_fed.nodes.checks import Finding

_HOME: Final[tuple[tuple[str, Callable[[FederationHome, CoordinatorProbes], Finding]], ...]] = (
    ("files", check_files),
    ("file rights", check_rights),
    ("identity", check_identity),
    ("secret", check_secret),
    ("CA", check_ca),
    ("certificate", check_certificate),
    ("disk", check_disk),
    ("service", check_service),
    ("tally", check_tally),
    ("notifications", check_notifications),
    ("database", check_database),
)

_STANDING: Final[tuple[tuple[str, Callable[[Coordinator, CoordinatorProbes], Finding]], ...]] = (
    ("hospitals", check_hospitals),
    ("invitations", check_invitations),
    ("runs", check_runs),
)


def examine(folder: Path, around: CoordinatorProbes) -> Iterator[Check]:
    """Make all checks; one that finds a fault does not stop the rest."""
    try:
        home = FederationHome.of_settings(folder)
    except HomeError as error:
        yield Check("settings", FAIL, f"{error}.", "Nothing else is looked at before that.")
        return
    settings = home.settings
    said = f"{SETTINGS_FILE} can be read: {settings.name}, at {settings.address}."
    yield Check("settings", OK, said)
    can_be_used = True
    for found in made_checks(_HOME, home, around):
        # The database is opened with the folder's identity, and only by its user.
        is_needed = found.name in ("identity", "database")
        can_be_used = can_be_used and not (is_needed and found.state == FAIL)
        yield found
    yield from _standing(home, around) if can_be_used else _not_looked_at()


def _standing(home: FederationHome, around: CoordinatorProbes) -> Iterator[Check]:
    with closing(Coordinator(home)) as coordinator:
        yield from made_checks(_STANDING, coordinator, around)


def _not_looked_at() -> Iterator[Check]:
    for name, _ in _STANDING:
        yield Check(name, WARN, "Not looked at: the database cannot be used.", "See above.")
