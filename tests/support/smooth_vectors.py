"""Reference numbers for smooth sensitivity and Laplace noise: a short extract, or the full list."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.pate_vectors import load_vectors
from tests.support.vectors import read_vectors


def smooth_vectors(which: str) -> dict[str, Any]:
    """Load "extract" or "full"; skip the test where the full list is absent."""
    if which == "extract":
        return read_vectors("smooth_sensitivity")
    vectors = load_vectors(which)
    for case in vectors["laplace"]:
        case["counts"] = vectors["histograms"][str(case["h"])]
    return vectors


def unpacked(run_lengths: list[list[float]]) -> NDArray[np.float64]:
    """Return a list that was stored as pairs of value and number of repeats."""
    values, times = zip(*run_lengths, strict=True)
    return np.repeat(np.array(values, dtype=np.float64), np.array(times, dtype=np.int64))
