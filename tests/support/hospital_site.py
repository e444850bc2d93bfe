"""A hospital's folder and table for tests, without a coordinator."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.federation.certificates import make_ca
from party.site.folder import IDENTITY_KEY, Site
from party.site.membership import NODE_KEYS
from party.site.status_file import FederationStatus, Status
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from protocols.enrollment import Invitation
from protocols.identity import SigningIdentity

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LABEL, PATIENT = "sick", "patient"

SLUG = "lung-study"
"""What a site calls its membership of the federation below."""


def invitation(*, address: str = "coordinator.example.org:8443", ca: bytes = b"") -> Invitation:
    """An invitation of nobody's, whose CA is good."""
    return Invitation(
        federation="lung study",
        party="North",
        address=address,
        ca_certificate=(ca or make_ca("lung study", now=NOW).certificate).decode(),
        coordinator_key=SigningIdentity.generate().public.key,
        token=bytes(16),
        expires_at=int(NOW.timestamp()) + 3600,
    )


def key_files(site: Site) -> list[Path]:
    """Where all keys of a site lie, or should."""
    nodes = [one.path(name) for one in site.memberships for name in NODE_KEYS]
    return [site.path(IDENTITY_KEY), *nodes]


def make_site(folder: Path, *, teachers: int = 4, address: str = "", ca: bytes = b"") -> Site:
    """A site that joined nobody."""
    invited = invitation(address=address or "coordinator.example.org:8443", ca=ca)
    site = Site.create(folder, invited)
    return site.save(replace(site.settings, teachers=teachers))


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


def write_own_table(path: Path, *, patients: int = 40, seed: int = 5) -> Path:
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
