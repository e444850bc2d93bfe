"""GNMax, Confident-GNMax and Interactive-GNMax where the parties have added the noise.

Nothing is added here: what comes in is the opened sum of noised votes, and the clean sum exists
nowhere. Whoever opens it sees every row, so every row that is opened is paid for; rows that no cap
allows to be looked at must not be opened.

    mechanism = DistributedConfidentMax(vote_threshold=40, sigma1=15, sigma2=8, shares=9)
    asks, answers = mechanism.caps(queries, max_answers=20, max_refusals=15)
    reserved = mechanism.worst_case_event(asks, answers, weight=5)       # before anybody votes
    first = mechanism.phase_one(noisy, max_answers=20, max_refusals=15)  # the first `asks` rows
    release = mechanism.phase_two(first, noisy_again)                    # rows first.passed only

The second phase is a vector of its own, with fresh noise and keys, for the rows that passed.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.distributed_law import share_sigma
from pate_fed.accounting.events import (
    DistributedConfidentMaxEvent,
    DistributedGaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.ranges import positive, whole
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.mechanisms.mechanism import Parameters, assemble_release, noisy_winners
from pate_fed.mechanisms.predictions import (
    checked_predictions,
    predicted_votes,
    reinforced_labels,
)
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.votes import NoisyHistogram


@dataclass(frozen=True, slots=True)
class DistributedMechanism(ABC):
    """A rule that turns noisy sums into labels and "no answer"s. A frozen value.

    Its price is separate for check and label, always: a joint price rests on the public seeing
    less than whoever opens the sums, and on vote rows that somebody has verified.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def phase_sigmas(self) -> tuple[float, ...]:
        """Standard deviation, in votes, that the honest shares of each phase add up to."""

    @abstractmethod
    def caps(self, queries: int, *, max_answers: int, max_refusals: int) -> tuple[int, int]:
        """Return the most (asks, answers): rows that the first and the second phase may open.

        A batch has to be cut to its first `asks` queries before anybody votes.

        Args:
            queries: Queries that may be asked, at least 0.
            max_answers: Answers after which nothing more is asked, at least 0.
            max_refusals: Refusals after which nothing more is asked, at least 0.

        Raises:
            InvalidParameterError: a number is not a whole number of at least 0.
        """

    @abstractmethod
    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what opened rows cost.

        Args:
            asked: Rows opened in the first phase: all that were sent, looked at or not.
            answered: Rows opened in the second phase; without one, labels released.
            weight: Votes that one neighboring change can move: k for a party of k teachers; whole.

        Raises:
            InvalidParameterError: the mechanism cannot have opened this.
        """

    def worst_case_event(self, asks: int, answers: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what at most so many asks and answers can cost: what each party charges.

        Args:
            asks: Cap on rows of the first phase.
            answers: Cap on rows of the second; more than `asks` cannot happen.
            weight: As for `event`.

        Raises:
            InvalidParameterError: a cap is not a whole number of at least 0.
        """
        return self.event(asks, min(whole("asks", asks), whole("answers", answers)), weight=weight)

    @abstractmethod
    def parameters(self) -> Parameters:
        """Return "name", "vote_threshold", "sigma1", "sigma2" and "shares"."""


