"""The question of a private evaluation: which student, and in which groups patients are counted.

One public document: a magic line, the length of a header, the header (canonical JSON), then the
student's files. Its rows are queries like any other, so that a hospital answers each once for life:
asked again, the same student in the same groups is the same question.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pate_fed.array_models import DESCRIPTION_FILE, TENSORS_FILE
from pate_fed.data.dataset import Records
from pate_fed.data.image_schema import ImageSchema
from pate_fed.data.preprocessing import Preprocessing, TablePreprocessing, exactly
from pate_fed.data.table_features import CategoryEncoder, NumberEncoder
from pate_fed.data.task import Schema
from pate_fed.data.task_schema import canonical_json, refuse_constant
from pate_fed.errors import InvalidSettingError, InvalidTaskError
from pate_fed.evaluation import CLASS, CertaintyBins, EvaluationPlan, Grouping
from pate_fed.queries import QueryPool
from pate_fed.votes import MAX_TOTAL_VOTES

MAGIC: Final = b"pate-fed evaluation\n"
MAX_BYTES: Final = 2**26
STUDENT_FILES: Final = (DESCRIPTION_FILE, TENSORS_FILE)
"""Files of a student as arrays: none of them can hold code."""

OTHER: Final = "all others"
"""Patients whose category is none of the public pool's."""

_VERSION: Final = 1
_MOST_HEADER: Final = 2**16
_MOST_COLUMNS: Final = 8
_MOST_BINS: Final = 16
_LENGTH: Final = struct.Struct(">I")
ReadsColumns = Schema | TablePreprocessing
"""A table's columns with their encoders."""

