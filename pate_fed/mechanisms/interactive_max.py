"""Interactive-GNMax: ask the teachers only where the student is not sure already.

    mechanism = InteractiveGaussianMax(vote_threshold=30, sigma1=15, sigma2=8, confidence=0.9)
    asking = mechanism.with_predictions(probabilities, total_votes=50)
    release = asking.release(summed, ...)
    labels = asking.reinforced_labels(release)      # looks at no votes

Source:
    Papernot et al. 2018, Scalable private learning with PATE, algorithm 2.
    https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.gaussian_max import (
    CONFIDENT_PARAMETERS,
    ConfidentGaussianMax,
    usual_of_check,
)
from pate_fed.mechanisms.mechanism import Mechanism, Options, Parameters, Size, Spec
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.mechanisms.words import number, pick
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.votes import NoisyHistogram, SummedHistogram
from pate_fed.wording import percent


@dataclass(frozen=True, slots=True)
class InteractiveGaussianMax(ConfidentGaussianMax):
    """Interactive-GNMax: answer by GNMax where teachers disagree enough with the student.

    The check compares max_j (n_j - c_j), plus noise, with the threshold; c_j = floor(M p_j + 1/2)
    is the student's chance of class j in votes, M the number of votes per query. Where it fails
    and the student is confident, the student's own label is kept: `reinforced_labels`. Without
    predictions it is Confident-GNMax.

    Guarantee:
        As for Confident-GNMax, event included. Predictions follow from released labels and public
        inputs, so the c_j are the same in both worlds and one change moves max_j (n_j - c_j) by at
        most k votes. They are whole numbers taken off before anything is added: n_j - c_j is whole
        in both worlds, and no rounding of a difference (half to even moves it by 2) comes between.
        With noise at the parties they are subtracted from the opened rows, after the noise was
        added; parties send the same as without a student. A reinforced label is a function of the
        release and of the predictions; it costs nothing. Trust: as for GNMax; the maker of the
        predictions must use nothing private.

    Attributes:
        confidence: Chance of its likeliest class from which the student's own label is kept where
            the check failed; between 0 and 1.
        predictions: The student's chances for the batch, from `with_predictions`; float64, shape
            (queries, classes), read-only; None before there is a student.
        offsets: The c_j; int64, same shape, read-only.
        total_votes: Votes per query M that they were made for.
    """

    name: ClassVar[str] = "interactive"

    confidence: float = 0.9
    predictions: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    offsets: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    total_votes: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        ConfidentGaussianMax.__post_init__(self)
        if not 0 <= self.confidence <= 1:
            raise InvalidParameterError("confidence must be between 0 and 1", self.confidence)

    def with_predictions(
        self, probabilities: ArrayLike, *, total_votes: int
    ) -> InteractiveGaussianMax:
        """Return the mechanism for one batch.

        Args:
            probabilities: The student's chance of each class; shape (queries, classes), rows that
                sum to 1 but for 1e-6. Functions of released labels and public inputs only.
            total_votes: Votes that all parties together cast per query, at least 1.

        Raises:
            InvalidParameterError: an argument is out of its range.
        """
        chances = checked_predictions(probabilities)
        offsets = predicted_votes(chances, total_votes=total_votes)
        return replace(self, predictions=chances, offsets=offsets, total_votes=total_votes)

    def reinforced_labels(self, release: NoisyRelease) -> NDArray[np.int64]:
        """Put a confident student's own labels where the check failed. Looks at no votes.

        Args:
            release: Of the batch that the predictions are for.

        Returns:
            Released labels, the student's own where a query was refused and the student's chance
            of it is at least `confidence`, `ABSTAIN` elsewhere; shape (queries,).

        Raises:
            InvalidParameterError: the predictions are for another number of queries.
        """
        labels = release.labels.copy()
        if self.predictions is None:
            return labels
        if len(self.predictions) != len(release):
            raise InvalidParameterError(
                f"predictions must be for {len(release)} queries", len(self.predictions)
            )
        refused = release.outcomes == Outcome.REFUSED
        kept = refused & (self.predictions.max(axis=1) >= self.confidence)
        labels[kept] = self.predictions.argmax(axis=1)[kept]
        return labels

    def parameters(self) -> Parameters:
        """Return the parameters; those of a batch are not among them."""
        return {**ConfidentGaussianMax.parameters(self), "confidence": self.confidence}

    def _passes(
        self, summed: SummedHistogram, *, noise: NoisePlan, random_bytes: RandomBytes
    ) -> NDArray[np.bool_]:
        if self.total_votes not in (None, summed.total_votes):
            raise InvalidParameterError(
                f"predictions must be for {summed.total_votes} votes", self.total_votes
            )
        return noise.passes(
            summed,
            vote_threshold=self.vote_threshold,
            sigma=self.sigma1,
            random_bytes=random_bytes,
            offsets=self.offsets,
        )

    def _largest_entries(self, noisy: NoisyHistogram) -> NDArray[np.float64]:
        if self.offsets is None:
            return ConfidentGaussianMax._largest_entries(self, noisy)
        if self.offsets.shape != noisy.counts.shape:
            raise InvalidParameterError("predictions must fit the queries", self.offsets.shape)
        return np.asarray((noisy.counts - self.offsets).max(axis=1))

    def _tops(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts that the check compares, for the first queries of the batch.

        Raises:
            InvalidParameterError: the predictions are for fewer queries or other classes.
        """
        if self.offsets is None:
            return ConfidentGaussianMax._tops(self, counts)
        if len(self.offsets) < len(counts) or self.offsets.shape[1] != counts.shape[1]:
            raise InvalidParameterError("predictions must be for these queries", "others")
        return np.asarray((counts - self.offsets[: len(counts)]).max(axis=1))


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


