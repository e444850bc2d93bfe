"""A hospital's own images: registered, held to their hash, looked at beside a task, taught."""

from __future__ import annotations

import base64
import io
import re
import secrets
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from party.doctor import FAIL, OK
from party.doctor.records import check_data, check_teacher
from party.errors import DataChangedError, DataError
from party.site.evaluations import held_out_records, ready_evaluation
from party.site.own_table import add, read_registered, require_unchanged
from party.site.site import Site
from party.site.task_review import review_task
from party.site.tasks import fetch_task, party_task
from party.site.training import load_teachers, ready_teachers, teachers_digest
from pate_fed.data.flat_columns import flat_images
from pate_fed.data.new_task import make_task
from pate_fed.data.reading import Reading
from pate_fed.data.task import LearningTask
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTaskError,
    PateFedError,
    UnreadableFileError,
)
from pate_fed.public_images import SHEET_CELL, SHEET_COLUMNS
from pate_fed.students import Lesson, train_student
from pate_fed.students.arrays import as_arrays
from tests.support.hospital_services import make_hospitals
from tests.support.hospital_site import LABEL as TABLE_LABEL
from tests.support.hospital_site import PATIENT, make_site, public_task, write_own_table
from tests.support.loopback_home import ROOT
from tests.support.own_images import (
    CLASSES,
    LABEL,
    picture,
    write_class_folders,
    write_public_images,
)
from tests.support.page_hospital import asked
from tests.test_party.test_cli import PateParty, pate_party
from tests.test_party.test_doctor import well
from tests.test_party.test_erasure import remove
from tests.test_party.test_evaluations import evaluation_of
from tests.test_party.test_page import Browser, browser_of
from tests.test_party.test_tasks import Door

__all__ = ["pate_party"]


@pytest.fixture
def task(tmp_path: Path) -> LearningTask:
    return make_task(write_public_images(tmp_path / "pool"), label=LABEL, classes=CLASSES)


def site_with(folder: Path, images: Path, **settings: object) -> Site:
    site = make_site(folder / "site")
    site = site.save(replace(site.settings, **settings))
    return add(site, images, label=LABEL, patient_id=None)[0]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_with(tmp_path, write_class_folders(tmp_path / "own"))


class TestRegistering:
    def test_patients_are_counted_and_not_images(self, tmp_path: Path) -> None:
        site = make_site(tmp_path / "site")
        own = write_class_folders(tmp_path / "own", patients=40, images=3)
        site, summary = add(site, own, label=LABEL, patient_id=None)
        assert (summary.rows, summary.patients, site.settings.data.patients) == (120, 40, 40)
        assert summary.classes == (("bright", 20), ("dark", 20))
        assert site.settings.teachers == 4

    def test_a_class_of_few_patients_is_not_counted_whatever_its_images(
        self, tmp_path: Path
    ) -> None:
        own = write_class_folders(tmp_path / "own", patients=30)
        for patient in range(3):
            place = own / "rare" / f"r{patient}"
            place.mkdir(parents=True)
            for number in range(20):
                Image.fromarray(picture(np.random.default_rng(number), 0)).save(
                    place / f"{number}.png"
                )
        _, summary = add(make_site(tmp_path / "site"), own, label=LABEL, patient_id=None)
        assert dict(summary.classes)["rare"] is None

    def test_classes_get_the_tasks_names(self, tmp_path: Path, task: LearningTask) -> None:
        own = write_class_folders(tmp_path / "own")
        (own / "dark").rename(own / "dunkel")
        how = Reading(renamed=("dunkel=dark",))
        site, summary = add(
            make_site(tmp_path / "site"), own, label=LABEL, patient_id=None, reading=how
        )
        assert dict(summary.classes) == {"bright": 20, "dark": 20}
        site = Site.open(site.folder)
        require_unchanged(site)
        assert review_task(site, task).faults == ()

    def test_a_broken_image_is_found_at_once(self, tmp_path: Path) -> None:
        own = write_class_folders(tmp_path / "own")
        (own / "dark" / "p000" / "0.png").write_bytes(b"\x89PNG and no more")
        with pytest.raises(UnreadableFileError):
            add(make_site(tmp_path / "site"), own, label=LABEL, patient_id=None)

    def test_only_the_owners_own_look_names_an_image(self, tmp_path: Path) -> None:
        own = write_class_folders(tmp_path / "own")
        listed = [f"{one.relative_to(own)},{one.parts[-3]}" for one in sorted(own.rglob("*.png"))]
        table = own / "list.csv"
        table.write_text("\n".join(("path,disk", *listed)))
        site, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=None)
        (own / "dark" / "p002" / "1.png").unlink()
        with pytest.raises(UnreadableFileError) as at_the_node:
            read_registered(site)
        assert "p002" not in str(at_the_node.value)
        with pytest.raises(UnreadableFileError, match="dark/p002/1"):
            add(site, table, label=LABEL, patient_id=None)

    def test_images_that_changed_are_refused(self, site: Site) -> None:
        one = Path(site.data.file, "dark", "p000", "0.png")
        Image.fromarray(picture(np.random.default_rng(0), 1)).save(one)
        with pytest.raises(DataChangedError):
            read_registered(site)

    def test_a_column_of_patients_is_for_a_list(self, tmp_path: Path) -> None:
        own = write_class_folders(tmp_path / "own")
        with pytest.raises(InvalidParameterError):
            add(make_site(tmp_path / "site"), own, label=LABEL, patient_id="person")


