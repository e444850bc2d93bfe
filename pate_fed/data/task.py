"""A federation's task: how every hospital reads its own table, and the target.

One public document, of two parts: the *schema* (`task_schema`), with the rows of the task's first
pool (decision 15), whose digest is the task's; and the *rows* of one public pool, as they are known
for ever (`pate_fed.public_rows`). Everybody computes the inputs from them, so that nobody can be
told of a row that teachers do not see.

The bytes: a magic line, the schema, then each row as a JSON array and a line feed; no row where the
pool is the task's first. One document has one form. Its sizes are bounded before anything is built:
reading takes at most 16 times its bytes, plus three times `MOST_INPUT_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import Records
from pate_fed.data.table_features import TableEncoder
from pate_fed.data.task_schema import (
    TaskSchema,
    read_rows,
    rows_to_bytes,
)
from pate_fed.errors import InvalidTaskError
from pate_fed.inputs import DatasetKind
from pate_fed.public_rows import PublicRows
from pate_fed.queries import QueryPool
from pate_fed.regular_files import open_regular

MAGIC = b"pate-fed task\n"
MAX_TASK_BYTES = 2**26


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LearningTask:
    """A task with one pool of public inputs, as a coordinator publishes it."""

    schema: TaskSchema
    rows: PublicRows
    pool: QueryPool = field(init=False)

    def __post_init__(self) -> None:
        inputs = self.schema.inputs_of(self.rows)
        object.__setattr__(self, "pool", QueryPool(inputs, self.rows, task=self.schema.digest))

    def __repr__(self) -> str:
        queries, features = self.inputs.shape
        return f"LearningTask({self.name!r}, queries={queries}, features={features})"

    @property
    def name(self) -> str:
        """The task's name."""
        return self.schema.name

    @property
    def kind(self) -> DatasetKind:
        """Kind of its records: "image" or "table"."""
        return self.schema.kind

    @property
    def data_set(self) -> str:
        """Data set of a hospital that it asks for; "" for the one without a name."""
        return self.schema.data_set

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
        is_first = self.rows.digests == self.schema.first.digests
        body = b"" if is_first else rows_to_bytes(self.rows)
        return MAGIC + self.schema.to_bytes() + body

    @classmethod
    def from_bytes(cls, content: bytes) -> LearningTask:
        """Read the bytes of `to_bytes`; anything else is an InvalidTaskError."""
        require_size(len(content))
        schema, start = _read_schema(content)
        count = content.count(b"\n", start)
        if start == len(content):
            return cls(schema, schema.first)
        try:
            rows, end = read_rows(content, start, schema.columns, count)
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("a task's rows must be as they were made") from error
        if end != len(content) or rows.digests == schema.first.digests:
            raise InvalidTaskError("a task must have its one form")
        return cls(schema, rows)


def schema_in(path: Path) -> TaskSchema:
    """Return the schema in a document's file, without its rows."""
    with open_regular(path, most_bytes=MAX_TASK_BYTES) as file:
        return _read_schema(file.read())[0]


def _read_schema(content: bytes) -> tuple[TaskSchema, int]:
    """Return the schema at the start of a document, and where the rows begin."""
    if not content.startswith(MAGIC):
        raise InvalidTaskError("a task must begin as one")
    return TaskSchema.read(content, len(MAGIC))


def require_size(size: int) -> None:
    """Refuse a document of more than `MAX_TASK_BYTES`, as an InvalidTaskError."""
    if size > MAX_TASK_BYTES:
        raise InvalidTaskError(
            f"a task must have at most {MAX_TASK_BYTES} bytes: ask fewer rows, or leave columns "
            "out with --ignore",
            size,
        )
