"""A run's rule and its caps: the only holders of these numbers.

They travel whole: from an option, a file or a form to a run's settings, from there to its price and
its signed terms. Settings leave numbers open (None), `pate_fed.planning` fills them in, and
`RunTerms` refuses a rule with too few or too many of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pate_fed.accounting import Outcomes
from pate_fed.accounting.costs import NoisePlace
from pate_fed.accounting.distributed_law import honest_shares
from pate_fed.errors import InvalidParameterError

PARAMETERS: Final = ("vote_threshold", "sigma1", "sigma2", "confidence", "test_delta")
"""Fields of `Rule` that some mechanisms have: each says which, in its `Spec`."""

AGGREGATORS: Final = 2
"""Those who add noise in a verified sum. Each knows its own: the other's alone protects."""

RECORDS_VOTE: Final = "neighbors"
"""The kind of teacher that is none: each patient's own records vote, close to a query."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The way from summed votes to labels: a mechanism, its parameters, the place of its noise.

    Symbols are those of Papernot et al. 2018 (https://arxiv.org/abs/1802.08908). Public.

    Attributes:
        sigma1: Standard deviation of the noise of a check of its own, in votes; of a test of
            stability, in changes of one privacy unit.
        sigma2: Standard deviation of the total noise of each count, in votes; with noise at the
            parties, of the honest parties' part; with noise at the aggregators, of each one's.
        confidence: Chance from which the label of a student that learns meanwhile is kept.
        test_delta: Chance that one test of stability passes although nothing is stable.
        noise_place: Who adds the noise.
        colluders: With noise at the parties, how many of them may tell their noise share to the
            party that opens the sum; at least 1, because each knows its own.
        dropouts: With noise at the parties, how many may be lost before the sum opens.
    """

    mechanism: str
    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None
    confidence: float | None = None
    test_delta: float | None = None
    noise_place: NoisePlace = "coordinator"
    colluders: int | None = None
    dropouts: int | None = None

    @property
    def at_parties(self) -> bool:
        """Whether the parties add the noise."""
        return self.noise_place == "parties"

    @property
    def at_aggregators(self) -> bool:
        """Whether both aggregators add it, each the full amount."""
        return self.noise_place == "aggregators"

    @property
    def opens_noisy(self) -> bool:
        """Whether sums open with the noise in them, so that nobody sees an exact one."""
        return self.noise_place != "coordinator"

    def shares(self, parties: int) -> int | None:
        """Return the honest noise shares that have to suffice; None with a coordinator's noise."""
        if self.at_aggregators:
            return AGGREGATORS - 1
        if not self.at_parties:
            return None
        return honest_shares(parties, colluders=self.colluders or 0, dropouts=self.dropouts or 0)

    def need(self, parameter: str) -> float:
        """Return a parameter that the mechanism cannot do without; refuse an open one."""
        value = getattr(self, parameter)
        if value is None:
            raise InvalidParameterError(f"{parameter} must be given for {self.mechanism}")
        return float(value)

    def at_coordinator(self, sigma: float | None) -> Rule:
        """Return the same rule with the noise of each count, this much, at the coordinator."""
        return replace(self, sigma2=sigma, noise_place="coordinator", colluders=None, dropouts=None)


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that a run asks and answers, and how much of it at once. Public.

    Attributes:
        max_asks: Queries looked at after which the run ends, at least 1. With several labels each
            is a question about one label of an input.
        max_answers: Answers after which it ends, at least 1; `max_asks` where the mechanism always
            answers.
        labels: Labels that are asked of each input, 2 or more, all in one batch; None for one.
        label_cap: Of an input's labels, the most that one privacy unit may say yes to; None to say
            yes to all. Below half of the labels, since otherwise it lowers no price.
        patient_votes: Where records vote, the queries on which one patient votes in the whole run,
            from 1 to `max_asks`; None where teachers vote, on every query.
    """

    max_asks: int | None = None
    max_answers: int | None = None
    batch_size: int | None = None
    labels: int | None = None
    label_cap: int | None = None
    patient_votes: int | None = None

    @property
    def most(self) -> Outcomes:
        """The most that a run can release; of caps that are filled in."""
        assert self.max_asks is not None
        assert self.max_answers is not None
        return Outcomes(self.max_asks, self.max_answers)

    @property
    def is_whole(self) -> bool:
        """Whether asks and batches are of whole inputs, and the cap on labels lowers a price."""
        if self.labels is None:
            return self.label_cap is None
        sizes = (self.max_asks, self.batch_size)
        is_low = self.label_cap is None or 2 * self.label_cap < self.labels
        return is_low and not any((size or 0) % self.labels for size in sizes)

    def moved(self, outcomes: Outcomes) -> Outcomes:
        """Return in how many of these asks, and answers, one privacy unit's votes may differ.

        Source:
            docs/explanation/composition.md, "Several labels of an input".
        """
        if self.labels is None or self.label_cap is None:
            return outcomes
        inputs, rest = divmod(outcomes.asks, self.labels)
        asks = inputs * 2 * self.label_cap + min(rest, 2 * self.label_cap)
        return Outcomes(asks, min(outcomes.answers, asks))


CAPS: Final = Caps()
"""Caps that are all open."""
