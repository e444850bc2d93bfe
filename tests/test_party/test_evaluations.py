"""A hospital's part in an evaluation: who is held out, who teaches, a hostile student."""

from __future__ import annotations

import json
import re
import secrets
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import DataError, TaskError, TeachersError
from party.page import views
from party.site import erasure, evaluations, ready_tasks
from party.site.evaluations import OwnScores, held_out_records, own_scores, ready_evaluation
from party.site.held_out_patients import held_out, is_held_out, taught
from party.site.own_table import add, read_registered
from party.site.party_task import PartyTask
from party.site.people_decisions import ApprovalState, Subject
from party.site.site import SETTINGS_FILE, Site
from party.site.tasks import fetch_task
from party.site.training import folder_of, load_teachers, ready_teachers
from pate_fed.accounting import DistributedCountsEvent
from pate_fed.charges import noise_of
from pate_fed.data.dataset import Records
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidTaskError
from pate_fed.evaluation import PLACE_S, START_S, CertaintyBins, EvaluationPlan
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.planning.evaluation_settings import EvaluationSettings, EvaluationShape
from pate_fed.students import Lesson, train_student
from pate_fed.students.arrays import as_arrays
from protocols.additive import AdditiveSum
from tests.support.federation import holds_vector
from tests.support.hospital_services import ledger_of, make_hospitals, records_of
from tests.support.hospital_site import (
    LABEL,
    PATIENT,
    make_site,
    public_task,
    with_teachers,
    write_own_table,
)
from tests.test_party.test_cli import PateParty, error_code, pate_party
from tests.test_party.test_page import browser_of
from tests.test_party.test_service import Running
from tests.test_party.test_tasks import Door

__all__ = ["pate_party"]

SHARE, PATIENTS = 0.3, 120


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LearningTask:
    return public_task(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, task: LearningTask) -> Site:
    """A hospital that holds three of ten patients out."""
    folder = tmp_path_factory.mktemp("hospital")
    table = write_own_table(folder / "own.csv", patients=PATIENTS)
    site, _ = add(make_site(folder / "site"), table, label=LABEL, patient_id=PATIENT)
    site = site.save(replace(site.settings, held_out=SHARE))
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    return site


def evaluation_of(task: LearningTask, *by: str, **files: bytes) -> EvaluationTask:
    bins = CertaintyBins(np.array([0.75]), np.array([0.6, 0.9]))
    kept = {name.replace("_", ".", 1): content for name, content in files.items()}
    return EvaluationTask(
        task.digest,
        task.pool.digest,
        bins,
        by,
        kept or {"student.json": b"{}", "model.safetensors": b""},
        200,
    )


def saved_student(task: LearningTask) -> dict[str, bytes]:
    labels = (task.inputs[:, 0] > 0).astype(np.int64)
    lesson = Lesson(task.pool.views, np.arange(len(labels)), labels, 2)
    found = train_student("logistic", "table", lesson, rng=np.random.default_rng(0))
    return as_arrays(found).to_files()


def right_answers(files: Any, features: np.ndarray, *, classes: int, **_: Any) -> np.ndarray:
    """Says who is old."""
    return np.eye(classes)[(features[:, 0] > 0).astype(int)] * 0.8 + 0.1


def ready_at_once(site: Site, task: EvaluationTask, **_: Any) -> PartyTask:
    """As a node makes it ready, but for the set time."""
    return ready_evaluation(site, task, predict=right_answers, wait=lambda _: None)


# Who is held out ----------------------------------------------------------------------------------


def test_who_is_held_out_follows_from_ids_alone_and_each_counts_once() -> None:
    units = tuple(f"p{row % 500}" for row in range(1000))
    features = np.arange(1000.0)[:, None]
    records = Records(features=features, labels=np.arange(1000) % 2, unit_ids=units)
    other = replace(records, features=-features, labels=1 - records.labels)
    kept = held_out(records, SHARE)
    assert len(kept) == kept.unit_count
    assert 110 < len(kept) < 190
    assert held_out(other, SHARE).unit_ids == kept.unit_ids
    assert not set(taught(records, SHARE).unit_ids) & set(kept.unit_ids)
    assert set(taught(records, SHARE).unit_ids) | set(kept.unit_ids) == set(units)
    fewer = records.select([row for row, one in enumerate(units) if one not in ("p3", "p4")])
    left = set(kept.unit_ids) - {"p3", "p4"}
    assert set(held_out(fewer, SHARE).unit_ids) == left
    assert held_out(records, SHARE, most=20).unit_ids == kept.unit_ids[:20]
    assert set(held_out(records, 0.1).unit_ids) < set(kept.unit_ids)
    assert not len(held_out(records, 0.0))


