"""A mechanism that the product does not have: all that a new one needs stands in this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.ranges import positive, whole
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.mechanism import Mechanism, Parameters, Size, Spec
from pate_fed.mechanisms.noisy_max import NoisyMax
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.rule import Rule
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class ToyEvent(PrivacyEvent):
    """Some asks of the toy."""

    record_name: ClassVar[str] = "toy/1"

    asks: int
    sigma: float
    weight: float = 1.0


@event_rdp.register
def _(event: ToyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(orders) * event.asks * (event.weight / event.sigma) ** 2


@dataclass(frozen=True, slots=True)
class ToyMax(NoisyMax):
    """GNMax under another name, priced by its RDP curve alone."""

    name: ClassVar[str] = "toy"

    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", positive("sigma", self.sigma))

    def add_noise(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        return noise.perturb(summed, sigma=self.sigma, random_bytes=random_bytes)

    def event_of_asks(self, asks: int, weight: float) -> PrivacyEvent:
        """Say what so many asks cost."""
        return ToyEvent(whole("asks", asks), self.sigma, weight)

    def parameters(self) -> Parameters:
        return {"name": self.name, "vote_threshold": None, "sigma1": None, "sigma2": self.sigma}


def _make(rule: Rule, _parties: int, _unit_votes: int) -> Mechanism:
    return ToyMax(rule.need("sigma2"))


def _usual(size: Size) -> Mapping[str, float]:
    return {"sigma2": 0.5 * size.votes}


def _text(mechanism: Mapping[str, Any]) -> str:
    return f"The toy of sigma {mechanism['sigma2']:g} chose."


SPEC: Final = Spec(
    name=ToyMax.name,
    title="Toy-Max",
    parameters=("sigma2",),
    make=_make,
    usual=_usual,
    text=_text,
)
