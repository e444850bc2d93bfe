"""Records and data sets: the common form of data from any file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidDataError
from pate_fed.inputs import DatasetKind, Inputs

if TYPE_CHECKING:
    from pate_fed.data.preprocessing import Preprocessing


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Records:
    """Preprocessed records, each belonging to one privacy unit.

    Secret where the records are private: prints its size only.

    Attributes:
        features: float64, shape (records, features), read-only, finite.
        unit_ids: Privacy unit of each record: a patient, or the record itself.
        hospitals: Hospital of each record, or None where the data name none.
        row_names: Where each record stands in the user's files: its line, or an image's name; None
            where nobody could look it up.
    """

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    unit_ids: tuple[str, ...]
    hospitals: tuple[str, ...] | None = None
    images: NDArray[np.uint8] | None = None
    row_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        inputs = Inputs(self.features, self.images)
        labels = np.array(self.labels, dtype=np.int64)
        lengths = {len(inputs), len(labels), len(self.unit_ids)}
        lengths |= {len(one) for one in (self.hospitals, self.row_names) if one is not None}
        if labels.ndim != 1 or len(lengths) != 1:
            raise InvalidDataError(
                "features, labels, unit ids, hospitals and row names must be equally many",
                f"lengths {sorted(lengths)}",
            )
        if (labels < 0).any():
            raise InvalidDataError("labels must not be negative")
        labels.flags.writeable = False
        object.__setattr__(self, "features", inputs.features)
        object.__setattr__(self, "images", inputs.images)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "unit_ids", tuple(self.unit_ids))
        for name in ("hospitals", "row_names"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else tuple(given))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Records(records={len(self)}, features={self.features.shape[1]})"

    @property
    def inputs(self) -> Inputs:
        """The records without their labels."""
        return Inputs(self.features, self.images)

    @property
    def unit_count(self) -> int:
        """Number of privacy units."""
        return len(set(self.unit_ids))

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Records:
        """Pick records by position, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)

        def picked(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(names.__getitem__, chosen.tolist()))

        return Records(
            features=self.features[chosen],
            labels=self.labels[chosen],
            unit_ids=picked(self.unit_ids),
            hospitals=None if self.hospitals is None else picked(self.hospitals),
            images=None if self.images is None else self.images[chosen],
            row_names=None if self.row_names is None else picked(self.row_names),
        )


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """The use of a column of a table; holds no cell.

    Attributes:
        use: "number", "category", "label", "patient", "hospital", or "left out".
        why: The number of categories, the unit, or why it is left out; may be empty.
    """

    name: str
    use: str
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset:
    """One data set, split into the hospitals' records and the public part.

    The three parts share no privacy unit. Features come from preprocessing that was fitted on
    the public pool or depends on no data, never on private records.

    Attributes:
        pool: The public inputs to ask about. Their labels exist in simulations only: to score with,
            and for a table to know how common each class is where the user does not say.
        test: Public records that measure accuracy and are used for nothing else.
        columns: Use of each column of a table; empty for images.
        labels: Names of several yes-no labels, of which each record has all; empty for one. Then
            the parts hold questions about records: see `label_questions`.
    """

    name: str
    kind: DatasetKind
    class_names: tuple[str, ...]
    private: Records
    pool: Records
    test: Records
    notes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    columns: tuple[ColumnUse, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.class_names) < 2 or len(set(self.class_names)) != len(self.class_names):
            raise InvalidDataError(
                "a data set must have 2 or more classes, each with its own name",
                f"{len(self.class_names)}",
            )
        for part in self.parts:
            if not len(part) or part.labels.max() >= len(self.class_names):
                raise InvalidDataError(
                    "private records, pool and test must be non-empty, with labels of "
                    f"{len(self.class_names)} classes",
                    f"a part of {len(part)} records",
                )
        if len({part.features.shape[1] for part in self.parts}) != 1:
            raise InvalidDataError("all parts must have the same features")

    def __repr__(self) -> str:
        sizes = "/".join(str(len(part)) for part in self.parts)
        return f"Dataset({self.name}, {self.kind}, classes={self.classes}, records={sizes})"

    @property
    def parts(self) -> tuple[Records, Records, Records]:
        """Private records, pool and test."""
        return self.private, self.pool, self.test

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def label_count(self) -> int:
        """Number of labels of a record."""
        return len(self.labels) or 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Records of each part."""
        private, pool, test = (len(part) // self.label_count for part in self.parts)
        return private, pool, test
