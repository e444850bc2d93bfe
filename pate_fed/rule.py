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
            parties, of the honest parties' part.
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

    def shares(self, parties: int) -> int | None:
        """Return the honest noise shares that have to suffice; None with a coordinator's noise."""
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
        max_asks: Queries looked at after which the run ends, at least 1.
        max_answers: Answers after which it ends, at least 1; `max_asks` where the mechanism always
            answers.
        patient_votes: Where records vote, the queries on which one patient votes in the whole run,
            from 1 to `max_asks`; None where teachers vote, on every query.
    """

    max_asks: int | None = None
    max_answers: int | None = None
    batch_size: int | None = None
    patient_votes: int | None = None

    @property
    def most(self) -> Outcomes:
        """The most that a run can release; of caps that are filled in."""
        assert self.max_asks is not None
        assert self.max_answers is not None
        return Outcomes(self.max_asks, self.max_answers)


CAPS: Final = Caps()
"""Caps that are all open."""
