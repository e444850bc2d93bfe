"""MNIST from its four idx files: 60,000 private, 9,000 public, 1,000 for the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Dataset, Records
from pate_fed.data.idx import read_idx
from pate_fed.data.image_features import fit_projection, project_strokes, stroke_features
from pate_fed.errors import InvalidDataError, UnreadableFileError

_POOL = 9000
_COMPONENTS = 60
_SIDE = 28
_CLASSES = 10


def load_mnist(data_dir: Path) -> Dataset:
    """Load MNIST, described as deskewed and blurred strokes on 60 principal components.

    The components are those of the 9,000 public images. Nothing is shuffled: the first 9,000
    test images are the pool and the last 1,000 the test, as in the PATE papers.

    Args:
        data_dir: Folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`,
            `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each plain or with `.gz`.

    Raises:
        UnreadableFileError: a file is missing or damaged.
        InvalidDataError: images and labels do not belong together.

    Source:
        Papernot et al. 2018, section 5.1, for the split. https://arxiv.org/abs/1802.08908
    """
    train, train_labels = _read_pair(data_dir, "train")
    public, public_labels = _read_pair(data_dir, "t10k")
    if len(public) <= _POOL:
        raise InvalidDataError(f"the test files must hold more than {_POOL} images", len(public))
    strokes = stroke_features(public)
    projection = fit_projection(strokes[:_POOL], components=_COMPONENTS)
    public_features = projection.apply(strokes)

    def records(features: NDArray[np.float64], labels: NDArray[np.uint8], name: str) -> Records:
        ids = tuple(f"{name}-{row}" for row in range(len(labels)))
        return Records(features=features, labels=labels.astype(np.int64), unit_ids=ids)

    return Dataset(
        name="mnist",
        kind="image",
        class_names=tuple(str(digit) for digit in range(_CLASSES)),
        private=records(project_strokes(train, projection), train_labels, "train"),
        pool=records(public_features[:_POOL], public_labels[:_POOL], "pool"),
        test=records(public_features[_POOL:], public_labels[_POOL:], "test"),
    )


def _read_pair(data_dir: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images = read_idx(_find(data_dir, f"{part}-images-idx3-ubyte"), axes=3)
    labels = read_idx(_find(data_dir, f"{part}-labels-idx1-ubyte"), axes=1)
    if len(images) != len(labels) or images.shape[1:] != (_SIDE, _SIDE):
        raise InvalidDataError(
            f"the {part} files must hold a label for each image of {_SIDE} x {_SIDE}",
            f"{len(images)} images of {images.shape[1]} x {images.shape[2]} "
            f"and {len(labels)} labels",
        )
    if labels.max() >= _CLASSES:
        raise InvalidDataError(f"the {part} labels must be digits", "another number")
    return images, labels


def _find(data_dir: Path, name: str) -> Path:
    for candidate in (data_dir / f"{name}.gz", data_dir / name):
        if candidate.exists():
            return candidate
    raise UnreadableFileError(f"the data folder must hold {name}.gz or {name}", "neither")
