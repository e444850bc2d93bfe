"""How every hospital reads its own table: label, classes, and how columns become features."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import LARGEST_NUMBER, folded, is_missing, parse_number, plain
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import Records
from pate_fed.data.preprocessing import TablePreprocessing, exactly
from pate_fed.data.table_features import (
    NumberEncoder,
    TableEncoder,
    column_of,
)
from pate_fed.data.tables import MOST_CLASSES, known_cells
from pate_fed.errors import (
    InvalidCellError,
    InvalidParameterError,
    InvalidTaskError,
    MissingColumnError,
)
from pate_fed.inputs import DatasetKind
from pate_fed.public_rows import PublicRows

VERSION = 1
MAX_SCHEMA_BYTES = 4 * 2**20
MOST_COLUMNS = 10_000
MOST_NAME_LENGTH = 256
_SMALLEST_DEVIATION = 1 / LARGEST_NUMBER
_KEYS = {"version", "name", "kind", "label", "classes", "columns", "left_out"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TaskSchema:
    """The target, and the way a table is read for it: the same for every pool.

    Attributes:
        name: Its name in messages.
        kind: "image" or "table": which models suit it.
        label: Column that is predicted.
        class_names: Names of classes 0, 1, ...
        columns: Columns that are read, in order of their names, so that inputs of the same columns
            can be compared over all tasks.
        encoder: How: one encoder per column, in the same order.
        left_out: Other columns of the first pool, in order, which said nothing there.
    """

    name: str
    kind: DatasetKind
    label: str
    class_names: tuple[str, ...]
    columns: tuple[str, ...]
    encoder: TableEncoder
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_names(self)
        _check_encoder(self.encoder, self.columns)

    def __repr__(self) -> str:
        return f"TaskSchema({self.name!r}, columns={len(self.columns)})"

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def digest(self) -> bytes:
        """SHA-256 of its bytes, 32 bytes: the task, for any pool."""
        return hashlib.sha256(self.to_bytes()).digest()

    def encode(self, text: CsvTable, *, patient_column: str | None) -> Records:
        """Read a hospital's table as everybody does.

        Args:
            text: The table.
            patient_column: Column that says whose a row is; None: each row is a patient of its own.

        Raises:
            MissingColumnError: a column of the task, or the patient's, is absent.
            InvalidCellError: a label is missing or of no class, a patient is missing, or a cell of
                a column of numbers is none. The line is named, never the cell's content.
            InvalidParameterError: the patient's column is a feature or the label.
        """
        if patient_column in (self.label, *self.columns):
            raise InvalidParameterError(
                "the patient's column must be neither label nor feature", "one of them"
            )
        for name in (self.label, *self.columns, *([patient_column] if patient_column else [])):
            require_column(text, name)
        return Records(
            features=self.preprocessing.inputs_of(text).features,
            labels=_labels(text, self.label, self.class_names),
            # By place, not by line: a cell with line breaks must not rename other rows.
            unit_ids=tuple(f"row-{place}" for place in range(len(text.lines)))
            if patient_column is None
            else known_cells(text, patient_column),
        )

    def rows_of(self, text: CsvTable) -> PublicRows:
        """Read a table of public inputs; only the columns of the task.

        Raises:
            MissingColumnError: a column of the task is absent.
            InvalidCellError: a cell of a column of numbers is none.
        """
        cells = self.preprocessing.cells(text)
        return PublicRows(self.columns, tuple(zip(*cells, strict=True)))

    def inputs_of(self, rows: PublicRows) -> NDArray[np.float64]:
        """Turn rows into the teachers' inputs; float64, shape (rows, features).

        A category that the schema does not know becomes zeros, a missing number the median.

        Raises:
            InvalidTaskError: rows of other columns, none, or a text in a column of numbers.
        """
        if rows.columns != self.columns or not len(rows):
            raise InvalidTaskError("a pool must have rows, of the task's columns", "others")
        by_column = list(zip(*rows.cells, strict=True))
        for encoder, cells in zip(self.encoder.encoders, by_column, strict=True):
            if isinstance(encoder, NumberEncoder) and any(isinstance(one, str) for one in cells):
                raise InvalidTaskError("a column of numbers must hold numbers", "a text")
        columns = tuple(column_of(*pair) for pair in zip(self.columns, by_column, strict=True))
        return self.encoder.apply(columns, np.arange(len(rows), dtype=np.int64))

    def to_bytes(self) -> bytes:
        """Return its one form."""
        return canonical_json(
            {
                "version": VERSION,
                "name": self.name,
                "kind": self.kind,
                "label": self.label,
                "classes": list(self.class_names),
                "columns": self.preprocessing.fields(),
                "left_out": list(self.left_out),
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> TaskSchema:
        """Read the bytes of `to_bytes`, and nothing else.

        Raises:
            InvalidTaskError: it is anything else.
        """
        try:
            fields = json.loads(content.decode("ascii"), parse_constant=refuse_constant)
            schema = cls._from_fields(fields)
            if schema.to_bytes() != content:
                raise InvalidTaskError("a task must have its one form", "another")
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("a task's schema must be as it was made", "another") from error
        return schema

    @classmethod
    def _from_fields(cls, fields: Any) -> TaskSchema:
        if type(fields) is not dict or set(fields) != _KEYS:
            raise TypeError
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise InvalidTaskError(f"a task must be of version {VERSION}", "another version")
        kind = fields["kind"]
        if kind not in get_args(DatasetKind):
            raise TypeError
        columns = exactly(fields["columns"], list)
        if len(columns) > MOST_COLUMNS:
            raise InvalidTaskError(f"at most {MOST_COLUMNS} columns", len(columns))
        table = TablePreprocessing.from_fields(columns)
        return cls(
            name=exactly(fields["name"], str),
            kind=kind,
            label=exactly(fields["label"], str),
            class_names=tuple(exactly(one, str) for one in exactly(fields["classes"], list)),
            columns=table.columns,
            encoder=table.encoder,
            left_out=tuple(exactly(one, str) for one in exactly(fields["left_out"], list)),
        )

    @property
    def preprocessing(self) -> TablePreprocessing:
        """The way from raw rows to inputs."""
        return TablePreprocessing(self.columns, self.encoder)


def _check_names(task: TaskSchema) -> None:
    for text in (task.name, task.label, *task.class_names, *task.columns, *task.left_out):
        if not (text.isprintable() and text == plain(text) and 0 < len(text) <= MOST_NAME_LENGTH):
            raise InvalidTaskError(
                f"a name must be 1 to {MOST_NAME_LENGTH} printable characters, in NFC", len(text)
            )
    if not 2 <= len(task.class_names) <= MOST_CLASSES:
        raise InvalidTaskError(f"2 to {MOST_CLASSES} classes", len(task.class_names))
    # "0" and "0.0" would be two names for one value in a table.
    numbers = [value for value in map(parse_number, task.class_names) if math.isfinite(value)]
    for names in (task.class_names, numbers, (task.label, *task.columns, *task.left_out)):
        if len(set(names)) != len(names):
            raise InvalidTaskError("every class and every column must be named once", "one twice")
    if any(is_missing(name) for name in task.class_names):
        raise InvalidTaskError("a class must not be called like a missing cell", "one that is")


def _check_encoder(encoder: TableEncoder, columns: tuple[str, ...]) -> None:
    places = [one.position for one in encoder.encoders]
    if not 0 < len(columns) <= MOST_COLUMNS or places != list(range(len(columns))):
        raise InvalidTaskError("every column must have its encoder, in order", "others")
    if list(columns) != sorted(columns):
        raise InvalidTaskError("columns must be in order of their names", "another order")
    for one in encoder.encoders:
        if isinstance(one, NumberEncoder):
            good = (
                max(abs(one.median), abs(one.mean)) <= LARGEST_NUMBER
                and _SMALLEST_DEVIATION <= one.deviation <= LARGEST_NUMBER
            )
        else:
            good = list(one.categories) == sorted(one.categories) and 0 < len(
                one.categories
            ) == len({folded(text) for text in one.categories})
        if not good:
            raise InvalidTaskError(
                "an encoder must have finite numbers, or categories in order", "another"
            )


def require_column(text: CsvTable, name: str) -> None:
    """Refuse a table without a column.

    Raises:
        MissingColumnError: it is missing.
    """
    if name not in text.header:
        raise MissingColumnError(
            f"{text.file_name} must have a column {name!r}",
            f"{len(text.header)} columns of other names in the first row",
        )


def _labels(text: CsvTable, name: str, class_names: tuple[str, ...]) -> NDArray[np.int64]:
    places: dict[str | float, int] = {one: place for place, one in enumerate(class_names)}
    for place, one in enumerate(class_names):
        if math.isfinite(value := parse_number(one)):
            places[value] = place
    found: list[int] = []
    for line, cell in zip(text.lines, known_cells(text, name), strict=True):
        label = places.get(cell, places.get(parse_number(cell)))
        if label is None:
            raise InvalidCellError(
                f"column {name!r} of {text.file_name} must hold the task's {len(class_names)} "
                "classes only",
                f"another in line {line}",
            )
        found.append(label)
    return np.array(found, dtype=np.int64)


def canonical_json(fields: object) -> bytes:
    """Return plain data in its one JSON form."""
    text = json.dumps(
        fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which Python's JSON would read.

    Raises:
        ValueError: always.
    """
    raise ValueError(name)
