"""Votes and the way they are asked; one method's price of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.events import ConfidentGaussianMaxEvent, PrivacyEvent
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.pate_bounds import checked_tops, threshold_margin, without_offsets

Details = Mapping[str, float | str | None]
"""Further facts of a number, as JSON can hold them."""


@dataclass(frozen=True, slots=True)
class MethodCost:
    """One method's price; without a number, `method` is the reason for that."""

    epsilon: float | None
    method: str
    releasable: bool
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteCase:
    """Votes, and how they are asked. Private.

    Attributes:
        event: The event of one query that is asked and answered.
        asks: Cap on queries looked at; not whole where it is an expectation.
        answers: Cap on answers, at most `asks`; likewise.
        vote_threshold: Noisy top count from which a query is answered, in votes: the event says
            whether the noise is that of a check or of the label. None without one.
        answered: Chance that each query is answered, shape (queries,); None where it follows from
            the threshold.
        offsets: The student's votes to subtract from the counts; shape (queries, classes); None
            without a student.
        is_sure: Whether the student is sure enough of a query to keep its own label; shape
            (queries,); None without a student.
    """

    votes: NDArray[np.int64]
    event: PrivacyEvent
    asks: float
    answers: float
    delta: float
    vote_threshold: float | None = None
    answered: NDArray[np.float64] | None = None
    offsets: NDArray[np.int64] | None = None
    is_sure: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name in ("asks", "answers"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidParameterError(f"{name} must be finite and at least 0", value)
        if self.answers > self.asks:
            raise InvalidParameterError(f"answers must be at most {self.asks} asks", self.answers)

    @property
    def is_expected(self) -> bool:
        """Whether the caps are expectations, as in papers: then no number is a guarantee."""
        return any(cap != math.floor(cap) for cap in (self.asks, self.answers))

    @property
    def teachers(self) -> int:
        """Votes on each query."""
        return int(self.votes[0].sum())

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.votes.shape[1])

    @property
    def check(self) -> tuple[float, float] | None:
        """Threshold and noise of a check with noise of its own; None without one."""
        if self.vote_threshold is None or not isinstance(self.event, ConfidentGaussianMaxEvent):
            return None
        return self.vote_threshold, self.event.sigma1

    @property
    def weight(self) -> int:
        """Votes that one privacy unit can move."""
        moved: float = self.event.weight  # type: ignore[attr-defined]  # every event has one
        return int(moved)

    @property
    def chances(self) -> NDArray[np.float64]:
        """Chance that each query is answered."""
        return self.chances_of(self.votes) if self.answered is None else self.answered

    def chances_of(self, votes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the chance that each query reaches the threshold, for these or other votes."""
        if self.vote_threshold is None:
            return np.ones(len(votes))
        if self.check is None:
            sigma = self.event.sigma  # type: ignore[attr-defined]  # a threshold on Gaussian noise
            lacking = (self.vote_threshold - without_offsets(votes, self.offsets)) / sigma
            # 1 - the product of the chances to stay below, whose logs are exact far out.
            return np.asarray(-np.expm1(scipy.special.log_ndtr(lacking).sum(axis=1)))
        threshold, sigma = self.check
        tops = checked_tops(votes, self.offsets)
        return np.asarray(
            scipy.special.ndtr(threshold_margin(tops, vote_threshold=threshold, sigma=sigma))
        )


def no_finite_epsilon(details: Details | None = None) -> MethodCost:
    """Return the price of the immutable argmax, the same by all methods."""
    return MethodCost(
        None,
        "no finite epsilon holds: neighbors can have labels that differ with a chance of almost 1",
        releasable=False,
        details=details or {},
    )
