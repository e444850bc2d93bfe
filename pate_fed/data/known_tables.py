"""Public clinical and census tables by name, read from the files that their publishers give.

Each is read by the same rules as a user's own table; here stand the names of its files, label and
patient, and the mends that its files need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pate_fed.data.csv_file import CsvTable, plain_or_packed, read_csv
from pate_fed.data.tables import Roles

_HOSPITAL = "hospital"


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A published table.

    Attributes:
        files: Names of its files, plain or with `.gz`; rows of several are one table.
        header: Columns, where the files have no first row of names.
        hospitals: Hospital of each file, where files are hospitals.
        mended: Turns the lines of a file into those of a table.
        public: Name of the file whose rows are the public ones, where the publisher split it.
    """

    files: tuple[str, ...]
    roles: Roles
    header: tuple[str, ...] | None = None
    hospitals: tuple[str, ...] | None = None
    mended: Callable[[Iterator[str]], Iterator[str]] = lambda lines: lines
    public: str | None = None


def _adult_lines(lines: Iterator[str]) -> Iterator[str]:
    """Leave out the comment of the test file, and the full stop behind its labels."""
    for line in lines:
        text = line.rstrip("\r\n")
        if text and not text.startswith("|"):
            yield text.removesuffix(".") + "\n"


def _heart_lines(lines: Iterator[str]) -> Iterator[str]:
    """Read a cholesterol of 0 as not measured, and any grade of disease as disease."""
    for line in lines:
        cells = line.strip().split(",")
        if len(cells) == len(_HEART):
            if cells[4] in ("0", "0.0"):
                cells[4] = "?"
            cells[-1] = "absent" if cells[-1] == "0" else "present"
            yield ",".join(cells) + "\n"


_ADULT = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
_HEART = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "disease",
)

KNOWN_TABLES = {
    "adult": KnownTable(
        ("adult.data", "adult.test"),
        Roles("income", ignored=("fnlwgt",), positive=">50K"),
        header=_ADULT,
        mended=_adult_lines,
        public="adult.test",
    ),
    "brfss": KnownTable(
        ("diabetes_binary_health_indicators_BRFSS2015.csv",),
        Roles("Diabetes_binary", positive="1"),
    ),
    "diabetes130": KnownTable(
        ("diabetic_data.csv",),
        Roles("readmitted", patient="patient_nbr", ignored=("encounter_id",), positive="<30"),
    ),
    "heart-disease": KnownTable(
        (
            "processed.cleveland.data",
            "processed.hungarian.data",
            "processed.switzerland.data",
            "processed.va.data",
        ),
        Roles("disease", hospital=_HOSPITAL, positive="present"),
        header=_HEART,
        hospitals=("Cleveland", "Budapest", "Zurich and Basel", "Long Beach"),
        mended=_heart_lines,
    ),
}
"""Published tables, by the name of the data set."""


def read_known_table(name: str, data_dir: Path) -> tuple[CsvTable, tuple[bool, ...]]:
    """Return a published table, and which rows the publisher meant for the test."""
    known = KNOWN_TABLES[name]
    parts = [
        read_csv(plain_or_packed(data_dir, file), header=known.header, mended=known.mended)
        for file in known.files
    ]
    lengths = [len(part.lines) for part in parts]
    columns = [
        tuple(cell for part in parts for cell in part.column(title)) for title in parts[0].header
    ]
    header = parts[0].header
    if known.hospitals is not None:
        header = (*header, _HOSPITAL)
        columns.append(
            tuple(
                hospital
                for hospital, length in zip(known.hospitals, lengths, strict=True)
                for _ in range(length)
            )
        )
    is_public = tuple(
        file == known.public
        for file, length in zip(known.files, lengths, strict=True)
        for _ in range(length)
    )
    lines = tuple(range(1, sum(lengths) + 1))
    return CsvTable(name, header, tuple(columns), lines), is_public
