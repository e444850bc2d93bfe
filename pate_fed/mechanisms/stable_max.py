"""The exact plurality, released only where a private test finds it stable (propose-test-release).

The sound form of an argmax that no noise can change: only the decision to answer is noisy.

Source:
    Dwork, Lei 2009, Differential privacy and robust statistics.
    https://doi.org/10.1145/1536414.1536466
    Smith, Thakurta 2013, Differentially private feature selection via stability arguments.
    https://proceedings.mlr.press/v30/Guha13.html
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.events import (
    PrivacyEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
)
from pate_fed.accounting.ranges import in_range, positive, vote_counts, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise, stable_distance
from pate_fed.mechanisms.laplace_max import gamma_of
from pate_fed.mechanisms.mechanism import (
    Mechanism,
    Parameters,
    Size,
    Spec,
    assemble_release,
)
from pate_fed.mechanisms.mechanism_words import number
from pate_fed.mechanisms.sampling import RandomBytes, sample_gaussian, sample_laplace
from pate_fed.releases import ABSTAIN, NoisyRelease
from pate_fed.rule import Rule
from pate_fed.votes import SummedHistogram
from pate_fed.wording import chance_text, count


@dataclass(frozen=True, slots=True)
class StableMax(Mechanism):
    """Answer with the exact plurality where it would survive a noisy number of changes.

    With k = `unit_votes` and the lead g of the first class over the second,
    d = max(0, ceil(g / (2 k)) - 1). A query is answered where d plus noise exceeds a bar that
    noise alone exceeds with chance `test_delta`.

    Guarantee:
        Neighbors: two worlds in which up to k teachers vote differently on every query. Revealed:
        for each query asked, its exact plurality or "no answer", to everyone who sees labels; never
        d, nor the noise. Proof: one change moves g by at most 2 k, hence d by at most 1. If both
        worlds D, D' have the same plurality, the release is a function of the noisy d, and has its
        price. Otherwise g is at most 2 k in both, so d = 0 in both. Then "no answer" has the same
        chance of at least 1 - test_delta in both, and all other outcomes together have a chance of
        at most test_delta. So each ask has the price of the noise on d: epsilon = test_epsilon of
        the Laplace test, or the RDP order / (2 sigma^2) of the Gaussian test. It also costs
        test_delta in delta. An ask costs this with and without an answer; both add up over adaptive
        asks. A label costs nothing more. Trust: as for GNMax; the coordinator sees exact
        pluralities anyway.

    Attributes:
        test_delta: Chance that a query is answered though nothing is stable; in (0, 1/2).
        unit_votes: Votes that one neighboring change can move, at least 1. A larger unit must be
            known here: the cost cannot be scaled afterwards.
    """

    test_delta: float
    unit_votes: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "test_delta", in_range("test_delta", self.test_delta))
        if whole("unit_votes", self.unit_votes) < 1:
            raise InvalidParameterError("unit_votes must be at least 1", self.unit_votes)

    @property
    @abstractmethod
    def bar(self) -> float:
        """The bar for d plus noise, in units."""

    @property
    @abstractmethod
    def noise_sigma(self) -> float:
        """Standard deviation of the noise on d, in units."""

    @abstractmethod
    def draw(self, queries: int, random_bytes: RandomBytes) -> NDArray[np.float64]:
        """Draw the noise on d, in units, for this many queries."""

    @abstractmethod
    def chance_above(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the chance that the noise is above minus `excess`, in units."""

    @abstractmethod
    def test_event(self, asks: int) -> PrivacyEvent:
        """Return the event of this many tests."""

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: CoordinatorNoise,
        random_bytes: RandomBytes,
        max_answers: int,
    ) -> NoisyRelease:
        """Test, then answer or refuse, in order, until the last allowed answer."""

        def test(stable_for: NDArray[np.int64]) -> NDArray[np.bool_]:
            return stable_for + self.draw(len(stable_for), random_bytes) > self.bar

        winners = noise.stable_winners(summed, unit_votes=self.unit_votes, test=test)
        return assemble_release(winners, winners != ABSTAIN, max_answers=max_answers)

    def answer_chances(self, counts: ArrayLike) -> NDArray[np.float64]:
        """Return each query's chance to be answered, given its votes, to 1/64. Private."""
        stable_for = stable_distance(vote_counts(counts), unit_votes=self.unit_votes)
        return self.chance_above(np.asarray(stable_for - self.bar, dtype=np.float64))

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of this many asks; answers, no more than these, cost nothing more."""
        if whole("answered", answered) > whole("asked", asked):
            raise InvalidParameterError(f"answers must be at most {asked} asks", answered)
        if positive("weight", weight) > self.unit_votes:
            raise InvalidParameterError(
                f"the weight must be at most the {self.unit_votes} votes of the test's unit", weight
            )
        return self.test_event(asked)

    def parameters(self) -> Parameters:
        """Return the parameters; "sigma1" is that of the noise on d, in units."""
        return {
            "name": self.name,
            "vote_threshold": None,
            "sigma1": self.noise_sigma,
            "sigma2": None,
            "test_delta": self.test_delta,
            "unit_votes": self.unit_votes,
        }


@dataclass(frozen=True, slots=True)
class StableGaussianMax(StableMax):
    """The test with Gaussian noise: answer where d + N(0, sigma^2) > sigma Phi^-1(1 - test_delta).

    Guarantee:
        As for `StableMax`: the RDP order / (2 sigma^2) and test_delta for each ask.
    """

    name: ClassVar[str] = "stable-gaussian"

    sigma: float

    def __post_init__(self) -> None:
        StableMax.__post_init__(self)
        object.__setattr__(self, "sigma", in_range("sigma", self.sigma))

    @property
    def bar(self) -> float:
        """Return sigma Phi^-1(1 - test_delta)."""
        # Rounded up: the noise is on a grid of 1/64, half of which may be gained.
        return float(-scipy.special.ndtri(self.test_delta)) * self.sigma * (1 + 1e-14) + 2.0**-7

    @property
    def noise_sigma(self) -> float:
        """Standard deviation of the noise on d, in units."""
        return self.sigma

    def draw(self, queries: int, random_bytes: RandomBytes) -> NDArray[np.float64]:
        """Draw Gaussian noise."""
        return sample_gaussian(queries, sigma=self.sigma, random_bytes=random_bytes)

    def chance_above(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Phi(excess / sigma)."""
        return np.asarray(scipy.special.ndtr(excess / self.sigma))

    def test_event(self, asks: int) -> PrivacyEvent:
        """Return the event of this many tests."""
        return StableGaussianMaxEvent(asks, self.sigma, self.test_delta, float(self.unit_votes))


