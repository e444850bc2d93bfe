"""Before anything is trained a table says what it uses, what it leaves out, and what looks odd."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.data.table_features import Column, fit_table_encoder
from pate_fed.report.data_words import data_lines, data_table

HEAD = [
    "mrn", "age", "sex", "site", "notes", "empty", "copy", "late", "half", "ill",
]  # fmt: skip


def table(path: Path, *, rows: int = 400, twins: int = 0) -> Dataset:
    rng = np.random.default_rng(0)
    lines = []
    for row in range(rows):
        ill = int(rng.random() < 0.3)
        lines.append(
            [
                f"{100_000 + row}",
                f"{50 + 5 * ill + rng.normal(scale=10):.1f}",
                rng.choice(["f", "m"]),
                "north",
                f"seen on day {row}",
                "",
                "yes" if ill else "no",
                f"{3 * ill + rng.random():.3f}",
                f"{ill + rng.normal():.2f}",
                "ill" if ill else "well",
            ]
        )
    for row in range(twins):
        lines.append([f"{200_000 + row}", *lines[row][1:]])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, *lines])
    source = DataSource("csv", data_file=path, label_column="ill", patient_column="mrn")
    return load_dataset(source, rng=np.random.default_rng(1))


def test_each_column_says_its_use_and_why(tmp_path: Path) -> None:
    data = table(tmp_path / "visits.csv")
    found = {one.name: (one.use, one.why) for one in data.columns}
    assert list(found) == ["ill", "mrn", *HEAD[1:-1]]
    assert found["ill"] == ("label", "")
    assert found["mrn"] == ("patient", "")
    assert found["age"] == ("number", "")
    assert found["sex"] == ("category", "2 values")
    assert {found[name][0] for name in ("site", "notes", "empty")} == {"left out"}
    assert [found[name][1].split()[0] for name in ("site", "notes", "empty")] == [
        *("one", "an", "empty")
    ]
    assert found["notes"][1].count("100") == 2


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        *(
            (name, True)
            for name in ("column 1", "Unnamed: 0", "pidnum", "patient_id", "record no", "MRN")
        ),
        *((name, False) for name in ("days", "platelets", "height", "unnamed gene 7")),
    ],
)
def test_row_numbers_and_ids_are_left_out_and_distinct_measurements_are_not(
    name: str, is_id: bool
) -> None:
    rows = np.arange(40)
    columns = (
        Column(name, 100.0 + rows, tuple(str(100 + row) for row in rows)),
        Column("age", rows % 7.0, tuple(str(row % 7) for row in rows)),
    )
    found = fit_table_encoder(columns, rows)
    assert (name in found.left_out) is is_id


def test_a_column_that_predicts_the_label_alone_is_pointed_at_and_no_other(tmp_path: Path) -> None:
    data = table(tmp_path / "visits.csv")
    pointed = [note for note in data.notes if "almost alone" in note]
    assert len(pointed) == 2
    assert "'copy'" in pointed[0]
    assert "'late'" in pointed[1]
    assert "--ignore" in pointed[0]


def test_a_strong_but_honest_column_is_not_called_a_copy() -> None:
    data = load_dataset(DataSource("breast-cancer"), rng=np.random.default_rng(1))
    assert [note for note in data.notes if "almost alone" in note] == []


@pytest.mark.parametrize(("twins", "told"), [(0, ""), (5, "fewer than 10"), (40, "")])
def test_a_patient_under_two_ids_is_asked_about(tmp_path: Path, twins: int, told: str) -> None:
    """Many equal rows are a property of the table, not of its ids."""
    data = table(tmp_path / "visits.csv", twins=twins)
    notes = [note for note in data.notes if "two ids" in note]
    assert bool(notes) is bool(told)
    assert told in "".join(notes)


def test_the_lines_for_people_name_every_column_and_no_cell(tmp_path: Path) -> None:
    data = table(tmp_path / "visits.csv")
    text = "\n".join(data_lines(data_table(data)))
    for name in HEAD[1:-1]:
        assert name in text
    assert re.search("240 .* 100 .* 60 ", text)
    assert "site (" in text
    assert "seen on day" not in text
    assert "north" not in text


def test_shares_of_classes_are_those_of_the_public_parts(tmp_path: Path) -> None:
    data = table(tmp_path / "visits.csv")
    public = np.concatenate([data.pool.labels, data.test.labels])
    place = data.class_names.index("ill")
    assert data_table(data).classes["ill"] == pytest.approx((public == place).mean())
