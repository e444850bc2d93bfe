"""A hospital whose records vote: nothing is trained, new patients vote, and who left does not."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import PartyRefusedError
from party.decision.own_votes import OwnVotes
from party.errors import DataChangedError, ErasureError, Reason, SiteError
from party.owner import open_records
from party.page import views
from party.service import PartyService
from party.site import erasure
from party.site.held_out_patients import is_held_out
from party.site.own_table import add
from party.site.patient_tags import patient_tags
from party.site.people_decisions import Subject
from party.site.site import Site
from party.site.tasks import fetch_task
from party.site.training import (
    folder_of,
    load_teachers,
    ready_teachers,
    record_voters,
    teachers_digest,
)
from party.storage.patient_votes import tags_by
from party.storage.site_schema import PatientVotesRow
from pate_fed.accounting import CappedGaussianMaxEvent
from pate_fed.accounting.costs import neighbors
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.data.csv_file import read_csv
from pate_fed.data.task import LearningTask
from pate_fed.teachers.neighbors_ensemble import NeighborsEnsemble
from pate_fed.votes import TeacherWeights, cap_votes
from tests.support.federation import MemoryTransport
from tests.support.hospital_services import Hospitals, ledger_of, make_hospitals
from tests.support.hospital_site import (
    LABEL,
    PATIENT,
    PATIENTS,
    make_site,
    public_task,
    write_own_table,
)
from tests.test_party.test_tasks import Door

LEAVER, CAP, CLASSES = "p7", 2, 2
LATER = (32, 35, 42)


def voting(site: Site, **changed: Any) -> Site:
    return site.save(replace(site.settings, teacher_model="neighbors", **changed))


@pytest.fixture
def task(tmp_path: Path) -> LearningTask:
    return public_task(tmp_path)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "own").mkdir()
    table = write_own_table(tmp_path / "own" / "own.csv")
    made, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)
    return voting(made)


def named(patient: str) -> str:
    """The name by which a patient's votes are counted: an id is one in its own column alone."""
    return f"{PATIENT} {patient}"


def expected(site: Site, task: LearningTask) -> dict[str, NDArray[np.int64]]:
    """The votes of a simulation's voters, by patient."""
    records = task.encode(read_csv(Path(site.data.file)), patient_column=PATIENT)
    rows: dict[str, list[int]] = {}
    for row, patient in enumerate(records.unit_ids):
        rows.setdefault(patient, []).append(row)
    ensemble = NeighborsEnsemble()
    ensemble.fit(
        [records.select(own) for own in rows.values()],
        classes=task.classes,
        rng=np.random.default_rng(1),
        public=task.pool.views,
    )
    return dict(zip(map(named, rows), ensemble.vote(task.pool.views), strict=True))


def remove(site: Site, patient: str = LEAVER) -> Site:
    with site.open_database() as database:
        return erasure.remove_patient(
            site,
            patient,
            database=database,
            is_run_open=lambda _: False,
            by="M. Curie",
            clock=time.time,
            random_bytes=secrets.token_bytes,
        )[0]


# One hospital -----------------------------------------------------------------------------------


def test_patients_vote_as_in_a_simulation_and_nothing_is_trained_or_kept(
    site: Site, task: LearningTask
) -> None:
    voters, patients = record_voters(site, task)
    found = dict(zip(patients, voters.vote(task.pool.views), strict=True))
    wanted = expected(site, task)

    assert site.settings.teachers == PATIENTS == len(found)
    assert found.keys() == wanted.keys()
    for patient, votes in wanted.items():
        np.testing.assert_array_equal(found[patient], votes)
    assert sum(int((votes < CLASSES).sum()) for votes in found.values()) > 0
    for ready in (load_teachers, lambda *of: ready_teachers(*of, random_bytes=secrets.token_bytes)):
        np.testing.assert_array_equal(
            ready(site, task).vote(task.pool.views), voters.vote(task.pool.views)
        )
    assert not folder_of(site, task).exists()


def test_a_new_patient_votes_without_any_training(site: Site, task: LearningTask) -> None:
    digest, table = teachers_digest(site, task), Path(site.data.file)
    table.write_text(table.read_text("utf-8") + "new,50,male,yes\n", encoding="utf-8")
    with pytest.raises(DataChangedError):
        record_voters(site, task)
    site, _ = add(site, table, label=LABEL, patient_id=PATIENT)
    voters, patients = record_voters(site, task)

    assert patients[-1] == named("new")
    assert (voters.vote(task.pool.views)[-1] < CLASSES).any()
    assert site.settings.teachers == PATIENTS + 1
    assert teachers_digest(site, task) != digest


