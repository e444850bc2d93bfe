"""Records vote where everything is real: `pate-fed serve`, its SuperLink, `pate-party start`.

A hospital is killed with -9 in the middle. That caps hold at each moment of a vote is tried without
Flower, by `test_killed_voters`.
"""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from coordinator.operator import Coordinator
from coordinator.runs.queue import ENDED
from party.site.site import Site
from party.storage.site_schema import PatientVotesRow
from pate_fed.accounting import CappedGaussianMaxEvent
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from tests.support.command import labels_in
from tests.support.hospital_services import NAMES, ledger_of
from tests.support.hospital_site import LABEL, PATIENTS
from tests.support.whole_federation import (
    CLASSES,
    SOUTH,
    enroll,
    whole_federation,
)

pytestmark = pytest.mark.exhaustive

CAP, QUERIES, BATCH, SIGMA, EPSILON = 2, 20, 4, 1.0, 50.0
SICK_FROM = 50.0


def write_pool(path: Path) -> list[float]:
    """Public people whose ages lie as the patients' do; return these ages."""
    rng = np.random.default_rng(8)
    ages = [35 + 30 * (row % 2) + rng.normal(0, 3) for row in range(QUERIES)]
    rows = [f"{age:.6f},{('male', 'female')[rng.integers(2)]}" for age in ages]
    path.write_text("\n".join(("age,sex", *rows)) + "\n", encoding="utf-8")
    return ages


def votes_in(site: Site) -> list[int]:
    """Votes of each patient that a hospital has on record; none before its first batch."""
    with site.open_database() as database, database.transaction() as connection:
        rows = connection.execute(PatientVotesRow.__table__.select()).all()
    return [vote for row in rows for vote in np.frombuffer(row.votes, "<u4").tolist()]


def test_records_vote_over_a_superlink_within_their_caps_whatever_is_killed(
    tmp_path: Path,
) -> None:
    pool = tmp_path / "voters.csv"
    ages = write_pool(pool)
    rule = (
        *("--teacher", "neighbors", "--votes-per-patient", CAP, "--sigma2", SIGMA),
        *("--batch-size", BATCH, "--epsilon", EPSILON),
    )
    with whole_federation(tmp_path) as federation:
        federation.serve()
        enroll(federation, teacher_model="neighbors")
        federation.start_hospitals(*NAMES)
        federation.prepare(pool)
        asked = ("--queries", pool, "--label", LABEL, "--classes", ",".join(CLASSES))
        federation.pate_fed("run", "--name", "voters", "--select", "all", "--detach", *asked, *rule)
        federation.wait_for(lambda: federation.answered("voters") >= BATCH)
        south = federation.hospitals[SOUTH]
        south.node.kill()
        before = votes_in(south.site)
        assert 0 < sum(before) < CAP * len(before)
        federation.start_hospitals(SOUTH)
        run = federation.wait_for_run("voters", lambda run: run.state in ENDED)
        assert (run.state.value, run.progress.answered) == ("done", QUERIES)
        price = gdp_epsilon(math.sqrt(2 * CAP) / SIGMA, 1e-5)
        assert run.progress.epsilon == pytest.approx(price, rel=1e-12)
        for one in federation.hospitals.values():
            votes = votes_in(one.site)
            assert PATIENTS // 2 < len(votes) < PATIENTS  # a share drawn by key is held out
            assert max(votes) == CAP  # nobody above it, and it holds somebody back
            charged = [entry.charged for entry in ledger_of(one.site).entries if entry.charged]
            assert all(isinstance(each, CappedGaussianMaxEvent) for each in charged)
            assert sum(getattr(each, "asks", 0) for each in charged) == CAP
        after = votes_in(south.site)
        assert len(after) == len(before)
        assert all(now >= then for now, then in zip(after, before, strict=True))
        shown = json.loads(federation.pate_fed("status", "voters", "--format", "json"))
        assert shown["epsilon"] == pytest.approx(price, rel=1e-12)
        with closing(Coordinator(federation.home)) as coordinator:
            coordinator.export("voters", tmp_path / "out", private=True)
    labels = labels_in(tmp_path / "out")
    right = [CLASSES[int(age > SICK_FROM)] == labels[row] for row, age in enumerate(ages)]
    # A patient is near about two of these; who is killed loses the votes of a batch.
    assert np.mean(right) >= 0.8
