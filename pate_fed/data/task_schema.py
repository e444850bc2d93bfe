"""How every hospital reads its own table: label, classes, and how columns become features.

The author of a task chooses no encoder, but may list a column's categories. Each reader derives it
from the rows of the task's first pool, which are part of the schema, by one function: `encoder_of`.
Its sums are exact, so every machine gets the same centers and spreads.

A stranger wrote the document. So its sizes are bounded before anything is built from it: bytes,
columns, rows, features, and bytes of the encoded inputs. The operator meets the same bounds, in the
same function (`require_room`), when the task is made.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import folded, is_missing, measurement, parse_number, plain
from pate_fed.data.columns import MOST_CLASSES
from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import Records
from pate_fed.data.preprocessing import TablePreprocessing, exactly
from pate_fed.data.table_features import (
    CategoryEncoder,
    NumberEncoder,
    TableEncoder,
    column_of,
    fit_column,
)
from pate_fed.errors import (
    InvalidCellError,
    InvalidParameterError,
    InvalidTaskError,
)
from pate_fed.inputs import DatasetKind
from pate_fed.public_rows import PublicRows

VERSION = 3
MAX_HEADER_BYTES = 4 * 2**20
MOST_COLUMNS = 10_000
MOST_ROWS = 2**17
"""Most rows of a pool."""

MOST_FEATURES = 10_000
MOST_INPUT_BYTES = 2**26
"""Most bytes of a pool's encoded inputs: 8 for each row and feature."""

MOST_RECORD_BYTES = 2**32
"""Most bytes of a hospital's own encoded table: what a task may cost there."""

