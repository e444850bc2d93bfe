"""The hospitals' tables and the public one, as files: of real hospitals, or of a bundled table.

Some records of each hospital are put aside as the public table. Their labels stay with the
demonstration, which counts with them at the end what was learned; nobody else has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pate_fed.cells import csv_line
from pate_fed.data.bundled import breast_cancer_table
from pate_fed.regular_files import read_regular

PUBLIC_SHARE = 0.25
SEED = 11
"""Of the choice which records are public: a demonstration is the same every time until noise."""

_HEART_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal"),
)
_HEART_HOSPITALS = {
    "cleveland": "Cleveland Clinic",
    "hungarian": "Budapest Institute",
    "switzerland": "Zurich and Basel",
    "va": "Long Beach VA",
}
_TUMOR_HOSPITALS = {"north": "North Clinic", "south": "South Clinic", "west": "West Clinic"}


@dataclass(frozen=True, slots=True)
class DemoTable:
    """What one hospital has.

    Attributes:
        key: Its folder's name.
        name: What people call it.
        rows: Its records: features as text, and the label.
    """

    key: str
    name: str
    rows: list[tuple[list[str], str]]


@dataclass(frozen=True, slots=True)
class Study:
    """What a demonstration is about.

    Attributes:
        title: What people call the federation.
        source: Where the records come from, in words.
        label: Column that is predicted.
        classes: What stands in it.
        columns: Features.
        hospitals: What each has.
        public: Records that everybody may see, features as text.
        truth: Their labels, which no process of the demonstration is given.
    """

    title: str
    source: str
    label: str
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    hospitals: list[DemoTable]
    public: list[list[str]]
    truth: list[str]

    def write_public(self, path: Path) -> None:
        """Write the public table: no label is in it."""
        _write(path, self.columns, self.public)

    def write_hospital(self, hospital: DemoTable, path: Path) -> None:
        """Write a hospital's own table."""
        _write(
            path,
            ("patient", *self.columns, self.label),
            (
                [f"{hospital.key}-{number}", *cells, label]
                for number, (cells, label) in enumerate(hospital.rows, 1)
            ),
        )


def load_study(data: Path | None) -> Study:
    """Load heart disease of four hospitals where it is, else breast tumors of three clinics.

    Args:
        data: Folder with `data/heart_disease`; None for what scikit-learn brings along.
    """
    folder = None if data is None else data / "data" / "heart_disease"
    if folder is not None and folder.is_dir():
        return _heart_study(folder)
    return _tumor_study()


def _heart_study(folder: Path) -> Study:
    records = {}
    for key in _HEART_HOSPITALS:
        lines = read_regular(folder / f"processed.{key}.data").decode().split()
        rows = [line.split(",") for line in lines]
        # "num" is 0 without the disease and 1 to 4 with it; chol 0 was not measured.
        records[key] = [
            (_without_zero_chol(row[:-1]), "no" if float(row[-1]) == 0 else "yes") for row in rows
        ]
    return _study(
        title="heart study",
        source="UCI Heart Disease: records of four real hospitals",
        label="disease",
        classes=("no", "yes"),
        columns=_HEART_COLUMNS,
        records=records,
        hospitals=_HEART_HOSPITALS,
    )


def _tumor_study() -> Study:
    table = breast_cancer_table()
    order = np.random.default_rng(SEED).permutation(len(table.labels))
    cells = [
        [repr(float(number)) for number in row]
        for row in np.column_stack([column.numbers for column in table.columns])
    ]
    parts = np.array_split(order, len(_TUMOR_HOSPITALS))
    records = {
        key: [(cells[row], table.class_names[table.labels[row]]) for row in part]
        for key, part in zip(_TUMOR_HOSPITALS, parts, strict=True)
    }
    return _study(
        title="tumor study",
        source="569 real breast tumors that scikit-learn brings along",
        label="tumor",
        classes=table.class_names,
        columns=tuple(column.name for column in table.columns),
        records=records,
        hospitals=_TUMOR_HOSPITALS,
    )


def _study(
    *,
    title: str,
    source: str,
    label: str,
    classes: tuple[str, ...],
    columns: tuple[str, ...],
    records: dict[str, list[tuple[list[str], str]]],
    hospitals: dict[str, str],
) -> Study:
    """Put some records of each hospital aside, and mix those."""
    rng = np.random.default_rng(SEED)
    tables, aside = [], []
    for key, name in hospitals.items():
        order = rng.permutation(len(records[key]))
        most = int(len(order) * PUBLIC_SHARE)
        aside += [records[key][row] for row in order[:most]]
        own = [records[key][row] for row in order[most:]]
        tables.append(DemoTable(key, name, own))
    mixed = [aside[row] for row in rng.permutation(len(aside))]
    return Study(
        title=title,
        source=source,
        label=label,
        classes=classes,
        columns=columns,
        hospitals=tables,
        public=[cells for cells, _ in mixed],
        truth=[known for _, known in mixed],
    )


def _without_zero_chol(cells: list[str]) -> list[str]:
    place = _HEART_COLUMNS.index("chol")
    missing = cells[place] != "?" and float(cells[place]) == 0
    return [*cells[:place], "?", *cells[place + 1 :]] if missing else cells


def _write(path: Path, header: Iterable[str], rows: Iterable[list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(csv_line(row) for row in (header, *rows))
