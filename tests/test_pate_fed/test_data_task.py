"""What is learned: one document, one form, and every hospital's table read the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.new_task import make_task
from pate_fed.data.table_features import CategoryEncoder, NumberEncoder
from pate_fed.data.task import MAGIC, LearningTask, schema_in
from pate_fed.data.task_schema import TaskSchema
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTaskError,
    MissingColumnError,
)
from pate_fed.public_rows import PublicRows
from tests.support.real_data import real_data


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def small_task() -> LearningTask:
    schema = TaskSchema(
        name="a task",
        kind="table",
        label="sick",
        class_names=("no", "yes"),
        first=PublicRows(
            ("age", "sex"), ((42.5, "female"), (62.5, "female"), (42.5, "male"), (None, "male"))
        ),
        left_out=("constant",),
    )
    return LearningTask(
        schema, PublicRows(("age", "sex"), ((57.5, "female"), (40.0, "male"), (None, "x")))
    )


def test_a_task_in_a_log_shows_its_name_and_sizes_and_no_row() -> None:
    task = small_task()
    said = repr(task)
    assert (task.name in said, "queries=3" in said) == (True, True)
    assert "57.5" not in said
    assert "female" not in said


def change(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        assert content.count(old) == 1
        return content.replace(old, new)

    return changed


@pytest.fixture
def public(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    rows = [
        f"p{row},{30 + row % 40},{'male' if rng.random() < 0.5 else 'female'},1"
        for row in range(60)
    ]
    return write(tmp_path / "public.csv", "patient,age,sex,constant", *rows)


@pytest.fixture
def task(public: Path) -> LearningTask:
    return make_task(public, label="sick", classes=("no", "yes"), ignored=("patient",))


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., CsvTable]:
    def make(*rows: str) -> CsvTable:
        return read_csv(write(tmp_path / "own.csv", *rows))

    return make


class TestFromAPublicTable:
    def test_what_says_nothing_is_left_out(self, task: LearningTask) -> None:
        assert task.columns == ("age", "sex")
        assert task.inputs.shape == (60, 3)
        assert task.name == "public.csv"

    def test_a_label_in_the_public_table_is_not_read(self, tmp_path: Path) -> None:
        rows = [f"{20 + row},{'yes' if row % 2 else 'no'}" for row in range(30)]
        tables = ("age,sick", *rows), ("age", *(row.partition(",")[0] for row in rows))
        one, other = (
            make_task(write(tmp_path / "x.csv", *lines), label="sick", classes=("no", "yes"))
            for lines in tables
        )
        assert one.to_bytes() == other.to_bytes()

    def test_a_hospitals_values_are_scaled_as_the_public_ones(
        self, task: LearningTask, table: Callable[..., CsvTable]
    ) -> None:
        ages = 30.0 + np.arange(60) % 40
        own = table("sex,sick,age,more", "male,yes,41,x", "female,no,,x", "other,no,1000,x")
        records = task.encode(own, patient_column=None)
        wanted = (np.array([41, np.median(ages), 1000]) - ages.mean()) / ages.std()
        np.testing.assert_allclose(records.features[:, 0], np.clip(wanted, -8, 8), rtol=1e-12)
        assert records.features[:, 1:].tolist() == [[0, 1], [1, 0], [0, 0]]
        assert records.labels.tolist() == [1, 0, 0]

    def test_the_bundled_breast_cancer_table_works(self, tmp_path: Path) -> None:
        data = load_breast_cancer()
        header = ",".join([*map(str, data.feature_names), "malignant"])
        rows = [
            ",".join([*map(repr, map(float, x)), str(int(y))])
            for x, y in zip(data.data, data.target, strict=True)
        ]
        public = write(tmp_path / "public.csv", header, *rows[:200])
        own = write(tmp_path / "own.csv", header, *rows[200:])
        task = make_task(public, label="malignant", classes=("0", "1"))
        assert task.inputs.shape == (200, 30)
        records = task.encode(read_csv(own), patient_column=None)
        assert records.labels.tolist() == data.target[200:].tolist()
        assert LearningTask.from_bytes(task.to_bytes()).digest == task.digest

    def test_a_class_may_be_written_as_another_number(
        self, public: Path, table: Callable[..., CsvTable]
    ) -> None:
        task = make_task(public, label="sick", classes=("1", "0"), ignored=("patient",))
        records = task.encode(
            table("age,sex,sick", "40,male,0.0", "41,male,1"), patient_column=None
        )
        assert records.labels.tolist() == [1, 0]

    def test_an_empty_table_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidTaskError):
            make_task(write(tmp_path / "empty.csv", "age"), label="sick", classes=("a", "b"))

    def test_a_table_without_a_column_of_use_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "flat.csv", "age", *["50"] * 30)
        with pytest.raises(InvalidDataError):
            make_task(path, label="sick", classes=("a", "b"))

    def test_a_column_to_ignore_must_be_there(self, public: Path) -> None:
        with pytest.raises(MissingColumnError, match="'pateint'"):
            make_task(public, label="sick", classes=("a", "b"), ignored=("pateint",))

    def test_four_real_hospitals_read_alike(self, tmp_path: Path) -> None:
        hospitals = ("cleveland", "hungarian", "switzerland", "va")
        header = ",".join([*(f"column-{place}" for place in range(1, 14)), "disease"])
        tables = []
        for hospital in hospitals:
            lines = real_data(f"data/heart_disease/processed.{hospital}.data").read_text("utf-8")
            tables.append(write(tmp_path / f"{hospital}.csv", header, *lines.splitlines()))
        task = make_task(tables[0], label="disease", classes=("0", "1", "2", "3", "4"))
        sizes = []
        for table in tables:
            records = task.encode(read_csv(table), patient_column=None)
            assert records.features.shape == (len(records), task.inputs.shape[1])
            sizes.append(len(records))
        assert sizes == [303, 294, 123, 200]
        np.testing.assert_array_equal(
            task.encode(read_csv(tables[0]), patient_column=None).features, task.inputs
        )


class TestLaterPools:
    """The first pool of a task decides how columns are read."""

    def later(self, task: LearningTask, path: Path) -> LearningTask:
        return make_task(path, label="sick", classes=("no", "yes"), known=[task.schema])

    def test_an_unknown_level_is_none_of_the_known_ones(
        self, task: LearningTask, tmp_path: Path
    ) -> None:
        rows = ("other,1e99", "female,", "m\u00e4nnlich,30")
        later = self.later(task, write(tmp_path / "later.csv", "sex,age", *rows))
        assert later.digest == task.digest
        assert later.name == task.name
        assert later.inputs[:, 1:].tolist() == [[0, 0], [1, 0], [0, 0]]
        assert later.inputs[0, 0] == 8
        encoder = task.schema.encoder.encoders[0]
        assert isinstance(encoder, NumberEncoder)
        assert later.inputs[1, 0] == (encoder.median - encoder.mean) / encoder.deviation

    def test_a_text_in_its_column_of_numbers_is_named(
        self, task: LearningTask, tmp_path: Path
    ) -> None:
        path = write(tmp_path / "later.csv", "sex,age", "male,40", "male,SECRET")
        with pytest.raises(InvalidCellError, match=r"'age' of later\.csv .* line 3") as caught:
            self.later(task, path)
        assert "SECRET" not in str(caught.value)

    @pytest.mark.parametrize(
        ("header", "is_known"),
        [
            ("age,sex", True),
            ("sex,sick,age", True),  # the label's column is not read
            ("age,sex,constant", True),  # it said nothing in the first pool
            ("age,sex,visits", False),
            ("age", False),
        ],
    )
    def test_the_columns_decide_whether_it_is_the_same_task(
        self, task: LearningTask, tmp_path: Path, header: str, is_known: bool
    ) -> None:
        names = header.split(",")
        rows = [
            ",".join({"sex": ("male", "female")[row % 2]}.get(name, str(row)) for name in names)
            for row in range(20)
        ]
        later = self.later(task, write(tmp_path / "later.csv", header, *rows))
        assert (later.digest == task.digest) == is_known

    def test_of_several_the_one_that_reads_most_is_taken(
        self, task: LearningTask, tmp_path: Path
    ) -> None:
        """Both fit where the column that one of them does not know is constant."""
        ages = write(tmp_path / "ages.csv", "age", *map(str, range(30)))
        less = make_task(ages, label="sick", classes=("no", "yes"))
        path = write(tmp_path / "men.csv", "age,sex", *(f"{row},male" for row in range(30)))
        for known in ([task.schema, less.schema], [less.schema, task.schema]):
            later = make_task(path, label="sick", classes=("yes", "no"), known=known)
            assert later.digest == task.digest

    def test_equal_numbers_are_one_category_everywhere(
        self, tmp_path: Path, table: Callable[..., CsvTable]
    ) -> None:
        path = write(tmp_path / "grades.csv", "grade", *(["1", "1.0", "2.0", "x", "2"] * 5))
        task = make_task(path, label="sick", classes=("no", "yes"))
        assert task.schema.encoder.encoders == (CategoryEncoder(0, ("1", "2", "x")),)
        assert len(task.pool.distinct) == 3
        own = table("grade,sick", "01.00,no", "2,no", "x,yes")
        assert task.encode(own, patient_column=None).features.tolist() == np.eye(3).tolist()

    def test_the_schema_is_read_without_the_rows(self, task: LearningTask, tmp_path: Path) -> None:
        path = tmp_path / "pool"
        path.write_bytes(task.to_bytes())
        assert schema_in(path).to_bytes() == task.schema.to_bytes()


class TestReadingAHospitalsTable:
    @pytest.mark.parametrize(
        ("rows", "error", "named"),
        [
            pytest.param(["age,sex", "40,male"], MissingColumnError, "'sick'", id="no label"),
            pytest.param(["age,sick", "40,no"], MissingColumnError, "'sex'", id="no feature"),
            pytest.param(
                ["age,sex,sick", "40,male,no", "41,male,SECRET"],
                InvalidCellError,
                "'sick' .* line 3",
                id="a class of nobody's",
            ),
            pytest.param(
                ["age,sex,sick", "40,male,"], InvalidCellError, "'sick' .* line 2", id="no class"
            ),
            pytest.param(
                ["age,sex,sick", '"40,SECRET",male,no'],
                InvalidCellError,
                "'age' .* line 2",
                id="a decimal comma",
            ),
            pytest.param(
                ["age,sex,sick", "1e300,male,no"],
                InvalidCellError,
                "'age' .* line 2",
                id="too large",
            ),
        ],
    )
    def test_what_does_not_fit_is_named_without_a_cell(
        self,
        task: LearningTask,
        table: Callable[..., CsvTable],
        rows: list[str],
        error: type[Exception],
        named: str,
    ) -> None:
        with pytest.raises(error, match=named) as caught:
            task.encode(table(*rows), patient_column=None)
        assert "SECRET" not in str(caught.value)

    def test_rows_of_a_patient_are_one_unit(
        self, task: LearningTask, table: Callable[..., CsvTable]
    ) -> None:
        own = table("id,age,sex,sick", "a,40,male,no", "b,41,male,no", "a,42,male,yes")
        assert task.encode(own, patient_column="id").unit_ids == ("a", "b", "a")
        assert task.encode(own, patient_column=None).unit_count == 3

    def test_a_patient_must_be_known(
        self, task: LearningTask, table: Callable[..., CsvTable]
    ) -> None:
        own = table("id,age,sex,sick", "a,40,male,no", ",41,male,no")
        with pytest.raises(InvalidCellError, match="line 3"):
            task.encode(own, patient_column="id")

    @pytest.mark.parametrize("column", ["age", "sick"])
    def test_the_patients_column_has_no_second_role(
        self, task: LearningTask, table: Callable[..., CsvTable], column: str
    ) -> None:
        with pytest.raises(InvalidParameterError):
            task.encode(table("age,sex,sick", "40,male,no"), patient_column=column)


class TestBytes:
    def test_what_was_written_is_read(self, task: LearningTask) -> None:
        again = LearningTask.from_bytes(task.to_bytes())
        assert again.to_bytes() == task.to_bytes()
        assert again.schema.encoder == task.schema.encoder
        assert again.pool.digest == task.pool.digest
        assert not again.inputs.flags.writeable

    def test_the_digest_covers_how_tables_are_read(self) -> None:
        one = small_task()
        other = replace(one, schema=replace(one.schema, class_names=("yes", "no")))
        assert one.digest != other.digest
        assert one.pool.digest != other.pool.digest
        assert one.rows.digests == other.rows.digests

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param(b'42.5,"male"', b'62.5,"male"', id="a first row is another"),
            pytest.param(b'"rows":4', b'"rows":5', id="the first row that is asked is a first one"),
        ],
    )
    def test_other_first_rows_are_another_task(self, old: bytes, new: bytes) -> None:
        one = small_task()
        other = LearningTask.from_bytes(change(old, new)(one.to_bytes()))
        assert other.digest != one.digest
        assert other.schema.encoder != one.schema.encoder

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param(b'"version":3', b'"version":1', id="version"),
            pytest.param(b'"version":3', b'"version":3.0', id="a float for a version"),
            pytest.param(b'"kind":"table"', b'"kind":"sound"', id="kind"),
            pytest.param(
                b'"classes":[["no",[]],["yes",[]]]',
                b'"classes":[["no",[]],["no",[]]]',
                id="one class twice",
            ),
            pytest.param(
                b'"classes":[["no",[]],["yes",[]]]', b'"classes":[["no",[]]]', id="one class"
            ),
            pytest.param(
                b'"classes":[["no",[]],["yes",[]]]',
                b'"classes":[["1",[]],["1.0",[]]]',
                id="equal numbers",
            ),
            pytest.param(
                b'"classes":[["no",[]],["yes",[]]]',
                b'"classes":[["no",[]],["?",[]]]',
                id="a missing class",
            ),
            pytest.param(b'"rows":4', b'"rows":8', id="more rows than there are"),
            pytest.param(b'"rows":4', b'"rows":0', id="no rows"),
            pytest.param(b'"rows":4', b'"rows":-1', id="fewer than no rows"),
            pytest.param(b'"rows":4', b'"rows":4.0', id="a float for a number of rows"),
            pytest.param(b'"rows":4', b'"rows":1e999', id="infinity"),
            pytest.param(b'"rows":4', b'"rows":true', id="a truth"),
            pytest.param(b'["age","",[],[]]', b'["age","MG",[],[]]', id="a unit in capitals"),
            pytest.param(b'["age","",[],[]]', b'["age","m g",[],[]]', id="a unit of two words"),
            pytest.param(b'["sex","",[],[]]', b'["sex","mg",[],[]]', id="a unit of texts"),
            pytest.param(b'["age","",[],[]]', b'["age",1,[],[]]', id="a number for a unit"),
            pytest.param(b'["age","",[],[]]', b'["age"]', id="no unit"),
            pytest.param(b',["sex","",[],[]]', b"", id="a column less"),
            pytest.param(b'["age","",[],[]]', b'["sick","",[],[]]', id="the label as a feature"),
            pytest.param(b'["age","",[],[]]', b'["sex","",[],[]]', id="a column twice"),
            pytest.param(b'["age","",[],[]]', b'["","",[],[]]', id="a column without a name"),
            pytest.param(b'"label":"sick"', b'"label":"si\\nck"', id="a line break"),
            pytest.param(b'"label":"sick"', b'"label":["sick"]', id="a list for a name"),
            pytest.param(b'"label":"sick"', b'"label": "sick"', id="a blank"),
            pytest.param(b'"label":"sick"', b'"label":"s\\u0069ck"', id="another spelling"),
            pytest.param(b'"label":"sick"', b'"label":"sick","more":1', id="one key more"),
            pytest.param(b'["constant"]', b'["age"]', id="a column that is read and left out"),
            pytest.param(b'["age","",[],[]]', b'["tge","",[],[]]', id="columns in disorder"),
            pytest.param(b'["constant"]', b'"constant"', id="a text for a list"),
            pytest.param(b'["age","",[],[]]', b'["a\\u0301ge",""]', id="a name that is not in NFC"),
            pytest.param(b'["yes",[]]', b'["yes",["NO"]]', id="a class as another's spelling"),
            pytest.param(b'["yes",[]]', b'["yes",["y","Y"]]', id="a spelling twice"),
            pytest.param(b'["yes",[]]', b'["yes"]', id="no spellings"),
            pytest.param(b'["yes",[]]', b'["yes",["\\u001b"]]', id="a spelling that steers"),
            pytest.param(b'"age","",[]', b'"age","",[1.0]', id="half a range"),
            pytest.param(b'"age","",[]', b'"age","",[1,2]', id="whole numbers for a range"),
            pytest.param(b'"age","",[]', b'"age","",[2.0,1.0]', id="a range upside down"),
            pytest.param(b'"sex","",[],[]', b'"sex","",[],["b","a"]', id="categories in disorder"),
            pytest.param(b'"sex","",[],[]', b'"sex","",[],["a","a"]', id="a category twice"),
            pytest.param(b'"sex","",[],[]', b'"sex","mg",[],["a"]', id="a unit of categories"),
            pytest.param(b'"data_set":""', b'"data_set":"../x"', id="a path for a data set"),
        ],
    )
    def test_any_other_header_is_refused(self, old: bytes, new: bytes) -> None:
        content = small_task().to_bytes()
        start = len(MAGIC) + 4
        length = int.from_bytes(content[len(MAGIC) : start], "big")
        header, body = content[start : start + length], content[start + length :]
        assert header.count(old) == 1
        spoiled = header.replace(old, new)
        with pytest.raises(InvalidTaskError):
            LearningTask.from_bytes(MAGIC + len(spoiled).to_bytes(4, "big") + spoiled + body)

    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda content: b"", id="nothing"),
            pytest.param(lambda content: content[: len(MAGIC) + 3], id="cut in the length"),
            pytest.param(lambda content: content[:-1], id="cut"),
            pytest.param(lambda content: content + b"\0", id="one byte more"),
            pytest.param(lambda content: b"P" + content[1:], id="magic"),
            pytest.param(
                lambda content: MAGIC + b"\xff" * 4 + content[len(MAGIC) + 4 :], id="length"
            ),
            pytest.param(change(b"57.5", b"NaN"), id="not a number"),
            pytest.param(change(b"57.5", b"1e999"), id="infinity"),
            pytest.param(change(b"57.5", b"57.50"), id="another way to write a number"),
            pytest.param(change(b"57.5", b"57"), id="a whole number"),
            pytest.param(change(b"57.5", b"true"), id="a truth"),
            pytest.param(change(b"57.5", b'"57.5"'), id="a text in a column of numbers"),
            pytest.param(change(b'"x"', b'"7"'), id="a number as a text"),
            pytest.param(change(b'"x"', b'"NA"'), id="a missing cell as a text"),
            pytest.param(change(b'"x"', b'""'), id="an empty text"),
            pytest.param(change(b'"x"', b'" x"'), id="a blank"),
            pytest.param(change(b'"x"', b'"a\\u0301"'), id="a text that is not in NFC"),
            pytest.param(change(b'"x"]', b'"x",1.0]'), id="one cell more"),
            pytest.param(change(b'[null,"x"]', b'{"age":null}'), id="no list"),
            pytest.param(change(b'[null,"male"]', b'["x","male"]'), id="a column that is another"),
            pytest.param(change(b'[null,"male"]', b'[42.5,"x"]'), id="a category of one row"),
            pytest.param(change(b'\n[null,"x"]', b'[null,"x"]'), id="two rows in one line"),
            pytest.param(
                lambda content: MAGIC + (200_000).to_bytes(4, "big") + b"[" * 200_000, id="too deep"
            ),
        ],
    )
    def test_any_other_file_is_refused(self, spoil: Callable[[bytes], bytes]) -> None:
        with pytest.raises(InvalidTaskError):
            LearningTask.from_bytes(spoil(small_task().to_bytes()))

    @settings(max_examples=300, deadline=None)
    @given(
        st.one_of(
            st.binary(max_size=200),
            st.binary(max_size=200).map(lambda tail: MAGIC + tail),
            st.tuples(st.integers(0, 420), st.binary(min_size=1, max_size=4)).map(
                lambda change: (
                    small_task().to_bytes()[: change[0]]
                    + change[1]
                    + small_task().to_bytes()[change[0] + len(change[1]) :]
                )
            ),
        )
    )
    def test_whatever_is_read_has_its_one_form_and_all_else_one_error(self, content: bytes) -> None:
        try:
            task = LearningTask.from_bytes(content)
        except InvalidTaskError:
            return
        assert task.to_bytes() == content