class TestBesideATable:
    """A hospital has a table and images; a task asks for one of them by its name."""

    @pytest.mark.parametrize("images_are_named", [False, True])
    def test_each_task_finds_its_records(
        self, tmp_path: Path, task: LearningTask, *, images_are_named: bool
    ) -> None:
        own = write_class_folders(tmp_path / "own")
        table = write_own_table(tmp_path / "own.csv")
        names = {"image": "scans", "table": ""} if images_are_named else {"image": "", "table": "t"}
        site = make_site(tmp_path / "site")
        site, _ = add(site.using(names["image"]), own, label=LABEL, patient_id=None)
        site = Site.open(site.folder)
        add(site.using(names["table"]), table, label=TABLE_LABEL, patient_id=PATIENT)
        site = Site.open(site.folder)
        of_table = public_task(tmp_path)
        asked = {
            "image": LearningTask(replace(task.schema, data_set=names["image"]), task.rows),
            "table": LearningTask(replace(of_table.schema, data_set=names["table"]), of_table.rows),
        }
        for kind, one in asked.items():
            assert review_task(site, one).faults == ()
            ready_teachers(site, one, random_bytes=secrets.token_bytes)
            votes = load_teachers(site, one).vote(one.pool.views)
            assert votes.shape[1] == len(one.rows)
            other = names["table" if kind == "image" else "image"]
            crossed = LearningTask(replace(one.schema, data_set=other), one.rows)
            assert any(
                isinstance(found, InvalidDataError) for found in review_task(site, crossed).faults
            )

    def test_a_patient_leaves_the_images_and_the_table_stays(
        self, tmp_path: Path, task: LearningTask
    ) -> None:
        table = write_own_table(tmp_path / "own.csv")
        own = write_class_folders(tmp_path / "own")
        site, _ = add(make_site(tmp_path / "site"), table, label=TABLE_LABEL, patient_id=PATIENT)
        site, _ = add(site.using("scans"), own, label=LABEL, patient_id=None)
        before = table.read_bytes()
        left = remove(site, "p007")
        assert left.data.rows == 78
        require_unchanged(left)
        assert table.read_bytes() == before
        require_unchanged(Site.open(site.folder))


