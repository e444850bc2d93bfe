"""What a federation learns: how every hospital reads its own table, and what is asked.

One public document. Its encoders were fitted on the public pool alone, so that a feature means the
same at every hospital, and no hospital's records say how another's are read.

The bytes: a magic line, the length of a header, the header (canonical JSON), then the encoded
public inputs, row by row, as little-endian float64. One task has one form, hence one digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.dataset import DatasetKind, Records
from pate_fed.data.table_features import (
    LARGEST_NUMBER,
    CategoryEncoder,
    Column,
    NumberEncoder,
    TableEncoder,
    fit_table_encoder,
    is_missing,
    parse_number,
)
from pate_fed.data.tables import MOST_CLASSES, known_cells, read_column
from pate_fed.errors import (
    InvalidCellError,
    InvalidParameterError,
    InvalidTaskError,
    MissingColumnError,
)
from pate_fed.queries import QueryPool

MAGIC = b"pate-fed task\n"
VERSION = 1
MAX_TASK_BYTES = 2**30
MAX_HEADER_BYTES = 4 * 2**20
MOST_COLUMNS = 10_000
MOST_NAME_LENGTH = 256

_LENGTH = struct.Struct(">I")
_SMALLEST_DEVIATION = 1 / LARGEST_NUMBER
_KEYS = {"version", "name", "kind", "label", "classes", "columns", "shape"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LearningTask:
    """What is learned, from which columns, and which public inputs may be asked about.

    Attributes:
        name: What people call it.
        kind: "image" or "table": which models suit it.
        label: Column that is predicted.
        class_names: Names of classes 0, 1, ...
        columns: Columns that are read, in order.
        encoder: How: one encoder per column, in the same order.
        inputs: The public inputs, encoded; float64, shape (queries, features), read-only.
    """

    name: str
    kind: DatasetKind
    label: str
    class_names: tuple[str, ...]
    columns: tuple[str, ...]
    encoder: TableEncoder
    inputs: NDArray[np.float64]

    def __post_init__(self) -> None:
        _check_names(self)
        _check_encoder(self.encoder, self.columns)
        try:
            inputs = QueryPool(self.inputs).inputs
        except InvalidParameterError as error:
            raise InvalidTaskError(error.must, error.got) from error
        if inputs.shape[1] != width_of(self.encoder):
            raise InvalidTaskError(
                f"inputs must have the {width_of(self.encoder)} features that the columns give",
                inputs.shape[1],
            )
        object.__setattr__(self, "inputs", inputs)

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
    ) -> LearningTask:
        """Make the task of a table of public inputs.

        Args:
            path: The table, one input a row. Where it has the label's column, that is not read.
            label: Column of the hospitals' tables that is predicted.
            classes: Names of its classes, in order.
            name: What people call the task; empty for the file's name.
            kind: What the records are.
            ignored: Columns that are no features.

        Raises:
            UnreadableFileError: the file is no CSV file that can be read.
            InvalidCellError: a number is out of range.
            InvalidDataError: no column is of use.
            InvalidTaskError: the names of classes or columns cannot be.
        """
        text = read_csv(path)
        for column in ignored:
            _require_column(text, column)
        left_out = {label, *ignored}
        columns = tuple(read_column(text, one) for one in text.header if one not in left_out)
        rows = np.arange(len(text.lines), dtype=np.int64)
        if not len(rows):
            raise InvalidTaskError(f"{text.file_name} must have public inputs", "no row")
        fitted = fit_table_encoder(columns, rows)
        return cls(
            name=name or path.name,
            kind=kind,
            label=label,
            class_names=tuple(classes),
            columns=tuple(columns[one.position].name for one in fitted.encoders),
            encoder=TableEncoder(
                tuple(_moved(one, place) for place, one in enumerate(fitted.encoders))
            ),
            inputs=fitted.apply(columns, rows),
        )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def pool(self) -> QueryPool:
        """The public inputs, as what may be asked about."""
        return QueryPool(self.inputs)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole document, 32 bytes."""
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
            _column_for(text, name, encoder)
            for name, encoder in zip(self.columns, self.encoder.encoders, strict=True)
        )
        return Records(
            features=self.encoder.apply(columns, np.arange(len(text.lines), dtype=np.int64)),
            labels=_labels(text, self.label, self.class_names),
            unit_ids=tuple(f"row-{line}" for line in text.lines)
            if patient_column is None
            else known_cells(text, patient_column),
        )

    def to_bytes(self) -> bytes:
        """Return its one form."""
        header = self._header()
        body = self.inputs.astype("<f8", copy=False).tobytes()
        return MAGIC + _LENGTH.pack(len(header)) + header + body

    @classmethod
    def from_bytes(cls, content: bytes) -> LearningTask:
        """Read what `to_bytes` wrote, and nothing else.

        Raises:
            InvalidTaskError: it is anything else.
        """
        if len(content) > MAX_TASK_BYTES:
            raise InvalidTaskError(f"a task must have at most {MAX_TASK_BYTES} bytes", "more")
        start = len(MAGIC) + _LENGTH.size
        if len(content) < start or not content.startswith(MAGIC):
            raise InvalidTaskError("a task must begin as one", "another file")
        (length,) = _LENGTH.unpack_from(content, len(MAGIC))
        if length > MAX_HEADER_BYTES or start + length > len(content):
            raise InvalidTaskError("a task's header must be whole and short", "another length")
        header = content[start : start + length]
        try:
            fields = json.loads(header.decode("ascii"), parse_constant=_refuse)
            task = cls._from_fields(fields, memoryview(content)[start + length :])
            if task._header() != header:
                raise InvalidTaskError("a task must have its one form", "another")
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("a task's header must be as it was made", "another") from error
        return task

    def _header(self) -> bytes:
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
                "shape": list(self.inputs.shape),
            }
        )

    @classmethod
    def _from_fields(cls, fields: Any, body: memoryview) -> LearningTask:
        if type(fields) is not dict or set(fields) != _KEYS:
            raise TypeError
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise InvalidTaskError(f"a task must be of version {VERSION}", "another version")
        queries, features = _exact(fields["shape"], list)
        if type(queries) is not int or type(features) is not int or min(queries, features) < 1:
            raise TypeError
        if len(body) != 8 * queries * features:
            raise InvalidTaskError("a task must hold all its inputs and no more", "other bytes")
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
            inputs=np.frombuffer(body, dtype="<f8").reshape(queries, features),
        )


