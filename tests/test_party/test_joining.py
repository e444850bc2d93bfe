"""A hospital's whole way to trained teachers: join, register, fetch the task, train; over TLS."""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from party.errors import JoinError
from party.site.joining import CoordinatorDoor
from party.site.own_table import add
from party.site.peers import named_by, require_compared
from party.site.site import Site
from party.site.tasks import fetch_task
from party.site.training import ready_teachers
from pate_fed.data.csv_file import read_csv
from pate_fed.data.new_task import make_task
from protocols.fingerprint_words import spoken
from protocols.invitation import Invitation
from tests.support.hospital_services import records_of
from tests.support.hospital_site import with_teachers
from tests.support.real_data import real_data
from tests.support.served_federation import ServedFederation, served_federation

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEADER = ",".join([*(f"column-{place}" for place in range(1, 14)), "disease"])


def heart_table(folder: Path, hospital: str) -> Path:
    """A hospital's table with a header, and its label as sick or not."""
    lines = real_data(f"data/heart_disease/processed.{hospital}.data").read_text("utf-8")
    rows = [line.rpartition(",") for line in lines.split()]
    path = folder / f"{hospital}.csv"
    path.write_text(
        "\n".join([HEADER, *(f"{row},{int(label != '0')}" for row, _, label in rows)]) + "\n",
        encoding="utf-8",
    )
    return path


def join(federation: ServedFederation, folder: Path, name: str) -> Site:
    invite = federation.invite(folder, name)
    invitation = Invitation.from_json(invite.read_text("utf-8"))
    site = Site.create(folder / name, invitation)
    with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
        assert door.join(invitation.token).state == "requested"
    return site


def test_four_real_hospitals_come_to_teachers_that_know_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    tables = {name: heart_table(tmp_path, name) for name in HOSPITALS}
    # Stand in for public people: half of the first hospital's, who then are not its patients.
    lines = tables["cleveland"].read_text("utf-8").splitlines()
    public = tmp_path / "public.csv"
    public.write_text("\n".join([lines[0], *lines[1::2]]) + "\n", encoding="utf-8")
    tables["cleveland"].write_text("\n".join([lines[0], *lines[2::2]]) + "\n", encoding="utf-8")
    made = make_task(public, label="disease", classes=("0", "1"))
    truth = made.encode(read_csv(public), patient_column=None).labels

    with served_federation(tmp_path / "federation") as federation:
        digest = made.pool.digest
        federation.home.path("pools", digest.hex()).write_bytes(made.to_bytes())
        sites = {name: join(federation, tmp_path, name) for name in HOSPITALS}
        with (
            closing(CoordinatorDoor(sites["va"].membership(), clock=time.time)) as door,
            pytest.raises(JoinError),
        ):
            fetch_task(sites["va"], door, digest)  # asked to join, and not approved
        for name, site in sites.items():
            federation.approve(name, site.identity.public.fingerprint)
        votes = []
        for name, joined in sites.items():
            site, _ = add(joined, tables[name], label="disease", patient_id=None)
            site = with_teachers(site, 3)
            with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
                task = fetch_task(site, door, digest)
                pin_all(site, door, sites)
            assert task.digest == made.digest
            with records_of(site) as records:
                assert len(records.pins()) == 3
            votes.append(
                ready_teachers(site, task, random_bytes=secrets.token_bytes).vote(task.pool.views)
            )
    counts = np.concatenate(votes)
    assert counts.shape == (12, len(truth))
    # Over 200 partitions: 0.78 on average, standard deviation 0.014; a guess gets 0.54.
    assert ((counts.mean(axis=0) > 0.5) == truth).mean() > 0.65


def pin_all(site: Site, door: CoordinatorDoor, sites: dict[str, Site]) -> None:
    membership = door.membership()
    for name in membership.peer_names:
        identity = named_by(membership, name)
        heard = spoken(sites[name].identity.public.fingerprint)
        require_compared(heard, name, {name: identity.fingerprint})
        with records_of(site) as records:
            records.add_pin(name, identity, how="telephone", by="a test")
