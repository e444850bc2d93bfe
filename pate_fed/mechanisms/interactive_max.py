"""Interactive-GNMax: ask the teachers for what the student does not know already.

    mechanism = InteractiveGaussianMax(vote_threshold=30, sigma1=15, sigma2=8, confidence=0.9)
    asking = mechanism.with_predictions(probabilities, total_votes=50)
    release = asking.release(summed, ...)
    labels = asking.reinforced_labels(release)      # looks at no votes

Source:
    Papernot et al. 2018, Scalable private learning with PATE, algorithm 2.
    https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.pate_bounds import gnmax_total_rdp, threshold_total_rdp
from pate_fed.accounting.ranges import whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.gaussian_max import ConfidentGaussianMax
from pate_fed.mechanisms.mechanism import Parameters, assemble_release, noisy_winners
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.predictions import (
    checked_predictions,
    predicted_votes,
    reinforced_labels,
)
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.votes import SummedHistogram


@dataclass(frozen=True, slots=True)
class InteractiveGaussianMax(ConfidentGaussianMax):
    """Interactive-GNMax: answer by GNMax where teachers disagree enough with the student.

    The check compares max_j (n_j - c_j), plus noise, with the threshold; c_j = floor(M p_j + 1/2)
    is the student's chance of class j in votes, M the number of votes per query. Where it fails
    and the student is confident, the student's own label is kept: `reinforced_labels`. Without
    predictions it is Confident-GNMax.

    Guarantee:
        As for Confident-GNMax, event included: predictions follow from released labels and public
        inputs, so the c_j are the same in both worlds and one change moves max_j (n_j - c_j) by
        at most k votes. They are whole numbers taken off before anything is added: n_j - c_j is
        whole in both worlds, and no rounding of a difference (half to even moves it by 2) comes
        between. A reinforced label is a function of the release and of the predictions; it
        costs nothing. Trust: as for GNMax; who makes the predictions must use nothing private.

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

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: NoisePlan,
        random_bytes: RandomBytes,
        max_answers: int,
        max_refusals: int,
    ) -> NoisyRelease:
        """Check against the student, then answer or refuse, in order.

        Raises:
            InvalidParameterError: a cap is not a whole number of at least 0, or the predictions
                are for other queries or another number of votes.
        """
        whole("max_answers", max_answers)
        whole("max_refusals", max_refusals)
        if self.total_votes not in (None, summed.total_votes):
            raise InvalidParameterError(
                f"predictions must be for {summed.total_votes} votes", self.total_votes
            )
        tops = noise.perturb_maxima(
            summed, sigma=self.sigma1, random_bytes=random_bytes, offsets=self.offsets
        )
        # Fresh noise: reusing that of the check would void the bound.
        noisy = noise.perturb(summed, sigma=self.sigma2, random_bytes=random_bytes)
        return assemble_release(
            noisy_winners(noisy),
            tops >= self.vote_threshold,
            max_answers=max_answers,
            max_refusals=max_refusals,
        )

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
        return reinforced_labels(release, self.predictions, confidence=self.confidence)

    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Sum the data-dependent bounds; the queries looked at are the first of the batch.

        Raises:
            InvalidParameterError: the predictions are for fewer queries or other classes.
        """
        tops = counts.max(axis=1)
        if self.offsets is not None:
            if len(self.offsets) < len(counts) or self.offsets.shape[1] != counts.shape[1]:
                raise InvalidParameterError("predictions must be for these queries", "others")
            tops = (counts - self.offsets[: len(counts)]).max(axis=1)
        checks = threshold_total_rdp(
            tops,
            orders,
            vote_threshold=self.vote_threshold,
            sigma1=self.sigma1,
            weight=weight,
        )
        answered = counts[outcomes == Outcome.ANSWERED]
        return checks + gnmax_total_rdp(answered, orders, sigma=self.sigma2, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters; those of a batch are not among them."""
        return {**ConfidentGaussianMax.parameters(self), "confidence": self.confidence}
