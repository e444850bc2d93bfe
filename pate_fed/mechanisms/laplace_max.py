"""LNMax: the class with the most votes after Laplace noise.

Source:
    Papernot, Abadi, Erlingsson, Goodfellow, Talwar 2017, Semi-supervised knowledge transfer for
    deep learning from private training data. https://arxiv.org/abs/1610.05755
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pate_fed.accounting.events import LaplaceMaxEvent, PrivacyEvent
from pate_fed.accounting.ranges import in_range
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import SIGMA2_SHARE
from pate_fed.mechanisms.mechanism import Mechanism, Parameters, Size, Spec
from pate_fed.mechanisms.mechanism_words import pick
from pate_fed.mechanisms.noisy_max import NoisyMax
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.rule import Rule
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class LaplaceMax(NoisyMax):
    """LNMax: answer every query with the argmax of counts plus Laplace noise.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: the label of each query answered, to everyone who sees labels. One
        change moves a row by at most 2 k votes in L1 norm. So each label is epsilon-DP with epsilon
        = 2 gamma k and delta = 0, for all votes. K labels have K times the RDP of such a release.
        Trust: as for GNMax.

    Attributes:
        gamma: Inverse scale of the noise in each count, per vote; above 0. Its standard deviation
            is sqrt(2) / gamma votes.
    """

    name: ClassVar[str] = "lnmax"

    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", in_range("gamma", self.gamma))

    def add_noise(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add Laplace noise of scale 1 / gamma."""
        return noise.perturb_laplace(summed, gamma=self.gamma, random_bytes=random_bytes)

    def event_of_asks(self, asks: int, weight: float) -> PrivacyEvent:
        """Return the event of this many asks."""
        return LaplaceMaxEvent(asks=asks, gamma=self.gamma, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters; "sigma2" is the standard deviation sqrt(2) / gamma."""
        return {
            "name": self.name,
            "vote_threshold": None,
            "sigma1": None,
            "sigma2": math.sqrt(2) / self.gamma,
            "gamma": self.gamma,
        }


def gamma_of(sigma: float) -> float:
    """Return the inverse scale of Laplace noise of this standard deviation."""
    return math.sqrt(2) / sigma if sigma else math.inf


def _make(rule: Rule, _parties: int, _unit_votes: int) -> Mechanism:
    return LaplaceMax(gamma_of(rule.need("sigma2")))


def _usual(size: Size) -> Mapping[str, float]:
    return {"sigma2": SIGMA2_SHARE * size.votes}


def _text(mechanism: Mapping[str, object]) -> str:
    return f"For each query {pick(mechanism, kind='Laplace noise')}."


SPEC: Final = Spec(
    name=LaplaceMax.name,
    title="LNMax",
    parameters=("sigma2",),
    make=_make,
    usual=_usual,
    text=_text,
    laplace=True,
)
