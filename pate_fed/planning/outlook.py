"""Whether a federation is likely to pay, said before anything is trained or spent."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.wording import plural

DOUBTFUL: Final = 4.0
"""Evidence below this: a student does not beat a hospital's own model."""

LIKELY: Final = 25.0
"""Evidence from this on: a student beats the average model of hospitals with few records."""

FEW, MANY = 1 / 8, 2.0
"""Records of a hospital for each answer: up to `FEW` its own model is weaker than a student of so
many good labels, from `MANY` on it is as good or better.
"""

REAL: Final = 10
"""Records that every hospital has: a gain below so many is none."""


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
    few = math.floor(FEW * queries)
    if found < DOUBTFUL:
        return (
            "Too few labels: expect no gain over a hospital's own model. More hospitals, more "
            "teachers or a larger epsilon help."
        )
    if records is not None and records >= MANY * queries:
        return (
            f"Expect no gain: a hospital learns as much from {records:.0f} records of its own as a "
            f"student from {plural(queries, 'label')}. Ask more queries, or do without a "
            "federation."
        )
    if found < LIKELY:
        return (
            "A gain over a hospital's own model is uncertain. More hospitals, more teachers or a "
            "larger epsilon help."
        )
    if records is not None and records > few:
        return (
            f"A gain is uncertain: a hospital with {records:.0f} records has a fair model of its "
            f"own. A gain is likely up to {plural(few, 'record')}."
        )
    if records is None and few < REAL:
        return (
            "Too few labels: expect no gain over the model of a hospital with more than "
            f"{plural(few, 'record')}. Ask more queries."
        )
    condition = f", if hospitals have at most {few} records each" if records is None else ""
    return f"Expect the student to beat the average hospital's own model{condition}."
