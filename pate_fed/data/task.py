"""What a federation learns: how every hospital reads its own table, and what is asked.

One public document, of two parts.

- The *schema*: label, classes, columns, and how each column becomes features. Its encoders were
  fitted on the first public pool alone, so that a feature means the same at every hospital, and no
  hospital's records say how another's are read. Later pools of the same columns and classes are
  read by the very same schema: teachers and answers stay those of one task. The task's digest is
  the schema's.
- The *rows* of one public pool, as they are known for ever (`pate_fed.public_rows`). Everybody
  computes the inputs from them, so that nobody can be told of a row that teachers do not see.

The bytes: a magic line, the length of the schema, the schema (canonical JSON), then each row as a
JSON array and a line feed. One document has one form.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import LARGEST_NUMBER, Cell, cell_of, is_missing, parse_number, plain, text_of
from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.dataset import DatasetKind, Records
from pate_fed.data.table_features import (
    CategoryEncoder,
    NumberEncoder,
    TableEncoder,
    column_of,
    fit_table_encoder,
)
from pate_fed.data.tables import MOST_CLASSES, known_cells, read_column
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTaskError,
    MissingColumnError,
)
from pate_fed.public_rows import PublicRows
from pate_fed.queries import QueryPool

MAGIC = b"pate-fed task\n"
VERSION = 1
MAX_TASK_BYTES = 2**27
MAX_SCHEMA_BYTES = 4 * 2**20
MOST_COLUMNS = 10_000
MOST_NAME_LENGTH = 256

_LENGTH = struct.Struct(">I")
_SMALLEST_DEVIATION = 1 / LARGEST_NUMBER
_KEYS = {"version", "name", "kind", "label", "classes", "columns", "left_out"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TaskSchema:
    """What is learned, and how a table is read for it: the same for every pool.

    Attributes:
        name: What people call it.
        kind: "image" or "table": which models suit it.
        label: Column that is predicted.
        class_names: Names of classes 0, 1, ...
        columns: Columns that are read, in order of their names, so that inputs of the same columns
            can be compared whoever made the task.
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
        """SHA-256 of its bytes, 32 bytes: the task, whatever the pool."""
        return hashlib.sha256(self.to_bytes()).digest()

    def encode(self, text: CsvTable, *, patient_column: str | None) -> Records:
        """Read a hospital's table as everybody does.

        Args:
            text: The table.
            patient_column: Column that says whose a row is; None: each row is a patient of its own.

        Raises:
            MissingColumnError: a column of the task, or the patient's, is absent.
            InvalidCellError: a label is missing or of no class, a patient is missing, or a cell of
                a column of numbers is none. The line is named, never what stands there.
            InvalidParameterError: the patient's column is a feature or the label.
        """
        if patient_column in (self.label, *self.columns):
            raise InvalidParameterError(
                "the patient's column must be neither label nor feature", "one of them"
            )
        for name in (self.label, *self.columns, *([patient_column] if patient_column else [])):
            _require_column(text, name)
        columns = tuple(
            column_of(name, cells)
            for name, cells in zip(self.columns, self._cells(text), strict=True)
        )
        return Records(
            features=self.encoder.apply(columns, np.arange(len(text.lines), dtype=np.int64)),
            labels=_labels(text, self.label, self.class_names),
            unit_ids=tuple(f"row-{line}" for line in text.lines)
            if patient_column is None
            else known_cells(text, patient_column),
        )

    def rows_of(self, text: CsvTable) -> PublicRows:
        """Read a table of public inputs; only the columns of the task.

        Raises:
            MissingColumnError: a column of the task is absent.
            InvalidCellError: a cell of a column of numbers is none.
        """
        for name in self.columns:
            _require_column(text, name)
        return PublicRows(self.columns, tuple(zip(*self._cells(text), strict=True)))

    def inputs_of(self, rows: PublicRows) -> NDArray[np.float64]:
        """Turn rows into what teachers get; float64, shape (rows, features).

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
        return _canonical(
            {
                "version": VERSION,
                "name": self.name,
                "kind": self.kind,
                "label": self.label,
                "classes": list(self.class_names),
                "columns": [
                    _column_fields(name, encoder)
                    for name, encoder in zip(self.columns, self.encoder.encoders, strict=True)
                ],
                "left_out": list(self.left_out),
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> TaskSchema:
        """Read what `to_bytes` wrote, and nothing else.

        Raises:
            InvalidTaskError: it is anything else.
        """
        try:
            fields = json.loads(content.decode("ascii"), parse_constant=_refuse)
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
        columns = _exact(fields["columns"], list)
        if len(columns) > MOST_COLUMNS:
            raise InvalidTaskError(f"at most {MOST_COLUMNS} columns", len(columns))
        return cls(
            name=_exact(fields["name"], str),
            kind=kind,
            label=_exact(fields["label"], str),
            class_names=tuple(_exact(one, str) for one in _exact(fields["classes"], list)),
            columns=tuple(_exact(one["name"], str) for one in columns),
            encoder=TableEncoder(tuple(_encoder(one, place) for place, one in enumerate(columns))),
            left_out=tuple(_exact(one, str) for one in _exact(fields["left_out"], list)),
        )

    def _cells(self, text: CsvTable) -> list[tuple[Cell, ...]]:
        return [
            _cells_for(text, name, encoder)
            for name, encoder in zip(self.columns, self.encoder.encoders, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LearningTask:
    """A task with one pool of public inputs: what a coordinator publishes.

    Attributes:
        schema: What is learned, and how rows are read.
        rows: The public rows that may be asked about.
        pool: The same as what teachers get.
    """

    schema: TaskSchema
    rows: PublicRows
    pool: QueryPool = field(init=False)

    def __post_init__(self) -> None:
        inputs = self.schema.inputs_of(self.rows)
        object.__setattr__(self, "pool", QueryPool(inputs, self.rows, task=self.schema.digest))

    def __repr__(self) -> str:
        queries, features = self.inputs.shape
        return f"LearningTask({self.name!r}, queries={queries}, features={features})"

    @classmethod
    def from_public_table(
        cls,
        path: Path,
        *,
        label: str,
        classes: Sequence[str],
        name: str = "",
        kind: DatasetKind = "table",
        ignored: Sequence[str] = (),
        known: Iterable[TaskSchema] = (),
    ) -> LearningTask:
        """Make the task of a table of public inputs, or find it among those that are known.

        A known one has the same label, kind and set of classes, reads columns that the table has,
        and was offered every other column that is of use here. Then name, order of classes and
        encoders are those that it has had since its first pool.

        Args:
            path: The table, one input a row. Where it has the label's column, that is not read.
            label: Column of the hospitals' tables that is predicted.
            classes: Names of its classes, in order.
            name: What people call a new task; empty for the file's name.
            kind: What the records are.
            ignored: Columns that are no features.
            known: Schemas of earlier pools of this federation.

        Raises:
            UnreadableFileError: the file is no CSV file that can be read.
            InvalidCellError: a number is out of range, or none stands in a known task's column of
                numbers.
            InvalidDataError: no column is of use.
            InvalidTaskError: the names of classes or columns cannot be, or too many rows.
        """
        text = read_csv(path)
        for column in ignored:
            _require_column(text, column)
        label, *class_names = (plain(one) for one in (label, *classes))
        offered = tuple(one for one in text.header if one not in {label, *ignored})
        if not text.lines:
            raise InvalidTaskError(f"{text.file_name} must have public inputs", "no row")
        schema = _known_schema(
            text, offered, known, label=label, class_names=class_names, kind=kind
        ) or _new_schema(
            text,
            offered,
            name=name or path.name,
            label=label,
            class_names=tuple(class_names),
            kind=kind,
        )
        task = cls(schema, schema.rows_of(text))
        if len(task.to_bytes()) > MAX_TASK_BYTES:
            raise InvalidTaskError(f"a pool must have at most {MAX_TASK_BYTES} bytes", "more")
        return task

    @property
    def name(self) -> str:
        """What people call it."""
        return self.schema.name

    @property
    def kind(self) -> DatasetKind:
        """What its records are: "image" or "table"."""
        return self.schema.kind

    @property
    def label(self) -> str:
        """Column that is predicted."""
        return self.schema.label

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of classes 0, 1, ..."""
        return self.schema.class_names

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read, in order."""
        return self.schema.columns

    @property
    def encoder(self) -> TableEncoder:
        """How they are read."""
        return self.schema.encoder

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.schema.classes

    @property
    def inputs(self) -> NDArray[np.float64]:
        """The public inputs, encoded; float64, shape (queries, features), read-only."""
        return self.pool.inputs

    @property
    def digest(self) -> bytes:
        """Of its schema, 32 bytes: the same for every pool of the task."""
        return self.schema.digest

    def encode(self, text: CsvTable, *, patient_column: str | None) -> Records:
        """Read a hospital's table: see `TaskSchema.encode`."""
        return self.schema.encode(text, patient_column=patient_column)

    def to_bytes(self) -> bytes:
        """Return its one form."""
        schema = self.schema.to_bytes()
        body = b"".join(_canonical(list(row)) + b"\n" for row in self.rows.cells)
        return MAGIC + _LENGTH.pack(len(schema)) + schema + body

    @classmethod
    def from_bytes(cls, content: bytes) -> LearningTask:
        """Read what `to_bytes` wrote, and nothing else.

        Raises:
            InvalidTaskError: it is anything else.
        """
        if len(content) > MAX_TASK_BYTES:
            raise InvalidTaskError(f"a task must have at most {MAX_TASK_BYTES} bytes", "more")
        schema, start = _read_schema(content)
        try:
            lines = content[start:].decode("ascii").splitlines()
            cells = tuple(tuple(_exact(_row(line), list)) for line in lines)
            rows = PublicRows(schema.columns, cells)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidTaskError("a task's rows must be as they were made", "others") from error
        task = cls(schema, rows)
        if task.to_bytes() != content:
            raise InvalidTaskError("a task must have its one form", "another")
        return task


