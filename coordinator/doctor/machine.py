"""Checks of the machine: disk, the service and its ports, the database."""

from __future__ import annotations

from contextlib import closing

from coordinator.certificates import days_left, read_certificate
from coordinator.database import Database
from coordinator.doctor.folder import FEW_DAYS
from coordinator.doctor.probes import CoordinatorProbes
from coordinator.errors import CertificateError, CoordinatorError, DatabaseVersionError, HomeError
from coordinator.federation.home import DATABASE_FILE, LOOPBACK, SETTINGS_FILE, FederationHome
from coordinator.federation.readiness import what_is_missing
from pate_fed.nodes import check_room
from pate_fed.nodes.checks import Finding, fail, ok, warn
from pate_fed.nodes.notices import check_notices


def check_disk(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """See `check_room`."""
    return check_room(around.free_disk(home.folder), folder="the federation's folder")


def check_service(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """Check that the service runs and answers; if not, whether it could run."""
    return _serves(home, around) if around.is_served(home) else _could_serve(home, around)


def check_tally(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """Check that the pinned tally takes a connection, and for how long."""
    card = home.tally
    if card is None:
        return ok("The federation has no tally: hospitals trust the coordinator, or enough others.")
    if not around.is_tally_there(home):
        said = f"The tally of {card.name} does not answer at {card.address}."
        return fail(said, "Runs of verified votes wait for it: ask its people for their doctor.")
    left = int(days_left(card.certificate.encode(), now=around.clock()))
    said = f"The tally of {card.name} answers; its certificate holds for {left} days."
    if left < FEW_DAYS:
        return warn(said, "A new tally is needed, and a federation that pins it.")
    return ok(said)


def check_notifications(home: FederationHome, around: CoordinatorProbes) -> Finding:  # noqa: ARG001
    """See `check_notices`."""
    return check_notices(home.settings.notify, home.folder)


def check_database(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """Open the database as it is, and try to write."""
    file = home.path(DATABASE_FILE)
    if not home.settings.database and file.exists() and file.stat().st_uid != around.user:
        said = f"{DATABASE_FILE} is another user's, and was not opened: that could lock it out."
        return fail(said, "Run this as the folder's user.")
    try:
        with closing(Database(home.database_url)) as database:
            database.try_to_write()
    except HomeError as error:
        return fail(f"{error}.", "Unset the variable, or correct it.")
    except DatabaseVersionError as error:
        said = f"The database is of another version ({error.code}): {error}."
        return fail(said, "See the page on errors; nothing was changed.")
    except CoordinatorError as error:
        said = f"The database cannot be used ({error.code}): {error}."
        return fail(said, "See the page on backing up and restoring.")
    return ok("The database is of this version, and can be written.")


def _serves(home: FederationHome, around: CoordinatorProbes) -> Finding:
    settings = home.settings
    parts = around.readiness(home)
    if parts is None:
        said = f"The service runs, but says nothing at port {settings.metrics_port} of loopback."
        return fail(said, "If it did not start just now, see its log and restart it.")
    missing = what_is_missing(parts)
    if missing:
        said = f"The service runs, but {'; '.join(missing)}."
        return fail(said, "See its log.")
    try:
        shown = read_certificate(around.certificate(home))
        is_shown = shown == read_certificate(home.server_certificate)
    except (OSError, CertificateError, HomeError) as error:
        why = type(error).__name__
        said = f"The service runs, but its public port {settings.port} does not answer ({why})."
        return fail(said, "See its log, and the rules of this machine's firewall.")
    if not is_shown:
        said = "The service shows another certificate than server.crt."
        return warn(said, "Restart it after `pate-fed renew`.")
    return ok(f"The service runs, and its public port {settings.port} answers.")


def _could_serve(home: FederationHome, around: CoordinatorProbes) -> Finding:
    settings = home.settings
    why = around.why_not_ours(settings.host, 0)
    if why:
        said = f"host {settings.host} is no address of this machine ({why})."
        advice = f"Correct host in {SETTINGS_FILE}; 0.0.0.0 serves at all addresses."
        return fail(said, advice)
    ports = [
        (settings.host, settings.port),
        *((LOOPBACK, port) for port in (settings.admin_port, settings.metrics_port)),
        (LOOPBACK, settings.health_port),
    ]
    whys = [(host, port, around.why_not_ours(host, port)) for host, port in ports]
    taken = [f"{port} of {host} ({why})" for host, port, why in whys if why]
    if taken:
        said = f"No service runs, and it could not: it cannot have port {', '.join(taken)}."
        advice = f"End the program that has it, or choose another in {SETTINGS_FILE}."
        return fail(said, advice)
    numbers = ", ".join(str(port) for _, port in ports)
    said = f"No service runs; its ports {numbers} are free."
    return ok(said, "`pate-fed serve` starts it.")
