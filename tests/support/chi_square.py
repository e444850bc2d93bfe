"""Chi-square tests of bytes, each with a false-alarm rate of 10^-6."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FALSE_ALARMS = 1e-6
Bytes = NDArray[np.uint8]


def uniformity(y: Bytes) -> float:
    """p-value of a chi-square over the 256 values of a byte."""
    return float(stats.chisquare(np.bincount(y, minlength=256)).pvalue)


def independence(one: Bytes, other: Bytes) -> float:
    """p-value of a chi-square over the 2^16 cells of two bytes."""
    table = np.bincount(one.astype(np.int64) * 256 + other, minlength=2**16).reshape(256, 256)
    # A chi-square needs some five expected in each cell: rare rows and columns are left out.
    table = table[table.sum(axis=1) >= 5 * 256]
    table = table[:, table.sum(axis=0) > 0]
    if min(table.shape) < 2:
        return 1.0  # a constant is independent of anything; that it is no mask, `uniformity` says
    return float(stats.chi2_contingency(table).pvalue)