def test_patients_who_are_held_out_keep_a_place_and_cast_no_vote(
    site: Site, task: LearningTask
) -> None:
    site = voting(site, held_out=0.3)
    _, patients = record_voters(site, task)
    kept = {f"p{number}" for number in range(PATIENTS) if not is_held_out(f"p{number}", 0.3)}

    assert set(patients) == set(map(named, kept))
    assert len(kept) < PATIENTS == site.settings.teachers


def test_rows_without_ids_are_patients_of_their_table_alone(site: Site, task: LearningTask) -> None:
    """In another table the same row may be another patient's."""
    site, _ = add(site, Path(site.data.file), label=LABEL, patient_id=None)
    _, before = record_voters(site, task)
    lines = Path(site.data.file).read_text("utf-8").splitlines()
    other = Path(site.data.file).with_name("other.csv")
    other.write_text("\n".join([lines[0], *lines[2:]]) + "\n", encoding="utf-8")
    site, _ = add(site, other, label=LABEL, patient_id=None)
    _, after = record_voters(site, task)

    assert (len(set(before)), len(set(after))) == (2 * PATIENTS, 2 * PATIENTS - 1)
    assert not set(before) & set(after)


def test_a_hospital_that_protects_whole_hospitals_alone_has_no_voting_records(site: Site) -> None:
    with pytest.raises(SiteError):
        voting(site, policy={"units": ["party"]})


def test_who_is_removed_votes_no_more_and_nobody_is_trained_anew(
    site: Site, task: LearningTask
) -> None:
    before = expected(site, task)
    changed = remove(site)
    voters, patients = record_voters(changed, task)

    assert set(patients) == before.keys() - {named(LEAVER)}
    assert changed.settings.teachers == PATIENTS  # the place stays: nobody sees who left
    for patient, votes in zip(patients, voters.vote(task.pool.views), strict=True):
        np.testing.assert_array_equal(votes, before[patient])


def test_teachers_of_another_kind_are_not_trained_anew(site: Site, task: LearningTask) -> None:
    trained = site.save(replace(site.settings, teacher_model="auto", records_per_teacher=10))
    ready_teachers(trained, task, random_bytes=secrets.token_bytes)
    with pytest.raises(ErasureError):
        remove(voting(trained))


def test_an_audit_of_overlaps_finds_each_patient_who_may_vote(
    site: Site, task: LearningTask
) -> None:
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    found = patient_tags(site, name="North", key=bytes(32))["tasks"]

    assert found.keys() == {task.digest.hex()}
    shares = found[task.digest.hex()]
    assert {len(one) for one in shares} == {1}
    assert len({one for [one] in shares}) == PATIENTS


# Three hospitals --------------------------------------------------------------------------------


class Running:
    """Three services whose records vote, over a transport in memory; their votes are written down.

    Attributes:
        cast: Rows of counts that each hospital made, in order.
    """

    def __init__(self, hospitals: Hospitals, stack: ExitStack) -> None:
        self.hospitals, self.stack = hospitals, stack
        hospitals.sites[:] = [voting(site) for site in hospitals.sites]
        hospitals.changes |= {
            **{"patient_votes": CAP, "sigma2": 4.0},
            "weights": (TeacherWeights.equal(PATIENTS),) * 3,
        }
        self.services = [self._open(place) for place in range(3)]
        self.transport = MemoryTransport(self.services, [])
        self.cast: dict[bytes, list[NDArray[np.int64]]] = {}

    def _open(self, place: int) -> PartyService:
        service = PartyService(self.hospitals.sites[place])
        self.stack.callback(service.close)
        return service

    def close(self, place: int) -> Site:
        self.services[place].close()
        return Site.open(self.hospitals.sites[place].folder)

    def restart(self, place: int, site: Site) -> None:
        self.hospitals.sites[place] = site
        self.services[place] = self.transport.doors[place] = self._open(place)

    def set_up(self) -> Any:
        run = self.hospitals.run(self.transport, clock=time.time)
        run.set_up()
        return run

    def votes_of(self, place: int) -> NDArray[np.int64]:
        return np.concatenate(self.cast[self.hospitals.sites[place].identity.fingerprint])


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    hospitals = make_hospitals(tmp_path)
    hospitals.approve_all()
    with ExitStack() as stack:
        made, honest = Running(hospitals, stack), OwnVotes.vector

        def vector(self: OwnVotes, run: Any, batch: Any, **named: Any) -> NDArray[np.int64]:
            found = honest(self, run, batch, **named)
            rows = made.cast.setdefault(run.scope.seats[run.seat], [])
            rows.append(found.reshape(len(batch), CLASSES + 1))
            return found

        monkeypatch.setattr(OwnVotes, "vector", vector)
        yield made


