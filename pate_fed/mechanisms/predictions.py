"""A student that learns between the batches: what it expects of the teachers, in votes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.releases import NoisyRelease, Outcome


@dataclass(frozen=True, slots=True, eq=False)
class StudentPredictions:
    """A student's predictions for one batch. Public: made of released labels and public inputs.

    Attributes:
        chances: Of each class; float64, shape (queries, classes), read-only.
        votes: The same in votes, c_j = floor(M p_j + 1/2); int64, same shape, read-only.
        total_votes: Votes per query M that they were made for.
    """

    chances: NDArray[np.float64] = field(repr=False)
    votes: NDArray[np.int64] = field(repr=False)
    total_votes: int

    @classmethod
    def of(cls, probabilities: ArrayLike, *, total_votes: int) -> Self:
        """Make them from a student's chances.

        Rows sum to 1 but for 1e-6.
        """
        chances = np.array(probabilities, dtype=np.float64)
        if chances.ndim != 2 or chances.shape[1] < 2 or not (chances >= 0).all():
            raise InvalidParameterError(
                "predictions must be chances with 2 axes", str(chances.shape)
            )
        # NaN fails here.
        if not (np.abs(chances.sum(axis=1) - 1) <= 1e-6).all():
            raise InvalidParameterError("every row of the predictions must sum to 1")
        if whole("total_votes", total_votes) < 1:
            raise InvalidParameterError("total_votes must be at least 1", total_votes)
        # Rounding to even would be as private, as the c_j are public, but not as expected.
        votes = np.floor(total_votes * chances + 0.5).astype(np.int64)
        for part in (chances, votes):
            part.flags.writeable = False
        return cls(chances, votes, total_votes)

    def require_fit(self, shape: tuple[int, ...], *, total_votes: int | None = None) -> None:
        """Refuse counts that they were not made for."""
        if self.votes.shape != shape:
            raise InvalidParameterError("predictions must fit the queries", str(self.votes.shape))
        if total_votes not in (None, self.total_votes):
            raise InvalidParameterError(
                f"predictions must be for {total_votes} votes", self.total_votes
            )


class HearsStudent:
    """Part of a mechanism that takes a student's predictions with each batch.

    Without predictions, as before there is a student, nothing is taken off and nothing is kept.

    Attributes:
        confidence: Chance of its likeliest class from which the student's own label is kept where
            the teachers gave none; between 0 and 1.
        predictions: The student's for the batch; None before there is one.
    """

    __slots__ = ()

    confidence: float
    predictions: StudentPredictions | None

    def with_predictions(self, probabilities: ArrayLike, *, total_votes: int) -> Self:
        """Return the mechanism for one batch; see `StudentPredictions.of`."""
        predictions = StudentPredictions.of(probabilities, total_votes=total_votes)
        return replace(self, predictions=predictions)  # type: ignore[type-var]  # both are dataclasses

    def reinforced_labels(self, release: NoisyRelease) -> NDArray[np.int64]:
        """Put a confident student's own labels where teachers gave none. Looks at no votes.

        Returns:
            Released labels, the student's own where a query was refused and the student's chance
            of it is at least `confidence`, `ABSTAIN` elsewhere; shape (queries,).
        """
        labels = release.labels.copy()
        if self.predictions is None:
            return labels
        chances = self.predictions.chances
        if len(chances) != len(release):
            raise InvalidParameterError(
                f"predictions must be for {len(release)} queries", len(chances)
            )
        refused = release.outcomes == Outcome.REFUSED
        kept = refused & (chances.max(axis=1) >= self.confidence)
        labels[kept] = chances.argmax(axis=1)[kept]
        return labels


def checked_confidence(confidence: float) -> float:
    """Return a confidence between 0 and 1."""
    if not 0 <= confidence <= 1:
        raise InvalidParameterError("confidence must be between 0 and 1", confidence)
    return confidence


CONFIDENCE = 0.8
"""Default chance from which a student keeps its own label."""