@dataclass(frozen=True, slots=True)
class StableLaplaceMax(StableMax):
    """The test with Laplace noise: answer where d + Lap(1/epsilon) > ln(1/(2 test_delta))/epsilon.

    Guarantee:
        As for `StableMax`: (test_epsilon, test_delta)-differential privacy for each ask.
    """

    name: ClassVar[str] = "stable-laplace"

    test_epsilon: float

    def __post_init__(self) -> None:
        StableMax.__post_init__(self)
        object.__setattr__(self, "test_epsilon", in_range("test_epsilon", self.test_epsilon))

    @property
    def bar(self) -> float:
        """Return ln(1 / (2 test_delta)) / test_epsilon."""
        # Rounded up, as for the Gaussian test.
        return -math.log(2 * self.test_delta) / self.test_epsilon * (1 + 1e-14) + 2.0**-7

    @property
    def noise_sigma(self) -> float:
        """Standard deviation of the noise on d, in units."""
        return math.sqrt(2) / self.test_epsilon

    def draw(self, queries: int, random_bytes: RandomBytes) -> NDArray[np.float64]:
        """Draw Laplace noise."""
        return sample_laplace(queries, gamma=self.test_epsilon, random_bytes=random_bytes)

    def chance_above(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distribution function of the noise."""
        tail = np.exp(-np.abs(excess) * self.test_epsilon) / 2
        return np.where(excess < 0, tail, 1 - tail)

    def test_event(self, asks: int) -> PrivacyEvent:
        """Return the event of this many tests."""
        return StableLaplaceMaxEvent(
            asks, self.test_epsilon, self.test_delta, float(self.unit_votes)
        )


SIGMA_SHARE: Final = 0.04
"""Noise of a test where nobody chose any, for each unit that votes."""

TEST_DELTA_SHARE: Final = 1e-3
"""Share of delta that one test may cost."""

_REFUSED_BECAUSE: Final = "too small a lead after noise was added"


def _make_gaussian(rule: Rule, _: int, unit_votes: int) -> Mechanism:
    sigma = rule.need("sigma1")
    return StableGaussianMax(rule.need("test_delta"), sigma, unit_votes=unit_votes)


def _make_laplace(rule: Rule, _: int, unit_votes: int) -> Mechanism:
    epsilon = gamma_of(rule.need("sigma1"))
    return StableLaplaceMax(rule.need("test_delta"), epsilon, unit_votes=unit_votes)


def _usual(size: Size) -> Mapping[str, float]:
    sigma = max(1.0, SIGMA_SHARE * size.votes / size.unit_votes)
    return {"sigma1": sigma, "test_delta": size.delta * TEST_DELTA_SHARE}


def _text(mechanism: Mapping[str, Any], *, kind: str) -> str:
    votes = mechanism.get("unit_votes") or 1
    change = "one vote" if votes == 1 else f"{count(votes)} votes"
    return (
        "The class with most votes is released as it is, but only if it leads clearly: counted is "
        f"how many changes of {change} it would survive; {kind} noise of standard deviation "
        f"{number(mechanism, 'sigma1')} changes is added, and the sum must exceed a bar that "
        f"noise alone exceeds with a chance of {chance_text(mechanism.get('test_delta') or 0)}. "
        "All other queries get no answer. Answered or not, every query costs the same."
    )


GAUSSIAN_SPEC: Final = Spec(
    name=StableGaussianMax.name,
    title="Stable argmax, Gaussian test",
    parameters=("sigma1", "test_delta"),
    make=_make_gaussian,
    usual=_usual,
    text=partial(_text, kind="Gaussian"),
    refused_because=_REFUSED_BECAUSE,
)
LAPLACE_SPEC: Final = Spec(
    name=StableLaplaceMax.name,
    title="Stable argmax, Laplace test",
    parameters=("sigma1", "test_delta"),
    make=_make_laplace,
    usual=_usual,
    text=partial(_text, kind="Laplace"),
    refused_because=_REFUSED_BECAUSE,
    laplace=True,
)