def test_deployed_hospitals_cast_the_votes_of_a_simulation_within_the_cap(
    running: Running,
) -> None:
    asked = tuple(range(12))
    task, run = running.hospitals.task, running.set_up()
    for start in (0, 5, 10):
        run.ask(asked[start : start + 5])

    for place, site in enumerate(running.hospitals.sites):
        every = np.stack(list(expected(site, task).values()))[:, asked].astype(np.float64)
        capped, used = cap_votes(
            every, used=np.zeros(PATIENTS, dtype=np.int64), most=CAP, classes=CLASSES
        )
        wanted = [np.bincount(column, minlength=CLASSES + 1) for column in capped.T]
        np.testing.assert_array_equal(running.votes_of(place), wanted)
        assert (used == CAP).any()
        assert (every < CLASSES).sum() > used.sum()  # the cap left votes out
        charged = [entry.charged for entry in ledger_of(site).entries]
        assert [getattr(event, "asks", None) for event in charged] == [CAP, 0, 0]
        assert all(isinstance(event, CappedGaussianMaxEvent) for event in charged)


def test_who_is_removed_and_comes_back_has_no_vote_in_a_run_that_has_begun(
    running: Running,
) -> None:
    running.set_up().ask((0, 1, 2))
    site = running.close(0)
    table, whole = Path(site.data.file), Path(site.data.file).read_bytes()
    tag_of = tags_by(site.identity)
    removed = remove(site)
    with removed.open_database() as database, database.transaction() as connection:
        [row] = connection.execute(PatientVotesRow.__table__.select()).all()
    assert tag_of(row.scope, named("p8")) in row.tags
    each = [row.tags[start : start + 32] for start in range(0, len(row.tags), 32)]
    assert each == sorted(each)  # nobody is linked by the table's order
    assert len(row.tags) == 32 * (PATIENTS - 1)
    files = [one for one in removed.folder.iterdir() if one.is_file()]
    assert all(tag_of(row.scope, named(LEAVER)) not in one.read_bytes() for one in files)

    table.write_bytes(whole)
    back, _ = add(removed, table, label=LABEL, patient_id=PATIENT)
    running.restart(0, back)
    votes = running.services[0]._journal.patient_votes
    tags = [tag_of(row.scope, named(one)) for one in (LEAVER, "p8")]
    before = votes.used(row.scope, tags, most=CAP).tolist()
    assert before[0] == CAP > before[1]
    again = [tag_of(bytes(32), named(one)) for one in (LEAVER, "p8")]
    assert votes.used(bytes(32), again, most=CAP).tolist() == [0, 0]  # in another run both vote
    running.set_up().ask(LATER)
    rows = running.votes_of(0)
    assert (len(rows), set(rows.sum(axis=1).tolist())) == (6, {PATIENTS})
    own = expected(back, running.hospitals.task)
    every = np.stack(list(own.values())).astype(np.float64)
    leaver, none = list(own).index(named(LEAVER)), np.zeros(PATIENTS, dtype=np.int64)
    _, used = cap_votes(every[:, :3], used=none, most=CAP, classes=CLASSES)
    used[leaver] = CAP
    capped, _ = cap_votes(every[:, LATER], used=used, most=CAP, classes=CLASSES)
    wanted = [np.bincount(column, minlength=CLASSES + 1) for column in capped.T]
    np.testing.assert_array_equal(rows[3:], wanted)
    assert (every[leaver, LATER] < CLASSES).any()


def test_people_read_that_patients_vote_and_how_often(tmp_path: Path) -> None:
    hospitals = make_hospitals(tmp_path, approval="each run")
    hospitals.approve_all()
    with ExitStack() as stack:
        with pytest.raises(PartyRefusedError) as refused:
            Running(hospitals, stack).set_up()
        assert refused.value.cause == Reason.APPROVAL
        opened = stack.enter_context(open_records(hospitals.sites[0].folder))
        [asked] = [one for one in opened.approvals() if one.subject is Subject.RUN]
        cost = opened.proposal(asked).cost
        assert cost is not None
        assert cost.neighbors == neighbors("record", 1, patient_votes=CAP)
        assert cost.run_epsilon == pytest.approx(gdp_epsilon(np.sqrt(2 * CAP) / 4.0, 1e-5))
        assert views.data_sets(opened)["records_vote"]
