"""The tally's doctor: files, certificate, disk, port, database, clock; it changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from coordinator.certificates import days_left, end_of, is_pair, names_of, read_certificate
from coordinator.errors import CertificateError, CoordinatorError, TallySetupError
from coordinator.tally.tally_folder import TALLY_DATABASE, TALLY_FILES, TALLY_SETTINGS, TallyFolder
from pate_fed.nodes import (
    FAIL,
    OK,
    Check,
    check_owner_only,
    check_room,
    free_disk,
    made_check,
)
from pate_fed.nodes.checks import Finding, fail, ok, warn
from pate_fed.nodes.ports import host_and_port, why_not_ours

FEW_DAYS: Final = 30
_NO_OLD_COPY: Final = "Never put an older copy in its place: let the coordinator begin anew."
_FROM_SAFE: Final = "Put it back from your safe: no other one will do."


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class TallyProbes:
    """The doctor's questions to the world.

    Attributes:
        why_not_ours: Why a port of a host is not available; "" if it is.
    """

    clock: Callable[[], datetime] = _utc_now
    user: int = field(default_factory=os.geteuid)
    free_disk: Callable[[Path], int] = free_disk
    why_not_ours: Callable[[str, int], str] = why_not_ours


def examine_tally(folder: Path, around: TallyProbes) -> Iterator[Check]:
    """Make all checks; one that finds a fault does not stop the rest."""
    try:
        opened = TallyFolder.open(folder)
    except TallySetupError as error:
        yield Check("settings", FAIL, f"{error}.", "Nothing else is looked at before that.")
        return
    said = f"{TALLY_SETTINGS} can be read: served at {opened.settings.address}."
    yield Check("settings", OK, said)
    for name, check in _CHECKS:
        yield made_check(name, partial(check, opened, around))


def _check_files(opened: TallyFolder, around: TallyProbes) -> Finding:  # noqa: ARG001 - alike
    missing = [name for name in TALLY_FILES if not opened.path(name).exists()]
    if missing:
        advice = _NO_OLD_COPY if TALLY_DATABASE in missing else _FROM_SAFE
        return fail(f"Missing in the folder: {', '.join(missing)}.", advice)
    try:
        _ = opened.identity, opened.coordinator
    except TallySetupError as error:
        return fail(f"{error}.", _FROM_SAFE)
    return ok(f"All files are there; the coordinator is that of {opened.coordinator.federation}.")


def _check_rights(opened: TallyFolder, around: TallyProbes) -> Finding:
    return check_owner_only(
        opened.folder,
        (opened.folder, *sorted(opened.folder.iterdir())),
        user=around.user,
        readable=(TALLY_SETTINGS,),
        anew="make the tally anew, and let the coordinator begin a new federation",
    )


def _check_certificate(opened: TallyFolder, around: TallyProbes) -> Finding:
    anew = "A new tally is needed, and a federation that pins it."
    try:
        key = opened.key
        fits = is_pair(key.certificate, key.private_key)
    except (TallySetupError, CertificateError) as error:
        return fail(f"{error}.", _FROM_SAFE)
    if not fits:
        return fail("The certificate is not that of the key.", _FROM_SAFE)
    place = host_and_port(opened.settings.address)
    assert place is not None
    if place[0] not in names_of(key.certificate):
        said = f"The certificate is not for {place[0]}: the coordinator hangs up."
        return fail(said, f"Write the address of the card into {TALLY_SETTINGS}.")
    left, ends = days_left(key.certificate, now=around.clock()), end_of(key.certificate)
    said = f"The certificate holds until {ends:%Y-%m-%d}."
    if left <= 0:
        return fail(said, anew)
    return warn(said, anew) if left < FEW_DAYS else ok(said)


def _check_disk(opened: TallyFolder, around: TallyProbes) -> Finding:
    return check_room(around.free_disk(opened.folder), folder="the tally's folder")


def _check_service(opened: TallyFolder, around: TallyProbes) -> Finding:
    host, port = opened.settings.host, opened.settings.port
    why = around.why_not_ours(host, port)
    if opened.is_served:
        if why:
            return ok(f"The service runs, and has port {port}.")
        return fail(f"The service runs, but port {port} is free.", "See its log, and restart it.")
    if why:
        said = f"No service runs, and it could not: it cannot have port {port} of {host} ({why})."
        advice = f"End the program that has it, or choose another in {TALLY_SETTINGS}."
        return fail(said, advice)
    return ok(f"No service runs; its port {port} is free.", "`pate-fed tally serve` starts it.")


def _check_database(opened: TallyFolder, around: TallyProbes) -> Finding:
    file = opened.path(TALLY_DATABASE)
    if file.exists() and file.stat().st_uid != around.user:
        said = f"{TALLY_DATABASE} is another user's, and was not opened: that could lock it out."
        return fail(said, "Run this as the folder's user.")
    try:
        with closing(opened.database()) as database:
            database.try_to_write()
    except CoordinatorError as error:
        said = f"The database cannot be used ({error.code}): {error}."
        return fail(said, _NO_OLD_COPY)
    return ok("The database is of this version, and can be written.")


def _check_clock(opened: TallyFolder, around: TallyProbes) -> Finding:
    now = around.clock()
    made = read_certificate(opened.key.certificate).not_valid_before_utc
    if now < made:
        said = f"The clock shows {now:%Y-%m-%d %H:%M} UTC, before the tally was made."
        return fail(said, "Set it by NTP: plans and runs end by it.")
    return ok(f"The clock shows {now:%Y-%m-%d %H:%M} UTC.", "Compare it with another one.")


_CHECKS: Final[tuple[tuple[str, Callable[[TallyFolder, TallyProbes], Finding]], ...]] = (
    ("files", _check_files),
    ("file rights", _check_rights),
    ("certificate", _check_certificate),
    ("disk", _check_disk),
    ("service", _check_service),
    ("database", _check_database),
    ("clock", _check_clock),
)
