"""Checks of the folder: files, rights, identity, secret, CA, server certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coordinator.certificates import (
    days_left,
    end_of,
    is_pair,
    is_signed_by,
    names_of,
    read_certificate,
)
from coordinator.doctor.probes import CoordinatorProbes
from coordinator.errors import CertificateError, HomeError
from coordinator.federation.home import (
    CA_KEY,
    DATABASE_FILE,
    FOLDERS,
    MAY_BE_AWAY,
    SECRET_BYTES,
    SECRETS,
    SETTINGS_FILE,
    FederationHome,
)
from pate_fed.nodes import check_owner_only
from pate_fed.nodes.checks import Finding, fail, ok, warn
from pate_fed.nodes.ports import host_and_port
from pate_fed.regular_files import read_regular

FEW_DAYS: Final = 30
_RENEW: Final = "`pate-fed renew` makes another, with ca.key put back; then restart the service."
_FROM_SAFE: Final = "Put it back from the copy in your safe: no other one will do."


def check_files(home: FederationHome, around: CoordinatorProbes) -> Finding:  # noqa: ARG001 - alike
    """Check that all files made with the folder are there; ca.key may be away."""
    wanted = {*SECRETS - MAY_BE_AWAY, "ca.crt", "server.crt", *FOLDERS}
    if not home.settings.database:
        wanted.add(DATABASE_FILE)
    missing = sorted(name for name in wanted if not home.path(name).exists())
    if missing:
        advice = (
            "Put them back from your safe or backup; folders may be made anew, with mode 0700, and "
            "the server's key and certificate by `pate-fed renew`."
        )
        return fail(f"Missing in the folder: {', '.join(missing)}.", advice)
    if home.path(CA_KEY).exists():
        said = f"All files are there, {CA_KEY} among them."
        return ok(said, "It is safer offline: only `pate-fed renew` needs it.")
    return ok(f"All files are there; {CA_KEY} is kept elsewhere.")


def check_rights(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """See `check_owner_only`."""
    return check_owner_only(
        home.folder,
        _guarded(home),
        user=around.user,
        readable=(SETTINGS_FILE,),
        anew="make the federation anew",
    )


def check_identity(home: FederationHome, around: CoordinatorProbes) -> Finding:  # noqa: ARG001
    """Read the coordinator's identity."""
    try:
        _ = home.identity
    except HomeError as error:
        return fail(f"{error}.", f"{_FROM_SAFE} Hospitals know it.")
    return ok("The coordinator's identity can be read.")


def check_secret(home: FederationHome, around: CoordinatorProbes) -> Finding:  # noqa: ARG001
    """Read the secret that service and SuperLink share."""
    try:
        size = len(home.superlink_secret)
    except HomeError as error:
        return fail(f"{error}.", _FROM_SAFE)
    if size != SECRET_BYTES:
        said = f"superlink.secret has {size} bytes in the place of {SECRET_BYTES}."
        return fail(said, _FROM_SAFE)
    return ok("superlink.secret can be read.")


def check_ca(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """Check that the CA can be read, is valid, and fits its key, if the key is here."""
    try:
        ca = home.ca_certificate
        left, ends = days_left(ca, now=around.clock()), end_of(ca)
        fits = not home.path(CA_KEY).exists() or is_pair(ca, read_regular(home.path(CA_KEY)))
    except (HomeError, CertificateError, OSError) as error:
        return fail(f"ca.crt or {CA_KEY}: {error}.", _FROM_SAFE)
    if not fits:
        said = f"{CA_KEY} is not the key of ca.crt: `pate-fed renew` would fail."
        return fail(said, _FROM_SAFE)
    said = f"The federation's CA holds until {ends:%Y-%m-%d}."
    if left <= 0:
        return fail(said, "Make a new federation; hospitals join it in the same site.")
    if left < FEW_DAYS:
        return warn(said, "Plan a new federation: hospitals have to join it.")
    return ok(said)


def check_certificate(home: FederationHome, around: CoordinatorProbes) -> Finding:
    """Check that hospitals would trust the server."""
    try:
        server = home.server_certificate
        _ = read_certificate(server)
        fits = is_pair(server, home.server_key)
        is_ours = is_signed_by(server, home.ca_certificate)
    except (HomeError, CertificateError) as error:
        return fail(f"server.crt or server.key: {error}.", _RENEW)
    if not fits:
        return fail("server.crt is not that of server.key.", _RENEW)
    if not is_ours:
        return fail("The federation's CA did not sign server.crt.", _RENEW)
    left, ends = days_left(server, now=around.clock()), end_of(server)
    if left <= 0:
        said = f"The server's certificate ended on {ends:%Y-%m-%d}: hospitals hang up."
        return fail(said, _RENEW)
    place = host_and_port(home.settings.address)
    assert place is not None
    wanted = {place[0], *home.settings.certified_hosts}
    unnamed = sorted(wanted - names_of(server))
    if unnamed:
        said = f"The server's certificate does not name {', '.join(unnamed)}: hospitals hang up."
        advice = f"See that `hosts` in {SETTINGS_FILE} has every name. {_RENEW}"
        return fail(said, advice)
    said = f"The server's certificate holds for {left:.0f} days, until {ends:%Y-%m-%d}."
    if left < FEW_DAYS:
        return warn(said, _RENEW)
    return ok(said)


def _guarded(home: FederationHome) -> Iterator[Path]:
    yield home.folder
    for path in sorted(home.folder.iterdir()):
        is_secret = path.name in SECRETS or ".db" in path.name
        if path.is_dir() or is_secret or path.name == SETTINGS_FILE:
            yield path