def test_teachers_learn_from_nobody_who_is_held_out(trained: Site, task: LearningTask) -> None:
    shares = json.loads((folder_of(trained, task) / "shares.json").read_text("utf-8"))
    teaching = {patient for share in shares for patient in share}
    kept = set(held_out_records(trained, task).unit_ids)
    assert kept
    assert not teaching & kept
    assert len(teaching | kept) == PATIENTS
    assert len(kept) == len(held_out_records(trained, task))


def test_another_share_needs_new_teachers(trained: Site, task: LearningTask) -> None:
    for share in (0.0, 0.2):
        changed = replace(trained, settings=replace(trained.settings, held_out=share))
        with pytest.raises(TeachersError, match="held_out"):
            load_teachers(changed, task)
        with pytest.raises(TeachersError, match="held_out"):
            ready_at_once(changed, evaluation_of(task))


def test_a_held_out_patient_is_removed_and_no_teacher_changes(
    tmp_path: Path, task: LearningTask
) -> None:
    table = write_own_table(tmp_path / "own.csv")
    site, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)
    site = with_teachers(site.save(replace(site.settings, held_out=SHARE)), 4)
    for one in (task, evaluation_of(task)):
        fetch_task(site, Door(one.to_bytes()), one.pool.digest)
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    leaver = next(f"p{one}" for one in range(40) if is_held_out(f"p{one}", SHARE))
    before = {path.name: path.read_bytes() for path in folder_of(site, task).iterdir()}
    others = set(held_out_records(site, task).unit_ids) - {leaver}
    with site.open_database() as database:
        site, done = erasure.remove_patient(
            site,
            leaver,
            database=database,
            is_run_open=lambda _: False,
            by="M. Curie",
            clock=lambda: 1e9,
            random_bytes=secrets.token_bytes,
        )
    assert (done.rows, done.teachers, done.kept_teachers) == (2, 0, 4)
    after = {path.name: path.read_bytes() for path in folder_of(site, task).iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"manifest.json"}
    load_teachers(site, task)
    assert set(held_out_records(site, task).unit_ids) == others
    assert leaver not in read_registered(site).column(PATIENT)


# Ready -------------------------------------------------------------------------------------------


def test_rows_count_each_held_out_patient_and_the_places_left_free(
    trained: Site, task: LearningTask
) -> None:
    evaluation = evaluation_of(task, "sex", "age")
    ready = ready_at_once(trained, evaluation)
    assert ready.evaluation is not None
    patients = len(held_out_records(trained, task))
    rows = ready.evaluation.rows()
    assert rows.sum(axis=1).tolist() == [200] * 4
    assert rows[:, -1].tolist() == [200 - patients] * 4
    assert rows[0, :2].sum() > 0.9 * patients  # right on the old
    assert str(patients) not in repr(ready.evaluation)
    crowded = ready_at_once(trained, replace(evaluation, places=10))
    assert crowded.evaluation is not None
    assert crowded.evaluation.rows()[:, -1].tolist() == [0] * 4
    with pytest.raises(TaskError, match="1000000"):
        ready_at_once(trained, replace(evaluation, places=1_000_001))


@pytest.mark.parametrize("slow", [0.0, 0.01, 1.5])
def test_the_time_until_it_is_ready_follows_from_the_places_alone(
    trained: Site, task: LearningTask, slow: float
) -> None:
    """On a clock that patients move: each takes the student so long."""
    now, evaluation = 0.0, evaluation_of(task)

    def predict(files: Any, features: np.ndarray, **named: Any) -> np.ndarray:
        nonlocal now
        now += slow * len(features)
        return right_answers(files, features, **named)

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    ready_evaluation(trained, evaluation, predict=predict, clock=lambda: now, wait=wait)
    assert now == pytest.approx(START_S + PLACE_S * evaluation.places)


def test_a_table_without_patients_ids_cannot_be_counted_on(
    tmp_path: Path, task: LearningTask
) -> None:
    """One row more would change whom all others are: then one patient moves every count."""
    table = write_own_table(tmp_path / "own.csv")
    site, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=None)
    site = site.save(replace(site.settings, held_out=SHARE))
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    with pytest.raises(DataError, match="column") as found:
        held_out_records(site, task)
    assert found.value.code == "PF-344"


