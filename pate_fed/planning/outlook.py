"""Whether a federation is likely to pay, said before anything is trained or spent."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError

DOUBTFUL: Final = 4.0
"""Evidence below this: a student does not beat a hospital's own model."""

LIKELY: Final = 25.0
"""Evidence from this on: a student beats the average model of hospitals with few records."""

FEW, MANY = 1 / 8, 2.0
"""Records of a hospital for each answer: up to `FEW` its own model is weaker than a student of so
many good labels, from `MANY` on it is as good or better.
"""


def evidence(
    pool: NDArray[np.float64], *, votes: int, queries: int, sigma: float, classes: int
) -> float:
    """Return how much labels can teach about a table, per direction in which its rows differ.

    N^2 K / (sigma^2 d (C - 1)), for N votes on each of K queries, noise of sigma votes, C classes
    and d = (sum of eigenvalues)^2 / (sum of their squares) of the pool's covariance: the number of
    directions in which rows really differ. A rule of thumb, formed on 552 settings of four tables
    (docs/explanation/students.md); no bound.
    """
    if min(votes, queries) < 1 or sigma <= 0 or classes < 2 or len(pool) < 2:
        raise InvalidParameterError("votes, queries, noise and classes must be positive")
    eigenvalues = np.linalg.eigvalsh(np.cov(pool, rowvar=False).reshape(pool.shape[1], -1))
    spread = float(eigenvalues.sum())
    if spread <= 0:
        raise InvalidParameterError("public inputs must differ")
    directions = spread**2 / float((eigenvalues**2).sum())
    return votes**2 * queries / (sigma**2 * directions * (classes - 1))


def outlook(found: float, *, queries: int, records: float | None = None) -> str:
    """Say the forecast from some evidence, in a sentence.

    `records` are those that a hospital's own model has to learn from, on average.
    """
    if found < DOUBTFUL:
        return (
            "Do not expect a gain: at this budget the labels teach too little to beat a hospital's "
            f"own model ({found:.1f} points by a rule of thumb; a gain needs at least "
            f"{DOUBTFUL:g}). More hospitals, more teachers or a larger epsilon help."
        )
    if records is not None and records >= MANY * queries:
        return (
            f"Do not expect a gain: a hospital with {records:.0f} records learns as much alone as "
            f"a student does from {queries} labels (rule of thumb: from {MANY:g} records for each "
            "label on). Ask more queries, or do without a federation."
        )
    if found < LIKELY:
        return (
            "A gain over a hospital's own model is uncertain: the labels teach "
            f"{found:.1f} points by a rule of thumb; a gain is likely from {LIKELY:g} on."
        )
    few = math.floor(FEW * queries)
    if records is not None and records > few:
        return (
            "A gain over a hospital's own model is uncertain: the labels teach enough "
            f"({found:.0f} points by a rule of thumb; {LIKELY:g} suffice), but a hospital with "
            f"{records:.0f} records has a fair model of its own. A gain is likely up to {few} "
            "records."
        )
    condition = f", if hospitals have at most {few} records each" if records is None else ""
    return (
        f"Expect the student to beat the average hospital's own model{condition} ({found:.0f} "
        f"points by a rule of thumb; a gain is likely from {LIKELY:g} on)."
    )
