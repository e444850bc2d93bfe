"""A hospital's folder and table for tests, without a coordinator."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.certificates import make_ca
from coordinator.federation.enrollment import Enrollment
from party.site.membership import NODE_KEYS
from party.site.site import IDENTITY_KEY, Site
from party.site.status_file import FederationStatus, Status
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from protocols import wire
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.invitation import Invitation
from protocols.membership_messages import Membership, MembershipQuery, NamedTally

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LABEL, PATIENT = "sick", "patient"
PATIENTS = 40
"""Of a table."""

SLUG = "lung-study"
"""What a site calls its membership of the federation below."""


def invitation_of(
    coordinator: PublicIdentity,
    party: str = "North",
    *,
    federation: str = "lung study",
    address: str = "127.0.0.1:1",
    ca: str = "",
    tally: NamedTally | None = None,
) -> Invitation:
    """An invitation whose CA is good; nobody can reach its coordinator."""
    return Invitation(
        federation=federation,
        party=party,
        address=address,
        ca_certificate=ca or make_ca(federation, now=NOW).certificate.decode(),
        coordinator_key=coordinator.key,
        token=bytes(16),
        expires_at=2**31,
        tally_name=tally.name if tally else "",
        tally_key=tally.identity.key if tally else b"",
    )


def membership_of(
    party: bytes, peers: Mapping[str, PublicIdentity] | None = None, **changed: Any
) -> Membership:
    """A coordinator's answer to a hospital, as its door takes it."""
    named = dict(peers or {})
    fields: dict[str, Any] = {
        "federation": "lung study",
        "state": "member",
        "answered_at": int(NOW.timestamp()),
        "audit_head": b"",
        "open_runs": (),
        "tally_name": "",
        "tally_key": b"",
        **changed,
    }
    return Membership(
        party=party,
        peer_names=tuple(named),
        peer_keys=tuple(identity.key for identity in named.values()),
        **fields,
    )


def key_files(site: Site) -> list[Path]:
    """Where all keys of a site lie, or should."""
    nodes = [one.path(name) for one in site.memberships for name in NODE_KEYS]
    return [site.path(IDENTITY_KEY), *nodes]


def make_site(
    folder: Path,
    *,
    teachers: int = 4,
    address: str = "coordinator.example.org:8443",
    ca: bytes = b"",
) -> Site:
    """A site that joined nobody; with `write_own_table` it has so many teachers."""
    coordinator = SigningIdentity.generate().public
    site = Site.create(folder, invitation_of(coordinator, address=address, ca=ca.decode()))
    return site.save(replace(site.settings, records_per_teacher=PATIENTS // teachers))


def with_teachers(site: Site, number: int) -> Site:
    """A site with so many teachers, by its table; without one as if it had one."""
    settings = site.settings
    if not settings.data.patients:
        settings = replace(settings, data=replace(settings.data, patients=number))
    teaching = round(settings.data.patients * (1 - settings.held_out))
    settings = replace(settings, records_per_teacher=max(1, teaching // number))
    assert settings.teachers == number
    return site.save(settings)


def tell_votes(
    enrollment: Enrollment, site: Site, *, votes: int | None = None, after_s: int = 0
) -> None:
    """Let a coordinator hear how many votes a hospital has, as its node says; or others later."""
    joined = site.membership()
    query = MembershipQuery(
        coordinator=joined.coordinator.fingerprint,
        sender=site.identity.public.fingerprint,
        asked_at=int(time.time()) + after_s,
        audit_head=b"",
        goes_on_from=b"",
        version="1.2.3",
        votes=site.settings.teachers if votes is None else votes,
        data_sets=(),
        named_votes=(),
    )
    enrollment.answer_membership(wire.sign(query, site.identity).frame)


def with_membership(state: str, at: float, pid: int, *, tasks: int = 0, **said: Any) -> Status:
    """The status of a node whose SuperNode in its only federation runs."""
    return Status(
        state, at, pid, tasks=tasks, federations={SLUG: FederationStatus("ready", **said)}
    )


def at_address(site: Site, address: str) -> Site:
    """A site whose only coordinator is elsewhere."""
    joined = site.membership()
    moved = replace(joined.settings, address=address)
    return site.save(site.settings.with_membership(joined.name, moved))


def write_own_table(path: Path, *, patients: int = PATIENTS, seed: int = 5) -> Path:
    """Two visits of each patient; whoever is older is sick."""
    rng = np.random.default_rng(seed)
    lines = [f"{PATIENT},age,sex,{LABEL}"]
    for patient in range(patients):
        is_sick = patient % 2
        for _ in range(2):
            age = 35 + 30 * is_sick + rng.normal(0, 3)
            sex = "male" if rng.random() < 0.5 else "female"
            lines.append(f"p{patient},{age:.3f},{sex},{'yes' if is_sick else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def public_task(folder: Path, *, classes: tuple[str, ...] = ("no", "yes")) -> LearningTask:
    """The task of people whom everybody may know."""
    rng = np.random.default_rng(6)
    lines = ["age,sex"]
    for _ in range(60):
        lines.append(f"{rng.uniform(20, 80):.3f},{'male' if rng.random() < 0.5 else 'female'}")
    path = folder / "public.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return make_task(path, label=LABEL, classes=classes)
