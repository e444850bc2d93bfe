"""One reader of tables: files as a tired person exports them, and as an attacker writes them."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cells import cell_of, number_of
from pate_fed.data.cell_forms import typed
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.new_task import make_task
from pate_fed.data.preprocessing import table_of
from pate_fed.data.reading import Reading, labeled, names_in, read_records, read_table
from pate_fed.data.task import LearningTask
from pate_fed.data.task_facts import ColumnFacts, TaskFacts
from pate_fed.errors import (
    InvalidCellError,
    InvalidParameterError,
    InvalidTaskError,
    MissingColumnError,
    UnreadableFileError,
)

MOST_BYTES = 200 * 2**20


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def column(*cells: str, name: str = "x") -> CsvTable:
    return typed(CsvTable("t.csv", (name,), (cells,), tuple(range(2, len(cells) + 2))))


class TestColumns:
    @pytest.mark.parametrize(
        ("cells", "read"),
        [
            pytest.param(("1", "2.5", "-3"), ("1", "2.5", "-3"), id="numbers"),
            pytest.param(("\u22121", "2"), ("-1", "2"), id="a typographic minus"),
            pytest.param((">5", "\u22643.5", "< 1"), ("5", "3.5", "1"), id="limits"),
            pytest.param((*"123456789", "None"), (*"123456789", ""), id="a gap among numbers"),
            pytest.param(("1,234", "12", "1,234,567.5"), ("1234", "12", "1234567.5"), id="groups"),
            pytest.param(("1'234", "950"), ("1234", "950"), id="Swiss groups"),
            pytest.param(("1\u202f234", "950"), ("1234", "950"), id="French groups"),
            pytest.param(("1.234.567", "950"), ("1234567", "950"), id="groups of points"),
            pytest.param(("1.234,5", "11.000,0"), ("1234.5", "11000"), id="points and a comma"),
            pytest.param(("1,23", "4,5"), ("1,23", "4,5"), id="decimal commas are no groups"),
            pytest.param(("1234", "1,234"), ("1234", "1,234"), id="a number without its groups"),
            pytest.param(("007", "12"), ("007", "12"), id="codes"),
            pytest.param(("None", "yes", "no"), ("None", "yes", "no"), id="a category None"),
            pytest.param(("\u0663", "\u0664"), ("\u0663", "\u0664"), id="digits of other scripts"),
            pytest.param(
                ("5 mg", "7 mg", "3 mg", "4 mg", "-"),
                ("5 mg", "7 mg", "3 mg", "4 mg", ""),
                id="a gap among units",
            ),
        ],
    )
    def test_cells_are_read(self, cells: Sequence[str], read: Sequence[str]) -> None:
        assert column(*cells).columns == (tuple(read),)

    @pytest.mark.parametrize(
        ("cells", "days"),
        [
            pytest.param(("2000-01-01", "2000-02-01"), ("0", "31"), id="ISO"),
            pytest.param(("2000-01-01T23:59:59.9Z", "2000-01-02 00:00"), ("0", "1"), id="times"),
            pytest.param(("01.02.2000", "31.12.1999"), ("31", "-1"), id="points"),
            pytest.param(("13/02/2000", "01/02/2000"), ("43", "31"), id="days first"),
            pytest.param(("02/13/2000", "02/01/2000"), ("43", "31"), id="months first"),
            pytest.param(("01JAN2000", "2-Feb-2000"), ("0", "32"), id="names of months"),
            pytest.param(("2000-01-01", "", "None"), ("0", "", ""), id="gaps"),
        ],
    )
    def test_dates_become_days(self, cells: Sequence[str], days: Sequence[str]) -> None:
        text = column(*cells, name="seen")
        assert text.column("seen (days)") == tuple(days)
        assert "seen (weekday)" in text.header

    @pytest.mark.parametrize(
        "cells",
        [
            pytest.param(("2000-02-30", "2000-01-01"), id="a day that never was"),
            pytest.param(("2000-01-01", "soon"), id="a word"),
            pytest.param(("13/13/2000", "1/1/2000"), id="no month"),
            pytest.param(("2000-01-01 25:00", "2000-01-01"), id="hour 25"),
        ],
    )
    def test_what_is_no_date_stays_text(self, cells: Sequence[str]) -> None:
        assert column(*cells).columns == (tuple(cells),)

    def test_a_day_of_two_readings_is_asked_about(self) -> None:
        text = column("01/02/2000", "03/04/2000")
        assert text.header == ("x",)
        assert any("2026-01-31" in one for one in text.asked)

    def test_an_hour_is_a_column_where_there_are_times(self) -> None:
        text = column("1/31/2000 2:30 PM", "1/31/2000 12:05 AM")
        assert text.column("x (hour)") == ("14", "0")

    def test_a_word_among_numbers_is_asked_about_without_its_digits(self) -> None:
        text = column(*map(str, range(20)), "see 12.3.1950")
        assert text.column("x")[-1] == "see 12.3.1950"
        [asked] = text.asked
        assert "'see 99.9.9999'" in asked
        assert "fewer than 10 cells" in asked
        assert "1950" not in asked

    @pytest.mark.parametrize(
        ("cells", "is_asked"),
        [
            pytest.param((*"1234567", "-1", "-1", "-1"), True, id="-1 below"),
            pytest.param((*"1234567", "999", "999", "999"), True, id="999 above"),
            pytest.param((*"1234567", "999", "999"), False, id="too seldom"),
            pytest.param(("-1", "-1", "-1", "-5", "3"), False, id="inside"),
            pytest.param((*"1234567", "9", "9", "9"), False, id="9 beside 7"),
        ],
    )
    def test_a_value_apart_that_comes_again_is_asked_about(
        self, cells: Sequence[str], is_asked: bool
    ) -> None:
        assert bool(column(*cells).asked) is is_asked

    def test_reading_twice_changes_nothing(self) -> None:
        once = column("1,234", "None", "> 5", *"123456789")
        again = typed(CsvTable("t.csv", once.header, once.columns, once.lines))
        assert again.columns == once.columns

    def test_a_data_frame_is_read_as_the_file_is(self) -> None:
        rows = {"seen": ["2000-01-02", None], "n": ["1,234", "None"]}
        assert table_of(rows).columns[0] == ("1", "")

    def test_what_is_too_large_is_named(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "x,y", *["1e400,1"] * 30)
        with pytest.raises(InvalidCellError, match="line 2"):
            make_task(path, label="z", classes=("a", "b"))

    def test_a_code_is_no_number_and_a_number_of_numbers_is_one(self) -> None:
        assert (cell_of("0117"), cell_of("117"), number_of("0117")) == ("0117", 117.0, 117.0)


class TestDecimalCommas:
    COMMAS = Reading(separator=";", decimal=",")

    def test_points_are_thousands(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "x;y", "1.234,5;> 1,5", "11.000;\u22122,5", "0,5;-")
        text = read_table(path, self.COMMAS)
        assert text.columns == (("1234.5", "11000", "0.5"), ("> 1.5", "\u22122.5", "-"))

    def test_a_point_is_never_before_decimals(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "x;y", "1,5;2.5")
        with pytest.raises(InvalidCellError, match=r"'y'.*line 2"):
            read_table(path, self.COMMAS)
        ignoring = Reading(separator=";", decimal=",", ignored=("y",))
        assert read_table(path, ignoring).header == ("x",)

    def test_dates_stay_dates(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "x;y", "06.08.2019;1,5")
        assert read_table(path, self.COMMAS).column("x") == ("06.08.2019",)


class TestOwnersWord:
    def test_missing_cells_of_one_column_or_all(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "x,y", "999,999.0", "hemolysed,1")
        text = read_table(path, Reading(missing=("x=999", "HEMOLYSED")))
        assert text.columns == (("", ""), ("999.0", "1"))
        assert read_table(path, Reading(missing=("999",))).columns[1] == ("", "1")

    def test_columns_classes_and_categories_are_renamed(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "alter,sex,died", "4,m,NEIN", "5,w,JA")
        reading = Reading(renamed=("alter=age", "sex:w=f", "JA=yes", "NEIN=no"))
        text = labeled(read_table(path, reading), ["died"], reading)
        assert text.header == ("age", "sex", "died")
        assert text.columns[1:] == (("m", "f"), ("no", "yes"))

    @pytest.mark.parametrize("renamed", ["alter=sex", "nobody=x", "sex:nobody=x", "nobody:m=x"])
    def test_what_cannot_be_renamed_is_named(self, tmp_path: Path, renamed: str) -> None:
        path = write(tmp_path / "t.csv", "alter,sex,died", "4,m,NEIN", "5,w,JA")
        reading = Reading(renamed=(renamed,))
        with pytest.raises((MissingColumnError, UnreadableFileError)):
            labeled(read_table(path, reading), ["died"], reading)

    @pytest.mark.parametrize("renamed", ["", "x", "=x", "x=", " = "])
    def test_a_renaming_has_two_names(self, renamed: str) -> None:
        with pytest.raises(InvalidParameterError, match="--map"):
            Reading(renamed=(renamed,))

    def test_rows_without_a_label_are_counted_or_left_out(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "x,died", *["1,yes"] * 20, *["2,"] * 12, "3,NA")
        with pytest.raises(InvalidCellError, match=r"13 rows.*line 22"):
            read_records(path, Reading(), labels=["died"])
        text = read_records(path, Reading(drops_unlabeled=True), labels=["died"])
        assert len(text.lines) == 20
        assert any("13 rows" in one for one in text.notes)

    def test_names_come_from_a_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "names", "\ufeffage", "", "# comment", " two words ", "age")
        assert names_in(path) == ("age", "two words")
        with pytest.raises(UnreadableFileError):
            names_in(tmp_path / "none")


class TestFolders:
    def test_its_files_are_one_table_in_order_of_names(self, tmp_path: Path) -> None:
        folder = tmp_path / "table"
        folder.mkdir()
        write(folder / "b.csv", "y,x", "20,2")
        write(folder / "a.csv", "x,y", "1,10")
        (folder / "c.csv.gz").write_bytes(gzip.compress(b"x,y\n3,30\n"))
        write(folder / ".hidden.csv", "z", "1")
        text = read_table(folder)
        assert text.columns == (("1", "2", "3"), ("10", "20", "30"))
        assert len(set(text.lines)) == 3

    def test_other_columns_and_files_are_named(self, tmp_path: Path) -> None:
        folder = tmp_path / "table"
        folder.mkdir()
        with pytest.raises(UnreadableFileError):
            read_table(folder)
        write(folder / "a.csv", "x,y", "1,10")
        write(folder / "b.csv", "x,z", "1,10")
        with pytest.raises(UnreadableFileError, match="'y'"):
            read_table(folder)
        write(folder / "b.csv", "x,y", "1,10")
        write(folder / "notes.docx", "hello")
        with pytest.raises(UnreadableFileError, match=r"notes\.docx"):
            read_table(folder)

    def test_a_pipe_in_it_makes_nobody_wait(self, tmp_path: Path) -> None:
        folder = tmp_path / "table"
        folder.mkdir()
        os.mkfifo(folder / "a.csv")
        with pytest.raises(UnreadableFileError, match=r"a\.csv"):
            read_table(folder)


class TestBombs:
    def test_a_small_gzip_of_much_text_is_refused_within_bounds(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv.gz"
        with gzip.open(path, "wb", compresslevel=9) as file:
            file.write(b"x,y\n")
            for _ in range(64):
                file.write(b"1" * 2**20)  # one line without an end
        assert refused_within_bounds(path)

    @pytest.mark.parametrize(
        "row", [b"1,2\n", b"\n", b'"a\nb",2\n'], ids=["rows", "none", "quoted"]
    )
    def test_a_small_gzip_of_many_short_rows_is_refused_early(
        self, tmp_path: Path, row: bytes
    ) -> None:
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(b"x,y\n" + row * (2**21 // len(row))))
        assert "200 times" in table_error(path)

    def test_more_rows_than_memory_is_kept_for_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pate_fed.data.csv_file.MAX_ROWS", 3)
        path = write(tmp_path / "t.csv", "x", *"123")
        assert len(read_table(path).lines) == 3
        assert "3 rows" in table_error(write(path, "x", *"1234"))

    def test_a_table_that_packs_well_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv.gz"
        with gzip.open(path, "wt") as file:
            file.write("x,y\n" + "0,1\n" * 100_000)
        assert len(read_table(path).lines) == 100_000

    def test_a_small_parquet_of_much_text_is_refused_within_bounds(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        path = tmp_path / "t.parquet"
        cells = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000), pa.array(["x" * 2**20]))
        parquet.write_table(pa.table({"x": cells}), path, store_schema=False)
        assert path.stat().st_size < 2**22
        before = pa.total_allocated_bytes()
        assert refused_within_bounds(path)
        assert pa.default_memory_pool().max_memory() - before < MOST_BYTES

    def test_rows_that_a_parquet_file_only_claims_are_refused(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        path = tmp_path / "t.parquet"
        column = pa.array(["x"] * 40_000_000)
        parquet.write_table(pa.table({"x": column}), path)
        assert refused_within_bounds(path)


def table_error(path: Path) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        read_table(path)
    return str(caught.value)


def refused_within_bounds(path: Path) -> bool:
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableFileError):
            read_table(path)
        return tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


class TestFacts:
    """What an operator writes of a task."""

    def make(self, folder: Path, facts: TaskFacts, **more: Any) -> LearningTask:
        rows = [f"{40 + row % 30},{row % 3},{'mf'[row % 2]}" for row in range(60)]
        path = write(folder / "public.csv", "age,grade,sex", *rows)
        return make_task(path, label="sick", classes=("no", "yes"), facts=facts, **more)

    def test_they_travel_with_the_task(self, tmp_path: Path) -> None:
        facts = TaskFacts(
            data_set="eyes",
            classes={"yes": ("ja", "1")},
            columns={
                "age": ColumnFacts(unit="Years", range=(0.0, 120.0)),
                "grade": ColumnFacts(type="category"),
                "sex": ColumnFacts(categories=("f", "m", "x")),
            },
        )
        task = self.make(tmp_path, facts)
        read = LearningTask.from_bytes(task.to_bytes())
        assert read.digest == task.digest
        schema = read.schema
        assert schema.columns == ("age", "grade", "sex")
        assert schema.units == ("years", "", "")
        assert schema.ranges == ((0.0, 120.0), (), ())
        assert schema.categories == ((), ("0", "1", "2"), ("f", "m", "x"))
        assert schema.features == 1 + 3 + 3
        assert (schema.class_of("JA"), schema.class_of("1"), schema.class_of("?")) == (1, 1, None)
        again = self.make(tmp_path, facts, known=[schema])
        assert again.digest == task.digest
        assert self.make(tmp_path, TaskFacts(), known=[schema]).digest != task.digest

    @pytest.mark.parametrize(
        "facts",
        [
            pytest.param({"classes": {"maybe": ()}}, id="no class"),
            pytest.param({"columns": {"weight": ColumnFacts()}}, id="no column"),
            pytest.param({"columns": {"age": ColumnFacts(range=(0.0, 50.0))}}, id="out of range"),
            pytest.param({"columns": {"sex": ColumnFacts(type="number")}}, id="texts as numbers"),
            pytest.param({"classes": {"yes": ("no",)}}, id="another class's name"),
            pytest.param({"data_set": "../x"}, id="a path"),
        ],
    )
    def test_those_that_cannot_be_are_refused(self, tmp_path: Path, facts: dict[str, Any]) -> None:
        with pytest.raises(InvalidTaskError):
            self.make(tmp_path, TaskFacts(**facts))

    @pytest.mark.parametrize(
        "column",
        [
            {"range": (1.0,)},
            {"range": (2.0, 1.0)},
            {"type": "number", "categories": ("a",)},
            {"categories": ("a",), "unit": "mg"},
        ],
    )
    def test_facts_of_a_column_do_not_contradict_each_other(self, column: dict[str, Any]) -> None:
        with pytest.raises(InvalidTaskError):
            ColumnFacts(**column)
