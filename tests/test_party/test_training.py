"""Teachers: trained once on whole patients, kept, and refused when anything changed since."""

from __future__ import annotations

import json
import secrets
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from party.errors import DataChangedError, DataError, TeachersError
from party.site.own_table import add
from party.site.site import DataSettings, Site, SiteSettings
from party.site.task_review import review_task
from party.site.tasks import fetch_task
from party.site.training import (
    folder_of,
    load_teachers,
    of_another_table,
    ready_teachers,
    teachers_digest,
)
from pate_fed.data.new_task import make_task
from pate_fed.data.reading import Reading
from pate_fed.data.task import LearningTask
from pate_fed.errors import InvalidCellError, TooFewRecordsError
from pate_fed.teachers import TeacherEnsemble
from pate_fed.teachers.direction_ensemble import DirectionEnsemble
from pate_fed.teachers.own_teacher import pinned
from pate_fed.teachers.sklearn_ensemble import SklearnEnsemble
from tests.support.hospital_site import LABEL, PATIENT, make_site, public_task, write_own_table
from tests.support.markers import sampled

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_own_table(tmp_path / "own.csv")


@pytest.fixture
def site(tmp_path: Path, table: Path) -> Site:
    return add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)[0]


@pytest.fixture
def task(tmp_path: Path) -> LearningTask:
    return public_task(tmp_path)


def never(_: int) -> bytes:
    raise AssertionError("no randomness is needed")


class TestTraining:
    def test_teachers_learn_and_are_kept(self, site: Site, task: LearningTask) -> None:
        told: list[tuple[int, int]] = []
        fixed = iter([bytes(range(32))])  # ten patients a teacher: chance counts
        trained = ready_teachers(
            site,
            task,
            random_bytes=lambda _: next(fixed),
            tell=lambda done, total: told.append((done, total)),
        )
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
        votes = trained.vote(task.pool.views)
        ages = task.inputs[:, 0]
        old = np.abs(ages - np.median(ages)) > 0.5
        assert (votes[:, old] == (ages[old] > np.median(ages))).mean() > 0.9
        kept = ready_teachers(Site.open(site.folder), task, random_bytes=never)
        np.testing.assert_array_equal(kept.vote(task.pool.views), votes)

    def test_a_patient_moves_one_vote(
        self, site: Site, task: LearningTask, table: Path, tmp_path: Path
    ) -> None:
        """Columns are scaled, and votes shared out over classes, by public rows alone."""
        fixed = iter([bytes(range(2, 34))] * 2)  # of this deal the change shows
        votes = [
            ready_teachers(site, task, random_bytes=lambda _: next(fixed)).vote(task.pool.views)
        ]
        other_table = tmp_path / "other.csv"
        rows = [
            f"p0,{20 + place},other,yes" if row.startswith("p0,") else row
            for place, row in enumerate(table.read_text("utf-8").splitlines())
        ]
        other_table.write_text("\n".join(rows) + "\n", encoding="utf-8")
        other, _ = add(make_site(tmp_path / "other"), other_table, label=LABEL, patient_id=PATIENT)
        votes.append(
            ready_teachers(other, task, random_bytes=lambda _: next(fixed)).vote(task.pool.views)
        )
        assert (votes[0] != votes[1]).any(axis=1).sum() == 1
        assert np.abs((votes[1] == 1).mean(axis=1) - 0.5).max() < 0.02

    def test_files_are_for_the_owner_alone(self, site: Site, task: LearningTask) -> None:
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        folder = folder_of(site, task)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    def test_no_seed_is_kept(self, site: Site, task: LearningTask) -> None:
        drawn: list[bytes] = []

        def draw(count: int) -> bytes:
            drawn.append(secrets.token_bytes(count))
            return drawn[-1]

        ready_teachers(site, task, random_bytes=draw)
        content = b"".join(path.read_bytes() for path in folder_of(site, task).iterdir())
        assert drawn
        for seed in drawn:
            assert seed not in content
            assert seed.hex().encode() not in content
            assert str(int.from_bytes(seed, "big")).encode() not in content

    def test_a_crash_before_the_end_keeps_nothing(
        self, site: Site, task: LearningTask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object) -> Path:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(Path, "rename", no_room)
            with pytest.raises(TeachersError, match="No space"):
                ready_teachers(site, task, random_bytes=secrets.token_bytes)
        assert not folder_of(site, task).exists()
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        assert load_teachers(site, task).teachers == 4

    def test_two_at_once_train_one_and_the_same(self, site: Site, task: LearningTask) -> None:
        """Else both would write one folder, and one of them vote with teachers that none keeps."""
        drawn = threading.Event()

        def draw(count: int) -> bytes:
            drawn.set()
            return secrets.token_bytes(count)

        with ThreadPoolExecutor(1) as second:
            begun: list[Future[TeacherEnsemble]] = []

            def begin_second(done: int, _: int) -> None:
                if done == 1:
                    begun.append(second.submit(ready_teachers, site, task, random_bytes=draw))
                    assert not drawn.wait(0.2)

            first = ready_teachers(
                site, task, random_bytes=secrets.token_bytes, tell=begin_second
            ).vote(task.pool.views)
            np.testing.assert_array_equal(begun[0].result().vote(task.pool.views), first)
        assert not drawn.is_set()

    def test_what_killed_trainings_left_is_removed(self, site: Site, task: LearningTask) -> None:
        for name in (folder_of(site, task).name, "another"):
            left = site.path("teachers", f".{name}.partial")
            left.mkdir()
            (left / "0.bin").write_bytes(b"half of")
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        assert [path.name for path in site.path("teachers").iterdir()] == [task.digest.hex()]
        assert load_teachers(site, task).teachers == 4

    def test_a_table_that_nobody_registered_trains_nobody(
        self, tmp_path: Path, task: LearningTask
    ) -> None:
        with pytest.raises(DataError):
            ready_teachers(make_site(tmp_path / "new"), task, random_bytes=never)

    def test_a_table_that_changed_since_trains_nobody(
        self, site: Site, task: LearningTask, table: Path
    ) -> None:
        table.write_text(table.read_text("utf-8").replace("p1,", "p2,"), encoding="utf-8")
        with pytest.raises(DataChangedError):
            ready_teachers(site, task, random_bytes=never)

    def test_another_tasks_classes_are_named(self, site: Site, tmp_path: Path) -> None:
        with pytest.raises(InvalidCellError, match="'sick'"):
            ready_teachers(
                site, public_task(tmp_path, classes=("benign", "malignant")), random_bytes=never
            )

    def test_another_label_is_named(self, site: Site, task: LearningTask, table: Path) -> None:
        site, _ = add(site, table, label="sex", patient_id=PATIENT)
        with pytest.raises(DataError, match="'sick'"):
            ready_teachers(site, task, random_bytes=never)

    def test_every_teacher_has_a_patient(self, site: Site, task: LearningTask) -> None:
        counted = replace(site.settings.data, patients=410)
        site = site.save(replace(site.settings, data=counted))
        with pytest.raises(TooFewRecordsError):
            ready_teachers(site, task, random_bytes=secrets.token_bytes)


