"""Inputs of models, in each form that a model may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidDataError

DatasetKind = Literal["image", "table"]
"""Kinds of records; they decide which models suit."""

_SHRINKAGE = 0.1
"""Part of a covariance that is replaced by equal variances: it can then be inverted."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inputs:
    """Inputs without labels, in each view that a model may ask for.

    Prints its size only: inputs may be private.

    Attributes:
        features: Numbers from public preprocessing; float64, shape (inputs, features), read-only,
            finite.
        images: The images that they describe; uint8, shape (inputs, height, width, channels),
            read-only; None for a table.
    """

    features: NDArray[np.float64]
    images: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        features = np.array(self.features, dtype=np.float64, order="C")
        if features.ndim != 2 or not features.shape[1] or not np.isfinite(features).all():
            raise InvalidDataError(
                "features must be finite numbers with 2 axes and 1 column or more",
                f"shape {features.shape}",
            )
        features.flags.writeable = False
        object.__setattr__(self, "features", features)
        if self.images is None:
            return
        images = np.asarray(self.images).view()
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(features):
            raise InvalidDataError(
                "images must be bytes with 4 axes, one for each row of features",
                f"{images.dtype} of shape {images.shape}",
            )
        images.flags.writeable = False
        object.__setattr__(self, "images", images)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        return f"Inputs(inputs={len(self)}, features={self.features.shape[1]})"

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Inputs:
        """Pick inputs by position, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)
        return Inputs(self.features[chosen], None if self.images is None else self.images[chosen])


def covariance_power(features: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Return C^power of some inputs, for their covariance C, a tenth of it replaced by its mean.

    Args:
        features: Shape (inputs, features), two or more inputs.
        power: Any number; -1/2 whitens.

    Returns:
        Symmetric; shape (features, features). The identity where inputs do not differ.
    """
    columns = features.shape[1]
    covariance = np.cov(features, rowvar=False).reshape(columns, columns)
    spread = float(np.trace(covariance)) / columns
    if spread <= 0:
        return np.eye(columns)
    shrunk = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * spread * np.eye(columns)
    values, vectors = np.linalg.eigh(shrunk)
    return np.asarray((vectors * values**power) @ vectors.T)