_KEYS: Final = {"version", "task", "pool", "places", "edges", "means", "columns", "files"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EvaluationTask:
    """What hospitals are asked about a student, as a coordinator publishes it.

    Attributes:
        digest: Of the task whose labels taught the student, 32 bytes.
        source: Digest of the pool that was asked about then, 32 bytes: it has the task's schema.
        bins: The student's certainty on the public pool.
        by: Columns whose groups are counted, too.
    """

    digest: bytes
    source: bytes
    bins: CertaintyBins
    by: tuple[str, ...]
    files: Mapping[str, bytes]
    places: int
    pool: QueryPool = field(init=False)

    def __post_init__(self) -> None:
        edges, means = self.bins.edges, self.bins.means
        good = (
            len(self.digest) == len(self.source) == 32
            and set(self.files) == set(STUDENT_FILES)
            and len(self.by) == len(set(self.by)) <= _MOST_COLUMNS
            and 1 <= self.places <= MAX_TOTAL_VOTES
            and 0 < len(means) == len(edges) + 1 <= _MOST_BINS
            and bool((np.diff(edges) > 0).all())
            and bool(np.isfinite([*edges, *means]).all())
        )
        if not good:
            raise InvalidTaskError("an evaluation must have a student and groups in order")
        identity = hashlib.sha256(self.to_bytes()).digest()
        rows = [hashlib.sha256(identity + bytes([row])).digest() for row in range(2 + len(self.by))]
        inputs = np.array([list(row) for row in rows], dtype=np.float64)
        object.__setattr__(self, "pool", QueryPool(inputs, task=self.digest))

    def __repr__(self) -> str:
        return f"EvaluationTask(rows={len(self.pool)})"

    def groupings(self, schema: Schema) -> tuple[Grouping, ...]:
        """Return the groups that patients are counted in: all that is not public is the table."""
        if schema.digest != self.digest:
            raise InvalidTaskError("an evaluation must be of the task that is kept here")
        by_column = tuple(Grouping(f"by {one}", groups_by(schema, one)) for one in self.by)
        return (Grouping(CLASS, schema.class_names), self.bins.grouping, *by_column)

    def rows_of(
        self, schema: Schema, records: Records, chances: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Count held-out patients; see `EvaluationPlan.rows`. Secret.

        A chance that is no number counts as wrong, and as least certain.
        """
        plan = EvaluationPlan(self.groupings(schema), sigma=1.0, epsilon=1.0, delta=0.5)
        known = np.asarray(np.isfinite(chances).all(axis=1))
        certain = np.where(known[:, np.newaxis], chances, -np.inf)
        right = known & (certain.argmax(axis=1) == records.labels)
        places = {CLASS: records.labels, plan.groupings[1].name: self.bins.places(certain)}
        for column, grouping in zip(self.by, plan.groupings[2:], strict=True):
            places[grouping.name] = places_by(schema, column, records.features)
        return plan.rows(places, right, slots=self.places)

    def to_bytes(self) -> bytes:
        """Return its one form."""
        header = canonical_json(
            {
                "version": _VERSION,
                "task": self.digest.hex(),
                "pool": self.source.hex(),
                "places": self.places,
                "edges": [float(one) for one in self.bins.edges],
                "means": [float(one) for one in self.bins.means],
                "columns": list(self.by),
                "files": [[name, len(self.files[name])] for name in sorted(self.files)],
            }
        )
        body = b"".join(self.files[name] for name in sorted(self.files))
        return MAGIC + _LENGTH.pack(len(header)) + header + body

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the bytes of `to_bytes`, no student; anything else is an InvalidTaskError."""
        start = len(MAGIC) + _LENGTH.size
        if not is_evaluation(content) or not start <= len(content) <= MAX_BYTES:
            raise InvalidTaskError(
                f"an evaluation must begin as one, and have at most {MAX_BYTES} bytes"
            )
        (length,) = _LENGTH.unpack_from(content, len(MAGIC))
        if length > _MOST_HEADER:
            raise InvalidTaskError("an evaluation's header must be short")
        try:
            header = json.loads(
                content[start : start + length].decode("ascii"), parse_constant=refuse_constant
            )
            task = cls(**_fields(header, content[start + length :]))
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("an evaluation must be as it was made") from error
        if task.to_bytes() != content:
            raise InvalidTaskError("an evaluation must have its one form")
        return task


def is_evaluation(content: bytes) -> bool:
    """Tell whether a published document, or its beginning, is one of an evaluation."""
    return content.startswith(MAGIC)


def _fields(header: Any, body: bytes) -> dict[str, Any]:
    if type(header) is not dict or set(header) != _KEYS or header["version"] != _VERSION:
        raise TypeError
    files, start = {}, 0
    for name, size in exactly(header["files"], list):
        end = start + exactly(size, int)
        files[exactly(name, str)] = body[start:end]
        start = end
    return {
        "digest": bytes.fromhex(exactly(header["task"], str)),
        "source": bytes.fromhex(exactly(header["pool"], str)),
        "bins": CertaintyBins(_numbers(header["edges"]), _numbers(header["means"])),
        "by": tuple(exactly(one, str) for one in exactly(header["columns"], list)),
        "files": files,
        "places": exactly(header["places"], int),
    }


def _numbers(values: Any) -> NDArray[np.float64]:
    found: Iterable[float] = (exactly(one, float) for one in exactly(values, list))
    return np.array(list(found), dtype=np.float64)


def groups_by(schema: ReadsColumns, column: str) -> tuple[str, ...]:
    """Return the groups of a column: its categories and all others, or the sides of its median."""
    encoders, place = _encoders(schema, column)
    encoder = encoders[place]
    if isinstance(encoder, CategoryEncoder):
        return (*encoder.categories, OTHER)
    return f"up to {encoder.median:g}", f"above {encoder.median:g}"


def places_by(
    schema: ReadsColumns, column: str, features: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the group of each input by the features of a column: what the student sees of it."""
    encoders, place = _encoders(schema, column)
    widths = [len(one.categories) if isinstance(one, CategoryEncoder) else 1 for one in encoders]
    encoder, start = encoders[place], sum(widths[:place])
    own = features[:, start : start + widths[place]]
    if isinstance(encoder, CategoryEncoder):
        found = np.where(own.any(axis=1), own.argmax(axis=1), len(encoder.categories))
    else:
        found = own[:, 0] > (encoder.median - encoder.mean) / encoder.deviation + 1e-9
    return np.asarray(found, dtype=np.int64)


def groups_of(
    records: Records, preprocessing: Preprocessing | None, columns: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return ways to group test records: by hospital where it is known, and by columns.

    Raises:
        InvalidSettingError: `--evaluate-by` names a column that the student does not read.
    """
    ways = {} if records.hospitals is None else {"hospital": tuple(records.hospitals)}
    for column in columns:
        if not isinstance(preprocessing, TablePreprocessing):
            raise InvalidSettingError("--evaluate-by needs a table", column)
        try:
            names = groups_by(preprocessing, column)
        except InvalidTaskError as error:
            raise InvalidSettingError(
                "--evaluate-by must name a column that the student reads: "
                f"{', '.join(preprocessing.columns)}",
                error.got,
            ) from error
        places = places_by(preprocessing, column, records.features)
        ways[f"by {column}"] = tuple(names[place] for place in places)
    return ways


def _encoders(
    schema: ReadsColumns, column: str
) -> tuple[tuple[NumberEncoder | CategoryEncoder, ...], int]:
    """Return the encoders of all columns, and the place of one; images have no columns."""
    if isinstance(schema, ImageSchema) or column not in schema.columns:
        raise InvalidTaskError("a column of an evaluation must be one that the task reads", column)
    return schema.encoder.encoders, schema.columns.index(column)
