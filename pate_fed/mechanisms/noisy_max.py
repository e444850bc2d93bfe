"""Mechanisms that draw noise once for every count, and look at the noisy counts alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.mechanism import Mechanism, assemble_release, noisy_winners
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class NoisyMax(Mechanism):
    """A rule on noisy counts. A subclass defines the noise, the decision, and the cost of an ask.

    An ask costs the same, whatever comes out.

    Guarantee:
        That of the subclass. All reveal the same: for each query asked, a label or "no answer".
    """

    @abstractmethod
    def add_noise(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add fresh noise to every count."""

    @abstractmethod
    def event_of_asks(self, asks: int, weight: float) -> PrivacyEvent:
        """Return the event of this many asks."""

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: CoordinatorNoise,
        random_bytes: RandomBytes,
        max_answers: int,
    ) -> NoisyRelease:
        """Add noise, then answer or refuse in order, until the last allowed answer."""
        noisy = self.add_noise(summed, noise=noise, random_bytes=random_bytes)
        return self.decide(noisy, max_answers=max_answers)

    def decide(self, noisy: NoisyHistogram, *, max_answers: int) -> NoisyRelease:
        """Answer with the largest noisy count, or refuse, until the last allowed answer."""
        winners = noisy_winners(noisy)
        passed = self._is_answered(noisy, winners)
        return assemble_release(winners, passed, max_answers=max_answers)

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of this many asks; answers cost nothing more."""
        if whole("answered", answered) > whole("asked", asked):
            raise InvalidParameterError(f"answers must be at most {asked} asks", answered)
        return self.event_of_asks(asked, weight)

    def _is_answered(self, noisy: NoisyHistogram, winners: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which queries get an answer, from the noisy counts and their winners."""
        del winners
        return np.ones(len(noisy.counts), dtype=np.bool_)