MOST_NAME_LENGTH = 256
_KEYS = {
    *("version", "name", "kind", "data_set", "label", "classes", "columns", "left_out", "rows"),
}
_DATA_SET = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LENGTH = struct.Struct(">I")
_FEATURE_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TaskSchema:
    """The target, and the way a table is read for it: the same for every pool.

    Attributes:
        first: The rows of the task's first pool. Its columns are those that are read, in order of
            their names, so that inputs of the same columns can be compared over all tasks.
        units: Unit of each column's numbers, such as mg/dl; "" for none. Empty: no column has one.
        left_out: Other columns of the first pool, in order, which said nothing there.
        ranges: Smallest and largest number that a column can hold; () for what its pool has.
            Empty: no column has one.
        categories: Categories of a column, sorted, if its author listed them; () where they are
            those of the first pool. Empty: no column has any.
        spellings: Further spellings of each class in hospitals' tables. Empty: there are none.
        data_set: Data set of a hospital that it asks for; "" for the one without a name.
        encoder: How columns are read: `encoder_of` the first pool, one encoder per column.
        digest: The task, for any pool: SHA-256 of header and first rows, 32 bytes.

    Raises:
        InvalidTaskError: names that cannot be, a column that says nothing in the first pool, or
            more than the bounds.
    """

    name: str
    kind: DatasetKind
    label: str
    class_names: tuple[str, ...]
    first: PublicRows
    units: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    ranges: tuple[tuple[float, ...], ...] = ()
    categories: tuple[tuple[str, ...], ...] = ()
    spellings: tuple[tuple[str, ...], ...] = ()
    data_set: str = ""
    encoder: TableEncoder = field(init=False)
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        units = self.units or ("",) * len(self.columns)
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "ranges", self.ranges or ((),) * len(self.columns))
        object.__setattr__(self, "categories", self.categories or ((),) * len(self.columns))
        object.__setattr__(self, "spellings", self.spellings or ((),) * len(self.class_names))
        _check_names(self)
        _check_facts(self)
        object.__setattr__(self, "encoder", encoder_of(self.first, units, self.categories))
        rows = b"".join(self.first.digests)
        object.__setattr__(self, "digest", hashlib.sha256(self._header() + rows).digest())

    def __repr__(self) -> str:
        return f"TaskSchema({self.name!r}, columns={len(self.columns)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read, in order."""
        return self.first.columns

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def features(self) -> int:
        """Length of an input."""
        return self.encoder.features

    def encode(self, text: CsvTable, *, patient_column: str | None) -> Records:
        """Read a hospital's table as everybody does.

        Without `patient_column` each row is a patient of its own.

        Raises:
            InvalidCellError: a label is missing or of no class, a patient is missing, or a cell of
                a column of numbers is none. The line is named, never the cell's content.
            InvalidParameterError: the patient's column is a feature or the label.
            InvalidTaskError: the encoded table would need more than `MOST_RECORD_BYTES`.
        """
        if patient_column in (self.label, *self.columns):
            raise InvalidParameterError("the patient's column must be neither label nor feature")
        for name in (self.label, *self.columns, *([patient_column] if patient_column else [])):
            text.column(name)
        require_room(len(text.lines), self.features, most_bytes=MOST_RECORD_BYTES)
        return Records(
            features=self.preprocessing.inputs_of(text).features,
            labels=self._labels(text),
            unit_ids=text.unit_ids(patient_column),
        )

    def class_of(self, cell: str) -> int | None:
        """Return the place of a cell's class; None for a cell that is none of the task's.

        A class is written as the task has it, as an equal number, or as one of its spellings.
        """
        number = parse_number(cell)
        for place, name in enumerate(self.class_names):
            if cell == name or (math.isfinite(number) and parse_number(name) == number):
                return place
        spelled = folded(cell)
        found = (place for place, each in enumerate(self.spellings) if spelled in map(folded, each))
        return next(found, None)

    def _labels(self, text: CsvTable) -> NDArray[np.int64]:
        cells = text.known_cells(self.label)
        places = {cell: self.class_of(cell) for cell in set(cells)}
        if None in places.values():
            line = next(
                line for line, cell in zip(text.lines, cells, strict=True) if places[cell] is None
            )
            raise InvalidCellError(
                f"column {self.label!r} of {text.file_name} must hold the task's {self.classes} "
                "classes only; --map OLD=NEW names one as the task does",
                f"another in line {line}",
            )
        return np.array([places[cell] for cell in cells], dtype=np.int64)

    def rows_of(self, text: CsvTable) -> PublicRows:
        """Read a table of public inputs; only the columns of the task."""
        cells = self.preprocessing.cells(text)
        return PublicRows(self.columns, tuple(zip(*cells, strict=True)))

    def inputs_of(self, rows: PublicRows) -> NDArray[np.float64]:
        """Turn rows into the teachers' inputs; float64, shape (rows, features).

        A category that the schema does not know becomes zeros, a missing number the median.

        Raises:
            InvalidTaskError: rows of other columns, none, or a text in a column of numbers.
        """
        if rows.columns != self.columns or not len(rows):
            raise InvalidTaskError("a pool must have rows, of the task's columns")
        require_pool(len(rows), self.features)
        inputs = np.empty((len(rows), self.features))
        everything, place = np.arange(len(rows), dtype=np.int64), 0
        for number, encoder in enumerate(self.encoder.encoders):  # one column at a time in memory
            cells = [row[number] for row in rows.cells]
            if isinstance(encoder, NumberEncoder) and any(isinstance(one, str) for one in cells):
                raise InvalidTaskError("a column of numbers must hold numbers")
            column = column_of(self.columns[number], cells)
            inputs[:, place : place + encoder.width] = encoder.apply(column, everything)
            place += encoder.width
        return inputs

    def to_bytes(self) -> bytes:
        """Return its one form: the header's length, the header, then the first pool's rows."""
        header = self._header()
        return _LENGTH.pack(len(header)) + header + rows_to_bytes(self.first)

    @classmethod
    def read(cls, content: bytes, start: int = 0) -> tuple[TaskSchema, int]:
        """Read the bytes of `to_bytes`, and nothing else; return the place after them, too."""
        at = start + _LENGTH.size
        if len(content) < at:
            raise InvalidTaskError("a task's schema must be whole")
        (length,) = _LENGTH.unpack_from(content, start)
        if length > MAX_HEADER_BYTES or at + length > len(content):
            raise InvalidTaskError(
                f"a task's header must be whole, of at most {MAX_HEADER_BYTES} bytes", length
            )
        header = content[at : at + length]
        try:
            schema, end = cls._of(header, content, at + length)
            if schema._header() != header:
                raise InvalidTaskError("a task must have its one form")
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("a task's schema must be as it was made") from error
        return schema, end

    @classmethod
    def _of(cls, header: bytes, content: bytes, at: int) -> tuple[TaskSchema, int]:
        fields = json.loads(header.decode("ascii"), parse_constant=refuse_constant)
        if type(fields) is not dict or set(fields) != _KEYS:
            raise TypeError
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise InvalidTaskError(f"a task must be of version {VERSION}")
        kind = fields["kind"]
        if kind not in get_args(DatasetKind):
            raise TypeError
        columns = [tuple(exactly(one, list)) for one in exactly(fields["columns"], list)]
        classes = [tuple(exactly(one, list)) for one in exactly(fields["classes"], list)]
        names = tuple(exactly(name, str) for name, *_ in columns)
        first, end = read_rows(content, at, names, exactly(fields["rows"], int))
        schema = cls(
            name=exactly(fields["name"], str),
            kind=kind,
            label=exactly(fields["label"], str),
            class_names=tuple(exactly(name, str) for name, _ in classes),
            first=first,
            units=tuple(exactly(unit, str) for _, unit, _, _ in columns),
            left_out=_texts(fields["left_out"]),
            ranges=tuple(
                tuple(exactly(one, float) for one in exactly(ends, list))
                for _, _, ends, _ in columns
            ),
            categories=tuple(_texts(listed) for *_, listed in columns),
            spellings=tuple(_texts(spelled) for _, spelled in classes),
            data_set=exactly(fields["data_set"], str),
        )
        return schema, end

    def _header(self) -> bytes:
        return canonical_json(
            {
                "version": VERSION,
                "name": self.name,
                "kind": self.kind,
                "label": self.label,
                "data_set": self.data_set,
                "classes": [
                    [name, list(spelled)]
                    for name, spelled in zip(self.class_names, self.spellings, strict=True)
                ],
                "columns": [
                    [name, unit, list(ends), list(listed)]
                    for name, unit, ends, listed in zip(
                        self.columns, self.units, self.ranges, self.categories, strict=True
                    )
                ],
                "left_out": list(self.left_out),
                "rows": len(self.first),
            }
        )

    @property
    def preprocessing(self) -> TablePreprocessing:
        """The way from raw rows to inputs."""
        return TablePreprocessing(self.columns, self.encoder)


