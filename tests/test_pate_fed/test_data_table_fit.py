"""A hospital's own table beside a task: what does not fit is named, no patient's value shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pate_fed.data.csv_file import read_csv
from pate_fed.data.new_task import make_task
from pate_fed.data.table_fit import TableFit, table_fit
from pate_fed.data.task import LearningTask

FLOOR = 10


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LearningTask:
    """60 public people of 20 to 79 years, in two wards and a rare one."""
    path = tmp_path_factory.mktemp("public") / "public.csv"
    wards = ("east", "west", "north")
    rows = [f"{20 + row},{wards[row % 3]}" for row in range(60)]
    path.write_text("\n".join(["age,ward", *rows]) + "\n", encoding="utf-8")
    return make_task(path, label="sick", classes=("no", "yes"))


def own_rows(count: int = 100) -> list[dict[str, object]]:
    return [
        {"id": f"p{row}", "age": 30.5 + row / 2, "ward": "East", "sick": ("no", "yes")[row % 2]}
        for row in range(count)
    ]


def fit_of(
    folder: Path,
    task: LearningTask,
    rows: list[dict[str, object]],
    *,
    label: str = "sick",
    patient: str = "id",
) -> TableFit:
    path = folder / "own.csv"
    lines = [",".join(map(str, row.values())) for row in rows]
    path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n", encoding="utf-8")
    return table_fit(read_csv(path), task, label=label, patient_column=patient, floor=FLOOR)


def words_of(fit: TableFit) -> str:
    said = [(one.public, one.own, *one.remarks, str(one.fault or "")) for one in fit.columns]
    return "\n".join([*map(str, said), *map(str, fit.faults)])


def test_a_table_that_fits_has_ranges_beside_the_public_ones(
    tmp_path: Path, task: LearningTask
) -> None:
    fit = fit_of(tmp_path, task, own_rows())
    age, ward = fit.columns
    assert (fit.faults, fit.unseen, fit.has_labels) == ((), (), True)
    assert age.public == "20 to 79, median 49.5"
    # A tenth of the rows, the floor, stays outside on each side: 30.5 to 80, and 10 rows are 5.
    assert re.findall(r"\d[\d.]*", age.own) == ["80", "35.45", "75.05", "55.25"]
    assert re.fullmatch(r"1 of 3 .* 10 rows: north, west\)", ward.own)


@pytest.mark.parametrize("extreme", [-7777.0, 8888.5])
def test_the_value_of_one_patient_changes_no_range_by_its_size(
    tmp_path: Path, task: LearningTask, extreme: float
) -> None:
    rows = own_rows()
    rows[0 if extreme < 0 else -1]["age"] = extreme
    shown = words_of(fit_of(tmp_path, task, rows))
    assert shown == words_of(fit_of(tmp_path, task, own_rows()))


@pytest.mark.parametrize(
    ("empty", "said"),
    [pytest.param(20, "20.0 %", id="many"), pytest.param(3, str(FLOOR), id="few")],
)
def test_empty_cells_are_counted_from_the_floor_on(
    tmp_path: Path, task: LearningTask, empty: int, said: str
) -> None:
    rows = own_rows()
    for row in rows[:empty]:
        row["age"] = ""
    whole = fit_of(tmp_path, task, own_rows()).columns[0].own
    gaps = re.search(r"empty in (.*?) of", fit_of(tmp_path, task, rows).columns[0].own)
    assert gaps is not None
    assert said in gaps[1]
    assert "empty" not in whole


@pytest.mark.parametrize("count", [1, 12, 39])
def test_few_rows_show_no_range(tmp_path: Path, task: LearningTask, count: int) -> None:
    age, ward = fit_of(tmp_path, task, own_rows(count)).columns
    assert not re.search(r"\d", age.own)
    assert age.fault is None
    if count < FLOOR:
        assert "0 of 3" in ward.own


def test_labels_in_another_spelling_are_named_with_the_task_s(
    tmp_path: Path, task: LearningTask
) -> None:
    rows = own_rows()
    rows[3]["sick"] = "Yes"
    [fault] = fit_of(tmp_path, task, rows).faults
    assert fault.code == "PF-115"
    for said in ("'Yes'", "'yes'", "no, yes", "line 5"):
        assert said in str(fault)


def test_a_class_that_nobody_here_has_is_no_fault(tmp_path: Path, task: LearningTask) -> None:
    fit = fit_of(tmp_path, task, [{**row, "sick": "no"} for row in own_rows()])
    assert (fit.faults, fit.unseen) == ((), ("yes",))


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        pytest.param({"age": None}, "PF-112", "'age', got none", id="column absent"),
        pytest.param({"sick": None}, "PF-112", "column 'sick', got none", id="label absent"),
        pytest.param({"age": "sixty"}, "PF-115", "numbers", id="text for a number"),
    ],
)
def test_what_teachers_cannot_learn_from_is_a_fault_with_a_code(
    tmp_path: Path, task: LearningTask, changed: dict[str, object], code: str, said: str
) -> None:
    rows = [
        {name: value for name, value in {**row, **changed}.items() if value is not None}
        for row in own_rows()
    ]
    fit = fit_of(tmp_path, task, rows)
    [fault] = fit.faults
    assert (fault.code, said in str(fault)) == (code, True)
    assert "sixty" not in words_of(fit)


def test_a_column_in_other_capitals_is_named_as_the_nearest(
    tmp_path: Path, task: LearningTask
) -> None:
    rows = [
        {"Age" if name == "age" else name: cell for name, cell in row.items()} for row in own_rows()
    ]
    [fault] = fit_of(tmp_path, task, rows).faults
    assert str(fault).endswith("got 'Age'")


def test_the_patients_column_is_no_feature(tmp_path: Path, task: LearningTask) -> None:
    [fault] = fit_of(tmp_path, task, own_rows(), patient="ward").faults
    assert fault.code == "PF-101"


def test_values_of_a_column_that_is_not_the_registered_label_are_never_named(
    tmp_path: Path, task: LearningTask
) -> None:
    """A coordinator that names another column as its label learns nothing on anybody's screen."""
    rows = [{**row, "sick": f"Mrs. {row['id']}", "other": "no"} for row in own_rows()]
    fit = fit_of(tmp_path, task, rows, label="other")
    assert (fit.faults, fit.has_labels) == ((), False)
    assert "Mrs." not in words_of(fit)


def test_numbers_in_another_unit_and_unknown_texts_raise_doubts(
    tmp_path: Path, task: LearningTask
) -> None:
    rows = [{**row, "age": 365 * 30 + place, "ward": "Q"} for place, row in enumerate(own_rows())]
    fit = fit_of(tmp_path, task, rows)
    assert not fit.faults
    assert [len(one.remarks) for one in fit.columns] == [1, 1]
    assert "'Q'" not in words_of(fit)


def test_columns_with_faults_and_then_doubts_come_first(tmp_path: Path, task: LearningTask) -> None:
    rows = [{**row, "ward": "Q"} for row in own_rows()]
    assert [one.name for one in fit_of(tmp_path, task, rows).first(1)] == ["ward"]