class TestDoctor:
    def test_images_are_spoken_of_and_a_teacher_learns_from_them(self, site: Site) -> None:
        checks = [check_data(site, well()), check_teacher(site, well())]
        assert [one.state for one in checks] == [OK, OK]
        assert all("images" in one.said for one in checks)
        assert not any("table" in one.said or "rows" in one.said for one in checks)

    def test_an_image_that_changed_fails(self, site: Site) -> None:
        Path(site.data.file, "dark", "p000", "0.png").unlink()
        assert check_data(site, well()).state == FAIL


class TestATask:
    def test_every_machine_reads_one_task_from_its_bytes(self, task: LearningTask) -> None:
        again = LearningTask.from_bytes(task.to_bytes())
        assert (again.digest, again.pool.digest) == (task.digest, task.pool.digest)
        assert np.array_equal(again.inputs, task.inputs)
        assert again.to_bytes() == task.to_bytes()

    def test_a_later_pool_is_of_the_same_task(self, tmp_path: Path, task: LearningTask) -> None:
        more = write_public_images(tmp_path / "more", images=10, seed=9)
        later = make_task(more, label=LABEL, classes=CLASSES[::-1], known=[task.schema])
        assert later.digest == task.digest
        assert later.pool.digest != task.pool.digest
        again = LearningTask.from_bytes(later.to_bytes())
        assert again.pool.digest == later.pool.digest
        assert not set(later.rows.digests) & set(task.rows.digests)

    def test_an_image_is_one_question_whatever_its_file(
        self, tmp_path: Path, task: LearningTask
    ) -> None:
        folder = tmp_path / "again"
        folder.mkdir()
        with Image.open(tmp_path / "pool" / "0003.png") as image:
            image.save(folder / "another name.tif")
        later = make_task(folder, label=LABEL, classes=CLASSES, known=[task.schema])
        assert later.rows.digests == (task.rows.digests[3],)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param(b'"images":60', b'"images":61', id="an image that is not there"),
            pytest.param(b'"images":60', b'"images":-6', id="a negative number"),
            pytest.param(b'"images":60', b'"images":9**', id="no number"),
            pytest.param(b'"size":[16,16,1]', b'"size":[99999,99999,3]', id="a huge size"),
            pytest.param(b'"size":[16,16,1]', b'"size":[4,64,1]', id="too low"),
            pytest.param(b'"size":[16,16,1]', b'"size":[16,16,2]', id="two channels"),
            pytest.param(b'"size":[16,16,1]', b'"size":[16,16,true]', id="no whole number"),
            pytest.param(b'"window":[0,65535]', b'"window":[9,9]', id="an empty window"),
            pytest.param(b'"window":[0,65535]', b'"window":[0,1e5]', id="a fraction"),
            pytest.param(b'"version":1', b'"version":2', id="another version"),
            pytest.param(b'"dark"', b'"bright"', id="a class twice"),
        ],
    )
    def test_a_crafted_document_is_refused(
        self, task: LearningTask, old: bytes, new: bytes
    ) -> None:
        content = task.to_bytes()
        assert content.count(old) == 1
        length = int.from_bytes(content[20:24], "big") + len(new) - len(old)
        changed = content[:20] + length.to_bytes(4, "big") + content[24:].replace(old, new, 1)
        with pytest.raises(InvalidTaskError):
            LearningTask.from_bytes(changed)

    def test_bytes_too_few_or_too_many_are_refused(self, task: LearningTask) -> None:
        content = task.to_bytes()
        for changed in (content[:-1], content[:24], content[:10], content + bytes(100)):
            with pytest.raises(InvalidTaskError):
                LearningTask.from_bytes(changed)