def schema_in(path: Path) -> TaskSchema:
    """Return the schema in a document's file, without its rows.

    Raises:
        InvalidTaskError: the file holds another thing.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _read_schema(file.read(len(MAGIC) + _LENGTH.size + MAX_SCHEMA_BYTES))[0]


def _read_schema(content: bytes) -> tuple[TaskSchema, int]:
    """Return the schema at the start of a document, and where the rows begin."""
    start = len(MAGIC) + _LENGTH.size
    if len(content) < start or not content.startswith(MAGIC):
        raise InvalidTaskError("a task must begin as one", "another file")
    (length,) = _LENGTH.unpack_from(content, len(MAGIC))
    if length > MAX_SCHEMA_BYTES or start + length > len(content):
        raise InvalidTaskError("a task's schema must be whole and short", "another length")
    return TaskSchema.from_bytes(content[start : start + length]), start + length


# Old and new ------------------------------------------------------------------------------------


def _known_schema(
    text: CsvTable,
    offered: tuple[str, ...],
    known: Iterable[TaskSchema],
    *,
    label: str,
    class_names: Sequence[str],
    kind: DatasetKind,
) -> TaskSchema | None:
    """Return the known schema that a table belongs to; of several the one that reads most."""
    wanted = {text_of(cell_of(one)) for one in class_names}
    fitting = [
        one
        for one in known
        if (one.label, one.kind) == (label, kind)
        and {text_of(cell_of(name)) for name in one.class_names} == wanted
        and set(one.columns) <= set(offered)
        and not _useful(text, set(offered) - {*one.columns, *one.left_out})
    ]
    return max(fitting, key=lambda one: (len(one.columns), one.digest), default=None)


def _new_schema(
    text: CsvTable,
    offered: tuple[str, ...],
    *,
    name: str,
    label: str,
    class_names: tuple[str, ...],
    kind: DatasetKind,
) -> TaskSchema:
    columns = tuple(read_column(text, one) for one in sorted(offered))
    fitted = fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    used = tuple(columns[one.position].name for one in fitted.encoders)
    return TaskSchema(
        name=name,
        kind=kind,
        label=label,
        class_names=class_names,
        columns=used,
        encoder=TableEncoder(
            tuple(_moved(one, place) for place, one in enumerate(fitted.encoders))
        ),
        left_out=tuple(one for one in offered if one not in used),
    )


def _useful(text: CsvTable, names: set[str]) -> bool:
    """Tell whether one of some columns says anything in this table."""
    columns = tuple(read_column(text, name) for name in sorted(names))
    try:
        fit_table_encoder(columns, np.arange(len(text.lines), dtype=np.int64))
    except InvalidDataError:
        return False
    return True


# Checks -----------------------------------------------------------------------------------------


def _check_names(task: TaskSchema) -> None:
    for text in (task.name, task.label, *task.class_names, *task.columns, *task.left_out):
        if not (text.isprintable() and text == plain(text) and 0 < len(text) <= MOST_NAME_LENGTH):
            raise InvalidTaskError(
                f"a name must be 1 to {MOST_NAME_LENGTH} printable characters, in NFC", len(text)
            )
    if not 2 <= len(task.class_names) <= MOST_CLASSES:
        raise InvalidTaskError(f"2 to {MOST_CLASSES} classes", len(task.class_names))
    # "0" and "0.0" would be two names for what tables write either way.
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
            good = len(one.categories) > 0 and list(one.categories) == sorted(set(one.categories))
        if not good:
            raise InvalidTaskError(
                "an encoder must have finite numbers, or categories in order", "another"
            )


# Cells ------------------------------------------------------------------------------------------


def _require_column(text: CsvTable, name: str) -> None:
    if name not in text.header:
        raise MissingColumnError(
            f"{text.file_name} must have a column {name!r}",
            f"{len(text.header)} columns of other names in the first row",
        )


def _cells_for(
    text: CsvTable, name: str, encoder: NumberEncoder | CategoryEncoder
) -> tuple[Cell, ...]:
    cells = text.column(name)
    read = {cell: cell_of(cell) for cell in set(cells)}
    for line, cell in zip(text.lines, cells, strict=True):
        # A comma for a point would else become the median without a word.
        if isinstance(encoder, NumberEncoder) and isinstance(read[cell], str):
            raise InvalidCellError(
                f"cells of column {name!r} of {text.file_name} must be numbers below 1e100, or "
                "empty",
                f"another in line {line}",
            )
    return tuple(read[cell] for cell in cells)


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


# Bytes ------------------------------------------------------------------------------------------


def _canonical(fields: object) -> bytes:
    text = json.dumps(
        fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def _moved(encoder: NumberEncoder | CategoryEncoder, place: int) -> NumberEncoder | CategoryEncoder:
    if isinstance(encoder, CategoryEncoder):
        return CategoryEncoder(place, encoder.categories)
    return NumberEncoder(place, encoder.median, encoder.mean, encoder.deviation)


def _column_fields(name: str, encoder: NumberEncoder | CategoryEncoder) -> dict[str, Any]:
    if isinstance(encoder, CategoryEncoder):
        return {"name": name, "categories": list(encoder.categories)}
    return {
        "name": name,
        "median": float(encoder.median),
        "mean": float(encoder.mean),
        "deviation": float(encoder.deviation),
    }


def _encoder(fields: Any, place: int) -> NumberEncoder | CategoryEncoder:
    if type(fields) is not dict:
        raise TypeError
    if set(fields) == {"name", "categories"}:
        listed = _exact(fields["categories"], list)
        return CategoryEncoder(place, tuple(_exact(one, str) for one in listed))
    if set(fields) != {"name", "median", "mean", "deviation"}:
        raise TypeError
    median, mean, deviation = (
        _exact(fields[one], float) for one in ("median", "mean", "deviation")
    )
    return NumberEncoder(place, median, mean, deviation)


def _row(line: str) -> Any:
    return json.loads(line, parse_constant=_refuse)


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)