class TestNumbers:
    """The number of teachers and their kind are public: nothing known of a patient counts."""

    @pytest.mark.parametrize(
        ("patients", "held_out", "records", "teachers"),
        [
            pytest.param(0, 0.0, 8, 0, id="no table"),
            pytest.param(3, 0.0, 8, 1, id="fewer than a teacher's"),
            pytest.param(15, 0.0, 8, 1, id="not enough for two"),
            pytest.param(16, 0.0, 8, 2, id="two"),
            pytest.param(1_000, 0.0, 5, 200, id="a large hospital"),
            pytest.param(40, 0.25, 8, 3, id="some held out"),
            pytest.param(3, 0.5, 8, 1, id="most held out"),
        ],
    )
    def test_it_follows_from_the_number_of_patients(
        self, patients: int, held_out: float, records: int, teachers: int
    ) -> None:
        data = DataSettings(patients=patients)
        settings = SiteSettings(data=data, held_out=held_out, records_per_teacher=records)
        assert settings.teachers == teachers
        alone = replace(settings, policy={"units": ["party"]})
        assert alone.teachers == min(1, teachers)  # noise hides a hospital's only vote

    @pytest.mark.parametrize("seed", range(5))
    def test_other_patients_in_the_place_of_some_change_neither(
        self, tmp_path: Path, task: LearningTask, seed: int
    ) -> None:
        """Else votes of other patients' teachers would tell who is there."""
        lines = write_own_table(tmp_path / "own.csv").read_text("utf-8").splitlines()
        changed = [
            line.replace("p7,", f"{seed}x,") if line.startswith("p7,") else line for line in lines
        ]
        # With more rows, too, than the one whose place he takes.
        changed += [f"{seed}x,{age},male,yes" for age in range(60)]
        found = []
        for name, rows in (("here", lines), ("there", changed)):
            table = tmp_path / f"{name}.csv"
            table.write_text("\n".join(rows) + "\n", encoding="utf-8")
            made = make_site(tmp_path / name)
            site = made.save(replace(made.settings, held_out=0.3, records_per_teacher=4))
            site, _ = add(site, table, label=LABEL, patient_id=PATIENT)
            trained = ready_teachers(site, task, random_bytes=lambda _: bytes(range(32)))
            found.append((trained.teachers, type(trained)))
        assert found == [(7, DirectionEnsemble)] * 2

    @pytest.mark.parametrize(
        ("records", "kind"),
        [
            pytest.param(8, "DirectionEnsemble", id="a few patients each"),
            pytest.param(40, "SklearnEnsemble", id="one of many patients"),
        ],
    )
    def test_teachers_of_a_few_patients_are_directions(
        self, site: Site, task: LearningTask, records: int, kind: str
    ) -> None:
        site = site.save(replace(site.settings, records_per_teacher=records))
        trained = ready_teachers(site, task, random_bytes=secrets.token_bytes)
        kept = load_teachers(Site.open(site.folder), task)
        assert [type(one).__name__ for one in (trained, kept)] == [kind] * 2
        np.testing.assert_array_equal(kept.vote(task.pool.views), trained.vote(task.pool.views))

    def test_a_hospital_of_three_patients_has_a_teacher(
        self, tmp_path: Path, task: LearningTask
    ) -> None:
        table = write_own_table(tmp_path / "few.csv", patients=3)
        made = make_site(tmp_path / "small")
        site, _ = add(made, table, label=LABEL, patient_id=PATIENT)
        trained = ready_teachers(site, task, random_bytes=secrets.token_bytes)
        assert trained.vote(task.pool.views).shape == (1, len(task.inputs))
        assert type(trained) is type(load_teachers(site, task)) is SklearnEnsemble


