"""Keeps copies of other records out of the test: what was learned by heart proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidDataError


def without_copies(test: Records, *others: Records) -> tuple[Records, tuple[str, ...]]:
    """Leave out the test records that equal one of the other parts, byte for byte.

    Of a table, rows with equal features count as copies unless some of them have different labels,
    or most of the test would go: then patients look alike there, and a test without the frequent
    ones would be unfair. They stay, and a note says so.

    Raises:
        InvalidDataError: every test image is such a copy.
    """
    known: dict[bytes, int] = {}
    differ = False
    for part in others:
        for look, label in _looks(part):
            differ |= known.setdefault(look, label) != label
    found = list(_looks(test))
    is_copy = np.array([look in known for look, _ in found])
    copies = int(is_copy.sum())
    if not copies:
        return test, ()
    if test.images is not None:
        if copies == len(test):
            raise InvalidDataError(
                "the test must hold an image that is neither in the pool nor at a hospital",
                f"{copies} copies",
            )
    else:
        differ |= any(known.get(look, label) != label for look, label in found)
        if differ or copies > len(test) / 2:
            return test, (
                f"{copies} of {len(test)} test records equal one of the pool or of a hospital in "
                "every feature: patients look alike in this table, so these stay in the test.",
            )
    kept = test.select(np.flatnonzero(~is_copy))
    return kept, (
        f"{copies} of {len(test)} test records were left out: copies of records in the pool or at "
        "a hospital.",
    )


def _looks(records: Records) -> Iterator[tuple[bytes, int]]:
    """Yield a hash of all that a model sees of each record, and the record's label."""
    seen = records.features + 0.0 if records.images is None else records.images  # -0.0 is 0.0
    for row, label in zip(seen, records.labels.tolist(), strict=True):
        yield blake2b(row.tobytes(), digest_size=16).digest(), label
