"""GNMax and Confident-GNMax: the class with the most votes after Gaussian noise.

Source:
    Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, Scalable private learning
    with PATE. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.pate_bounds import gnmax_total_rdp, threshold_total_rdp
from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.always_answering import AlwaysAnsweringMechanism
from pate_fed.mechanisms.mechanism import (
    Mechanism,
    Parameters,
    assemble_release,
    noisy_winners,
)
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class GaussianMax(AlwaysAnsweringMechanism):
    """GNMax: answer every query with the argmax of counts plus Gaussian noise.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: the label of each query answered, to everyone who sees labels.
        One change moves a row by at most sqrt(2) k votes in L2 norm, so K labels are mu-GDP
        with mu^2 = 2 K k^2 / sigma^2, whatever the votes and however queries were chosen.
        Trust: with noise at the coordinator it adds the noise and sees the exact sum; towards
        it nothing is guaranteed. How many parties may collude without seeing another's votes
        is the secure sum's matter; the labels' guarantee holds against all other parties.

    Attributes:
        sigma: Standard deviation of the total noise in each count, in votes; above 0.
    """

    name: ClassVar[str] = "gnmax"

    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", positive("sigma", self.sigma))

    def add_noise(
        self, summed: SummedHistogram, *, noise: NoisePlan, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add Gaussian noise of this standard deviation."""
        return noise.perturb(summed, sigma=self.sigma, random_bytes=random_bytes)

    def event_of_answers(self, answers: int, weight: float) -> PrivacyEvent:
        """Say what so many answers cost."""
        return GaussianMaxEvent(answers=answers, sigma=self.sigma, weight=weight)

    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Sum the data-dependent bound over the answered queries."""
        answered = counts[outcomes == Outcome.ANSWERED]
        return gnmax_total_rdp(answered, orders, sigma=self.sigma, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters; the noise of the counts is "sigma2", as for all mechanisms."""
        return {"name": self.name, "vote_threshold": None, "sigma1": None, "sigma2": self.sigma}


@dataclass(frozen=True, slots=True)
class ConfidentGaussianMax(Mechanism):
    """Confident-GNMax: answer by GNMax where the noisy top count reaches a threshold.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: for each query asked, a label or "no answer", to everyone who
        sees labels. The noisy top count is never revealed, and the label comes from fresh noise.
        One change moves the top count by at most k votes and a row by at most sqrt(2) k in L2
        norm, so A asks with K answers are mu-GDP with mu^2 = A k^2/sigma1^2 + 2 K k^2/sigma2^2,
        whatever the votes and however queries were chosen. Trust: as for GNMax.

    Attributes:
        vote_threshold: Noisy top count from which a query is answered, in votes; finite.
        sigma1: Standard deviation of the noise in that check, in votes; above 0.
        sigma2: Standard deviation of the noise in each count, in votes; above 0.
    """

    name: ClassVar[str] = "confident"

    vote_threshold: float
    sigma1: float
    sigma2: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.vote_threshold):
            raise InvalidParameterError("vote_threshold must be finite", self.vote_threshold)
        object.__setattr__(self, "vote_threshold", float(self.vote_threshold))
        object.__setattr__(self, "sigma1", positive("sigma1", self.sigma1))
        object.__setattr__(self, "sigma2", positive("sigma2", self.sigma2))

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: NoisePlan,
        random_bytes: RandomBytes,
        max_answers: int,
        max_refusals: int,
    ) -> NoisyRelease:
        """Check, then answer or refuse, in order, until the last allowed answer or refusal."""
        whole("max_answers", max_answers)
        whole("max_refusals", max_refusals)
        tops = noise.perturb_maxima(summed, sigma=self.sigma1, random_bytes=random_bytes)
        # Fresh noise: reusing that of the check would void the bound.
        noisy = noise.perturb(summed, sigma=self.sigma2, random_bytes=random_bytes)
        return assemble_release(
            noisy_winners(noisy),
            tops >= self.vote_threshold,
            max_answers=max_answers,
            max_refusals=max_refusals,
        )

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what so many asks with so many answers cost."""
        return ConfidentGaussianMaxEvent(
            asks=asked, answers=answered, sigma1=self.sigma1, sigma2=self.sigma2, weight=weight
        )

    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Sum the data-dependent bounds: the check of every query, the label of the answered."""
        checks = threshold_total_rdp(
            counts.max(axis=1),
            orders,
            vote_threshold=self.vote_threshold,
            sigma1=self.sigma1,
            weight=weight,
        )
        answered = counts[outcomes == Outcome.ANSWERED]
        return checks + gnmax_total_rdp(answered, orders, sigma=self.sigma2, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters."""
        return {
            "name": self.name,
            "vote_threshold": self.vote_threshold,
            "sigma1": self.sigma1,
            "sigma2": self.sigma2,
        }
