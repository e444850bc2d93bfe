"""How good a student is, from patients whom hospitals held out: sums of counts, with noise.

A patient who taught no teacher is counted once in each grouping (by class, by the student's
certainty), as right or wrong. Hospitals' counts are added by the secure sum, then noise is added.

Guarantee:
    Replace one patient's records. In each of g groupings one count falls by 1 and another rises by
    1, so the counts move by at most sqrt(2 g) in L2 norm; where the unit is a hospital, by as many
    times that as it has held-out patients. With Gaussian noise in each count the release is
    mu-GDP, mu = that / sigma (`pate_fed.accounting.gaussian_dp`). In a simulation the coordinator
    adds the noise and sees the sums; only the noisy counts may be shown. In a deployment each
    hospital adds its part before it sends (`EvaluationPlan.rows`), so nobody sees a sum without
    noise, and the price is `DistributedCountsEvent`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting import gdp_mu
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms import RandomBytes, sample_gaussian

CLASS: Final = "class"
CERTAINTY: Final = "certainty"
Number = TypeVar("Number", np.int64, np.float64)

MOST_PLACES: Final = 1_000_000
"""Most places for held-out patients at a hospital."""

START_S: Final = 60.0
PLACE_S: Final = 0.05
"""Seconds that a hospital takes until it is ready: to begin, and for each place, free or not."""

_BINS: Final = 4
_Z: Final = 1.959963984540054
"""Quantile of a 95 % interval."""

_STEPS: Final = 10_000
_UP: Final = 1 + 2.0**-40


@dataclass(frozen=True, slots=True)
class Grouping:
    """A way to divide patients into groups: each patient is in exactly one."""

    name: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CertaintyBins:
    """The student's certainty in equal parts of the public pool.

    Attributes:
        edges: Inner edges, ascending; float64, shape (bins - 1,).
        means: Mean certainty of the pool's inputs in each bin; float64, shape (bins,).
    """

    edges: NDArray[np.float64]
    means: NDArray[np.float64]

    @classmethod
    def of(cls, chances: NDArray[np.float64]) -> CertaintyBins:
        """Divide the pool by the student's chances on it; shape (inputs, classes)."""
        certainty = chances.max(axis=1)
        shares = np.arange(1, _BINS) / _BINS
        edges = np.unique(np.quantile(certainty, shares, method="higher"))
        edges = edges[edges > certainty.min()]  # so that no bin is empty: every edge is an input's
        places = np.searchsorted(edges, certainty, side="right")
        sums = np.bincount(places, weights=certainty)
        return cls(edges, sums / np.bincount(places))

    def places(self, chances: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the bin of each patient; shape (patients,)."""
        found = np.searchsorted(self.edges, chances.max(axis=1), side="right")
        return np.asarray(found, dtype=np.int64)

    @property
    def grouping(self) -> Grouping:
        """Its groups, least certain first, named by their place and mean certainty."""
        names = (f"{place}: {100 * mean:.1f} %" for place, mean in enumerate(self.means, start=1))
        return Grouping(CERTAINTY, tuple(names))


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What is counted, and the noise; fixed before anybody counts.

    Attributes:
        epsilon: At `delta`, for a reader of the noisy counts.
        unit_patients: Most held-out patients of one privacy unit: 1 where the unit is a patient.
    """

    groupings: tuple[Grouping, ...]
    sigma: float
    epsilon: float
    delta: float
    unit_patients: int = 1

    @classmethod
    def priced(
        cls,
        groupings: Sequence[Grouping],
        *,
        epsilon: float,
        delta: float,
        unit_patients: int = 1,
    ) -> EvaluationPlan:
        """Choose the least noise at which the counts cost at most `epsilon` at `delta`."""
        if not groupings or unit_patients < 1:
            raise InvalidParameterError(
                "an evaluation must have a grouping and a held-out patient",
                f"{len(groupings)} and {unit_patients}",
            )
        moved = unit_patients * math.sqrt(2 * len(groupings))
        sigma = moved / gdp_mu(epsilon, delta) * _UP
        return cls(tuple(groupings), sigma, epsilon, delta, unit_patients)

    @property
    def width(self) -> int:
        """Number of counts."""
        return sum(2 * len(one.groups) for one in self.groupings)

    def counts(
        self, places: Mapping[str, NDArray[np.int64]], right: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Count one hospital's held-out patients. Secret.

        Args:
            places: By the name of a grouping, the group of each patient; int64, shape (patients,).

        Returns:
            For each grouping those that it is right on by group, then those that it is wrong on;
            int64, shape (width,).
        """
        found = []
        for one in self.groupings:
            group = places.get(one.name)
            if group is None or group.shape != right.shape:
                raise InvalidParameterError(
                    "each patient must be in a group of each grouping", f"another {one.name}"
                )
            if len(group) and not 0 <= group.min() <= group.max() < len(one.groups):
                raise InvalidParameterError("a group must be one of those planned", one.name)
            found += [np.bincount(group[hit], minlength=len(one.groups)) for hit in (right, ~right)]
        return np.concatenate(found).astype(np.int64)

    @property
    def columns(self) -> int:
        """Columns of a row for each grouping: right, then wrong, then one for places left free."""
        return 2 * max(len(one.groups) for one in self.groupings) + 1

    def rows(
        self, places: Mapping[str, NDArray[np.int64]], right: NDArray[np.bool_], *, slots: int
    ) -> NDArray[np.int64]:
        """Count one hospital's held-out patients in rows whose sum is public. Secret.

        The number of these patients is private. So a hospital has a public number of places for
        them, and the last column of each row counts the places that it left free.

        Returns:
            A row for each grouping; int64, shape (groupings, columns), every row sums to `slots`.
        """
        if len(right) > slots:
            raise InvalidParameterError(f"at most {slots} patients must be counted")
        rows = np.zeros((len(self.groupings), self.columns), dtype=np.int64)
        for row, part in zip(rows, self.parts(self.counts(places, right)), strict=True):
            row[: part.size] = part.ravel()
        rows[:, -1] = slots - len(right)
        return rows

    def counts_in(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the counts in summed noisy rows, in the order of `counts`; shape (width,)."""
        if rows.shape != (len(self.groupings), self.columns):
            raise InvalidParameterError("there must be a row for each grouping", str(rows.shape))
        groupings = zip(rows, self.groupings, strict=True)
        return np.concatenate([row[: 2 * len(one.groups)] for row, one in groupings]).astype(float)

    def perturb(
        self, counts: NDArray[np.int64], *, random_bytes: RandomBytes
    ) -> NDArray[np.float64]:
        """Add fresh noise to the sums of all hospitals' counts; the result may be shown."""
        if counts.shape != (self.width,):
            raise InvalidParameterError(f"there must be {self.width} counts", str(counts.shape))
        return counts + sample_gaussian(self.width, sigma=self.sigma, random_bytes=random_bytes)

    def parts(self, noisy: NDArray[Number]) -> list[NDArray[Number]]:
        """Return the right and the wrong of each grouping; shape (2, groups) each."""
        if noisy.shape != (self.width,):
            raise InvalidParameterError(f"there must be {self.width} counts", str(noisy.shape))
        ends = np.cumsum([2 * len(one.groups) for one in self.groupings])
        return [part.reshape(2, -1) for part in np.split(noisy, ends[:-1])]


def neighbors_of(unit: str) -> str:
    """Name the two cases that noisy counts do not tell apart well."""
    whose = "one hospital" if unit == "party" else "one patient"
    return f"Compared with the case in which the records of {whose} were others."


def share_interval(
    right: float, wrong: float, right_variance: float, wrong_variance: float
) -> tuple[float, float]:
    """Return the 95 % interval of the share that is right among all patients of this kind.

    It holds all shares p whose score right - p (right + wrong) is within 1.96 standard deviations
    of 0: those of n draws, n p (1 - p), and of the noise, (1 - p)^2 and p^2 times its variances.
    Without noise it is Wilson's interval. Noise that hides all patients gives 0 to 1.

    Source:
        Wilson 1927. https://doi.org/10.1080/01621459.1927.10502953. Fieller 1954, for the noise
        in the denominator. https://doi.org/10.1111/j.2517-6161.1954.tb00159.x
    """
    patients = right + wrong
    if patients <= 0:
        return 0.0, 1.0
    share = np.linspace(0, 1, _STEPS + 1)
    variance = (
        patients * share * (1 - share)
        + (1 - share) ** 2 * right_variance
        + share**2 * wrong_variance
    )
    inside = np.flatnonzero((right - share * patients) ** 2 <= _Z**2 * variance)
    if not len(inside):  # far outside 0 to 1, by noise of little chance: the nearer end
        return (0.0, 1 / _STEPS) if right < 0 else (1 - 1 / _STEPS, 1.0)
    return max(0.0, share[inside[0]] - 1 / _STEPS), min(1.0, share[inside[-1]] + 1 / _STEPS)