@dataclass(frozen=True, slots=True)
class DistributedGaussianMax(DistributedMechanism):
    """GNMax with noise at the parties: the argmax of each opened row.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: every opened row of noisy counts to whoever opens the sums (the
        coordinator's view); its argmax to everyone who sees labels (the public's view). A row
        costs at most 2 d(k) in the coordinator's view, d(k) the divergence of the summed discrete
        noise when a count moves by k, at least order k^2 / (2 sigma^2) and hardly more; in the
        public's view the label-level supremum of the same noise. Whatever the votes, and however
        queries were chosen. Trust: in the coordinator's view nobody, as long as `shares` parties
        that are honest and present draw their shares as agreed and keep them; nobody sees the
        clean sum. Who knows its own share (each party) counts among the colluders that `shares`
        leaves out.

    Attributes:
        sigma: Standard deviation that `shares` shares add up to in each count, in votes; above 0.
        shares: Honest shares that have to suffice: n - c - d, at least 1.
    """

    name: ClassVar[str] = "gnmax"

    sigma: float
    shares: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", positive("sigma", self.sigma))
        share_sigma(self.sigma, self.shares)

    @property
    def phase_sigmas(self) -> tuple[float, ...]:
        """The noise of the one phase."""
        return (self.sigma,)

    def label(self, noisy: NoisyHistogram, *, max_answers: int) -> NoisyRelease:
        """Answer every opened row with its argmax, the lowest class on ties.

        Args:
            noisy: The opened rows of a batch.
            max_answers: Answers that are left, at least as many as rows.

        Raises:
            InvalidParameterError: more rows were opened than may be answered, or their noise is
                less than was promised.
        """
        _require_opened(noisy, most=whole("max_answers", max_answers), sigma=self.sigma)
        return assemble_release(
            noisy_winners(noisy),
            np.ones(len(noisy.counts), dtype=np.bool_),
            max_answers=max_answers,
            max_refusals=1,  # none ever happens
        )

    def caps(self, queries: int, *, max_answers: int, max_refusals: int) -> tuple[int, int]:
        """Return min(queries, max_answers) twice: every row opened is answered."""
        whole("max_refusals", max_refusals)
        answers = min(whole("queries", queries), whole("max_answers", max_answers))
        return answers, answers

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what so many rows cost; `asked` must be as many."""
        if asked != answered:
            raise InvalidParameterError("GNMax must answer every query asked", f"{asked} asked")
        return DistributedGaussianMaxEvent(answered, self.sigma, self.shares, _votes(weight))

    def worst_case_event(self, asks: int, answers: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what the smaller of the caps costs."""
        most = min(whole("asks", asks), whole("answers", answers))
        return self.event(most, most, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters; the noise of the counts is "sigma2", as for all mechanisms."""
        return {
            "name": self.name,
            "vote_threshold": None,
            "sigma1": None,
            "sigma2": self.sigma,
            "shares": self.shares,
        }


@dataclass(frozen=True, slots=True, eq=False)
class FirstPhase:
    """What the first phase decided. Public.

    Attributes:
        outcomes: `Outcome` of each query whose row was opened: answered means that its second row
            is to be opened; int8, shape (queries,), read-only.
    """

    outcomes: NDArray[np.int8]

    def __post_init__(self) -> None:
        outcomes = np.array(self.outcomes)
        if outcomes.ndim != 1 or not np.isin(outcomes, list(Outcome)).all():
            raise InvalidParameterError("outcomes must be known, on one axis", "others")
        stopped = outcomes == Outcome.NOT_ASKED
        if (stopped[:-1] & ~stopped[1:]).any():
            raise InvalidParameterError("what a cap stopped must come last", "another order")
        outcomes = outcomes.astype(np.int8)
        outcomes.flags.writeable = False
        object.__setattr__(self, "outcomes", outcomes)

    @property
    def opened(self) -> int:
        """Rows that the first phase opened, each of which costs."""
        return len(self.outcomes)

    @property
    def passed(self) -> NDArray[np.int64]:
        """Positions in the batch whose second rows are to be opened, in order."""
        return np.flatnonzero(self.outcomes == Outcome.ANSWERED).astype(np.int64)

    def as_release(self, labels: ArrayLike = 0) -> NoisyRelease:
        """Return what is released with these labels of the rows that passed.

        Args:
            labels: One for each of `passed`, in order, or one for all.

        Raises:
            InvalidParameterError: another number of labels.
        """
        given = np.asarray(labels, dtype=np.int64)
        if given.ndim and len(given) != len(self.passed):
            raise InvalidParameterError(f"labels must be {len(self.passed)}", len(given))
        released = np.full(self.opened, ABSTAIN, dtype=np.int64)
        released[self.passed] = given
        return NoisyRelease(released, self.outcomes)

    def as_record(self) -> dict[str, list[int]]:
        """Return plain data, for the signed result of the first phase."""
        return {"outcomes": self.outcomes.tolist()}

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read plain data back, strictly.

        Raises:
            InvalidTermsError: not exactly outcomes, or they contradict each other.
        """
        if not isinstance(record, dict) or set(record) != {"outcomes"}:
            raise InvalidTermsError("a first phase must have outcomes", "others")
        outcomes = record["outcomes"]
        if not isinstance(outcomes, list) or not all(
            type(value) is int and value in list(Outcome) for value in outcomes
        ):
            raise InvalidTermsError("outcomes must be known", "others")
        try:
            return cls(np.array(outcomes, dtype=np.int64))
        except InvalidParameterError as error:
            raise InvalidTermsError("outcomes must agree with each other", "others") from error

    @property
    def digest(self) -> bytes:
        """SHA-256 over the outcomes in order, 32 bytes: what the second phase is bound to."""
        head = f"pate-fed first phase {self.opened}\n".encode()
        return hashlib.sha256(head + self.outcomes.tobytes()).digest()


@dataclass(frozen=True, slots=True)
class DistributedConfidentMax(DistributedMechanism):
    """Two-phase Confident-GNMax with noise at the parties.

    First phase: a query passes if the largest entry of its row, noised with sigma1 per entry,
    reaches the threshold. Second phase: fresh rows with noise sigma2, of those that passed
    only; their argmax is the label. This check is not that of Confident-GNMax: the largest of C
    noisy entries is biased upward (a flat row of 250 votes with C = 10, T = 200, sigma1 = 150
    passes .73 of the time instead of .12), so the threshold is chosen for it
    (`pate_fed.mechanisms.pass_chances`).

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: every opened row of each phase, noisy, to whoever opens the sums
        (the coordinator's view); for each query a label or "no answer" to everyone who sees
        labels (the public's view). In the coordinator's view each row costs at most 2 d(k), as for
        `DistributedGaussianMax`, whether it passed or not. In the public's view the bit costs at
        most B for k = 1 (the largest divergence of the noise's distribution function from itself
        one vote on) and d(k), half of the row's price, for k > 1; the label is that of GNMax. The
        phases draw their noise apart, and the second opens what the first has published. Trust:
        as for `DistributedGaussianMax` in the coordinator's view; in the public's the coordinator,
        for threshold, noise and predictions as planned.

    Attributes:
        vote_threshold: Largest noisy entry from which a query passes, in votes; finite.
        sigma1: Standard deviation that `shares` shares add up to in a first row, in votes; above 0.
        sigma2: The same of a second row.
        shares: Honest shares that have to suffice: n - c - d, at least 1.
    """

    name: ClassVar[str] = "confident"

    vote_threshold: float
    sigma1: float
    sigma2: float
    shares: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.vote_threshold):
            raise InvalidParameterError("vote_threshold must be finite", self.vote_threshold)
        object.__setattr__(self, "vote_threshold", float(self.vote_threshold))
        for name in ("sigma1", "sigma2"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
            share_sigma(getattr(self, name), self.shares)

    @property
    def phase_sigmas(self) -> tuple[float, ...]:
        """The noise of the check's rows, and of the labels'."""
        return self.sigma1, self.sigma2

    def phase_one(
        self, noisy: NoisyHistogram, *, max_answers: int, max_refusals: int
    ) -> FirstPhase:
        """Decide which rows pass, in order, until the last allowed answer or refusal.

        Args:
            noisy: The opened first rows of a batch, noised with sigma1.
            max_answers: Answers that are left, at least 0.
            max_refusals: Refusals that are left, at least 0.

        Raises:
            InvalidParameterError: a cap is not a whole number of at least 0, more rows were
                opened than the caps allow, or their noise is less than was promised.
        """
        asks, _ = self.caps(len(noisy.counts), max_answers=max_answers, max_refusals=max_refusals)
        _require_opened(noisy, most=asks, sigma=self.sigma1)
        passed = self._largest_entries(noisy) >= self.vote_threshold
        decided = assemble_release(
            np.zeros(len(passed), dtype=np.int64),
            passed,
            max_answers=max_answers,
            max_refusals=max_refusals,
        )
        return FirstPhase(decided.outcomes)

    def phase_two(self, first: FirstPhase, noisy: NoisyHistogram) -> NoisyRelease:
        """Label the rows that passed with their argmax, the lowest class on ties.

        Args:
            first: What the first phase decided.
            noisy: The opened second rows of `first.passed`, in that order, noised with sigma2.

        Raises:
            InvalidParameterError: not exactly these rows were opened, or their noise is less than
                was promised.
        """
        passed = first.passed
        _require_opened(noisy, most=len(passed), sigma=self.sigma2)
        if len(noisy.counts) != len(passed):
            raise InvalidParameterError(
                f"the second phase must open {len(passed)} rows", len(noisy.counts)
            )
        return first.as_release(noisy_winners(noisy))

    def caps(self, queries: int, *, max_answers: int, max_refusals: int) -> tuple[int, int]:
        """Return the most rows of each phase.

        A run that ends with its last allowed answer or refusal has, before it, at most
        max_answers - 1 answers and max_refusals - 1 refusals.
        """
        whole("queries", queries)
        if not (whole("max_answers", max_answers) and whole("max_refusals", max_refusals)):
            return 0, 0
        asks = min(queries, max_answers + max_refusals - 1)
        return asks, min(asks, max_answers)

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Say what so many first and second rows cost."""
        return DistributedConfidentMaxEvent(
            asks=asked,
            answers=answered,
            sigma1=self.sigma1,
            sigma2=self.sigma2,
            shares=self.shares,
            weight=_votes(weight),
        )

    def parameters(self) -> Parameters:
        """Return the parameters."""
        return {
            "name": self.name,
            "vote_threshold": self.vote_threshold,
            "sigma1": self.sigma1,
            "sigma2": self.sigma2,
            "shares": self.shares,
        }

    def _largest_entries(self, noisy: NoisyHistogram) -> NDArray[np.float64]:
        return np.asarray(noisy.counts.max(axis=1))


@dataclass(frozen=True, slots=True)
class DistributedInteractiveMax(DistributedConfidentMax):
    """Two-phase Interactive-GNMax with noise at the parties.

    As `DistributedConfidentMax`, but for the check: the largest entry of the noisy row less the
    student's votes c_j = floor(M p_j + 1/2), M the number of votes per query. They are taken off
    the opened row; parties send the same as without a student.

    Guarantee:
        As for `DistributedConfidentMax`, event included: predictions follow from released labels
        and public inputs, so the c_j are the same in both worlds; they are whole and taken off
        after the noise was added. A reinforced label is a function of the release and of the
        predictions; it costs nothing. Trust: who makes the predictions must use nothing private.

    Attributes:
        confidence: Chance of its likeliest class from which the student's own label is kept where
            the check failed; between 0 and 1.
        predictions: The student's chances for the batch, from `with_predictions`; float64, shape
            (queries, classes), read-only; None before there is a student.
        offsets: The c_j; int64, same shape, read-only.
    """

    name: ClassVar[str] = "interactive"

    confidence: float = 0.9
    predictions: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    offsets: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        DistributedConfidentMax.__post_init__(self)
        if not 0 <= self.confidence <= 1:
            raise InvalidParameterError("confidence must be between 0 and 1", self.confidence)

    def with_predictions(
        self, probabilities: ArrayLike, *, total_votes: int
    ) -> DistributedInteractiveMax:
        """Return the mechanism for one batch, cut to its caps.

        Args:
            probabilities: The student's chance of each class; shape (queries, classes), rows that
                sum to 1 but for 1e-6. Functions of released labels and public inputs only.
            total_votes: Votes that all parties together cast per query, at least 1.

        Raises:
            InvalidParameterError: an argument is out of its range.
        """
        chances = checked_predictions(probabilities)
        offsets = predicted_votes(chances, total_votes=total_votes)
        return replace(self, predictions=chances, offsets=offsets)

    def reinforced_labels(self, release: NoisyRelease) -> NDArray[np.int64]:
        """Put a confident student's own labels where the check failed. Looks at no votes.

        Raises:
            InvalidParameterError: the predictions are for another number of queries.
        """
        return reinforced_labels(release, self.predictions, confidence=self.confidence)

    def parameters(self) -> Parameters:
        """Return the parameters; those of a batch are not among them."""
        return {**DistributedConfidentMax.parameters(self), "confidence": self.confidence}

    def _largest_entries(self, noisy: NoisyHistogram) -> NDArray[np.float64]:
        if self.offsets is None:
            return DistributedConfidentMax._largest_entries(self, noisy)
        if self.offsets.shape != noisy.counts.shape:
            raise InvalidParameterError("predictions must fit the queries", self.offsets.shape)
        return np.asarray((noisy.counts - self.offsets).max(axis=1))


def _require_opened(noisy: NoisyHistogram, *, most: int, sigma: float) -> None:
    if len(noisy.counts) > most:
        raise InvalidParameterError(
            f"at most {most} rows must be opened: the caps allow no more", len(noisy.counts)
        )
    # The shares of colluders come on top of what is promised, so this is never close.
    if not noisy.sigma >= sigma:
        raise InvalidParameterError(f"noise must be of at least {sigma:g} votes", noisy.sigma)


def _votes(weight: float) -> int:
    """Return a weight as the whole number of votes that discrete noise is priced for."""
    if weight != math.floor(weight):
        raise InvalidParameterError("weight must be whole with noise at the parties", weight)
    return int(weight)
