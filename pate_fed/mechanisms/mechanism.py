"""The contract of a mechanism: the rule from summed votes to labels, and what it costs.

mechanism = make_mechanism("confident", vote_threshold=30, sigma1=15, sigma2=8)
reserved = mechanism.worst_case_event(34, 20)                 # before any noise is drawn
release = mechanism.release(summed, noise=NoisePlan(), random_bytes=secrets.token_bytes,
                            max_answers=20, max_refusals=15)
spent = mechanism.event(release.asked, release.answered)      # covered by `reserved`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.ranges import whole
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.votes import NoisyHistogram, SummedHistogram

Parameters = dict[str, str | float | None]
"""Parameters of a mechanism as JSON can hold them; four keys are the same for all."""


@dataclass(frozen=True, slots=True)
class Mechanism(ABC):
    """A rule that turns summed votes into labels and "no answer"s. A frozen value."""

    name: ClassVar[str]
    is_private: ClassVar[bool] = True
    """Whether its events have a finite price; what has none is for simulations only."""

    @abstractmethod
    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: NoisePlan,
        random_bytes: RandomBytes,
        max_answers: int,
        max_refusals: int,
    ) -> NoisyRelease:
        """Answer or refuse queries in order, until the last allowed answer or refusal.

        Ties go to the class with the lowest index.

        Args:
            summed: Votes of the batch.
            noise: Who adds the noise.
            random_bytes: Source of the noise; fresh bytes for every draw.
            max_answers: Answers after which the rest of the batch is not asked, at least 0.
            max_refusals: Refusals after which the rest is not asked, at least 0.

        Raises:
            InvalidParameterError: a cap is not a whole number of at least 0.
        """

    @abstractmethod
    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what so many asks with so many answers cost.

        Args:
            asked: Queries looked at.
            answered: Labels released.
            weight: Votes that one neighboring change can move: k for a party of k teachers.

        Raises:
            InvalidParameterError: the mechanism cannot have released this.
        """

    def worst_case_event(self, asks: int, answers: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what at most so many asks and answers can cost: what is reserved.

        Args:
            asks: Cap on queries looked at.
            answers: Cap on labels released; more than `asks` cannot happen.
            weight: As for `event`.

        Raises:
            InvalidParameterError: a cap is not a whole number of at least 0.
        """
        return self.event(asks, min(whole("asks", asks), whole("answers", answers)), weight=weight)

    @abstractmethod
    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Bound the RDP of a release given its votes, as the papers do. The result is private.

        Args:
            counts: Votes of the queries looked at; shape (queries, classes).
            outcomes: `Outcome` of each, answered or refused; shape (queries,).
            orders: Renyi orders, each above 1; shape (orders,).
            weight: As for `event`.

        Returns:
            RDP in nats of all of them together; shape (orders,).
        """

    @abstractmethod
    def parameters(self) -> Parameters:
        """Return "name", "vote_threshold", "sigma1" and "sigma2", None where there is none.

        "sigma1" and "sigma2" are standard deviations, of the check and of each count. Further keys
        are what else a mechanism has.
        """


def assemble_release(
    choices: NDArray[np.int64],
    passed: NDArray[np.bool_],
    *,
    max_answers: int,
    max_refusals: int,
) -> NoisyRelease:
    """Apply the caps: keep the prefix that was looked at, drop everything after it.

    Args:
        choices: Class that would be released; shape (queries,).
        passed: Whether the query would be answered; shape (queries,).
        max_answers: Answers after which nothing more is asked.
        max_refusals: Refusals after which nothing more is asked.

    Returns:
        A release in which nothing depends on what comes after the last query looked at.
    """
    answers_before: NDArray[np.int64] = np.cumsum(passed) - passed
    refusals_before: NDArray[np.int64] = np.cumsum(~passed) - ~passed
    asked = (answers_before < max_answers) & (refusals_before < max_refusals)
    outcomes = np.where(passed, Outcome.ANSWERED, Outcome.REFUSED)
    outcomes = np.where(asked, outcomes, Outcome.NOT_ASKED)
    labels = np.where(outcomes == Outcome.ANSWERED, choices, ABSTAIN)
    return NoisyRelease(labels.astype(np.int64), outcomes.astype(np.int8))


def noisy_winners(noisy: NoisyHistogram) -> NDArray[np.int64]:
    """Return the class with the largest noisy count, the lowest index on ties; shape (queries,)."""
    return np.asarray(noisy.counts.argmax(axis=1), dtype=np.int64)