def other_data(site: Site, table: Path) -> Site:
    table.write_text(table.read_text("utf-8") + "p99,50,male,yes\n", encoding="utf-8")
    return add(site, table, label=LABEL, patient_id=PATIENT)[0]


def changed_file(site: Site, table: Path) -> Site:
    table.write_text(table.read_text("utf-8") + "p99,50,male,yes\n", encoding="utf-8")
    return site


def spoil(name: str) -> Callable[[Site, Path], Site]:
    def change(site: Site, table: Path) -> Site:
        (path,) = site.path("teachers").glob(f"*/{name}")
        path.write_bytes(path.read_bytes() + b" ")
        return site

    return change


def edit_manifest(**changes: object) -> Callable[[Site, Path], Site]:
    def change(site: Site, table: Path) -> Site:
        (path,) = site.path("teachers").glob("*/manifest.json")
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
        return site

    return change


def remove(name: str) -> Callable[[Site, Path], Site]:
    def change(site: Site, table: Path) -> Site:
        (path,) = site.path("teachers").glob(f"*/{name}")
        path.unlink()
        return site

    return change


@sampled()
@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param(other_data, TeachersError, id="another table was registered"),
        pytest.param(changed_file, DataChangedError, id="the table changed"),
        pytest.param(
            lambda site, _: site.save(replace(site.settings, records_per_teacher=13)),
            TeachersError,
            id="another number of teachers",
        ),
        pytest.param(
            lambda site, _: site.save(replace(site.settings, teacher_model="svm")),
            TeachersError,
            id="another kind of teacher",
        ),
        pytest.param(spoil("teacher-0002.safetensors"), TeachersError, id="a model's byte"),
        pytest.param(spoil("teachers.json"), TeachersError, id="the index"),
        pytest.param(remove("teacher-0003.safetensors"), TeachersError, id="a model is gone"),
        pytest.param(remove("manifest.json"), TeachersError, id="the manifest is gone"),
        pytest.param(edit_manifest(files=[]), TeachersError, id="no files"),
        pytest.param(edit_manifest(files={"../x": ""}), TeachersError, id="a file elsewhere"),
        pytest.param(edit_manifest(schema_version=2), TeachersError, id="another version"),
    ],
)
def test_kept_teachers_are_refused_after_a_change(
    site: Site,
    task: LearningTask,
    table: Path,
    change: Callable[[Site, Path], Site],
    error: type[Exception],
) -> None:
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    site = change(site, table)
    with pytest.raises(error):
        ready_teachers(site, task, random_bytes=never)


