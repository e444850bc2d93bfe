"""Rows that lie close are found, whatever pool or task is made of them; others are not."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from pate_fed import row_sketches
from pate_fed.cells import Cell
from pate_fed.data.new_task import make_task
from pate_fed.data.table_features import NumberEncoder
from pate_fed.data.task import LearningTask
from pate_fed.data.task_schema import TaskSchema
from pate_fed.public_rows import PublicRows
from pate_fed.query_sketches import near_known, near_queries, sketch
from pate_fed.row_sketches import MOST_CELLS, near_rows, sketch_rows
from tests.support.markers import sampled
from tests.support.real_data import real_data

T = 0.02
PATIENT: dict[str, Cell] = {
    "age": 61.0,
    "asthma": 0.0,
    "crp": 0.4,
    "platelets": 251_000.0,
    "sex": "female",
    "smoker": None,
    "temperature": 36.6,
    "weight": 70.5,
}
NUMBERS = [name for name, cell in PATIENT.items() if isinstance(cell, float)]


def rows_of(*rows: dict[str, Cell]) -> PublicRows:
    return PublicRows(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def is_near(one: dict[str, Cell], other: dict[str, Cell], *, distance: float = T) -> bool:
    """Whether one row lies close to the other; both ways round the answer is the same."""
    left, right = (sketch_rows(rows_of(row), key=b"own") for row in (one, other))
    found = [
        bool(len(next(near_rows(asked, known, distance=distance))))
        for asked, known in ((left, right), (right, left))
    ]
    assert found[0] == found[1]
    return found[0]


def scaled(factor: float, *names: str) -> dict[str, Cell]:
    """The patient with some numbers changed by a factor."""
    changed = {name: cell * factor for name in names if isinstance(cell := PATIENT[name], float)}
    return {**PATIENT, **changed}


class TestOnePatient:
    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(dict(reversed(PATIENT.items())), id="columns in another order"),
            pytest.param(scaled(1.001, *NUMBERS), id="a little of every number"),
            pytest.param(scaled(0.9905, *NUMBERS), id="almost one percent of every number"),
            pytest.param(scaled(1.0095, "age"), id="almost one percent of a number"),
            pytest.param({**PATIENT, "asthma": 0.009}, id="next to zero"),
            pytest.param({**PATIENT, "asthma": -1e-300}, id="as good as zero"),
            pytest.param({**PATIENT, "platelets": 251_001.0}, id="one of very many"),
            pytest.param({**PATIENT, "land": "CH"}, id="a constant column more"),
            pytest.param(
                {name: cell for name, cell in PATIENT.items() if name != "crp"}, id="a column fewer"
            ),
            pytest.param(
                {("gender" if name == "sex" else name): cell for name, cell in PATIENT.items()},
                id="a column of another name",
            ),
        ],
    )
    def test_next_to_the_same_row_is_found(self, other: dict[str, Cell]) -> None:
        assert is_near(PATIENT, other)

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param({**PATIENT, "sex": "male"}, id="another sex"),
            pytest.param({**PATIENT, "asthma": 1.0}, id="another finding"),
            pytest.param({**PATIENT, "age": 62.0}, id="a year older"),
            pytest.param({**PATIENT, "age": None}, id="nobody knows the age"),
            pytest.param({**PATIENT, "smoker": 0.0}, id="known to smoke nothing"),
            pytest.param({**PATIENT, "smoker": "0 ?"}, id="a text for a missing cell"),
            pytest.param(scaled(-1.0, "weight"), id="another sign"),
            pytest.param(scaled(1.05, *NUMBERS), id="five percent of every number"),
            pytest.param(scaled(1000.0, "platelets"), id="another unit: another number"),
            pytest.param(scaled(1e96, "weight"), id="a huge number"),
        ],
    )
    def test_another_patient_is_not(self, other: dict[str, Cell]) -> None:
        assert not is_near(PATIENT, other)

    def test_huge_numbers_are_told_apart_as_small_ones_are(self) -> None:
        huge = {**PATIENT, "weight": 9e99}
        assert is_near(huge, {**PATIENT, "weight": 9.05e99})
        assert not is_near(huge, {**PATIENT, "weight": 9.5e99})

    def test_a_row_of_a_study_with_other_columns_is_another(self) -> None:
        """Half of the columns are others: people of one age and sex are not one patient."""
        one = {"age": 50.0, "sex": "male", "weight": 70.5, "height": 181.0}
        other = {"age": 50.0, "sex": "male", "crp": 0.4, "ph": 7.4}
        assert not is_near(one, other)
        assert not is_near({"age": 50.0, "crp": 1.0}, {"age": 50.0, "ph": 7.4})
        assert not is_near({"age": 50.0}, {"weight": 50.0})
        assert is_near({"age": 50.0}, {"age": 50.0, "land": "CH"})

    @pytest.mark.parametrize(("distance", "least"), [(0.0, 1e-5), (0.1, 0.045), (0.5, 0.2)])
    def test_the_distance_of_a_policy_is_twice_what_numbers_may_differ(
        self, distance: float, least: float
    ) -> None:
        assert is_near(PATIENT, PATIENT, distance=distance)
        near, far = scaled(1 + least, "weight"), scaled(1 + 3 * least, "weight")
        assert is_near(PATIENT, near, distance=distance) == (distance > 0)
        assert not is_near(PATIENT, far, distance=distance)


class TestWideRows:
    """Of a row of many columns a secret sample is compared."""

    COLUMNS = tuple(f"pixel {place}" for place in range(784))

    def rows(self, cells: np.ndarray) -> PublicRows:
        return PublicRows(self.COLUMNS, tuple(tuple(map(float, row)) for row in cells))

    def test_variants_are_found_and_others_are_not(self) -> None:
        chance = np.random.default_rng(0)
        cells = np.abs(chance.normal(0, 100, (40, 784)))
        known = sketch_rows(self.rows(cells), key=b"own")
        asked = sketch_rows(self.rows(cells * chance.uniform(0.995, 1.005, (40, 784))), key=b"own")
        found = [places.tolist() for places in near_rows(asked, known, distance=T)]
        assert found == [[place] for place in range(40)]

    @pytest.mark.slow
    def test_nobody_knows_the_sample_without_the_key(self) -> None:
        names = [
            set(sketch_rows(self.rows(np.zeros((1, 784))), key=key)[0, :MOST_CELLS].tolist())
            for key in (b"one", b"other", b"one")
        ]
        assert len(names[0]) == MOST_CELLS
        assert names[0] == names[2]
        assert names[0] != names[1]
        # Who changes one column is seen where it is sampled, and that follows from the key alone.
        seen = [self._columns_seen(key) for key in (b"one", b"other")]
        assert [len(one) for one in seen] == [MOST_CELLS, MOST_CELLS]
        assert len(seen[0] & seen[1]) < 20  # 5 of 64 are expected

    def _columns_seen(self, key: bytes) -> set[int]:
        blank = sketch_rows(self.rows(np.zeros((1, 784))), key=key)
        marked = sketch_rows(self.rows(np.eye(784)), key=key)
        found = list(near_rows(marked, blank, distance=T))
        return {place for place, near in enumerate(found) if not len(near)}


class TestWhoeverMakesTheTask:
    """A task says how columns become features; no choice of it hides a question asked again."""

    COLUMNS = ("age", "sex", "weight")

    def task(
        self,
        *rows: tuple[Cell, ...],
        age: tuple[float, float] = (50.0, 15.0),
        columns: tuple[str, ...] = COLUMNS,
    ) -> LearningTask:
        schema = TaskSchema(
            name="a task",
            kind="table",
            label="sick",
            class_names=("no", "yes"),
            first=PublicRows(
                columns,
                tuple(
                    (age[0] + side * age[1], sex, 70.0 + 10 * side)
                    for side in (-1, 1)
                    for sex in ("female", "male")
                ),
            ),
        )
        return LearningTask(schema, PublicRows(columns, rows))

    def near(self, known: LearningTask, asked: LearningTask) -> list[bool]:
        old, new = (sketch(one.inputs, one.rows, key=b"own") for one in (known, asked))
        found = near_queries(new, old, distance=T)
        each = [near_known(one[None], old, distance=T).any() for one in new]
        assert found.tolist() == each
        return found.tolist()

    def test_a_column_that_is_stretched_parts_nobody(self) -> None:
        known = self.task((50.0, "male", 80.0), age=(50.0, 0.001))
        for age, is_near in ((50.2, True), (58.0, False)):
            asked = self.task((age, "male", 80.0), age=(50.0, 0.001))
            assert abs(known.inputs[0, 0] - asked.inputs[0, 0]) == 8  # to teachers as far away
            assert self.near(known, asked) == [is_near]

    def test_a_column_that_is_crushed_is_one_that_teachers_do_not_see(self) -> None:
        known = self.task((20.0, "male", 80.0), age=(50.0, 1e90))
        asked = self.task((90.0, "male", 80.0), (90.0, "male", 99.0), age=(50.0, 1e90))
        assert self.near(known, asked) == [True, False]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            pytest.param((50.0, "x", 80.0), (50.0, "y", 80.0), id="categories that nobody knows"),
            pytest.param((1e9, "male", 80.0), (1e50, "male", 80.0), id="numbers beyond the bound"),
            pytest.param((50.0, "male", 80.0), (None, "male", 80.0), id="missing, or the median"),
        ],
    )
    def test_rows_that_teachers_take_for_one_another_are_near(
        self, one: tuple[Cell, ...], other: tuple[Cell, ...]
    ) -> None:
        assert self.near(self.task(one), self.task(other)) == [True]

    def test_another_unit_with_encoders_for_it_is_near(self) -> None:
        years, months = (
            self.task((30.0, "male", 80.0)),
            self.task((360.0, "male", 80.0), age=(600.0, 180.0)),
        )
        assert self.near(years, months) == [True]

    def test_another_pool_with_encoders_of_its_own_changes_nothing(self) -> None:
        known = self.task((50.0, "male", 80.0))
        asked = self.task((50.1, "male", 80.1), (56.0, "male", 80.0), age=(41.0, 22.0))
        assert np.abs(known.inputs - asked.inputs).max() > 0.3  # other features of the same row
        assert self.near(known, asked) == [True, False]

    def test_other_names_for_all_columns_are_another_table(self) -> None:
        """A hospital's own table has the names: its people would have to rename them."""
        known = self.task((50.0, "male", 80.0))
        asked = self.task(
            (50.0, "male", 80.0), age=(20.0, 3.0), columns=("alter", "geschlecht", "gewicht")
        )
        assert self.near(known, asked) == [False]


