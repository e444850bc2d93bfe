"""NZC, the "immutable" argmax: for comparison in simulations. It is not differentially private.

Source:
    docs/explanation/immutable-argmax.md says what is claimed for it and why that fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import ImmutableMaxEvent, PrivacyEvent
from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.gaussian_max import noisy_winners
from pate_fed.mechanisms.mechanism import Mechanism, Parameters, assemble_release
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.votes import SummedHistogram


@dataclass(frozen=True, slots=True)
class ImmutableMax(Mechanism):
    """NZC: add so much to the top count that noise cannot change the winner, then the noise.

    Guarantee:
        None. Neighbors: two worlds in which one teacher votes differently. With k + 1 votes
        against k the label is class 0, with k against k + 1 it is class 1, each with a chance of
        almost 1: whoever knows the other votes reads the last one. Whatever epsilon is claimed
        with a delta below 1 - 2 eta (eta the chance that noise changes the winner) must be at
        least ln((1 - eta - delta) / eta), without bound as eta goes to 0, which is what the
        constant is for. Its event is priced at infinite epsilon. Trust: it would need everybody's.

    Attributes:
        gamma: Inverse scale of the Laplace noise in each count, per vote; above 0.
        constant: Votes added to the top count, at least 1 and at most 2^30.
    """

    name: ClassVar[str] = "immutable"
    is_private: ClassVar[bool] = False

    gamma: float
    constant: int = 1_000_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", positive("gamma", self.gamma))
        if not 1 <= whole("constant", self.constant) <= 2**30:
            raise InvalidParameterError("constant must be between 1 and 2^30", self.constant)

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
        noisy = noise.perturb_laplace(
            summed, gamma=self.gamma, random_bytes=random_bytes, boost=self.constant
        )
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
        """Say what so many answers cost: infinitely much, where there is one."""
        if asked != answered:
            raise InvalidParameterError("NZC must answer every query asked", f"{asked} asked")
        return ImmutableMaxEvent(asks=asked, weight=weight)

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
        """Return infinity: local sensitivity at chosen votes bounds nothing."""
        del outcomes, weight
        return np.full(len(orders), math.inf if len(counts) else 0.0)

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
