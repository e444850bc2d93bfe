"""Small, well separated records for tests of partition, teachers and students."""

from __future__ import annotations

import numpy as np

from pate_fed.data import Records


def blobs(
    count: int,
    *,
    classes: int = 3,
    features: int = 4,
    seed: int = 0,
    unit_ids: tuple[str, ...] | None = None,
    hospitals: tuple[str, ...] | None = None,
) -> Records:
    """Make records that lie around one point per class, classes in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centers = 6.0 * np.random.default_rng(99).normal(size=(classes, features))
    return Records(
        features=centers[labels] + rng.normal(size=(count, features)),
        labels=labels,
        unit_ids=unit_ids or tuple(f"unit-{row}" for row in range(count)),
        hospitals=hospitals,
    )