def alarms(task: LearningTask, *, asked: int) -> float:
    """Share of a pool's rows that lie close to one before them."""
    chosen = np.random.default_rng(0).permutation(task.pool.distinct)[:asked]
    batch = task.pool.ask(tuple(chosen.tolist()))
    found = sketch(batch.inputs, batch.rows, key=b"own")
    return float(near_queries(found, found[:0], distance=T).mean())


def write(path: Path, header: str, lines: list[str]) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


class TestRealPatients:
    """Patients of real tables are not near one another; next to the same row is."""

    def require_told_apart(self, task: LearningTask, *, most: float = 0.0) -> None:
        assert alarms(task, asked=400) <= most
        known = sketch(task.inputs, task.rows, key=b"own")
        moved = tuple(
            tuple(cell * 1.002 if isinstance(cell, float) else cell for cell in row)
            for row in task.rows.cells[:50]
        )
        # In another federation, whose pool and encoders are others.
        schema = replace(task.schema, first=_doubled(task.schema))
        assert schema.encoder != task.encoder
        again = LearningTask(schema, PublicRows(task.columns, moved))
        found = near_queries(sketch(again.inputs, again.rows, key=b"own"), known, distance=T)
        assert found.all()

    def test_bundled_tumors(self, tmp_path: Path) -> None:
        data = load_breast_cancer()
        lines = [",".join(map(repr, map(float, row))) for row in data.data]
        path = write(tmp_path / "tumors.csv", ",".join(map(str, data.feature_names)), lines)
        task = make_task(path, label="malignant", classes=("0", "1"))
        self.require_told_apart(task)

    def test_bundled_images_as_a_table_of_pixels(self, tmp_path: Path) -> None:
        images = load_digits().data
        lines = [",".join(str(int(pixel)) for pixel in image) for image in images[:600]]
        header = ",".join(f"pixel {place}" for place in range(images.shape[1]))
        path = write(tmp_path / "digits.csv", header, lines)
        task = make_task(path, label="digit", classes=tuple("0123456789"))
        self.require_told_apart(task)

    @pytest.mark.parametrize("hospital", ["cleveland", "hungarian", "va"])
    def test_heart_patients_with_missing_cells(self, tmp_path: Path, hospital: str) -> None:
        lines = real_data(f"data/heart_disease/processed.{hospital}.data").read_text().splitlines()
        header = ",".join([*(f"column-{place}" for place in range(1, 14)), "disease"])
        path = write(tmp_path / "heart.csv", header, lines)
        task = make_task(path, label="disease", classes=("0", "1"))
        # Of the 200 of one hospital two are alike to teachers, for what is missing.
        self.require_told_apart(task, most=0.01)

    @sampled("file")
    @pytest.mark.parametrize(
        ("file", "label", "ignored"),
        [
            ("diabetes130/diabetic_data.csv.gz", "readmitted", ("encounter_id", "patient_nbr")),
            ("eicu_demo/apachepredvar.csv.gz", "died", ("apachepredvarid", "patientunitstayid")),
            (
                "brfss_diabetes/diabetes_binary_health_indicators_BRFSS2015.csv.gz",
                "Diabetes_binary",
                (),
            ),
        ],
    )
    def test_patients_of_large_tables(
        self, tmp_path: Path, file: str, label: str, ignored: tuple[str, ...]
    ) -> None:
        with gzip.open(real_data(f"data/{file}"), "rt") as table:
            header, *lines = (line.strip() for _, line in zip(range(2001), table, strict=False))
        path = write(tmp_path / "table.csv", header, lines)
        task = make_task(path, label=label, classes=("0", "1"), ignored=ignored)
        # Survey answers are few whole numbers: some people gave the same ones but for one percent.
        self.require_told_apart(task, most=0.01)


def _doubled(schema: TaskSchema) -> PublicRows:
    """The first pool of another federation: other medians, means and deviations."""
    moved = [
        [2 * cell - encoder.mean if isinstance(cell, float) else cell for cell in cells]
        if isinstance(encoder, NumberEncoder)
        else cells
        for encoder, cells in zip(
            schema.encoder.encoders, zip(*schema.first.cells, strict=True), strict=True
        )
    ]
    return PublicRows(schema.columns, tuple(zip(*moved, strict=True)))


def test_columns_that_share_a_number_hide_no_neighbor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number has 23 bits: two of 64 columns share one in about 4,000 tables."""
    numbers = {name: place // 2 for place, name in enumerate(PATIENT)}

    def number(key: bytes, what: bytes, text: str) -> int:
        return numbers.get(text, 7)

    monkeypatch.setattr(row_sketches, "_number", number)
    one = sketch_rows(rows_of(PATIENT), key=b"")
    turned = sketch_rows(rows_of(dict(reversed(PATIENT.items()))), key=b"")
    [places] = near_rows(one, turned, distance=T)
    assert places.tolist() == [0]
