"""The planner: terms from settings, and the two searches, for noise and for queries.

A run, a simulation and a plan ask the same planner, so that all of them find the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Self

from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.ranges import RANGES
from pate_fed.errors import BudgetExhaustedError, InvalidParameterError, InvalidSettingError
from pate_fed.options import option_of
from pate_fed.planning.budgets import budget_share, likely_noise, share_for_life, tightest_cost
from pate_fed.planning.run_settings import RunSettings
from pate_fed.planning.sum_advice import SumForm, divided
from pate_fed.rule import Rule
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.votes import MAX_TOTAL_VOTES, TeacherWeights

_NOISE_STEP: Final = 0.002
"""Relative accuracy of the noise that fills a budget."""


@dataclass(frozen=True, slots=True)
class Planner:
    """A federation whose hospitals are known, and the settings of its run so far.

    Attributes:
        form: The secure sum; None where none fits, which noise at the parties needs.
        for_life: Whether the hospitals' ledgers for life must hold the run, too.
    """

    settings: RunSettings
    classes: int
    form: SumForm | None
    for_life: bool = False

    @classmethod
    def of(
        cls, settings: RunSettings, classes: int, form: SumForm | None, *, for_life: bool = False
    ) -> Self:
        """Fill in the values of each hospital."""
        parties = settings.parties or 0
        settled = replace(
            settings,
            weights=settings.weights or (1,) * parties,
            party_epsilons=settings.party_epsilons or (settings.epsilon,) * parties,
        )
        for name in ("weights", "party_epsilons"):
            given = getattr(settled, name)
            if len(given) != parties:
                raise InvalidSettingError(
                    f"{option_of(name)} must have one entry for each of {parties} hospitals",
                    len(given),
                )
        if form is not None:
            settled = replace(settled, rule=divided(settled.rule, parties, form))
            _require_few_votes(settled, form)
        if settled.votes > MAX_TOTAL_VOTES:
            raise InvalidSettingError(
                f"--weights and --teachers must come to at most {MAX_TOTAL_VOTES} votes",
                settled.votes,
            )
        return cls(settled, classes, form, for_life)

    def with_rule(self, rule: Rule) -> Self:
        """Return the same with another rule."""
        return replace(self, settings=replace(self.settings, rule=rule))

    def with_noise(self, sigma: float) -> Self:
        """Return the same with this noise of each count."""
        return self.with_rule(replace(self.settings.rule, sigma2=sigma))

    def terms(self, queries: int) -> RunTerms:
        """Return terms of a run of so many queries, whose name, pool and task are still open.

        With several labels it asks all labels of each input that it asks about.
        """
        settings, caps = self.settings, self.settings.caps
        assert settings.unit is not None
        queries = -(-queries // (caps.labels or 1)) * (caps.labels or 1)
        try:
            return RunTerms(
                name="draft",
                pool_digest=bytes(32),
                task_digest=NO_TASK,
                classes=self.classes,
                weights=tuple(
                    TeacherWeights.equal(teachers, weight=weight)
                    for weight, teachers in settings.teams
                ),
                rule=settings.rule,
                unit=settings.unit,
                caps=replace(
                    caps,
                    max_asks=queries,
                    max_answers=min(caps.max_answers or queries, queries),
                    batch_size=caps.batch_size or queries,
                    patient_votes=caps.patient_votes and min(caps.patient_votes, queries),
                ),
                budgets=settings.party_epsilons or (),
                delta=settings.delta,
                purpose=settings.purpose,
            )
        except InvalidParameterError as error:
            must = f"the settings must fit together: {error.must}"
            raise InvalidSettingError(must, error.got) from error

    def share_of(self, queries: int) -> float:
        """Return the largest share of its budget that so many queries cost any hospital.

        Their ledgers for life count, too, if they must hold the run.
        """
        if not self.settings.spec.is_private:
            return 0.0
        terms = self.terms(queries)
        share = budget_share(terms)
        return max(share, share_for_life(terms)) if self.for_life and share <= 1 else share

    def affordable(self, most: int, *, first: float = math.inf) -> int:
        """Return how many queries the budgets afford; none is a BudgetExhaustedError."""
        if not self.settings.spec.is_private:
            return most
        if found := most_queries(self.share_of, budget=1.0, most=most, first=first):
            return found
        requested, budget = tightest_cost(self.terms(1))
        rule = self.settings.rule
        noise = rule.sigma1 if rule.sigma2 is None else rule.sigma2
        raise BudgetExhaustedError(
            requested=requested,
            budget=budget,
            advice=f"{self.settings.votes} votes a query and noise of {noise:g} votes leave "
            "nothing to ask; take more teachers, more noise or a larger budget",
        )

    def require_affordable(self, queries: int) -> None:
        """Refuse more queries than the budgets afford; the error says how many fit."""
        share = self.share_of(queries)
        if share <= 1:
            return
        fit = self.affordable(queries - 1)
        _, budget = tightest_cost(self.terms(queries))
        said = "1 query fits" if fit == 1 else f"{fit} queries fit"
        raise BudgetExhaustedError(
            requested=share * budget,
            budget=budget,
            advice=f"at these settings at most {said}; see `pate-fed plan`",
        )

    @property
    def narrowest_noise(self) -> float:
        """Noise below which no run can be: each of the shares it is the sum of varies by a vote."""
        shares = self.settings.rule.shares(self.settings.parties or 0)
        return 0.0 if shares is None else math.ceil(1e4 * math.sqrt(shares)) / 1e4

    def smallest_noise(self, queries: int) -> float:
        """Return about the smallest sigma2 that fits all budgets, or a BudgetExhaustedError."""
        # A cost takes seconds, and is about inversely proportional to the noise.
        low, high, most = self.narrowest_noise, math.inf, RANGES["sigma2"].most
        tried, least = max(low, likely_noise(self.with_noise(1.0).terms(queries))), 0.0
        while high > low * (1 + _NOISE_STEP) and least < 1 - _NOISE_STEP / 2:
            if (found := self.with_noise(tried).share_of(queries)) <= 1:
                high, least = tried, found
            else:
                low = tried
            if low >= most:
                budgets = self.settings.party_epsilons or (0.0,)
                raise BudgetExhaustedError(requested=math.inf, budget=min(budgets))
            aimed = tried * min(max(found, 0.5), 4.0) * (1 + _NOISE_STEP / 4)
            tried = aimed if low < aimed < high else math.sqrt(low * high) if low else high / 2
            tried = min(tried, most)
        filled = float(f"{high:.6g}")
        # Rounded down, or a bound that is not quite even.
        while self.with_noise(filled).share_of(queries) > 1:
            filled = float(f"{filled * (1 + _NOISE_STEP / 4):.6g}")
        return filled


def _require_few_votes(settings: RunSettings, form: SumForm) -> None:
    """Refuse more votes of a hospital than the form can check."""
    most = form.most_votes
    votes = max((weight * count for weight, count in settings.teams), default=0)
    if most is not None and votes > most:
        raise InvalidSettingError(
            "--weights and teachers (--records-per-teacher, --teachers) must come to at most "
            f"{most} votes of each hospital with --sum {form.name}",
            votes,
        )