def _check_names(task: TaskSchema) -> None:
    if not 0 < len(task.columns) <= MOST_COLUMNS or len(task.left_out) > MOST_COLUMNS:
        raise InvalidTaskError(f"1 to {MOST_COLUMNS} columns", len(task.columns))
    if list(task.columns) != sorted(task.columns):
        raise InvalidTaskError("columns must be in order of their names")
    if len(task.units) != len(task.columns) or not all(map(_is_unit, task.units)):
        raise InvalidTaskError("every column must have a unit in small letters, or none")
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
            raise InvalidTaskError("every class and every column must be named once")
    if any(is_missing(name) for name in task.class_names):
        raise InvalidTaskError("a class must not be called like a missing cell")


def _check_facts(task: TaskSchema) -> None:
    """Refuse facts that no column or class can have."""
    if not (
        len(task.ranges) == len(task.categories) == len(task.columns)
        and len(task.spellings) == task.classes
    ):
        raise InvalidTaskError("every column and every class must have its facts")
    require_data_set(task.data_set)
    for name, ends, listed in zip(task.columns, task.ranges, task.categories, strict=True):
        if ends and not (
            len(ends) == 2 and all(map(math.isfinite, ends)) and ends[0] < ends[1] and not listed
        ):
            raise InvalidTaskError("a range must be two numbers, the smaller first", name)
        if len(listed) > MOST_CLASSES or list(listed) != sorted(set(listed)):
            raise InvalidTaskError(
                f"categories must be at most {MOST_CLASSES}, in order, each once", name
            )
    spelled = [folded(one) for each in task.spellings for one in each]
    names = [folded(one) for one in task.class_names]
    if len(set(spelled)) != len(spelled) or not set(names).isdisjoint(spelled):
        raise InvalidTaskError("every spelling must be of one class, and no class's name")
    for one in (*(one for each in task.categories for one in each), *spelled):
        if not (one.isprintable() and one == plain(one) and 0 < len(one) <= MOST_NAME_LENGTH):
            raise InvalidTaskError(
                f"a category or spelling must be 1 to {MOST_NAME_LENGTH} printable characters",
                len(one),
            )


