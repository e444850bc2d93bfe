"""LNMax: the class with the most votes after Laplace noise.

Source:
    Papernot, Abadi, Erlingsson, Goodfellow, Talwar 2017, Semi-supervised knowledge transfer for
    deep learning from private training data. https://arxiv.org/abs/1610.05755
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import LaplaceMaxEvent, PrivacyEvent
from pate_fed.accounting.laplace_bounds import laplace_rdp
from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.gaussian_max import noisy_winners
from pate_fed.mechanisms.mechanism import Mechanism, Parameters, assemble_release
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.votes import SummedHistogram


@dataclass(frozen=True, slots=True)
class LaplaceMax(Mechanism):
    """LNMax: answer every query with the argmax of counts plus Laplace noise.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: the label of each query answered, to everyone who sees labels.
        One change moves a row by at most 2 k votes in L1 norm, so each label is epsilon-DP with
        epsilon = 2 gamma k and delta = 0, whatever the votes; K labels have K times the RDP of
        such a release. Trust: as for GNMax.

    Attributes:
        gamma: Inverse scale of the noise in each count, per vote; above 0. Its standard deviation
            is sqrt(2) / gamma votes.
    """

    name: ClassVar[str] = "lnmax"

    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", positive("gamma", self.gamma))

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: NoisePlan,
        random_bytes: RandomBytes,
        max_answers: int,
        max_refusals: int,
    ) -> NoisyRelease:
        """Answer queries in order until the last allowed answer; it never refuses."""
        whole("max_refusals", max_refusals)
        noisy = noise.perturb_laplace(summed, gamma=self.gamma, random_bytes=random_bytes)
        return assemble_release(
            noisy_winners(noisy),
            np.ones(len(noisy.counts), dtype=np.bool_),
            max_answers=whole("max_answers", max_answers),
            max_refusals=1,  # none ever happens, so none has to be allowed for
        )

    def caps(self, queries: int, *, max_answers: int, max_refusals: int) -> tuple[int, int]:
        """Return min(queries, max_answers) twice: every query asked is answered."""
        whole("max_refusals", max_refusals)
        answers = min(whole("queries", queries), whole("max_answers", max_answers))
        return answers, answers

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what so many answers cost; `asked` must be as many."""
        if asked != answered:
            raise InvalidParameterError("LNMax must answer every query asked", f"{asked} asked")
        return LaplaceMaxEvent(answers=answered, gamma=self.gamma, weight=weight)

    def worst_case_event(self, asks: int, answers: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what the smaller of the caps costs."""
        most = min(whole("asks", asks), whole("answers", answers))
        return self.event(most, most, weight=weight)

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
        bounds = laplace_rdp(answered, orders, gamma=self.gamma, weight=weight)
        return np.asarray(bounds.sum(axis=0))

    def parameters(self) -> Parameters:
        """Return the parameters; "sigma2" is the standard deviation sqrt(2) / gamma."""
        return {
            "name": self.name,
            "vote_threshold": None,
            "sigma1": None,
            "sigma2": math.sqrt(2) / self.gamma,
            "gamma": self.gamma,
        }
