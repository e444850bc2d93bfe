"""Noisy counts themselves, for a private evaluation: no label is decided, the rows are public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from pate_fed.accounting.events import DistributedCountsEvent, PrivacyEvent
from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.mechanism import (
    Mechanism,
    Size,
    Spec,
    require_opened,
    whole_votes,
)
from pate_fed.mechanisms.mechanism_words import number
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.rule import Rule
from pate_fed.votes import NoisyHistogram


@dataclass(frozen=True, slots=True)
class Tallies(GaussianMax):
    """Release rows of counts that hold the parties' Gaussian noise.

    Guarantee:
        Neighbors: two worlds in which one counted patient is in another column of every row (k
        patients, with weight k). Revealed: all noisy rows, to everybody, the opener of the sums
        included. Price and trust: those of an opened row of `GaussianMax` with noise at the
        parties. The coordinator never adds this noise: from exact sums over two students it could
        read single patients.
    """

    name: ClassVar[str] = "tallies"

    def label(self, noisy: NoisyHistogram, *, max_answers: int) -> NoisyRelease:
        """Release every row as it was opened; arguments and errors as for `GaussianMax`."""
        most = whole("max_answers", max_answers)
        require_opened(noisy, most=most, sigma=self.sigma, shares=self.shares)
        rows = len(noisy.counts)
        return NoisyRelease(
            np.full(rows, ABSTAIN, dtype=np.int64),
            np.full(rows, Outcome.ANSWERED, dtype=np.int8),
            tallies=noisy.counts.astype(np.int64),
        )

    def event_of_asks(self, asks: int, weight: float) -> PrivacyEvent:
        """Return the event of this many rows, with noise at the parties."""
        if self.shares is None:
            raise InvalidParameterError("noise of counts must be the parties'")
        return DistributedCountsEvent(asks, self.sigma, self.shares, whole_votes(weight))


def _make(rule: Rule, parties: int, _: int) -> Mechanism:
    return Tallies(rule.need("sigma2"), shares=rule.shares(parties))


def _usual(_: Size) -> Mapping[str, float]:
    return {}  # its noise follows from its price


def _text(mechanism: Mapping[str, object]) -> str:
    return (
        "Every hospital adds its part of noise to its own counts before they are added up. Any "
        f"{number(mechanism, 'shares')} parts together have a standard deviation of "
        f"{number(mechanism, 'sigma2')} patients in every count. The noisy sums are released."
    )


SPEC: Final = Spec(
    name=Tallies.name,
    title="Noisy counts",
    parameters=("sigma2",),
    make=_make,
    usual=_usual,
    text=_text,
    at_parties=True,
)
