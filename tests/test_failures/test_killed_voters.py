"""Where records vote: a hospital is killed with -9 around its votes, and no patient votes twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from coordinator.runs.queue import RunState
from party.storage.journal import Journal
from party.storage.patient_votes import PatientVotes
from party.storage.site_schema import PatientVotesRow
from pate_fed.accounting import CappedGaussianMaxEvent, EntryState
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from tests.support.hospital_services import ledger_of
from tests.support.hospital_site import PATIENTS, tell_votes
from tests.support.process_federation import ProcessFederation, process_federation
from tests.test_failures.test_kills import live_on

pytestmark = pytest.mark.slow

CAP, QUERIES, BATCH = 3, 8, 2


def die(kind: type, name: str, *, after: bool) -> None:
    """Let this process kill itself at the first call of a method, before or after it is done."""
    honest = getattr(kind, name)

    def call(*given: object, **named: object) -> None:
        if after:
            honest(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, call)


def voting(federation: ProcessFederation) -> None:
    """Let records vote at all hospitals, which a run asks about ages and sexes."""
    rng = np.random.default_rng(1)
    sexes = ("male", "female")
    rows = [f"{rng.uniform(20, 80):.6f},{sexes[rng.integers(2)]}" for _ in range(30)]
    path = federation.folder / "first.csv"
    path.write_text("\n".join(["age,sex", *rows]) + "\n", encoding="utf-8")
    for place, site in enumerate(federation.hospitals.sites):
        changed = site.save(replace(site.settings, teacher_model="neighbors"))
        assert changed.settings.teachers == PATIENTS
        federation.hospitals.sites[place] = changed
        tell_votes(federation.coordinator.enrollment, changed, after_s=1)
    federation.publish("first", path)


def votes_in(federation: ProcessFederation, place: int) -> list[int]:
    """Votes of each patient that a hospital has on record."""
    site = federation.hospitals.sites[place]
    with site.open_database() as database, database.transaction() as connection:
        [row] = connection.execute(PatientVotesRow.__table__.select()).all()
    votes: list[int] = np.frombuffer(row.votes, "<u4").tolist()
    return votes


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        pytest.param(
            partial(die, PatientVotes, "keep", after=False), BATCH, id="charged, nothing counted"
        ),
        pytest.param(partial(die, PatientVotes, "keep", after=True), BATCH, id="counted, no y"),
        pytest.param(
            partial(die, Journal, "keep", after=True), 0, id="the y is kept, nothing left"
        ),
    ],
)
def test_a_hospital_that_is_killed_around_its_votes_keeps_the_cap(
    tmp_path: Path, change: Callable[[], None], lost: int
) -> None:
    """Every patient would vote on every query; those of a batch without a y are used up."""
    with process_federation(tmp_path, "additive") as federation:
        voting(federation)
        asked = federation.ask(
            "first",
            **{"teacher": "neighbors", "patient_votes": CAP, "queries": QUERIES},
            batch_size=BATCH,
        )
        federation.start_hospital(0, change=change)
        for place in (1, 2):
            federation.start_hospital(place)
        live_on(federation)
        assert federation.kills == 1
        run = federation.run(asked.name)
        assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)
        for place, site in enumerate(federation.hospitals.sites):
            assert votes_in(federation, place) == [CAP] * PATIENTS
            entries = ledger_of(site).entries
            charged = [one.charged for one in entries if one.charged is not None]
            assert all(isinstance(one, CappedGaussianMaxEvent) for one in charged)
            assert sum(getattr(one, "asks", 0) for one in charged) == CAP
            states = {one.state for one in entries}
            assert states <= {EntryState.COMMITTED, EntryState.FORFEITED, EntryState.RESERVED}
            assert len(entries) == (QUERIES + lost) // BATCH
        [request] = federation.coordinator.spending.terms().values()
        assert request.epsilon == pytest.approx(
            gdp_epsilon(np.sqrt(2 * CAP) / 3.0, 1e-5), rel=1e-12
        )
