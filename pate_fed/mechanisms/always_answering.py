"""Mechanisms that answer every query asked with the winner after noise."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.mechanism import Mechanism, assemble_release, noisy_winners
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class AlwaysAnsweringMechanism(Mechanism):
    """A rule that never refuses. Its forms define the noise and the cost of answers.

    Guarantee:
        That of the form. All reveal the same: the label of each query asked.
    """

    @abstractmethod
    def add_noise(
        self, summed: SummedHistogram, *, noise: NoisePlan, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add fresh noise to every count; the largest noisy count wins."""

    @abstractmethod
    def event_of_answers(self, answers: int, weight: float) -> PrivacyEvent:
        """Return the event of this many answers."""

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
        whole("max_answers", max_answers)
        whole("max_refusals", max_refusals)
        return self._winners(
            self.add_noise(summed, noise=noise, random_bytes=random_bytes), max_answers
        )

    @staticmethod
    def _winners(noisy: NoisyHistogram, max_answers: int) -> NoisyRelease:
        return assemble_release(
            noisy_winners(noisy),
            np.ones(len(noisy.counts), dtype=np.bool_),
            max_answers=max_answers,
            max_refusals=1,  # refusals never happen here
        )

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of this many answers; `asked` must be as many."""
        if asked != answered:
            raise InvalidParameterError(
                f"{self.name} must answer every query asked", f"{answered} of {asked}"
            )
        return self.event_of_answers(answered, weight)

    def worst_case_event(self, asks: int, answers: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of the smaller of the caps."""
        most = min(whole("asks", asks), whole("answers", answers))
        return self.event_of_answers(most, weight)
