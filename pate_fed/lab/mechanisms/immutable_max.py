"""NZC, the "immutable" argmax: for comparison in simulations. It is not differentially private.

Source:
    docs/explanation/immutable-argmax.md states its claim and why that fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pate_fed.accounting.events import ImmutableMaxEvent, PrivacyEvent
from pate_fed.accounting.ranges import in_range, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import SIGMA2_SHARE
from pate_fed.mechanisms.laplace_max import gamma_of
from pate_fed.mechanisms.mechanism import Parameters, Spec
from pate_fed.mechanisms.mechanism_words import NOBODY_IS_PROTECTED, number
from pate_fed.mechanisms.noisy_max import NoisyMax
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class ImmutableMax(NoisyMax):
    """NZC: add so much to the top count that noise cannot change the winner, then the noise.

    Guarantee:
        None. Neighbors: two worlds in which one teacher votes differently. With k + 1 votes against
        k the label is class 0, with k against k + 1 it is class 1, each with a chance of almost 1:
        an observer who knows the other votes reads the last one. Any epsilon claimed with a delta
        below 1 - 2 eta (eta the chance that noise changes the winner) must be at least ln((1 - eta
        - delta) / eta), without bound as eta goes to 0. The constant is there to make eta small.
        Its event is priced at infinite epsilon. Trust: it would need everybody's.

    Attributes:
        constant: Votes added to the top count, at least 1 and at most 2^30.
    """

    name: ClassVar[str] = "immutable"

    gamma: float
    constant: int = 1_000_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", in_range("gamma", self.gamma))
        if not 1 <= whole("constant", self.constant) <= 2**30:
            raise InvalidParameterError("constant must be between 1 and 2^30", self.constant)

    def add_noise(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add the constant to the top count, and Laplace noise to every count."""
        return noise.perturb_laplace(
            summed, gamma=self.gamma, random_bytes=random_bytes, boost=self.constant
        )

    def event_of_asks(self, asks: int, weight: float) -> PrivacyEvent:
        """Return the event of this many asks: of infinite cost if there is one."""
        return ImmutableMaxEvent(asks=asks, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters; "sigma2" is the standard deviation sqrt(2) / gamma."""
        return {
            "name": self.name,
            "vote_threshold": None,
            "sigma1": None,
            "sigma2": math.sqrt(2) / self.gamma,
            "gamma": self.gamma,
            "constant": float(self.constant),
        }


def _text(mechanism: Mapping[str, object]) -> str:
    return (
        f"{NOBODY_IS_PROTECTED}. The class with most votes is given "
        f"{number(mechanism, 'constant')} votes more before noise of standard deviation "
        f"{number(mechanism, 'sigma2')} votes is added to every count: so much that no noise can "
        "change the label."
    )


SPEC: Final = Spec(
    name=ImmutableMax.name,
    title="Immutable argmax",
    parameters=("sigma2",),
    make=lambda rule, _parties, _unit_votes: ImmutableMax(gamma_of(rule.need("sigma2"))),
    usual=lambda size: {"sigma2": SIGMA2_SHARE * size.votes},
    text=_text,
    is_private=False,
)