def width_of(encoder: TableEncoder) -> int:
    """Return how many features an encoder gives."""
    return sum(
        1 if isinstance(one, NumberEncoder) else len(one.categories) for one in encoder.encoders
    )


# Checks -----------------------------------------------------------------------------------------


def _check_names(task: LearningTask) -> None:
    for text in (task.name, task.label, *task.class_names, *task.columns):
        if not (0 < len(text) <= MOST_NAME_LENGTH and text.isprintable() and text == text.strip()):
            raise InvalidTaskError(
                f"a name must be 1 to {MOST_NAME_LENGTH} printable characters", f"{len(text)}"
            )
    if not 2 <= len(task.class_names) <= MOST_CLASSES:
        raise InvalidTaskError(f"2 to {MOST_CLASSES} classes", len(task.class_names))
    # "0" and "0.0" would be two names for what tables write either way.
    numbers = [value for value in map(parse_number, task.class_names) if math.isfinite(value)]
    for names in (task.class_names, numbers, (task.label, *task.columns)):
        if len(set(names)) != len(names):
            raise InvalidTaskError("every class and every column must be named once", "one twice")
    if any(is_missing(name) for name in task.class_names):
        raise InvalidTaskError("a class must not be called like a missing cell", "one that is")


def _check_encoder(encoder: TableEncoder, columns: tuple[str, ...]) -> None:
    places = [one.position for one in encoder.encoders]
    if not 0 < len(columns) <= MOST_COLUMNS or places != list(range(len(columns))):
        raise InvalidTaskError("every column must have its encoder, in order", "others")
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


def _column_for(text: CsvTable, name: str, encoder: NumberEncoder | CategoryEncoder) -> Column:
    cells = text.column(name)
    if isinstance(encoder, CategoryEncoder):
        return Column(name, np.full(len(cells), np.nan), cells)
    parsed = {cell: parse_number(cell) for cell in set(cells)}
    for line, cell in zip(text.lines, cells, strict=True):
        # A comma for a point would else become the median without a word.
        if not (math.isfinite(parsed[cell]) or is_missing(cell)):
            raise InvalidCellError(
                f"cells of column {name!r} of {text.file_name} must be numbers, or empty",
                f"another in line {line}",
            )
    return Column(name, np.array([parsed[cell] for cell in cells], dtype=np.float64), cells)


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


def _canonical(fields: dict[str, Any]) -> bytes:
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


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)
