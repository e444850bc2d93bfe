"""Who adds the noise, and the only door through which an exact sum becomes a noisy one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.sampling import RandomBytes, sample_gaussian
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """Says who adds the noise.

    Attributes:
        place: "coordinator": the sum opens exact at the coordinator, which is trusted to add
            the noise and to keep the sum to itself.
    """

    place: Literal["coordinator"] = "coordinator"

    def __post_init__(self) -> None:
        if self.place != "coordinator":
            raise InvalidParameterError('noise place must be "coordinator"', self.place)

    def perturb(
        self, summed: SummedHistogram, *, sigma: float, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add fresh noise to every count.

        Args:
            summed: Exact counts.
            sigma: Standard deviation of the noise in each count, in votes; above 0.
            random_bytes: Source of the noise.

        Raises:
            InvalidParameterError: `sigma` is out of its range.
        """
        noise = sample_gaussian(summed.counts.shape, sigma=sigma, random_bytes=random_bytes)
        return NoisyHistogram(summed.counts + noise, sigma)

    def perturb_maxima(
        self, summed: SummedHistogram, *, sigma: float, random_bytes: RandomBytes
    ) -> NDArray[np.float64]:
        """Add fresh noise to the largest count of each query.

        The result may decide whether a query is answered; itself it is never released.

        Returns:
            Noisy top counts, in votes; shape (queries,).

        Raises:
            InvalidParameterError: `sigma` is out of its range.
        """
        maxima = summed.counts.max(axis=1)
        noise = sample_gaussian(maxima.shape, sigma=sigma, random_bytes=random_bytes)
        return np.asarray(maxima + noise)