class TestReviewing:
    def test_own_images_that_fit_have_no_fault(self, site: Site, task: LearningTask) -> None:
        found = review_task(site, task)
        assert (found.faults, found.flat) == ((), ())
        assert found.fit is not None
        assert found.fit.has_labels

    def test_a_class_that_the_task_does_not_list_is_refused_and_not_named(
        self, tmp_path: Path, task: LearningTask
    ) -> None:
        own = write_class_folders(tmp_path / "own")
        (own / "dark").rename(own / "gray")
        [fault, *_] = review_task(site_with(tmp_path, own), task).faults
        assert isinstance(fault, InvalidCellError)
        assert "gray" not in str(fault)

    def test_another_label_is_a_fault(self, tmp_path: Path, task: LearningTask) -> None:
        own = write_class_folders(tmp_path / "own")
        site, _ = add(make_site(tmp_path / "site"), own, label="finding", patient_id=None)
        assert any(isinstance(one, DataError) for one in review_task(site, task).faults)

    def test_a_task_of_a_table_is_a_fault(self, site: Site, tmp_path: Path) -> None:
        assert any(
            isinstance(one, InvalidDataError)
            for one in review_task(site, public_task(tmp_path)).faults
        )

    def test_teachers_that_learn_from_tables_alone_are_a_fault(
        self, site: Site, task: LearningTask
    ) -> None:
        changed = replace(site, settings=replace(site.settings, teacher_model="direction"))
        assert any(isinstance(one, PateFedError) for one in review_task(changed, task).faults)

    @pytest.mark.parametrize("alike", [0.94, 0.96])
    def test_own_images_that_look_alike_to_teachers_are_named(self, alike: float) -> None:
        features = np.random.default_rng(0).normal(size=(100, 8))
        features[: int(100 * alike)] = 0.5
        assert bool(flat_images(features)) is (alike > 0.95)


class SeesPixels(LogisticRegression):
    """A hospital's own teacher, which gets images."""

    takes_images = True

    def fit(self, images: np.ndarray, labels: np.ndarray) -> SeesPixels:
        assert images.dtype == np.uint8
        assert images.shape[1:] == (16, 16, 1)
        return super().fit(images.reshape(len(images), -1) / 255, labels)

    def decision_function(self, images: np.ndarray) -> np.ndarray:
        return super().decision_function(images.reshape(len(images), -1) / 255)

    def predict_proba(self, images: np.ndarray) -> np.ndarray:
        second = 1 / (1 + np.exp(-self.decision_function(images)))
        return np.stack([1 - second, second], axis=1)


def own_teacher() -> SeesPixels:
    return SeesPixels()


class TestTeaching:
    @pytest.mark.parametrize(
        "model", ["auto", "logistic", "convolution", f"{__name__}:own_teacher"]
    )
    def test_kept_teachers_vote_right(self, site: Site, task: LearningTask, model: str) -> None:
        site = site.save(replace(site.settings, teacher_model=model))
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        ready = party_task(task, load_teachers(site, task), teachers=teachers_digest(site, task))
        votes = ready.vote(task.pool.ask(tuple(range(60))))
        assert (votes == np.arange(60) % 2).mean() > 0.95

    def test_code_beside_the_images_is_set_trained_and_found_by_the_doctor(
        self, site: Site, task: LearningTask, pate_party: PateParty
    ) -> None:
        code = Path(site.data.file).parent / "lungs.py"
        page = (ROOT / "docs" / "how-to" / "bring-your-images.md").read_text("utf-8")
        code.write_text(page.partition("```python")[2].partition("```")[0])
        pate_party("policy", "set", "teacher_model", "lungs:teacher", "--site", site.folder)
        site = Site.open(site.folder)
        assert site.settings.teacher_model.startswith("lungs:teacher@")
        assert check_teacher(site, well()).state == OK
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        code.write_text(code.read_text() + "# changed\n")
        assert check_teacher(site, well()).state == FAIL
        with pytest.raises(InvalidParameterError):
            load_teachers(site, task)

    def test_a_patient_has_one_teacher(self, site: Site, task: LearningTask) -> None:
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        [shares] = site.path("teachers").glob("*/shares.json")
        names = [one for one in shares.read_text().split('"') if one.startswith("p")]
        assert len(names) == len(set(names)) == 40


