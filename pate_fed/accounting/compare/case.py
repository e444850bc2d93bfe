"""Votes and the mechanism they are asked with; and what one method says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pate_fed.accounting.formal import RunCaps
from pate_fed.accounting.pate_bounds import checked_tops, threshold_margin
from pate_fed.mechanisms import ConfidentGaussianMax, InteractiveGaussianMax, Mechanism, StableMax

Details = Mapping[str, float | str | None]
"""What else is known of a number, as JSON can hold it."""


@dataclass(frozen=True, slots=True)
class MethodCost:
    """What one method says.

    Attributes:
        epsilon: Its number; None where it has none.
        method: How it was computed, or why there is none, in words.
        releasable: Whether it may be shown.
        details: What else is known of it; the same keys with and without a number.
    """

    epsilon: float | None
    method: str
    releasable: bool
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class VoteCase:
    """Votes, and the mechanism that they are asked with. Private.

    Attributes:
        votes: Whole counts; shape (queries, classes), every row with the same sum.
        mechanism: The rule; of Interactive-GNMax with its predictions.
        caps: Public caps of the run, or expected ones.
    """

    votes: NDArray[np.int64]
    mechanism: Mechanism
    caps: RunCaps

    @property
    def check(self) -> tuple[float, float] | None:
        """Threshold and noise of the check; None where nothing is checked against one."""
        if isinstance(self.mechanism, ConfidentGaussianMax):
            return self.mechanism.vote_threshold, self.mechanism.sigma1
        return None

    @property
    def offsets(self) -> NDArray[np.int64] | None:
        """What is taken off the counts for the check; None for nothing."""
        if isinstance(self.mechanism, InteractiveGaussianMax):
            return self.mechanism.offsets
        return None

    @property
    def weight(self) -> int:
        """Votes that one privacy unit can move."""
        return self.caps.weight

    def answer_chances(self, votes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the chance that each query is answered, for these or other votes."""
        if isinstance(self.mechanism, StableMax):
            return self.mechanism.answer_chances(votes)
        if self.check is None:
            return np.ones(len(votes))
        threshold, sigma1 = self.check
        tops = checked_tops(votes, self.offsets)
        return np.asarray(ndtr(threshold_margin(tops, vote_threshold=threshold, sigma1=sigma1)))


def no_finite_epsilon(details: Details | None = None) -> MethodCost:
    """Say what holds of the immutable argmax, by whatever method."""
    return MethodCost(
        None,
        "no finite epsilon holds: neighbors can have labels that differ with a chance of almost 1",
        releasable=False,
        details=details or {},
    )
