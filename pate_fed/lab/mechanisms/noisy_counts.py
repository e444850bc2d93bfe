"""Noisy counts: release each query's whole noisy histogram, for a student to distill.

For research in simulations. Exact Gaussian composition prices them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from pate_fed.mechanisms import gaussian_max
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.votes import SummedHistogram


@dataclass(frozen=True, slots=True)
class NoisyCounts(GaussianMax):
    """GNMax that also releases the noisy counts.

    Guarantee:
        Neighbors: as for GNMax. Revealed: the noisy count of every class of each query answered, to
        everyone. They are mu-GDP with mu^2 = 2 K k^2 / sigma^2 for K queries, for all votes and all
        choices of queries. No smaller price holds: those by label and on the actual votes are of
        the argmax alone. Trust: as for GNMax with noise at the coordinator.
    """

    name: ClassVar[str] = "counts"

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: CoordinatorNoise,
        random_bytes: RandomBytes,
        max_answers: int,
    ) -> NoisyRelease:
        """Answer queries in order until the last allowed answer, each with its noisy counts."""
        noisy = self.add_noise(summed, noise=noise, random_bytes=random_bytes)
        answered = self.decide(noisy, max_answers=max_answers)
        counts = noisy.counts[: answered.answered].astype(np.float64)
        return replace(answered, counts=counts)


SPEC: Final = replace(
    gaussian_max.SPEC,
    name=NoisyCounts.name,
    title="Noisy counts",
    make=lambda rule, _parties, _unit_votes: NoisyCounts(rule.need("sigma2")),
    text=lambda mechanism: (
        f"{gaussian_max.SPEC.text(mechanism)} The noisy counts of all classes are released with "
        "it, and the student learns from them."
    ),
    at_parties=False,
    shows_counts=True,
)
"""Simulations only: a deployment releases labels alone."""