class TestEvaluating:
    @pytest.mark.parametrize("student", ["kernel-ridge", "logistic"])
    def test_held_out_patients_are_counted_by_a_student_of_features(
        self, tmp_path: Path, task: LearningTask, student: str
    ) -> None:
        own = write_class_folders(tmp_path / "own", patients=120, images=2)
        site = site_with(tmp_path, own, held_out=0.3)
        fetch_task(site, Door(task.to_bytes()), task.pool.digest)
        ready_teachers(site, task, random_bytes=secrets.token_bytes)
        labels = np.arange(60) % 2
        lesson = Lesson(task.pool.views, np.arange(60), labels, 2)
        model = as_arrays(train_student(student, "image", lesson, rng=np.random.default_rng(0)))
        asked = evaluation_of(task, **{"student_json": b"", "model_safetensors": b""})
        asked = replace(asked, files=model.to_files())
        ready = ready_evaluation(site, asked, wait=lambda _: None)
        assert ready.evaluation is not None
        rows = ready.evaluation.rows()
        patients = len(held_out_records(site, task))
        assert 20 < patients < 60
        counts = rows[0]  # right and wrong of each class, then free places
        assert counts[:-1].sum() == patients
        assert counts[:2].sum() > 0.9 * patients

    @pytest.mark.parametrize("student", ["supervised", "propagation"])
    def test_a_student_that_is_no_arrays_is_refused(self, task: LearningTask, student: str) -> None:
        lesson = Lesson(task.pool.views, np.arange(60), np.arange(60) % 2, 2)
        found = train_student(student, "image", lesson, rng=np.random.default_rng(0))
        with pytest.raises(InvalidParameterError):
            as_arrays(found)

    def test_a_column_of_a_table_is_no_group_of_images(self, task: LearningTask) -> None:
        with pytest.raises(InvalidTaskError):
            evaluation_of(task, "age").groupings(task.schema)


class TestThePage:
    @pytest.fixture
    def browser(self, tmp_path: Path, task: LearningTask) -> Iterator[tuple[Browser, str]]:
        hospitals = make_hospitals(tmp_path, approval="each run")
        own = write_class_folders(tmp_path / "own")
        hospitals.sites[0] = add(hospitals.sites[0], own, label=LABEL, patient_id=None)[0]
        hospitals.task = task
        fetch_task(hospitals.sites[0], hospitals, task.pool.digest)
        digest = asked(hospitals, name="second")
        with browser_of(hospitals.sites[0]) as browser:
            browser.enter()
            yield browser, digest

    def test_the_public_images_are_shown_and_sent(
        self, browser: tuple[Browser, str], task: LearningTask
    ) -> None:
        page, digest = browser
        shown = page.get(f"request?digest={digest}")
        sheet = re.search(r'src="data:image/png;base64,([^"]+)"', shown.text)
        assert sheet is not None
        assert "16 x 16" in shown.text
        with Image.open(io.BytesIO(base64.b64decode(sheet[1]))) as image:
            assert image.size == (SHEET_COLUMNS * SHEET_CELL, 5 * SHEET_CELL)
        with zipfile.ZipFile(io.BytesIO(page.get(f"pool?digest={digest}").content)) as sent:
            assert len(sent.namelist()) == len(task.rows)
            with Image.open(io.BytesIO(sent.read("000003.png"))) as image:
                assert np.array_equal(np.asarray(image), task.pool.images[3, ..., 0])

    def test_its_words_are_not_those_of_tables(self, browser: tuple[Browser, str]) -> None:
        page, digest = browser
        for name in (f"request?digest={digest}", "data"):
            shown = re.sub(r"<[^>]*>", " ", page.get(name).text)
            assert not re.search("column|your table", shown, re.IGNORECASE)

    def test_no_own_image_is_shown(self, browser: tuple[Browser, str]) -> None:
        page, digest = browser
        for name in (f"request?digest={digest}", "data"):
            found = page.get(name)
            assert found.status_code == 200
            assert "p000" not in found.text
