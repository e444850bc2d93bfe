"""Votes and the way they are asked; one method's price of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.formal import RunCaps
from pate_fed.accounting.pate_bounds import checked_tops, threshold_margin

Details = Mapping[str, float | str | None]
"""Further facts of a number, as JSON can hold them."""


@dataclass(frozen=True, slots=True)
class MethodCost:
    """One method's price.

    Attributes:
        epsilon: Its number; None without one.
        method: The method, or the reason for no number, in words.
        releasable: Whether it may be shown.
        details: Further facts of it; the same keys with and without a number.
    """

    epsilon: float | None
    method: str
    releasable: bool
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteCase:
    """Votes, and how they are asked. Private.

    Attributes:
        votes: Whole counts; shape (queries, classes), every row with the same sum.
        event: The event of one query that is asked and answered.
        caps: Public caps of the run, or expected ones.
        answered: Chance that each query is answered, shape (queries,); None where it follows from
            the caps' check of the top count.
        offsets: The student's votes to subtract from the counts for the check; shape (queries,
            classes); None without a student.
        is_sure: Whether the student is sure enough of a query to keep its own label; shape
            (queries,); None without a student.
    """

    votes: NDArray[np.int64]
    event: PrivacyEvent
    caps: RunCaps
    answered: NDArray[np.float64] | None = None
    offsets: NDArray[np.int64] | None = None
    is_sure: NDArray[np.bool_] | None = None

    @property
    def check(self) -> tuple[float, float] | None:
        """Threshold and noise of the check; None where nothing is checked against one."""
        if self.caps.vote_threshold is None or self.caps.sigma1 is None:
            return None
        return self.caps.vote_threshold, self.caps.sigma1

    @property
    def weight(self) -> int:
        """Votes that one privacy unit can move."""
        return self.caps.weight

    @property
    def chances(self) -> NDArray[np.float64]:
        """Chance that each query is answered."""
        return self.check_chances(self.votes) if self.answered is None else self.answered

    def check_chances(self, votes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the chance that each query passes the check, for these or other votes."""
        if self.check is None:
            return np.ones(len(votes))
        threshold, sigma1 = self.check
        tops = checked_tops(votes, self.offsets)
        return np.asarray(
            scipy.special.ndtr(threshold_margin(tops, vote_threshold=threshold, sigma1=sigma1))
        )


def no_finite_epsilon(details: Details | None = None) -> MethodCost:
    """Return the price of the immutable argmax, the same by all methods."""
    return MethodCost(
        None,
        "no finite epsilon holds: neighbors can have labels that differ with a chance of almost 1",
        releasable=False,
        details=details or {},
    )
