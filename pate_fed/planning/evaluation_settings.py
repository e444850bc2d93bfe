"""A private evaluation before it is asked: its terms, and the least noise for its price."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.charges import noise_of
from pate_fed.errors import BudgetExhaustedError, InvalidSettingError
from pate_fed.evaluation import MOST_PLACES
from pate_fed.mechanisms import TALLIES
from pate_fed.planning.budgets import share_for_life
from pate_fed.planning.run_settings import require_in_range
from pate_fed.planning.sum_advice import SumForm, divided
from pate_fed.prices import charged_price
from pate_fed.rule import Caps, Rule
from pate_fed.terms import RunTerms
from pate_fed.votes import MAX_TOTAL_VOTES, TeacherWeights

PLACES: Final = 2000
"""Places for held-out patients at each hospital, if the operator says nothing."""

_STEP: Final = 1e-3
_MOST_SIGMA: Final = 1e6


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The choices of an operator for a private evaluation.

    Attributes:
        epsilon: Most that it may cost one unit of any hospital, in the view of everybody.
        delta: Of that number, in (0, 1).
        places: Most held-out patients of a hospital that are counted; public.
        colluders: Hospitals whose noise an attacker may know, at least 1.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    unit: PrivacyUnit = "record"
    places: int = PLACES
    colluders: int = 1

    def check(self, *, parties: int) -> None:
        """Refuse numbers out of their range, as an InvalidSettingError."""
        require_in_range(self)
        most = min(MOST_PLACES, MAX_TOTAL_VOTES // max(1, parties))
        if not 1 <= self.places <= most:
            raise InvalidSettingError(f"--places must be between 1 and {most}", self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationShape:
    """What is asked, and of how many; each row is a grouping."""

    name: str
    pool_digest: bytes
    task_digest: bytes
    rows: int
    columns: int
    parties: int

    def terms(self, settings: EvaluationSettings, sigma: float, *, form: SumForm) -> RunTerms:
        """Return the terms of a run with this noise."""
        return RunTerms(
            name=self.name,
            pool_digest=self.pool_digest,
            task_digest=self.task_digest,
            classes=self.columns,
            weights=(TeacherWeights.equal(settings.places),) * self.parties,
            rule=replace(self._rule(settings, form), sigma2=sigma),
            unit=settings.unit,
            caps=Caps(self.rows, self.rows, self.rows),
            budgets=(settings.epsilon,) * self.parties,
            delta=settings.delta,
        )

    def _rule(self, settings: EvaluationSettings, form: SumForm) -> Rule:
        rule = Rule(TALLIES, noise_place="parties", colluders=settings.colluders)
        return divided(rule, self.parties, form)

    def least_noise(self, settings: EvaluationSettings, *, form: SumForm) -> float:
        """Return the least noise that costs at most the settings' epsilon.

        It is the standard deviation of the honest hospitals' part in each count, in patients.
        Hospitals' ledgers for life, new and of the same budget, hold it too.
        """
        settings.check(parties=self.parties)
        shares = self._rule(settings, form).shares(self.parties) or 1

        def fits(sigma: float) -> bool:
            terms = self.terms(settings, sigma, form=form)
            return charged_price(terms, 0).epsilon < settings.epsilon and share_for_life(terms) <= 1

        sigma = _least(fits, low=math.sqrt(shares) * (1 + 1e-9), budget=settings.epsilon)
        terms = self.terms(settings, sigma, form=form)
        noise_of(terms).require_room(terms.total_votes)
        return sigma


def _least(fits: Callable[[float], bool], *, low: float, budget: float) -> float:
    """Return about the least noise that fits, in six digits."""
    if fits(low):
        return low
    high = 2 * low
    while not fits(high):
        low, high = high, 2 * high
        if high > _MOST_SIGMA:
            raise BudgetExhaustedError(requested=math.inf, budget=budget)
    while high - low > _STEP * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(f"{high * (1 + 1e-5):.6g}")