THRESHOLD_SHARE: Final = 0.4
"""Default threshold per vote: the student's share is subtracted first."""

CONFIDENCE: Final = 0.8
"""Default chance from which a student keeps its own label."""


def _make(options: Options) -> Mechanism:
    return InteractiveGaussianMax(
        options.need("vote_threshold"),
        options.need("sigma1"),
        options.need("sigma2"),
        shares=options.shares,
        confidence=options.need("confidence"),
    )


def _usual(size: Size) -> Mapping[str, float]:
    return {
        **usual_of_check(size),
        "vote_threshold": THRESHOLD_SHARE * size.votes,
        "confidence": CONFIDENCE,
    }


def _text(mechanism: Mapping[str, Any]) -> str:
    confidence = mechanism.get("confidence")
    sure = "enough" if confidence is None else f"at least {percent(confidence)}"
    sigma1, threshold = number(mechanism, "sigma1"), number(mechanism, "vote_threshold")
    if mechanism.get("shares") is None:
        check = (
            "from each count the votes that the student expects are taken off, and noise of "
            f"standard deviation {sigma1} votes is added to the highest count left. A query is "
            f"answered only if the result is at least {threshold} votes. Then {pick(mechanism)}"
        )
    else:
        check = (
            f"noise of standard deviation {sigma1} votes is added to each vote count, and the "
            "votes that the student expects are taken off. If a count left reaches "
            f"{threshold} votes, the votes of the query are added up again, with fresh noise, and "
            f"{pick(mechanism)}"
        )
    return (
        "A student learns between the batches. Teachers are heard where they contradict it: "
        f"{check}. All other queries get no answer from the teachers; a student that gives its "
        f"own label a chance of {sure} keeps it, which costs nothing, because it looks at no vote. "
        "In the first batch there is no student yet."
    )


SPEC: Final = Spec(
    name=InteractiveGaussianMax.name,
    title="Interactive-GNMax",
    parameters=(*CONFIDENT_PARAMETERS, "confidence"),
    prices=("gdp", "label"),
    make=_make,
    usual=_usual,
    text=_text,
    refused_because="too little contradiction of the student after noise was added",
    learns=True,
)
