"""Public inputs: the pool of possible queries, and the batch to ask.

In a deployment every input is a public row in its lasting form (`pate_fed.public_rows`). A
rehearsal has one pool, one encoder and hospitals that live for one run. Its inputs need no rows:
equal features make them the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.inputs import Inputs
from pate_fed.public_images import PublicImages
from pate_fed.public_rows import PublicRows

Rows = PublicRows | PublicImages


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryPool:
    """Public, unlabelled inputs in a fixed order; queries are indices into it.

    Attributes:
        inputs: Features; float64, shape (inputs, features), read-only, finite.
        rows: The public rows that they are the features of; None in a rehearsal.
        task: Digest of the task that says how rows become inputs, 32 bytes.
        digest: The digest that an owner approves, SHA-256, 32 bytes: of the task and all rows in
            order; without rows, of shape and values.
    """

    inputs: NDArray[np.float64]
    rows: Rows | None = None
    task: bytes = bytes(32)
    images: NDArray[np.uint8] | None = None
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        inputs = np.array(self.inputs, dtype=np.float64, order="C")
        if inputs.ndim != 2 or not inputs.size or not np.isfinite(inputs).all():
            raise InvalidParameterError(
                "pool inputs must be finite and non-empty, with 2 axes", str(inputs.shape)
            )
        _require_rows(inputs, self.rows)
        inputs.flags.writeable = False
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "digest", self._digest())

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def views(self) -> Inputs:
        """The inputs in each view that a model may ask for."""
        return Inputs(self.inputs, self.images)

    def __repr__(self) -> str:
        return f"QueryPool(inputs={len(self)}, features={self.inputs.shape[1]})"

    @property
    def distinct(self) -> tuple[int, ...]:
        """Positions of one input of each kind, in order: teachers answer equal ones alike.

        It is the first; where inputs have rows, the one whose row has the smallest digest. So the
        order of a pool does not matter.
        """
        order = np.arange(len(self))
        if self.rows is not None:
            order = np.array(sorted(order, key=self.rows.digests.__getitem__))
        _, first = np.unique(self.inputs[order] + 0.0, axis=0, return_index=True)
        chosen = order[first]
        return tuple(int(index) for index in np.sort(chosen))

    def _digest(self) -> bytes:
        if self.rows is not None:
            return hashlib.sha256(
                b"pate-fed pool of rows\n" + self.task + b"".join(self.rows.digests)
            ).digest()
        shape = ",".join(str(size) for size in self.inputs.shape)
        little_endian = self.inputs.astype("<f8", copy=False).tobytes()
        return hashlib.sha256(f"pate-fed pool {shape}\n".encode() + little_endian).digest()

    def ask(self, indices: tuple[int, ...]) -> QueryBatch:
        """Pick the inputs of one round: distinct places of the pool."""
        if len(set(indices)) != len(indices):
            raise InvalidParameterError("no query may be asked twice")
        if not indices or not all(0 <= index < len(self) for index in indices):
            raise InvalidParameterError(
                f"queries must be 1 or more indices in 0..{len(self) - 1}",
                f"{len(indices)} indices" if not indices else "one outside",
            )
        rows = None if self.rows is None else self.rows.pick(indices)
        images = None if self.images is None else self.images[list(indices)]
        return QueryBatch(indices, self.inputs[list(indices)], rows, images)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryBatch:
    """The public inputs of one round."""

    indices: tuple[int, ...]
    inputs: NDArray[np.float64]
    rows: Rows | None = None
    images: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        inputs = np.array(self.inputs, dtype=np.float64, order="C")
        if inputs.ndim != 2 or len(inputs) != len(self.indices):
            raise InvalidParameterError(
                "one row of inputs must be for each index", str(inputs.shape)
            )
        _require_rows(inputs, self.rows)
        inputs.flags.writeable = False
        object.__setattr__(self, "inputs", inputs)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def views(self) -> Inputs:
        """The inputs in each view that a model may ask for."""
        return Inputs(self.inputs, self.images)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """SHA-256 of each query, the same from any pool and place; 32 bytes each.

        Of its public row; without rows, of its features.
        """
        if self.rows is not None:
            return self.rows.digests
        rows = (self.inputs + 0.0).astype("<f8", copy=False)  # -0.0 is 0.0
        return tuple(hashlib.sha256(b"pate-fed query\n" + row.tobytes()).digest() for row in rows)

    def __repr__(self) -> str:
        return f"QueryBatch(queries={len(self)})"


def _require_rows(inputs: NDArray[np.float64], rows: Rows | None) -> None:
    if rows is not None and len(rows) != len(inputs):
        raise InvalidParameterError("every input must have its public row", len(rows))
