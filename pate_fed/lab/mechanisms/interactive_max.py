"""Interactive-GNMax: the papers' check of what a student does not expect. For simulations.

    mechanism = InteractiveGaussianMax(Rule("interactive", 30, 15, 8), confidence=0.9)
    asking = mechanism.with_predictions(probabilities, total_votes=50)
    release = asking.release(summed, ...)
    labels = asking.reinforced_labels(release)      # looks at no votes

Source:
    Papernot et al. 2018, Scalable private learning with PATE, algorithm 2.
    https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms import confident_max
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax, usual_of_check
from pate_fed.mechanisms.mechanism import Parameters, Size, Spec
from pate_fed.mechanisms.mechanism_words import number, pick
from pate_fed.mechanisms.predictions import (
    CONFIDENCE,
    HearsStudent,
    StudentPredictions,
    checked_confidence,
)
from pate_fed.votes import SummedHistogram
from pate_fed.wording import percent


@dataclass(frozen=True, slots=True)
class InteractiveGaussianMax(HearsStudent, ConfidentGaussianMax):
    """Interactive-GNMax: answer by GNMax where teachers disagree enough with the student.

    The check compares max_j (n_j - c_j), plus noise, with the threshold; c_j is the student's
    chance of class j in votes, of `predictions`. Where it fails and the student is confident, the
    student's own label is kept. Without predictions it is Confident-GNMax.

    Guarantee:
        As for Confident-GNMax, event included. Predictions follow from released labels and public
        inputs, so the c_j are the same in both worlds and one change moves max_j (n_j - c_j) by at
        most k votes. They are whole numbers taken off before anything is added: n_j - c_j is whole
        in both worlds, and no rounding of a difference (half to even moves it by 2) comes between.
        A reinforced label is a function of the release and of the predictions; it costs nothing.
        Trust: as for GNMax; the maker of the predictions must use nothing private.
    """

    name: ClassVar[str] = "interactive"

    confidence: float = CONFIDENCE
    predictions: StudentPredictions | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        ConfidentGaussianMax.__post_init__(self)
        checked_confidence(self.confidence)

    def parameters(self) -> Parameters:
        """Return the parameters; those of a batch are not among them."""
        return {**ConfidentGaussianMax.parameters(self), "confidence": self.confidence}

    def _offsets(self, summed: SummedHistogram) -> NDArray[np.int64] | None:
        if self.predictions is None:
            return None
        self.predictions.require_fit(summed.counts.shape, total_votes=summed.total_votes)
        return self.predictions.votes

    def tops(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts that the check compares, for the first queries of the batch."""
        if self.predictions is None:
            return ConfidentGaussianMax.tops(self, counts)
        offsets = self.predictions.votes
        if len(offsets) < len(counts) or offsets.shape[1] != counts.shape[1]:
            raise InvalidParameterError("predictions must be for these queries")
        return np.asarray((counts - offsets[: len(counts)]).max(axis=1))


THRESHOLD_SHARE: Final = 0.4
"""Default threshold per vote: the student's share is subtracted first."""


def _usual(size: Size) -> Mapping[str, float]:
    return {
        **usual_of_check(size),
        "vote_threshold": THRESHOLD_SHARE * size.votes,
        "confidence": CONFIDENCE,
    }


def _text(mechanism: Mapping[str, Any]) -> str:
    confidence = mechanism.get("confidence")
    sure = "enough" if confidence is None else f"at least {percent(confidence)}"
    return (
        "A student learns between the batches. Teachers are heard where they contradict it: from "
        "each count the votes that the student expects are taken off, and noise of standard "
        f"deviation {number(mechanism, 'sigma1')} votes is added to the highest count left. A "
        "query is answered only if the result is at least "
        f"{number(mechanism, 'vote_threshold')} votes. Then {pick(mechanism)}. All other queries "
        "get no answer from the teachers; a student that gives its own label a chance of "
        f"{sure} keeps it, which costs nothing, because it looks at no vote. In the first batch "
        "there is no student yet."
    )


SPEC: Final = Spec(
    name=InteractiveGaussianMax.name,
    title="Interactive-GNMax",
    parameters=(*confident_max.PARAMETERS, "confidence"),
    make=lambda rule, _parties, _unit_votes: InteractiveGaussianMax(
        rule, confidence=rule.need("confidence")
    ),
    usual=_usual,
    text=_text,
    refused_because="too little contradiction of the student after noise was added",
    learns=True,
)
