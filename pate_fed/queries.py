"""Public inputs: the pool that may be asked about, and the batch that is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryPool:
    """Public, unlabelled inputs in a fixed order; queries are indices into it.

    Attributes:
        inputs: Features; float64, shape (inputs, features), read-only, finite.
    """

    inputs: NDArray[np.float64]

    def __post_init__(self) -> None:
        inputs = np.array(self.inputs, dtype=np.float64, order="C")
        if inputs.ndim != 2 or not inputs.size or not np.isfinite(inputs).all():
            raise InvalidParameterError(
                "pool inputs must be finite and non-empty, with 2 axes", inputs.shape
            )
        inputs.flags.writeable = False
        object.__setattr__(self, "inputs", inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"QueryPool(inputs={len(self)}, features={self.inputs.shape[1]})"

    @property
    def distinct(self) -> tuple[int, ...]:
        """Positions of inputs that differ from all before them, in order."""
        _, first = np.unique(self.inputs + 0.0, axis=0, return_index=True)
        return tuple(int(index) for index in np.sort(first))

    @property
    def digest(self) -> bytes:
        """SHA-256 of shape and values in order: what an owner approves, 32 bytes."""
        shape = ",".join(str(size) for size in self.inputs.shape)
        little_endian = self.inputs.astype("<f8", copy=False).tobytes()
        return hashlib.sha256(f"pate-fed pool {shape}\n".encode() + little_endian).digest()

    def ask(self, indices: tuple[int, ...]) -> QueryBatch:
        """Pick the inputs of one round.

        Args:
            indices: Positions in the pool, none twice; order is kept.

        Raises:
            InvalidParameterError: an index is outside the pool or comes twice.
        """
        if len(set(indices)) != len(indices):
            raise InvalidParameterError("no query may be asked twice", "a repeated index")
        if not indices or not all(0 <= index < len(self) for index in indices):
            raise InvalidParameterError(
                f"queries must be 1 or more indices in 0..{len(self) - 1}",
                f"{len(indices)} indices" if not indices else "one outside",
            )
        return QueryBatch(indices, self.inputs[list(indices)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryBatch:
    """The public inputs of one round.

    Attributes:
        indices: Positions in the pool, in the order asked.
        inputs: Their features; float64, shape (queries, features), read-only.
    """

    indices: tuple[int, ...]
    inputs: NDArray[np.float64]

    def __post_init__(self) -> None:
        inputs = np.array(self.inputs, dtype=np.float64, order="C")
        if inputs.ndim != 2 or len(inputs) != len(self.indices):
            raise InvalidParameterError("one row of inputs must be for each index", inputs.shape)
        inputs.flags.writeable = False
        object.__setattr__(self, "inputs", inputs)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """SHA-256 of each input's values, whatever pool and place it comes from; 32 bytes each."""
        rows = (self.inputs + 0.0).astype("<f8", copy=False)  # -0.0 is 0.0
        return tuple(hashlib.sha256(b"pate-fed query\n" + row.tobytes()).digest() for row in rows)

    def __repr__(self) -> str:
        return f"QueryBatch(queries={len(self)})"
