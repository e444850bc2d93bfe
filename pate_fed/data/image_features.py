"""Turn raw images into features, with statistics of the public pool only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError

_CHUNK = 4096
_BLUR_WEIGHT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Principal components of public data.

    Attributes:
        mean: float64, shape (inputs,).
        axes: Orthonormal columns, largest variance first; float64, shape (inputs, components).
    """

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]

    def apply(self, inputs: NDArray[np.floating]) -> NDArray[np.float64]:
        """Project; shape (n, inputs) to (n, components)."""
        projected: NDArray[np.float64] = (inputs - self.mean) @ self.axes
        return projected


def fit_projection(public: NDArray[np.floating], *, components: int) -> Projection:
    """Find the principal components of public inputs.

    The sign of each axis is fixed (its largest entry is positive), so that the same inputs give
    the same features.

    Args:
        public: Public inputs; shape (n, inputs).
        components: How many axes; at most `inputs`.

    Raises:
        InvalidParameterError: more components than inputs, or none.
    """
    if not 1 <= components <= public.shape[1]:
        raise InvalidParameterError(
            f"components must be between 1 and {public.shape[1]}", components
        )
    mean = public.mean(axis=0, dtype=np.float64)
    centered = public - mean
    _, vectors = np.linalg.eigh(centered.T @ centered)
    axes = vectors[:, ::-1][:, :components]
    largest = np.abs(axes).argmax(axis=0)
    signs = np.sign(axes[largest, np.arange(components)])
    return Projection(mean, np.ascontiguousarray(axes * signs))


def stroke_features(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Describe handwriting: deskewed strokes beside their blur, square roots, unit length.

    Every image is treated by itself, so nothing is learned from any record.

    Args:
        images: Gray images; uint8, shape (n, height, width).

    Returns:
        float32, shape (n, 2 * height * width).
    """
    count, height, width = images.shape
    features = np.empty((count, 2 * height * width), dtype=np.float32)
    for start in range(0, count, _CHUNK):
        chunk = images[start : start + _CHUNK].astype(np.float32) / np.float32(255)
        features[start : start + _CHUNK] = _describe(deskew(chunk))
    return features


def project_strokes(images: NDArray[np.uint8], projection: Projection) -> NDArray[np.float64]:
    """Describe and project chunk by chunk, so that memory stays small.

    Args:
        images: uint8, shape (n, height, width).
        projection: Fitted on `stroke_features` of public images.

    Returns:
        shape (n, components).
    """
    parts = [
        projection.apply(stroke_features(images[start : start + _CHUNK]))
        for start in range(0, len(images), _CHUNK)
    ]
    return np.concatenate(parts)


def deskew(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Straighten slanted handwriting: shear by the second moments, move the mass to the center.

    Args:
        images: Non-negative gray values; float32, shape (n, height, width).

    Returns:
        The same shape. An empty image stays as it is.
    """
    _, height, width = images.shape
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    mass = np.maximum(images.sum(axis=(1, 2)), 1e-9)
    row_mean = (images * rows).sum(axis=(1, 2)) / mass
    column_mean = (images * columns).sum(axis=(1, 2)) / mass
    row_offset = rows - row_mean[:, None, None]
    column_offset = columns - column_mean[:, None, None]
    variance = (images * row_offset**2).sum(axis=(1, 2)) / mass
    covariance = (images * row_offset * column_offset).sum(axis=(1, 2)) / mass
    slant = covariance / np.maximum(variance, 1e-9)
    from_center = rows - (height - 1) / 2
    source_rows = from_center + row_mean[:, None, None]
    source_columns = (
        columns - (width - 1) / 2 + column_mean[:, None, None] + slant[:, None, None] * from_center
    )
    return _sample(images, source_rows, source_columns)


def _sample(
    images: NDArray[np.float32], rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Read images at fractional places, bilinearly; outside is 0."""
    count, height, width = images.shape
    padded = np.zeros((count, height + 2, width + 2), dtype=np.float32)
    padded[:, 1:-1, 1:-1] = images
    flat = padded.reshape(count, -1)
    top = np.clip(np.floor(rows), -1, height - 1)
    left = np.clip(np.floor(columns), -1, width - 1)
    down = np.clip(rows - top, 0.0, 1.0)
    right = np.clip(columns - left, 0.0, 1.0)
    corner = ((top + 1) * (width + 2) + left + 1).astype(np.int64).reshape(count, -1)

    def read(offset: int) -> NDArray[np.float32]:
        return np.take_along_axis(flat, corner + offset, axis=1).reshape(images.shape)

    above = read(0) * (1 - right) + read(1) * right
    below = read(width + 2) * (1 - right) + read(width + 3) * right
    sampled: NDArray[np.float32] = above * (1 - down) + below * down
    return sampled


def _describe(images: NDArray[np.float32]) -> NDArray[np.float32]:
    roots = np.sqrt(np.maximum(images, 0.0))
    blurred = np.sqrt(np.maximum(_blur(images), 0.0))
    return _unit(np.concatenate([_unit(roots), _BLUR_WEIGHT * _unit(blurred)], axis=1))


def _blur(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Average over 3 x 3 neighbors; outside is 0."""
    count, height, width = images.shape
    padded = np.zeros((count, height + 2, width + 2), dtype=np.float32)
    padded[:, 1:-1, 1:-1] = images
    total = np.zeros_like(images)
    for down in range(3):
        for right in range(3):
            total += padded[:, down : down + height, right : right + width]
    return total / np.float32(9)


def _unit(images: NDArray[np.float32]) -> NDArray[np.float32]:
    flat = images.reshape(len(images), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    unit: NDArray[np.float32] = flat / np.maximum(lengths, 1e-12)
    return unit
