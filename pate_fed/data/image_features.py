"""Turn images into features, with statistics of the public pool only.

An image is described by the directions of its edges, cell by cell, and by its pixels; then it is
projected on the principal components of the public images.

Source:
    Dalal, Triggs 2005, Histograms of oriented gradients for human detection.
    https://doi.org/10.1109/CVPR.2005.177
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidDataError, InvalidParameterError

_CHUNK_PIXELS = 2**22
_DIRECTIONS = 8
_CELLS_PER_SIDE = 7
_PIXEL_WEIGHT = 0.5
_MOST_PIXELS = 28
"""Pixels of a side that are looked at; those of larger images are averaged in blocks."""
_COMPONENTS = 80
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Principal components of public data.

    Attributes:
        axes: Orthogonal columns of one length, largest variance first; float64, shape (inputs,
            components).
    """

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]

    def apply(self, inputs: NDArray[np.floating]) -> NDArray[np.float64]:
        """Project; shape (n, inputs) to (n, components)."""
        projected: NDArray[np.float64] = (inputs - self.mean) @ self.axes
        return projected


@dataclass(frozen=True, slots=True, eq=False)
class ImageEncoder:
    """All that was learned from the public pool about images."""

    shape: tuple[int, int, int]
    projection: Projection

    def apply(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Encode images of its size, uint8; float64, shape (n, components)."""
        if images.shape[1:] != self.shape:
            raise InvalidDataError(
                f"images must have height, width and channels {self.shape}", str(images.shape[1:])
            )
        return np.concatenate([self.projection.apply(part) for part in _described(images)])


def fit_image_encoder(public: NDArray[np.uint8], *, components: int = _COMPONENTS) -> ImageEncoder:
    """Learn from public images (uint8, 4 axes) to encode all, in so many features at most.

    They are fewer than the images: a further axis would be any that these say nothing of.
    """
    described = np.concatenate(list(_described(public)))
    most = min(components, described.shape[1], max(1, len(public) - 1))
    fitted = fit_projection(described, components=most)
    _, height, width, channels = public.shape
    # Features vary by 1 on average, like a table's: distances of queries count in such units.
    spread = float(np.sqrt((fitted.apply(described) ** 2).mean()))
    scaled = Projection(fitted.mean, fitted.axes / max(spread, _LEAST_SPREAD))
    return ImageEncoder((height, width, channels), scaled)


def fit_projection(public: NDArray[np.floating], *, components: int) -> Projection:
    """Find the principal components of public inputs.

    The sign of each axis is fixed (its largest entry is positive), so that the same inputs give
    the same features.
    """
    if not 1 <= components <= public.shape[1]:
        raise InvalidParameterError(
            f"components must be between 1 and {public.shape[1]}", components
        )
    from scipy.linalg import eigh  # noqa: PLC0415 - takes a moment

    inputs = public.shape[1]
    mean = public.mean(axis=0, dtype=np.float64)
    centered = public - mean
    top = (inputs - components, inputs - 1)
    _, vectors = eigh(centered.T @ centered, subset_by_index=top)
    axes = vectors[:, ::-1]
    largest = np.abs(axes).argmax(axis=0)
    signs = np.sign(axes[largest, np.arange(components)])
    return Projection(mean, np.ascontiguousarray(axes * signs))


def describe_images(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Describe each image by itself: nothing is learned from any record.

    Args:
        images: uint8, shape (n, height, width, channels); channels are averaged for the edges.

    Returns:
        Roots of the edges' strength by cell and direction, of length 1, beside the pixels (of a
        large image: means of square blocks), of length 0.5; an empty part is zeros. float32,
        shape (n, cells * 8 + rows * columns * channels).
    """
    pixels = images.astype(np.float32) / np.float32(255)
    edges = np.sqrt(_edge_histograms(pixels.mean(axis=3)))
    blocks = _block_means(pixels)
    return np.concatenate([_unit(edges), np.float32(_PIXEL_WEIGHT) * _unit(blocks)], axis=1)


def _described(images: NDArray[np.uint8]) -> Iterator[NDArray[np.float32]]:
    # In pieces, so that memory stays small.
    chunk = max(1, _CHUNK_PIXELS // int(np.prod(images.shape[1:3])))
    for start in range(0, max(len(images), 1), chunk):
        yield describe_images(images[start : start + chunk])


def _block_means(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    count, height, width, channels = pixels.shape
    size = -(-max(height, width) // _MOST_PIXELS)
    if size == 1:
        return pixels
    rows, columns = height // size, width // size
    inner = pixels[:, : rows * size, : columns * size]
    blocks = inner.reshape(count, rows, size, columns, size, channels)
    means: NDArray[np.float32] = blocks.mean(axis=(2, 4))
    return means


def _edge_histograms(gray: NDArray[np.float32]) -> NDArray[np.float32]:
    """Add up the strength of edges; shape (n, rows of cells, columns of cells, directions)."""
    count, height, width = gray.shape
    down, right = np.zeros_like(gray), np.zeros_like(gray)
    down[:, 1:-1] = gray[:, 2:] - gray[:, :-2]
    right[:, :, 1:-1] = gray[:, :, 2:] - gray[:, :, :-2]
    strength = np.hypot(down, right)
    # An edge and its opposite are one direction; it counts for the two nearest bins.
    direction = np.mod(np.arctan2(down, right), np.pi) * np.float32(_DIRECTIONS / np.pi)
    lower = np.floor(direction)
    share = direction - lower
    first = lower.astype(np.int64) % _DIRECTIONS
    second = (first + 1) % _DIRECTIONS
    cell = max(2, min(height, width) // _CELLS_PER_SIDE)
    rows, columns = max(1, height // cell), max(1, width // cell)
    found = np.empty((count, rows, columns, _DIRECTIONS), dtype=np.float32)
    for place in range(_DIRECTIONS):
        part = strength * ((first == place) * (1 - share) + (second == place) * share)
        inner = part[:, : rows * cell, : columns * cell]
        found[..., place] = inner.reshape(count, rows, -1, columns, inner.shape[2] // columns).sum(
            axis=(2, 4)
        )
    return found


def _unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    flat = values.reshape(len(values), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    unit: NDArray[np.float32] = flat / np.maximum(lengths, 1e-12)
    return unit
