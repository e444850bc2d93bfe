"""Confident-GNMax on simulated votes, to choose parameters and caps.

Votes come from public numbers alone, an assumed accuracy of the teachers among them. Parameters
that were tried out on real votes would leak them, and the guarantee would not count it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

SIMULATED_QUERIES: Final = 400
ASSUMED_ACCURACY: Final = 0.7
"""Share of teachers that are right on an average query, where nobody says better."""

_SIMULATED_DRAWS: Final = 20
_SPREAD: Final = 4.0
_CAP_MARGIN: Final = 3.0
"""Standard deviations that a cap on refusals lies above their expected number."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The behavior of a threshold and its noise on simulated votes.

    Attributes:
        answer_rate: Share of queries that are answered.
        accuracy: Share of the answers that are right.
    """

    answer_rate: float
    accuracy: float

    def refusals(self, queries: int) -> int:
        """Return a cap that this many queries will hardly reach, at least 1 and at most all."""
        spread = math.sqrt(queries * self.answer_rate * (1 - self.answer_rate))
        expected = queries * (1 - self.answer_rate)
        return max(1, min(queries, math.ceil(expected + _CAP_MARGIN * spread)))


def simulated_votes(
    *, votes: int, classes: int, teacher_accuracy: float = ASSUMED_ACCURACY
) -> NDArray[np.int64]:
    """Make votes from public numbers: the right class first, mistakes spread over the others.

    How many teachers are right on a query follows a beta law; which wrong classes get the others'
    votes, a uniform one.

    Args:
        votes: Per query.
        classes: At least 2.
        teacher_accuracy: Mean share of teachers that are right, in (0, 1).

    Returns:
        Counts; int64, shape (`SIMULATED_QUERIES`, classes). The same for the same arguments.
    """
    rng = np.random.default_rng(0)
    beta = _SPREAD * teacher_accuracy, _SPREAD * (1 - teacher_accuracy)
    right = rng.beta(*beta, size=SIMULATED_QUERIES)
    wrong = rng.dirichlet(np.ones(classes - 1), size=SIMULATED_QUERIES)
    chances = np.column_stack([right, (1 - right)[:, None] * wrong])
    return np.array([rng.multinomial(votes, row) for row in chances], dtype=np.int64)


def preview_confident(
    counts: NDArray[np.int64], *, vote_threshold: float, sigma1: float, sigma2: float
) -> Preview:
    """Return the rates of answers and of right answers.

    Args:
        counts: Simulated votes, the right class first; shape (queries, classes).
        vote_threshold: In votes.
        sigma1: Standard deviation of the noise in the check, in votes.
        sigma2: Standard deviation of the noise in each count, in votes.
    """
    passes = scipy.special.ndtr((counts.max(axis=1) - vote_threshold) / sigma1)
    right = right_chances(counts, sigma=sigma2)
    return Preview(
        answer_rate=float(passes.mean()),
        accuracy=float((passes * right).sum() / max(passes.sum(), 1e-12)),
    )


def right_chances(counts: NDArray[np.int64], *, sigma: float) -> NDArray[np.float64]:
    """Return how often noisy counts of each query have the right class, the first, on top.

    Args:
        counts: Simulated votes, the right class first; shape (queries, classes).
        sigma: Standard deviation of the noise in each count, in votes.

    Returns:
        Shares of some draws, the same for the same arguments; shape (queries,).
    """
    rng, right = np.random.default_rng(1), np.zeros(len(counts))
    for _ in range(_SIMULATED_DRAWS):  # one draw in memory at a time: rows may be wide
        right += (counts + rng.normal(0, sigma, counts.shape)).argmax(axis=1) == 0
    return right / _SIMULATED_DRAWS