OWN_CODE = """
from sklearn.naive_bayes import GaussianNB

class Own(GaussianNB):
    pass

def teacher():
    return Own()
"""

VOTE = """
import sys
from pathlib import Path
from party.site.site import Site
from party.site.tasks import read_learning_task
from party.site.training import load_teachers

site = Site.open(Path(sys.argv[1]))
task = read_learning_task(site, bytes.fromhex(sys.argv[2]))
print(load_teachers(site, task).vote(task.pool.views).tolist())
"""


@pytest.mark.slow
def test_code_beside_the_table_is_trained_and_votes_in_another_process(
    site: Site, table: Path, task: LearningTask
) -> None:
    fetch_task(site, SimpleNamespace(fetch_pool=lambda _: task.to_bytes()), task.pool.digest)
    code = table.parent / "hearts.py"
    code.write_text(OWN_CODE)
    name = pinned("hearts:teacher", site.settings.data_folders)
    site = site.save(replace(site.settings, teacher_model=name))
    trained = ready_teachers(site, task, random_bytes=secrets.token_bytes)
    command = [sys.executable, "-c", VOTE, str(site.folder), task.pool.digest.hex()]
    child = partial(subprocess.run, command, capture_output=True, text=True, cwd=ROOT)
    assert json.loads(child(check=True).stdout) == trained.vote(task.pool.views).tolist()
    code.write_text(f"{OWN_CODE}# changed")
    assert review_task(site, task).faults  # before anybody approves
    failed = child(check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "InvalidParameterError" in failed.stderr


def test_teachers_serve_every_pool_of_their_task(site: Site, task: LearningTask) -> None:
    trained = ready_teachers(site, task, random_bytes=secrets.token_bytes)
    later = replace(task, rows=task.rows.pick(range(20, 60)))
    assert later.pool.digest != task.pool.digest
    kept = ready_teachers(site, later, random_bytes=never)
    votes = trained.vote(task.pool.views)
    np.testing.assert_array_equal(kept.vote(later.pool.views), votes[:, 20:])
    assert teachers_digest(site, later) == teachers_digest(site, task)


def test_teachers_of_one_task_do_not_serve_another(site: Site, task: LearningTask) -> None:
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    other = replace(task, schema=replace(task.schema, name="another"))
    with pytest.raises(TeachersError):
        load_teachers(site, other)
    folder_of(site, task).rename(folder_of(site, other))
    with pytest.raises(TeachersError, match="task"):
        load_teachers(site, other)


class TestOtherForms:
    """Whatever the export looks like, teachers are those of one clean file."""

    CLEAN = ("patient", "age", "sex", "crp", "sick")

    def write(self, folder: Path, form: str, part: int) -> tuple[Path, Reading]:
        rng = np.random.default_rng(part)
        rows = []
        for place in range(24):
            is_sick = place % 2
            age, crp = 40 + 30 * is_sick + rng.normal(0, 3), 1000 * rng.random()
            rows.append((f"p{part}-{place}", age, "mf"[place % 2], crp, "ny"[is_sick]))
        if form == "parquet":
            pa = pytest.importorskip("pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")

            columns = dict(zip(self.CLEAN, map(list, zip(*rows, strict=True)), strict=True))
            columns["crp"] = [round(one, 2) for one in columns["crp"]]
            columns["age"] = [round(one, 1) for one in columns["age"]]
            path = folder / f"{part}.parquet"
            parquet.write_table(pa.table(columns), path)
            return path, Reading()
        path = folder / f"{form}-{part}.csv"
        if form == "semicolons":
            lines = [
                f"{who};{age:.1f};{sex};{crp:,.2f};{label}".replace(",", "_")
                .replace(".", ",")
                .replace("_", ".")
                for who, age, sex, crp, label in rows
            ]
            path.write_bytes("\n".join([";".join(self.CLEAN), *lines]).encode("utf-16"))
            return path, Reading(separator=";", decimal=",")
        lines = [f"{who},{age:.1f},{sex},{crp:.2f},{label}" for who, age, sex, crp, label in rows]
        path.write_text("\n".join([",".join(self.CLEAN), *lines, ""]), encoding="utf-8")
        return path, Reading()

    def teachers(self, folder: Path, form: str, part: int, task: LearningTask) -> dict[str, bytes]:
        path, reading = self.write(folder, form, part)
        site = make_site(folder / f"site {form} {part}", teachers=20)
        site, _ = add(site, path, label="sick", patient_id="patient", reading=reading)
        fixed = iter([bytes(range(part, part + 32))])
        trained = ready_teachers(site, task, random_bytes=lambda _: next(fixed))
        assert trained.teachers == site.settings.teachers > 1
        return trained.dump()

    def test_three_forms_at_three_hospitals_teach_as_one_clean_file_does(
        self, tmp_path: Path
    ) -> None:
        public, _ = self.write(tmp_path, "plain", 99)
        task = make_task(public, label="sick", classes=("n", "y"), ignored=["patient"])
        assert task.columns == ("age", "crp", "sex")
        for part, form in enumerate(("semicolons", "parquet", "plain")):
            clean = self.teachers(tmp_path, f"clean{part}", part, task)
            assert self.teachers(tmp_path, form, part, task) == clean

    def test_a_hospital_of_one_class_votes(self, tmp_path: Path, task: LearningTask) -> None:
        path = tmp_path / "one.csv"
        rows = [f"p{row},{40 + row},male,no" for row in range(3)]
        path.write_text("\n".join([f"{PATIENT},age,sex,{LABEL}", *rows]), encoding="utf-8")
        site, _ = add(make_site(tmp_path / "site"), path, label=LABEL, patient_id=PATIENT)
        assert review_task(site, task).faults == ()
        votes = ready_teachers(site, task, random_bytes=secrets.token_bytes).vote(task.pool.views)
        assert votes.shape == (1, len(task.inputs))
        assert set(votes.ravel().tolist()) <= {0, 1}

    def test_a_task_takes_the_data_set_that_it_asks_for(
        self, site: Site, tmp_path: Path, task: LearningTask
    ) -> None:
        other = tmp_path / "eyes.csv"
        rows = [f"p{row},{30 + row},female,{'yes' if row % 2 else 'no'}" for row in range(8)]
        other.write_text("\n".join([f"{PATIENT},age,sex,{LABEL}", *rows]), encoding="utf-8")
        add(site.using("eyes"), other, label=LABEL, patient_id=PATIENT)
        site = Site.open(site.folder)
        asked = LearningTask(replace(task.schema, data_set="eyes"), task.rows)
        assert asked.digest != task.digest
        assert site.votes == {"": 4, "eyes": 1}
        assert ready_teachers(site, task, random_bytes=secrets.token_bytes).teachers == 4
        assert ready_teachers(site, asked, random_bytes=secrets.token_bytes).teachers == 1
        assert load_teachers(site, asked).teachers == 1
        assert of_another_table(site) == ()
        nobody = LearningTask(replace(task.schema, data_set="ears"), task.rows)
        with pytest.raises(DataError):
            ready_teachers(site, nobody, random_bytes=secrets.token_bytes)


def test_a_class_that_the_task_does_not_list_is_refused_before_approval(
    tmp_path: Path, task: LearningTask
) -> None:
    path = tmp_path / "t.csv"
    rows = [f"p{row},{40 + row},male,{('no', 'yes', 'MAYBE')[row % 3]}" for row in range(60)]
    path.write_text("\n".join([f"{PATIENT},age,sex,{LABEL}", *rows]), encoding="utf-8")
    site, _ = add(make_site(tmp_path / "site"), path, label=LABEL, patient_id=PATIENT)
    [fault] = review_task(site, task).faults
    assert "--map" in str(fault)
    with pytest.raises(InvalidCellError):
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
    reading = Reading(renamed=("MAYBE=no",))
    site, _ = add(site, path, label=LABEL, patient_id=PATIENT, reading=reading)
    assert review_task(site, task).faults == ()
    # Or its author knows the spelling.
    spelled = LearningTask(replace(task.schema, spellings=(("maybe",), ())), task.rows)
    site, _ = add(site, path, label=LABEL, patient_id=PATIENT)
    assert review_task(site, spelled).faults == ()
    assert spelled.schema.class_of("Maybe") == 0
