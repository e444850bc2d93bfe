"""CSV files: roles of columns, a split by patient, and one clear error for each fault."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.data import Dataset, DataSource, csv_file, load_dataset
from pate_fed.data.table_features import Column, fit_table_encoder
from pate_fed.data.tables import Table, split_by_unit, table_dataset
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    MissingColumnError,
    RareClassError,
    TooFewRecordsError,
    UnreadableFileError,
)
from pate_fed.partition import units_by_hospital
from tests.support.real_data import real_data

SECRET = "marker-cell-417"


def rows(count: int = 60) -> list[str]:
    """Make rows of: patient, ward, age, sex, outcome; two rows for each patient."""
    return [
        f"p{row // 2},{'north' if row % 3 else 'south'},{20 + row % 50},"
        f"{'f' if row % 2 else 'm'},{'sick' if (row // 2) % 3 else 'well'}"
        for row in range(count)
    ]


HEAD = "patient,ward,age,sex,outcome"


def write(path: Path, lines: list[str], *, head: str = HEAD) -> Path:
    file = path / "records.csv"
    file.write_text("\n".join([head, *lines]) + "\n", "utf-8")
    return file


def load(
    file: Path,
    *,
    label: str = "outcome",
    patient: str | None = "patient",
    hospital: str | None = "ward",
    seed: int = 0,
) -> Dataset:
    source = DataSource(
        "csv",
        data_file=file,
        label_column=label,
        patient_column=patient,
        hospital_column=hospital,
    )
    return load_dataset(source, rng=np.random.default_rng(seed))


def test_a_table_is_loaded_with_patients_hospitals_and_class_names(tmp_path: Path) -> None:
    data = load(write(tmp_path, rows()))
    assert data.class_names == ("sick", "well")
    assert data.kind == "table"
    assert sum(len(part) for part in data.parts) == 60
    assert data.private.hospitals is not None
    assert set(data.private.hospitals) == {"north", "south"}
    assert data.private.features.shape[1] == 3  # age; sex as f and m


def test_all_rows_of_a_patient_are_on_one_side(tmp_path: Path) -> None:
    data = load(write(tmp_path, rows()))
    sides = [set(part.unit_ids) for part in data.parts]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]
    assert all(len(part) == 2 * part.unit_count for part in data.parts)


def test_without_a_patient_column_each_row_is_a_patient(tmp_path: Path) -> None:
    data = load(write(tmp_path, rows()), patient=None)
    assert sum(part.unit_count for part in data.parts) == 60


def test_every_record_knows_its_line_of_the_file(tmp_path: Path) -> None:
    lines = [f"{7 * row % 60},{'sick' if row % 3 else 'well'}" for row in range(60)]
    lines.insert(20, "")  # an empty line is no row, and counts as a line
    file = write(tmp_path, lines, head="age,outcome")
    data = load(file, patient=None, hospital=None)
    written = file.read_text("utf-8").split("\n")
    for part in data.parts:
        assert part.row_names is not None
        found = [written[int(name) - 1].split(",") for name in part.row_names]
        order = np.argsort([float(age) for age, _ in found])
        assert (np.diff(part.features[order, 0]) > 0).all()  # age is the only feature
        assert [data.class_names[one] for one in part.labels] == [label for _, label in found]


def test_hospital_names_that_differ_in_case_only_stay_hospitals_and_are_counted_so(
    tmp_path: Path,
) -> None:
    wards = ("North", "north ", "South", "SOUTH", "West")
    lines = [
        f"p{row},{wards[row % 5]},{row},m,{'sick' if row % 3 else 'well'}" for row in range(90)
    ]
    lines += [f"q{row},  West,{row},m,sick" for row in range(10)]  # blanks are cut: the same name
    data = load(write(tmp_path, lines))
    assert len(units_by_hospital(data.private)) == 5
    [note] = [one for one in data.notes if "hospital names" in one]
    assert [int(number) for number in re.findall(r"\d+", note)] == [4, 5, 5]


def test_the_seed_decides_the_split(tmp_path: Path) -> None:
    file = write(tmp_path, rows())
    assert load(file).private.unit_ids == load(file).private.unit_ids
    assert load(file).private.unit_ids != load(file, seed=1).private.unit_ids


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(gzip.compress, id="gzipped"),
        pytest.param(lambda raw: b"\xef\xbb\xbf" + raw, id="byte order mark"),
        pytest.param(lambda raw: raw.replace(b"\n", b"\r\n"), id="Windows lines"),
        pytest.param(lambda raw: raw.replace(b",f,", b',"f",'), id="quotes"),
        pytest.param(lambda raw: raw.replace(b",m,", b", m  ,"), id="blanks"),
        pytest.param(lambda raw: raw.replace(b"\n", b"\n\n"), id="empty lines"),
    ],
)
def test_usual_spellings_of_a_table_give_the_same_records(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    file = write(tmp_path, rows())
    plain = load(file)
    file.write_bytes(change(file.read_bytes()))
    other = load(file)
    assert np.array_equal(plain.private.features, other.private.features)
    assert np.array_equal(plain.private.labels, other.private.labels)


def test_equal_numbers_are_one_class(tmp_path: Path) -> None:
    lines = [
        f"p{row},a,{row},m,{'1.0' if row % 2 else ('0' if row % 4 else '00')}" for row in range(40)
    ]
    assert load(write(tmp_path, lines)).class_names == ("0", "1")


def test_numeric_classes_are_in_order_of_number(tmp_path: Path) -> None:
    lines = [f"p{row},a,{row},m,{(row % 3) * 10 - 10}" for row in range(60)]
    assert load(write(tmp_path, lines)).class_names == ("-10", "0", "10")


def spoil(line: int, text: str) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        return [*lines[:line], text, *lines[line + 1 :]]

    return change


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        pytest.param(
            lambda lines: lines[:3], TooFewRecordsError, "20 patients, got 2", id="3 rows"
        ),
        pytest.param(lambda lines: [], TooFewRecordsError, "got 0", id="header only"),
        pytest.param(
            spoil(7, f"p9,north,30,m,{SECRET}"), RareClassError, "line 9", id="a class once"
        ),
        pytest.param(spoil(7, "p9,north,30,m,NaN"), InvalidCellError, "line 9", id="label NaN"),
        pytest.param(spoil(7, "p9,north,30,m,"), InvalidCellError, "line 9", id="label empty"),
        pytest.param(spoil(7, ",north,30,m,sick"), InvalidCellError, "'patient'", id="no patient"),
        pytest.param(spoil(7, "p9,,30,m,sick"), InvalidCellError, "'ward'", id="no hospital"),
        pytest.param(spoil(7, "p9,north,inf,m,sick"), InvalidCellError, "line 9", id="infinite"),
        pytest.param(spoil(7, "p9,north,1e300,m,sick"), InvalidCellError, "'age'", id="too large"),
        pytest.param(
            spoil(7, f"p9,north,30,{SECRET}"), UnreadableFileError, "4 in line 9", id="short row"
        ),
        pytest.param(
            spoil(7, f"p9,north,30,m,sick,{SECRET}"),
            UnreadableFileError,
            "6 in line 9",
            id="long row",
        ),
        pytest.param(
            spoil(7, f'p9,"{SECRET},30,m,sick'), UnreadableFileError, "quotation", id="open quote"
        ),
        pytest.param(
            spoil(7, f'p9,"{SECRET}"x,30,m,sick'),
            UnreadableFileError,
            "quotation",
            id="text after quote",
        ),
        pytest.param(
            spoil(7, f"p9,{SECRET},\0,m,sick"), UnreadableFileError, "line 9", id="binary zero"
        ),
        pytest.param(
            spoil(7, f"p9,{SECRET}{'x' * 2**21},30,m,sick"),
            UnreadableFileError,
            "line 9",
            id="long line",
        ),
        pytest.param(
            spoil(7, f"p9,{SECRET}{'x' * 200_000},30,m,sick"),
            UnreadableFileError,
            "cell",
            id="long cell",
        ),
        pytest.param(
            lambda lines: [f"p{row},a,{row},m,sick" for row in range(40)],
            InvalidDataError,
            "got 1",
            id="one class",
        ),
        pytest.param(
            lambda lines: [f"p{row},a,3,m,{row / 7}" for row in range(300)],
            InvalidDataError,
            "got 300",
            id="a measurement as label",
        ),
        pytest.param(
            lambda lines: [f"p{row},a,3,m,{row % 2}" for row in range(40)],
            InvalidDataError,
            "varies",
            id="constant features",
        ),
    ],
)
def test_a_broken_table_gives_one_clear_error_without_any_cell(
    tmp_path: Path,
    change: Callable[[list[str]], list[str]],
    error: type[InvalidDataError],
    says: str,
) -> None:
    with pytest.raises(error) as caught:
        load(write(tmp_path, change(rows())))
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\n\n", "empty", id="empty lines"),
        pytest.param(b"\xff\xfea\0,\0b\0\n\0\x01", "UTF-16", id="half a letter of UTF-16"),
        pytest.param(b"a,b\n\xe9,1\n\xc3\xa9,2\n", "line 3", id="two encodings"),
        pytest.param(b"a,b\n\x81,1\n", "line 2", id="no encoding"),
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0", "picture", id="a picture"),
        pytest.param(b"PK\3\4\0\0\0", "Excel", id="a workbook"),
        pytest.param(b"a,b\n1,2\na,b\n1,2\n", "line 3", id="two files joined"),
        pytest.param(b"a,b\n1,2\n\xef\xbb\xbf1,2\n", "line 3", id="a mark in the middle"),
        pytest.param(b"a,b\x07\n1,2\n", "printable", id="a bell in a name"),
        pytest.param(b"a\r1\r2\r", "Macintosh", id="lines of old Macintosh files"),
        pytest.param(b"\x1f\x8bxx", "gzip", id="gz magic only"),
        pytest.param(gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:-9], "gzip", id="truncated gz"),
        pytest.param(b"a,a,b\n1,2,3\n", "once", id="a name twice"),
    ],
)
def test_a_file_that_is_no_table_gives_one_clear_error(
    tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "records.csv"
    file.write_bytes(content)
    with pytest.raises(UnreadableFileError, match=says):
        load(file)


@pytest.mark.parametrize(
    "name", [pytest.param("absent.csv", id="missing"), pytest.param("", id="folder")]
)
def test_no_file_gives_one_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableFileError, match="file") as refused:
        load(tmp_path / name)
    assert ("exist" in str(refused.value)) is bool(name)


@pytest.mark.parametrize("bound", ["MAX_FILE_BYTES", "MAX_CELLS"])
def test_a_file_beyond_its_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(csv_file, bound, 100)
    with pytest.raises(UnreadableFileError, match=r"\b100\b"):
        load(write(tmp_path, rows()))


class Endless(io.RawIOBase):
    """A file of one line that never ends; counts what is read of it."""

    taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer[:] = b"x" * len(buffer)
        self.taken += len(buffer)
        return len(buffer)


def test_an_endless_line_is_refused_after_reading_little_of_it() -> None:
    stream = Endless()
    with pytest.raises(UnreadableFileError):
        csv_file.parse(io.BufferedReader(stream), "endless.csv")
    assert stream.taken < 2 * csv_file.MAX_LINE_BYTES


@pytest.mark.parametrize("role", ["label", "patient", "hospital"])
def test_a_column_that_is_absent_is_named(tmp_path: Path, role: str) -> None:
    with pytest.raises(MissingColumnError, match="'weight'"):
        load(write(tmp_path, rows()), **{role: "weight"})  # type: ignore[arg-type]


def test_one_column_cannot_play_two_roles(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError):
        load(write(tmp_path, rows()), patient="outcome")


def test_a_class_of_two_patients_is_too_rare_even_with_many_rows(tmp_path: Path) -> None:
    lines = [
        f"p{row},a,{row},m,{'rare' if row < 2 else 'sick'}" for row in range(40) for _ in "xxx"
    ]
    with pytest.raises(RareClassError, match="3 patients"):
        load(write(tmp_path, lines))


# Preprocessing


def table(numbers: np.ndarray, labels: np.ndarray) -> Table:
    columns = tuple(Column(f"c{index}", numbers[:, index]) for index in range(numbers.shape[1]))
    units = tuple(f"u{row}" for row in range(len(labels)))
    return Table(columns, labels, ("a", "b"), units, None)


def test_nothing_is_learned_from_private_records() -> None:
    rng = np.random.default_rng(0)
    numbers, labels = rng.normal(size=(100, 3)), np.arange(100) % 2
    plain = table_dataset("toy", table(numbers, labels), rng=np.random.default_rng(5))
    private = [int(unit[1:]) for unit in plain.private.unit_ids]
    changed = numbers.copy()
    changed[private[0]] = (1e9, np.nan, -1e9)
    other = table_dataset("toy", table(changed, labels), rng=np.random.default_rng(5))
    assert np.array_equal(plain.pool.features, other.pool.features)
    assert np.array_equal(plain.test.features, other.test.features)
    assert np.array_equal(plain.private.features[1:], other.private.features[1:])
    assert not np.array_equal(plain.private.features[0], other.private.features[0])


def encode(column: Column, pool: list[int]) -> np.ndarray:
    everything = np.arange(len(column.numbers))
    return fit_table_encoder((column,), np.array(pool)).apply((column,), everything)


def text_column(*cells: str) -> Column:
    return Column("c", np.full(len(cells), np.nan), cells)


def test_missing_numbers_become_the_median_of_the_pool() -> None:
    encoded = encode(Column("c", np.array([1.0, 2.0, 9.0, np.nan, 100.0])), [0, 1, 2, 3])
    assert encoded[3, 0] == encoded[1, 0]


def test_one_odd_number_is_cut_off() -> None:
    encoded = encode(Column("c", np.array([1.0, 2.0, 3.0, 1e90])), [0, 1, 2])
    assert encoded[3, 0] == 8.0


def test_categories_that_the_pool_does_not_know_become_zeros() -> None:
    encoded = encode(text_column("a", "b", "a", "b", "new", "?"), [0, 1, 2, 3])
    assert encoded.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [0, 0], [0, 0]]


def test_a_text_in_a_column_that_is_numeric_in_the_pool_counts_as_missing() -> None:
    column = Column("c", np.array([1.0, 2.0, 4.0, np.nan]), ("1", "2", "4", "V45"))
    assert encode(column, [0, 1, 2])[3, 0] == encode(column, [0, 1, 2])[1, 0]


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(Column("c", np.full(30, 4.0)), id="constant number"),
        pytest.param(text_column(*["a"] * 30), id="constant text"),
        pytest.param(text_column(*["?"] * 30), id="unknown throughout"),
        pytest.param(text_column(*[f"name {row}" for row in range(30)]), id="names"),
        pytest.param(Column("encounter_id", np.arange(30.0)), id="numbered ids"),
        pytest.param(Column("PATIENT NBR", np.arange(30.0)), id="numbered patients"),
    ],
)
def test_columns_that_say_nothing_about_a_new_patient_are_left_out(column: Column) -> None:
    with pytest.raises(InvalidDataError, match="varies"):
        fit_table_encoder((column,), np.arange(30))


def test_a_measurement_that_differs_in_every_row_is_kept() -> None:
    assert encode(Column("weight_g", np.arange(30.0)), list(range(30))).shape == (30, 1)


@given(
    units=st.lists(st.integers(0, 40), min_size=60, max_size=150),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_a_split_keeps_units_whole_and_loses_no_row(units: list[int], seed: int) -> None:
    ids = [f"u{unit}" for unit in units]
    labels = np.array([unit % 2 for unit in units])
    if min(len({u for u in units if u % 2 == label}) for label in set(labels.tolist())) < 3:
        with pytest.raises(RareClassError):
            split_by_unit(labels, ids, rng=np.random.default_rng(seed))
        return
    parts = split_by_unit(labels, ids, rng=np.random.default_rng(seed))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(units)))
    sides = [{ids[row] for row in part} for part in parts]
    assert sum(len(side) for side in sides) == len(set(ids))
    assert all(set(labels[part]) == {0, 1} for part in parts)


@pytest.mark.slow
@given(text=st.text(max_size=300))
def test_no_text_makes_the_reader_fail_otherwise_than_by_its_error(text: str) -> None:
    raw = io.BytesIO(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(UnreadableFileError):
        found = csv_file.parse(raw, "any.csv")
        assert all(len(column) == len(found.lines) for column in found.columns)


# Real tables


def test_real_intensive_care_records_keep_patients_whole() -> None:
    file = real_data("data/eicu_demo/apache_mortality.csv.gz")
    data = load(file, label="died_in_hospital", patient="uniquepid", hospital="hospitalid")
    assert sum(len(part) for part in data.parts) == 1838
    assert sum(part.unit_count for part in data.parts) == 1512
    assert sum(int(part.labels.sum()) for part in data.parts) == 155
    shares = [part.labels.mean() for part in data.parts]
    assert max(shares) - min(shares) < 0.03


def test_decimal_commas_are_numbers_where_the_user_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["name;lab;dose;ill"]
    for row in range(60):
        ill = row % 2
        value = f"{5 + 3 * ill + rng.normal():.2f}".replace(".", ",")
        lines.append(f"a,{row};{value} mg/dL;{value}e1;{'yes' if ill else 'no'}")
    path = tmp_path / "de.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    source = DataSource("csv", data_file=path, label_column="ill", separator=";", decimal=",")
    uses = {
        one.name: (one.use, one.why)
        for one in load_dataset(source, rng=np.random.default_rng(0)).columns
    }
    assert uses["lab"] == ("number", "mg/dl")
    assert uses["dose"] == ("number", "")
    assert uses["name"][0] == "left out"  # a text with a comma stays a text


@pytest.mark.parametrize(("separator", "decimal"), [(";", ";"), (";", "")])
def test_a_decimal_sign_is_a_point_or_a_comma(separator: str, decimal: str) -> None:
    with pytest.raises(InvalidParameterError, match="--decimal"):
        DataSource(
            "csv",
            data_file=Path("a.csv"),
            label_column="b",
            separator=separator,
            decimal=decimal,
        )
