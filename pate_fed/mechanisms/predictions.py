"""A student's predictions in the check of Interactive-GNMax, as public whole votes.

They follow from released labels and public inputs; whoever makes them must use nothing private.

Source:
    Papernot et al. 2018, Scalable private learning with PATE, algorithm 2.
    https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.releases import NoisyRelease, Outcome


def checked_predictions(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return a student's chances as float64, shape (queries, classes), read-only.

    Args:
        probabilities: Chance of each class; rows that sum to 1 but for 1e-6.

    Raises:
        InvalidParameterError: another shape, or no chances.
    """
    chances = np.array(probabilities, dtype=np.float64)
    if chances.ndim != 2 or chances.shape[1] < 2 or not (chances >= 0).all():
        raise InvalidParameterError("predictions must be chances with 2 axes", chances.shape)
    # NaN fails here.
    if not (np.abs(chances.sum(axis=1) - 1) <= 1e-6).all():
        raise InvalidParameterError("every row of the predictions must sum to 1", "another")
    chances.flags.writeable = False
    return chances


def predicted_votes(chances: NDArray[np.float64], *, total_votes: int) -> NDArray[np.int64]:
    """Return c_j = floor(M p_j + 1/2), the student's chances in votes.

    Args:
        chances: From `checked_predictions`.
        total_votes: Votes M that all parties together cast per query, at least 1.

    Returns:
        int64, the same shape, read-only.

    Raises:
        InvalidParameterError: `total_votes` is out of its range.
    """
    if whole("total_votes", total_votes) < 1:
        raise InvalidParameterError("total_votes must be at least 1", total_votes)
    # Rounding to even would be as private, as the c_j are public, but not as expected.
    offsets: NDArray[np.int64] = np.floor(total_votes * chances + 0.5).astype(np.int64)
    offsets.flags.writeable = False
    return offsets


def reinforced_labels(
    release: NoisyRelease, predictions: NDArray[np.float64] | None, *, confidence: float
) -> NDArray[np.int64]:
    """Put a confident student's own labels where the check failed. Looks at no votes.

    Args:
        release: Of the batch that the predictions are for.
        predictions: From `checked_predictions`; None before there is a student.
        confidence: Chance of its likeliest class from which the student's own label is kept.

    Returns:
        Released labels, the student's own where a query was refused and it is confident,
        `ABSTAIN` elsewhere; shape (queries,).

    Raises:
        InvalidParameterError: the predictions are for another number of queries.
    """
    labels = release.labels.copy()
    if predictions is None:
        return labels
    if len(predictions) != len(release):
        raise InvalidParameterError(
            f"predictions must be for {len(release)} queries", len(predictions)
        )
    refused = release.outcomes == Outcome.REFUSED
    kept = refused & (predictions.max(axis=1) >= confidence)
    labels[kept] = predictions.argmax(axis=1)[kept]
    return labels