def require_data_set(name: str) -> None:
    """Refuse what cannot name a data set of hospitals, or none."""
    if name and not _DATA_SET.fullmatch(name):
        raise InvalidTaskError(
            "a data set's name must be of small letters, digits and single hyphens", repr(name)
        )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(exactly(one, str) for one in exactly(value, list))


def _is_unit(text: str) -> bool:
    """Tell whether a text is a unit as `cells.measurement` finds it, or none."""
    return not text or measurement(f"0 {text}") == ("0", text)


def encoder_of(
    first: PublicRows, units: Sequence[str], categories: Sequence[tuple[str, ...]]
) -> TableEncoder:
    """Derive from the rows of a task's first pool how every pool and table is read.

    It depends on nothing else but the categories that its author listed, and is the same on every
    machine.

    Raises:
        InvalidTaskError: a column says nothing in these rows, a column of texts has a unit, or
            there are more rows or features than the bounds.
    """
    require_pool(len(first), len(first.columns))
    everything = np.arange(len(first), dtype=np.int64)
    encoders: list[NumberEncoder | CategoryEncoder] = []
    for place, (name, unit) in enumerate(zip(first.columns, units, strict=True)):
        if categories[place]:
            if unit:
                raise InvalidTaskError("a column with a unit must hold numbers", "categories")
            encoders.append(CategoryEncoder(place, categories[place]))
            continue
        column = column_of(name, [row[place] for row in first.cells], unit=unit)
        found = fit_column(place, column, everything)
        if isinstance(found, str):
            raise InvalidTaskError("every column must say something in the first pool", found)
        if unit and isinstance(found, CategoryEncoder):
            raise InvalidTaskError("a column with a unit must hold numbers", "texts")
        encoders.append(found)
    encoder = TableEncoder(tuple(encoders))
    require_pool(len(first), encoder.features)
    return encoder


def require_pool(rows: int, features: int) -> None:
    """Refuse a pool that is larger than hospitals read.

    `features` are those of a row; where they are not known yet, its columns, which are fewer.
    """
    if not 1 <= rows <= MOST_ROWS:
        raise InvalidTaskError(f"a pool must have 1 to {MOST_ROWS} rows: ask fewer", rows)
    require_room(rows, features, most_bytes=MOST_INPUT_BYTES)


def require_room(rows: int, features: int, *, most_bytes: int) -> None:
    """Refuse rows whose features need too much memory, before they are made."""
    if not 1 <= features <= MOST_FEATURES:
        raise InvalidTaskError(
            f"a task must have 1 to {MOST_FEATURES} features: leave columns out with --ignore",
            features,
        )
    size = rows * features * _FEATURE_BYTES
    if size > most_bytes:
        raise InvalidTaskError(
            f"rows times features times {_FEATURE_BYTES} bytes must be at most {most_bytes}: ask "
            "fewer rows, or leave columns out with --ignore",
            f"{rows} rows of {features} features",
        )


def read_rows(
    content: bytes, start: int, columns: tuple[str, ...], count: int
) -> tuple[PublicRows, int]:
    """Read rows as `rows_to_bytes` writes them, one line at a time.

    Returns:
        The rows, and the place after them.

    Raises:
        InvalidTaskError: more rows or columns than the bounds; nothing is read then.
        ValueError, TypeError, RecursionError: it is anything else.
    """
    require_pool(count, len(columns))
    cells = []
    for _ in range(count):
        end = content.index(b"\n", start)
        line = content[start:end]
        row = exactly(json.loads(line.decode("ascii"), parse_constant=refuse_constant), list)
        if len(row) != len(columns) or canonical_json(row) != line:
            raise ValueError(line)
        cells.append(tuple(row))
        start = end + 1
    return PublicRows(columns, tuple(cells)), start


def rows_to_bytes(rows: PublicRows) -> bytes:
    """Return rows in their one form: each as a JSON array and a line feed."""
    return b"".join(canonical_json(list(row)) + b"\n" for row in rows.cells)


def canonical_json(fields: object) -> bytes:
    """Return plain data in its one JSON form."""
    text = json.dumps(
        fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which Python's JSON would read."""
    raise ValueError(name)