def test_an_evaluation_of_another_task_or_column_is_not_ready(
    trained: Site, task: LearningTask
) -> None:
    other = replace(evaluation_of(task), source=bytes(32))
    for one in (other, evaluation_of(task, "weight"), replace(other, source=task.pool.digest)):
        if one.source == task.pool.digest and not one.by:
            one = replace(one, digest=bytes(32))  # noqa: PLW2901 - of another schema
        with pytest.raises(TaskError):
            ready_at_once(trained, one)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content + b"x",
        lambda content: content[:-1],
        lambda content: content.replace(b'"version":1', b'"version":2'),
        lambda content: content.replace(b"student.json", b"../../st.json"),
        lambda content: content.replace(b"student.json", b"model.pickl"),
        lambda content: content.replace(b"[0.75]", b"[-NaN]"),
        lambda content: content.replace(b"[0.75]", b"[1e99]"[:6]),
        lambda content: content[:20] + b"\xff\xff\xff\xff" + content[24:],
        lambda content: content[:20] + b"[" * 60_000,
    ],
    ids=["more", "less", "version", "a path", "pickle", "NaN", "1e99", "length", "nesting"],
)
def test_a_document_that_is_not_as_it_was_made_is_refused(
    change: Any, task: LearningTask, tmp_path: Path
) -> None:
    content = evaluation_of(task).to_bytes()
    assert EvaluationTask.from_bytes(content).to_bytes() == content
    changed = change(content)
    try:
        digest = EvaluationTask.from_bytes(changed).pool.digest
    except InvalidTaskError:
        return
    assert digest != evaluation_of(task).pool.digest  # another question, by its own digest
    assert tmp_path


# The student -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_student_is_tried_in_a_process_of_its_own_and_beside_the_hospitals_teachers(
    trained: Site, task: LearningTask, tmp_path: Path
) -> None:
    files = saved_student(task)
    evaluation = replace(evaluation_of(task), files=files)
    found = own_scores(trained, evaluation)
    assert found.right["student"] > 0.8 * found.patients
    assert found.right["own teachers"] > 0.8 * found.patients


@pytest.mark.slow
def test_three_nodes_count_their_patients_and_a_restarted_one_sends_what_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_tasks, "ready_evaluation", ready_at_once)
    hospitals = make_hospitals(tmp_path)
    hospitals.sites = [
        site.save(replace(site.settings, held_out=SHARE)) for site in hospitals.sites
    ]
    task, form = hospitals.task, AdditiveSum()
    evaluation = replace(evaluation_of(task), places=50)
    plan = EvaluationPlan(evaluation.groupings(task.schema), 1.0, 1.0, 0.5)
    settings = EvaluationSettings(places=50)
    shape = EvaluationShape(
        name="first.evaluation",
        pool_digest=evaluation.pool.digest,
        task_digest=task.digest,
        rows=2,
        columns=plan.columns,
        parties=3,
    )
    terms = shape.terms(settings, shape.least_noise(settings, form=form), form=form)
    for place, site in enumerate(hospitals.sites):
        hospitals.approve(place)
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
    hospitals.task = evaluation  # type: ignore[assignment]
    hospitals.terms = lambda _: terms  # type: ignore[method-assign]
    hospitals.approve_all()
    with ExitStack() as stack:
        running, sent = Running(hospitals, stack), list[int]()

        def predict(place: int) -> None:
            """Wait until the student predicted one hospital's patients."""
            while evaluation.pool.digest not in running.services[place]._tasks.by_pool:
                running.wait(1.0)
                running.services[place].idle()

        def lose_once(node: int, answer: bytes) -> bytes | None:
            if node != 1 or not holds_vector(answer) or sent:
                return answer
            sent.append(node)
            running.restart(1)
            predict(1)
            return None

        for place in range(3):
            predict(place)
        running.transport.on_answer = lose_once
        run = hospitals.run(
            running.transport, clock=lambda: running.now, patience_s=60, sleep=running.wait
        )
        run.set_up()
        release = run.ask((0, 1))
        assert sent == [1]
    noise = noise_of(terms).sum_sigma(3)
    true = sum(
        evaluation.rows_of(
            task.schema,
            records := held_out_records(site, task),
            right_answers(None, records.features, classes=2),
        )
        for site in hospitals.sites
    )
    assert release.tallies is not None
    assert np.abs(release.tallies[0] - true[0]).max() < 6 * noise
    assert release.tallies.sum(axis=1) == pytest.approx([150, 150], abs=6 * noise * 9)
    for site in hospitals.sites:
        [entry] = ledger_of(site).entries
        assert entry.reserved == DistributedCountsEvent(2, terms.rule.sigma2 or 0.0, 2, 1)


