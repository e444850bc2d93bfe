"""A federation's task: how every hospital reads its own table or images, and the target.

One public document, of two parts: the *schema* (`task_schema`, `image_schema`), with the rows of
the task's first pool (decision 15), whose digest is the task's; and the *rows* of one public pool,
as they are known for ever (`pate_fed.public_rows`, `pate_fed.public_images`). Everybody computes
the inputs from them, so that nobody can be told of a row that teachers do not see.

The bytes: a magic line, the schema, then each row as a JSON array and a line feed, or the pixels of
each image; no row where the pool is the task's first. One document has one form. Its sizes are
bounded before anything is built: reading takes at most 16 times its bytes, plus three times
`MOST_INPUT_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.csv_file import CsvTable
from pate_fed.data.dataset import Records
from pate_fed.data.image_files import ImageFiles
from pate_fed.data.image_schema import ImageSchema
from pate_fed.data.task_schema import (
    TaskSchema,
    read_rows,
    rows_to_bytes,
)
from pate_fed.errors import InvalidDataError, InvalidTaskError
from pate_fed.inputs import DatasetKind
from pate_fed.public_images import PublicImages
from pate_fed.public_rows import PublicRows
from pate_fed.queries import QueryPool
from pate_fed.regular_files import open_regular

MAGIC = b"pate-fed task\n"
IMAGE_MAGIC = b"pate-fed image task\n"
MAX_TASK_BYTES = 2**26 + 2**20

Schema = TaskSchema | ImageSchema
OwnRecords = CsvTable | ImageFiles
"""What a hospital registered: a table, or images."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LearningTask:
    """A task with one pool of public inputs, as a coordinator publishes it.

    Attributes:
        told: Sentences on how its file was read, for its author alone: they do not travel.
    """

    schema: Schema
    rows: PublicRows | PublicImages
    told: tuple[str, ...] = ()
    pool: QueryPool = field(init=False)

    def __post_init__(self) -> None:
        match self.schema, self.rows:
            case TaskSchema() as table, PublicRows() as rows:
                inputs, images = table.inputs_of(rows), None
            case ImageSchema() as schema, PublicImages() as shown:
                inputs, images = schema.inputs_of(shown), shown.pixels
            case _:
                raise InvalidTaskError("a pool must be of the task's kind", "another")
        pool = QueryPool(inputs, self.rows, task=self.schema.digest, images=images)
        object.__setattr__(self, "pool", pool)

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

    def encode(self, own: OwnRecords, *, patient_column: str | None) -> Records:
        """Read a hospital's records: see `TaskSchema.encode` and `ImageSchema.encode`.

        Raises `InvalidDataError` where they are of another kind than the task's, too.
        """
        match self.schema, own:
            case TaskSchema() as schema, CsvTable() as text:
                return schema.encode(text, patient_column=patient_column)
            case ImageSchema() as schema, ImageFiles() as images:
                return schema.encode(images)
        kinds = {"image": "images", "table": "a table"}
        came = "images" if isinstance(own, ImageFiles) else "a table"
        raise InvalidDataError(
            f"the task is of {kinds[self.kind]}: register such (`pate-party data add`)", came
        )

    def to_bytes(self) -> bytes:
        """Return its one form."""
        is_first = self.rows.digests == self.schema.first.digests
        magic = MAGIC if isinstance(self.rows, PublicRows) else IMAGE_MAGIC
        rows = self.rows
        body = rows_to_bytes(rows) if isinstance(rows, PublicRows) else rows.pixels.tobytes()
        return magic + self.schema.to_bytes() + (b"" if is_first else body)

    @classmethod
    def from_bytes(cls, content: bytes) -> LearningTask:
        """Read the bytes of `to_bytes`; anything else is an InvalidTaskError."""
        require_size(len(content))
        schema, start = _read_schema(content)
        if start == len(content):
            return cls(schema, schema.first)
        if isinstance(schema, ImageSchema):
            task = cls(schema, schema.read_rows(content, start))
            if task.rows.digests == schema.first.digests:
                raise InvalidTaskError("a task must have its one form")
            return task
        count = content.count(b"\n", start)
        try:
            rows, end = read_rows(content, start, schema.columns, count)
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("a task's rows must be as they were made") from error
        if end != len(content) or rows.digests == schema.first.digests:
            raise InvalidTaskError("a task must have its one form")
        return cls(schema, rows)


def schema_in(path: Path) -> Schema:
    """Return the schema in a document's file, without its rows."""
    with open_regular(path, most_bytes=MAX_TASK_BYTES) as file:
        return _read_schema(file.read())[0]


def _read_schema(content: bytes) -> tuple[Schema, int]:
    """Return the schema at the start of a document, and where the rows begin."""
    if content.startswith(IMAGE_MAGIC):
        return ImageSchema.read(content, len(IMAGE_MAGIC))
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
