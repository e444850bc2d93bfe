"""The contract of a mechanism: the rule from summed votes to labels, and its cost.

mechanism = make_mechanism(Rule("threshold", vote_threshold=25, sigma2=12))
reserved = mechanism.worst_case_event(34, 34)                 # before any noise is drawn
release = mechanism.release(summed, noise=CoordinatorNoise(), random_bytes=secrets.token_bytes,
                            max_answers=34)
spent = mechanism.event(release.asked, release.answered)      # covered by `reserved`
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.distributed_law import share_sigma
from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.rule import Rule
from pate_fed.votes import NoisyHistogram, SummedHistogram

Parameters = dict[str, str | float | None]
"""Parameters of a mechanism as JSON can hold them; four keys are the same for all."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is, for parameters that nobody chose.

    Attributes:
        unit_votes: Most votes that one neighboring change can move.
    """

    votes: int
    unit_votes: int
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All public facts of a mechanism, defined in its own file.

    Terms, settings, prices, command lines and reports read it, without lists of their own.

    Attributes:
        name: In settings, terms and records.
        title: As the papers write it.
        parameters: Those of `pate_fed.rule.PARAMETERS` that it needs; it takes no others.
        make: Makes it from a rule, the number of parties, and the votes of one privacy unit.
        usual: The default parameters.
        text: Describes the way from query to label, from the parameters of `Mechanism.parameters`.
        refused_because: Why a query gets no answer; empty for a mechanism that always answers.
        is_private: Whether it has a finite price. One without is for simulations only.
        at_parties: Whether sums can open with its noise in them: that of parties, or aggregators.
        learns: Whether it takes a student's predictions with each batch.
        laplace: Whether its noise is Laplace noise, not Gaussian.
        shows_counts: Whether the noisy counts are released, too: then no price of labels holds.
    """

    name: str
    title: str
    parameters: tuple[str, ...]
    make: Callable[[Rule, int, int], Mechanism]
    usual: Callable[[Size], Mapping[str, float]]
    text: Callable[[Mapping[str, object]], str]
    refused_because: str = ""
    is_private: bool = True
    at_parties: bool = False
    learns: bool = False
    laplace: bool = False
    shows_counts: bool = False

    @property
    def may_refuse(self) -> bool:
        """Whether it says "no answer"."""
        return bool(self.refused_because)


@dataclass(frozen=True, slots=True)
class Mechanism(ABC):
    """A rule that turns summed votes into labels and "no answer"s. A frozen value.

    Where the coordinator adds the noise, `release` does it all. Where the parties add it, the input
    is opened rows that hold the noise already: see `pate_fed.mechanisms.gaussian_max`.
    """

    name: ClassVar[str]

    @abstractmethod
    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: CoordinatorNoise,
        random_bytes: RandomBytes,
        max_answers: int,
    ) -> NoisyRelease:
        """Answer or refuse queries in order, until the last allowed answer.

        Ties go to the class with the lowest index.

        The source must give fresh bytes for every draw. After `max_answers` answers the
        rest of the batch is not asked.
        """

    @abstractmethod
    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of this many asks and answers.

        Raises:
            InvalidParameterError: the mechanism cannot have released this.
        """

    def worst_case_event(self, asks: int, answers: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of at most so many asks and answers: the one to reserve."""
        return self.event(asks, min(whole("asks", asks), whole("answers", answers)), weight=weight)

    @abstractmethod
    def parameters(self) -> Parameters:
        """Return "name", "vote_threshold", "sigma1" and "sigma2", None where there is none.

        "sigma1" and "sigma2" are standard deviations, of the check and of each count. Further keys
        depend on the mechanism: "shares" with noise at the parties.
        """


def require_shares(shares: int | None, sigma: float) -> None:
    """Refuse noise of this standard deviation if the parties cannot share it."""
    if shares is not None:
        share_sigma(sigma, shares)


def require_noise_here(shares: int | None) -> None:
    """Refuse to add noise where the parties have added it."""
    if shares is not None:
        raise InvalidParameterError("noise must be the coordinator's to add")


def require_opened(noisy: NoisyHistogram, *, most: int, sigma: float, shares: int | None) -> None:
    """Refuse opened rows without the promised noise of the parties, or above the caps."""
    if shares is None:
        raise InvalidParameterError("noise must be the parties' to add")
    if len(noisy.counts) > most:
        raise InvalidParameterError(
            f"at most {most} rows must be opened: the caps allow no more", len(noisy.counts)
        )
    # The shares of colluders come on top of the promised noise, so this is never close.
    if not noisy.sigma >= sigma:
        raise InvalidParameterError(f"noise must be of at least {sigma:g} votes", noisy.sigma)


def whole_votes(weight: float) -> int:
    """Return a weight as the whole number of votes that discrete noise is priced for."""
    if weight != math.floor(weight):
        raise InvalidParameterError("weight must be whole with noise at the parties", weight)
    return int(weight)


def assemble_release(
    choices: NDArray[np.int64],
    passed: NDArray[np.bool_],
    *,
    max_answers: int,
) -> NoisyRelease:
    """Apply the cap: the release is independent of all queries after the last one looked at."""
    answers_before: NDArray[np.int64] = np.cumsum(passed) - passed
    asked = answers_before < whole("max_answers", max_answers)
    outcomes = np.where(passed, Outcome.ANSWERED, Outcome.REFUSED)
    outcomes = np.where(asked, outcomes, Outcome.NOT_ASKED)
    labels = np.where(outcomes == Outcome.ANSWERED, choices, ABSTAIN)
    return NoisyRelease(labels.astype(np.int64), outcomes.astype(np.int8))


def noisy_winners(noisy: NoisyHistogram) -> NDArray[np.int64]:
    """Return the class with the largest noisy count; shape (queries,).

    Of equal counts the one with the largest fraction cut off by rounding, then the lowest index.
    """
    counts = noisy.counts
    if noisy.rest is None:
        return np.asarray(counts.argmax(axis=1), dtype=np.int64)
    is_top = counts == counts.max(axis=1, keepdims=True)
    return np.asarray(np.where(is_top, noisy.rest, -np.inf).argmax(axis=1), dtype=np.int64)