def test_a_person_sees_the_comparison_and_no_small_count(
    trained: Site, task: LearningTask, pate_party: PateParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = evaluation_of(task)
    fetch_task(trained, Door(evaluation.to_bytes()), evaluation.pool.digest)
    right = {"student": 25, "own teachers": 18, "most common class": 27}
    found = [OwnScores(36, right, 14, 2), OwnScores(9, right, 7, 2)]
    monkeypatch.setattr(evaluations, "own_scores", lambda *_: found.pop(0))
    ended = pate_party("evaluation", "--site", trained.folder)
    found_first = re.findall(r"^\w.*?: .*?(\d[\d.]*)", ended.out, re.M)
    assert found_first[:3] == ["69.4", "50.0", "10"]
    digits = evaluation.pool.digest.hex()[:12]
    hidden = pate_party("evaluation", digits, "--site", trained.folder, "--format", "json")
    assert json.loads(hidden.out) == {
        "pool": evaluation.pool.digest.hex(),
        "patients": None,
        "right": None,
        "beats_own_teachers": None,
    }
    found += [OwnScores(36, right, 14, 2), OwnScores(9, right, 7, 2)]
    monkeypatch.setattr(views, "own_scores", lambda *_: found.pop(0))
    with browser_of(trained) as owner:
        owner.enter()
        link = f"results?compare={evaluation.pool.digest.hex()}"
        assert link in owner.get("results").text
        assert link in owner.get("data").text
        assert "30.0 %" in owner.get("data").text
        shown = owner.get(link).text
        assert "69.4 %" in shown
        hidden = owner.get(link).text
        assert "Fewer than 10 patients" in hidden
        assert "right on" not in hidden
        assert owner.get(f"results?compare={task.pool.digest.hex()}").status_code == 400
        assert owner.get("results?compare=../party.toml").status_code == 400
    for digits in ("ffff", "../", task.pool.digest.hex()):
        assert error_code(pate_party("evaluation", digits, "--site", trained.folder)) == "PF-360"


def test_a_person_approves_an_evaluation_in_plain_words(
    trained: Site, task: LearningTask, pate_party: PateParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = evaluation_of(task, "sex")
    digest, asking = evaluation.pool.digest, trained.membership().coordinator.fingerprint
    with records_of(trained) as records:
        records.ask(Subject.POOL, digest, tally=b"", coordinator=asking)
    monkeypatch.setattr(
        "party.site.joining.CoordinatorDoor.fetch_pool", lambda *_: evaluation.to_bytes()
    )
    shown = pate_party("approve", "--site", trained.folder).out
    assert "Evaluation  " in shown
    assert "by sex" in shown
    ended = pate_party(
        *("approve", digest.hex()[:12], "--yes", "--by", "M. Curie", "--site", trained.folder)
    )
    assert ended.code == 0, ended.err
    assert trained.path("pools", digest.hex()).is_file()
    trained.path("pools", digest.hex()).unlink()


def test_an_evaluation_that_cannot_be_counted_is_refused_before_it_is_approved(
    trained: Site, task: LearningTask, pate_party: PateParty
) -> None:
    evaluation = evaluation_of(task)
    digest, asking = evaluation.pool.digest, trained.membership().coordinator.fingerprint
    with records_of(trained) as records:
        records.ask(Subject.POOL, digest, tally=b"", coordinator=asking)
    kept, settings = trained.path("pools", digest.hex()), trained.path(SETTINGS_FILE).read_bytes()
    kept.write_bytes(evaluation.to_bytes())
    trained.save(replace(trained.settings, held_out=0.0))
    try:
        ended = pate_party("approve", digest.hex(), "--yes", "--site", trained.folder)
    finally:
        trained.path(SETTINGS_FILE).write_bytes(settings)
        kept.unlink()
    # Its teachers learned from everybody but those whom the settings held out then.
    assert (ended.code, error_code(ended)) == (5, "PF-346")
    with records_of(trained) as records:
        assert records.find(digest.hex()).state is ApprovalState.PENDING


def test_a_hospital_sees_whether_the_student_beats_its_own_teachers() -> None:
    right = {"student": 90, "own teachers": 60, "most common class": 50}
    assert OwnScores(100, right, 35, 5).verdict == "yes"
    assert OwnScores(100, right, 5, 35).verdict == "no"
    assert OwnScores(100, right, 4, 5).verdict == "not clear"
    [student, *_] = OwnScores(100, right, 35, 5).lines(floor=10)
    assert re.findall(r"[\d.]+", student) == ["90.0", "100", "95", "82.6", "94.5"]
    assert OwnScores(100, right, 35, 5).as_table(floor=11)["right"] == {
        "student": None,
        "own teachers": 60,
        "most common class": 50,
    }


def test_without_held_out_patients_there_is_nothing_to_see(
    tmp_path: Path, task: LearningTask
) -> None:
    table = write_own_table(tmp_path / "own.csv")
    site, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    with pytest.raises(DataError, match="held"):
        own_scores(site, evaluation_of(task), predict=right_answers)
    ready = ready_at_once(site, evaluation_of(task))
    assert ready.evaluation is not None
    assert not ready.evaluation.share
