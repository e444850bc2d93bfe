"""Real data sets that scikit-learn brings along: nothing to download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Dataset, Records
from pate_fed.data.image_features import fit_projection
from pate_fed.data.table_features import Column
from pate_fed.data.tables import Table, table_dataset

_DIGITS_PRIVATE = 1000
_DIGITS_POOL = 500
_DIGITS_COMPONENTS = 30
_DIGITS_MAX_GRAY = 16.0


def load_bundled_digits(*, rng: np.random.Generator) -> Dataset:
    """Load 1,797 handwritten digits: 1,000 private, 500 public, 297 for the test.

    Features are the first principal components of the 500 public images.

    Args:
        rng: Shuffles the images before they are split.
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    scaled = images / _DIGITS_MAX_GRAY
    private, pool, test = np.split(order, [_DIGITS_PRIVATE, _DIGITS_PRIVATE + _DIGITS_POOL])
    projection = fit_projection(scaled[pool], components=_DIGITS_COMPONENTS)

    def records(rows: NDArray[np.int64]) -> Records:
        return Records(
            features=projection.apply(scaled[rows]),
            labels=labels[rows],
            unit_ids=tuple(f"digit-{row}" for row in rows),
        )

    return Dataset(
        name="digits",
        kind="image",
        class_names=tuple(str(digit) for digit in range(10)),
        private=records(private),
        pool=records(pool),
        test=records(test),
    )


def load_bundled_breast_cancer(*, rng: np.random.Generator) -> Dataset:
    """Load 569 breast tumors, 30 measurements each, benign or malignant.

    Args:
        rng: Shuffles the records before they are split 60/25/15.
    """
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - takes a second

    bunch = load_breast_cancer()
    table = Table(
        columns=tuple(
            Column(name=str(name), numbers=bunch.data[:, index])
            for index, name in enumerate(bunch.feature_names)
        ),
        labels=bunch.target.astype(np.int64),
        class_names=tuple(str(name) for name in bunch.target_names),
        unit_ids=tuple(f"tumor-{row}" for row in range(len(bunch.target))),
        hospitals=None,
    )
    return table_dataset("breast-cancer", table, rng=rng)
