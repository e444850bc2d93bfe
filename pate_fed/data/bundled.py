"""Real data sets that scikit-learn brings along: nothing to download."""

from __future__ import annotations

import numpy as np

from pate_fed.data.dataset import Dataset
from pate_fed.data.images import LabeledImages, image_dataset
from pate_fed.data.table_features import Column
from pate_fed.data.tables import Table, table_dataset

_DIGITS_PRIVATE = 1000
_DIGITS_POOL = 500
_DIGITS_MAX_GRAY = 16.0


def load_bundled_digits(*, rng: np.random.Generator) -> Dataset:
    """Load 1,797 handwritten digits: 1,000 private, 500 public, 297 for the test."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / _DIGITS_MAX_GRAY)).astype(np.uint8).reshape(-1, 8, 8, 1)
    order = rng.permutation(len(labels))
    parts = np.split(order, [_DIGITS_PRIVATE, _DIGITS_PRIVATE + _DIGITS_POOL])
    ids = tuple(f"digit-{row}" for row in range(len(labels)))
    everything = LabeledImages(images, labels.astype(np.int64), ids, ids)
    private, pool, test = (everything.select(rows) for rows in parts)
    names = tuple(str(digit) for digit in range(10))
    return image_dataset("digits", private, pool, test, class_names=names)


def breast_cancer_table() -> Table:
    """Load 569 breast tumors, 30 measurements each, benign or malignant."""
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - takes a second

    bunch = load_breast_cancer()
    return Table(
        columns=tuple(
            Column(name=str(name), numbers=bunch.data[:, index])
            for index, name in enumerate(bunch.feature_names)
        ),
        labels=bunch.target.astype(np.int64),
        class_names=tuple(str(name) for name in bunch.target_names),
        unit_ids=tuple(f"tumor-{row}" for row in range(len(bunch.target))),
        hospitals=None,
    )


def load_bundled_breast_cancer(*, rng: np.random.Generator) -> Dataset:
    """Load the breast tumors, a part of them public."""
    return table_dataset("breast-cancer", breast_cancer_table(), rng=rng)
