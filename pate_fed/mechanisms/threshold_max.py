"""Threshold-GNMax: noise once, and an answer only where the largest noisy count reaches T.

The threshold is one more option of the argmax, whose count is public and has no noise. So "no
answer" costs what a label costs, and a query has one price: that of GNMax.

Source:
    docs/explanation/label-level-bound.md, Theorem 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.ranges import in_range
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.mechanism import Mechanism, Parameters, Size, Spec
from pate_fed.mechanisms.mechanism_words import noise_added, number
from pate_fed.mechanisms.predictions import (
    CONFIDENCE,
    HearsStudent,
    StudentPredictions,
    checked_confidence,
)
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.rule import Rule
from pate_fed.votes import NoisyHistogram, SummedHistogram
from pate_fed.wording import percent


@dataclass(frozen=True, slots=True)
class ThresholdMax(GaussianMax):
    """Answer with the largest noisy count if it reaches a threshold, otherwise "no answer".

    Guarantee:
        As for GNMax with the same noise, for all votes and thresholds, and at both places of the
        noise; an ask without an answer costs the same. With noise at the parties a run is priced
        like its rows in the public's view, too (`pate_fed.prices`). Revealed: for each query
        asked, a label or "no answer"; never the noisy count. The threshold is public, and may
        follow from earlier releases. Two classes are priced as three options, because "no answer"
        is the third.
    """

    name: ClassVar[str] = "threshold"

    vote_threshold: float = field(kw_only=True)

    def __post_init__(self) -> None:
        GaussianMax.__post_init__(self)
        threshold = in_range("vote_threshold", self.vote_threshold)
        object.__setattr__(self, "vote_threshold", threshold)

    def parameters(self) -> Parameters:
        """Return the parameters."""
        return {**GaussianMax.parameters(self), "vote_threshold": self.vote_threshold}

    def _is_answered(self, noisy: NoisyHistogram, winners: NDArray[np.int64]) -> NDArray[np.bool_]:
        rows = np.arange(len(winners))
        over = noisy.counts[rows, winners] - self.vote_threshold
        # Where the rest matters the difference is small, hence exact.
        return np.asarray(over >= (0 if noisy.rest is None else -noisy.rest[rows, winners]))


@dataclass(frozen=True, slots=True)
class InteractiveThresholdMax(HearsStudent, ThresholdMax):
    """Threshold-GNMax on the votes that a student does not expect.

    The student's chance of each class, in votes, is taken off its count: c_j of `predictions`. The
    label is the class that teachers favor most beyond that, if it is by `vote_threshold` votes.
    Elsewhere a confident student keeps its own label, which looks at no votes.

    Guarantee:
        As for Threshold-GNMax. Predictions follow from released labels and public inputs, so the
        c_j are the same in both worlds; the guarantee holds for all counts, n_j - c_j included.
        They are whole, so no rounding of a difference comes between. With noise at the parties
        they are taken off the opened rows: parties send the same as without a student. The maker of
        the predictions must use nothing private.
    """

    name: ClassVar[str] = "interactive-threshold"

    confidence: float = CONFIDENCE
    predictions: StudentPredictions | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        ThresholdMax.__post_init__(self)
        checked_confidence(self.confidence)

    def add_noise(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add Gaussian noise; what the student expects is taken off the noisy counts."""
        if self.predictions is not None:
            self.predictions.require_fit(summed.counts.shape, total_votes=summed.total_votes)
        return ThresholdMax.add_noise(self, summed, noise=noise, random_bytes=random_bytes)

    def decide(self, noisy: NoisyHistogram, *, max_answers: int) -> NoisyRelease:
        """Decide on what is left of the noisy counts."""
        if self.predictions is not None:
            self.predictions.require_fit(noisy.counts.shape)
            left = noisy.counts - self.predictions.votes
            noisy = NoisyHistogram(left, noisy.sigma, noisy.rest)
        return ThresholdMax.decide(self, noisy, max_answers=max_answers)

    def parameters(self) -> Parameters:
        """Return the parameters; those of a batch are not among them."""
        return {**ThresholdMax.parameters(self), "confidence": self.confidence}


_SHARES: Final = {"vote_threshold": 0.58, "sigma2": 0.252}
"""Parameters per vote, where no better ones are known.

Of a grid, by `benchmarks/choose_parameters.py`.
"""


def _make(rule: Rule, parties: int, _: int) -> Mechanism:
    return ThresholdMax(
        rule.need("sigma2"),
        vote_threshold=rule.need("vote_threshold"),
        shares=rule.shares(parties),
    )


def _make_interactive(rule: Rule, parties: int, _: int) -> Mechanism:
    return InteractiveThresholdMax(
        rule.need("sigma2"),
        vote_threshold=rule.need("vote_threshold"),
        shares=rule.shares(parties),
        confidence=rule.need("confidence"),
    )


def _usual(size: Size) -> Mapping[str, float]:
    return {name: share * size.votes for name, share in _SHARES.items()}


def _usual_interactive(size: Size) -> Mapping[str, float]:
    return {**_usual(size), "confidence": CONFIDENCE}


def _text(mechanism: Mapping[str, object]) -> str:
    return (
        f"For each query {noise_added(mechanism)}. If the highest noisy count is at least "
        f"{number(mechanism, 'vote_threshold')} votes, its class is released. Otherwise the query "
        "gets no answer. Answered or not, every query costs the same."
    )


def _interactive_text(mechanism: Mapping[str, Any]) -> str:
    confidence = mechanism.get("confidence")
    sure = "enough" if confidence is None else f"at least {percent(confidence)}"
    return (
        "A student learns between the batches. Teachers are heard where they contradict it: for "
        f"each query {noise_added(mechanism)}, and the votes that the student expects are taken "
        f"off. If the highest count left is at least {number(mechanism, 'vote_threshold')} votes, "
        "its class is released. Otherwise the query gets no answer from the teachers; a student "
        f"that gives its own label a chance of {sure} keeps it, which costs nothing, because it "
        "looks at no vote. In the first batch there is no student yet."
    )


SPEC: Final = Spec(
    name=ThresholdMax.name,
    title="Threshold-GNMax",
    parameters=("vote_threshold", "sigma2"),
    make=_make,
    usual=_usual,
    text=_text,
    refused_because="too little agreement after noise was added",
    at_parties=True,
)
INTERACTIVE_SPEC: Final = Spec(
    name=InteractiveThresholdMax.name,
    title="Interactive Threshold-GNMax",
    parameters=("vote_threshold", "sigma2", "confidence"),
    make=_make_interactive,
    usual=_usual_interactive,
    text=_interactive_text,
    refused_because="too little contradiction of the student after noise was added",
    at_parties=True,
    learns=True,
)
