"""Sets of classes with a stated coverage: split conformal prediction on held-out released labels.

A part of the queries is drawn at random, whatever method chooses the others. Their labels teach no
student: they tell how small a chance their own class may have. Released labels and public inputs
are all that is used, so sets cost no privacy.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.ranges import in_range
from pate_fed.errors import InvalidParameterError
from pate_fed.queries import QueryPool

CALIBRATING_PART: Final = 5
"""Of so many queries one has a label that calibrates."""

_TIES: Final = 1 - 1e-9
"""Chances of equal inputs may differ in their last digits: sets hold both."""


@dataclass(frozen=True, slots=True)
class LabelSets:
    """A rule for sets: the classes of at least some chance, and always the likeliest.

    Guarantee: take held-out labels and one more row, all drawn alike from the rows that the
    queries are drawn from and labeled by the same hospitals under the same noise. The set of that
    row, over all these draws, holds its *released* label with probability `coverage` or more. It
    says nothing of the true class, of one class alone, or of other kinds of rows.

    Attributes:
        coverage: In [0.5, 1).
        labels: How many held-out labels calibrated it.
        least_chance: 0 where these are too few for the coverage: then sets hold all classes.

    Source:
        Vovk, Gammerman, Shafer 2005, Algorithmic learning in a random world. Sadinle, Lei,
        Wasserman 2019, Least ambiguous set-valued classifiers. https://arxiv.org/abs/1609.00451
    """

    coverage: float
    labels: int
    least_chance: float

    def __post_init__(self) -> None:
        in_range("coverage", self.coverage)
        if self.labels < 0 or not 0 <= self.least_chance <= 1:
            raise InvalidParameterError(
                "sets must follow from 0 or more labels, and a chance from 0 to 1"
            )

    @classmethod
    def calibrated(
        cls, chances: NDArray[np.float64], labels: NDArray[np.int64], *, coverage: float
    ) -> LabelSets:
        """Return the rule with the smallest sets for a coverage.

        Args:
            chances: A student's, of inputs whose labels it did not learn; shape (labels, classes).
            labels: Their released labels; int64, shape (labels,).
            coverage: In [0.5, 1).
        """
        in_range("coverage", coverage)
        if chances.ndim != 2 or labels.shape != (len(chances),):
            raise InvalidParameterError(
                "there must be a row of chances for each label",
                f"{chances.shape} and {labels.shape}",
            )
        own = np.sort(chances[np.arange(len(labels)), labels])
        place = _place(coverage, len(own))
        least = 0.0 if place > len(own) else float(own[len(own) - place]) * _TIES
        return cls(coverage, len(own), least)

    def of(self, chances: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Tell which classes are in the set of each input.

        Args:
            chances: The same student's; shape (inputs, classes).

        Returns:
            Of the same shape; in each row at least one is true.
        """
        held = chances >= self.least_chance
        held[np.arange(len(chances)), chances.argmax(axis=1)] = True
        return np.asarray(held)

    @property
    def labels_needed(self) -> int:
        """Fewest held-out labels with which sets need not hold all classes."""
        return labels_needed(self.coverage)

    @property
    def interval(self) -> tuple[float, float]:
        """Coverage that 95 % of such calibrations have; without ties it is Beta(k, n + 1 - k).

        Source:
            Vovk 2012, Conditional validity of inductive conformal predictors.
            https://arxiv.org/abs/1209.2673
        """
        from scipy.stats import beta  # noqa: PLC0415 - takes a moment

        place = _place(self.coverage, self.labels)
        if place > self.labels:
            return 1.0, 1.0
        low, high = beta.ppf((0.025, 0.975), place, self.labels + 1 - place)
        return float(low), float(high)


def labels_needed(coverage: float) -> int:
    """Return the fewest held-out labels n with ceil((n + 1) coverage) <= n."""
    return math.ceil(_exact(coverage) / (1 - _exact(coverage)))


def _place(coverage: float, labels: int) -> int:
    """Return ceil((n + 1) coverage), of the decimal number that a person typed."""
    return math.ceil((labels + 1) * _exact(coverage))


def _exact(coverage: float) -> Fraction:
    return Fraction(repr(float(coverage)))


def calibrating_rows(pool: QueryPool) -> tuple[int, ...]:
    """Return the rows of a pool that only ever calibrate, as positions in random order.

    The SHA-256 of a row decides: so every run, and whoever trains another student of it, holds the
    same rows back, and no vote or label has a say. A fifth of the distinct rows, about.
    """
    places = pool.distinct
    digests = (
        hashlib.sha256(b"pate-fed calibration\n" + digest).digest()
        for digest in pool.ask(places).digests
    )
    most = 2**64 // CALIBRATING_PART
    drawn = sorted(
        (digest, place)
        for digest, place in zip(digests, places, strict=True)
        if int.from_bytes(digest[:8], "big") < most
    )
    return tuple(place for _, place in drawn)
