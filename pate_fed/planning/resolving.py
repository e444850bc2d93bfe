"""Settings filled in: open ones are chosen from public numbers and from the data's shape.

A refusal for too few parties is the form's own error, from `SumForm.require_enough`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.ranges import RANGES
from pate_fed.data import Dataset
from pate_fed.errors import BudgetExhaustedError, InvalidSettingError, InvalidTermsError
from pate_fed.federation import MOST_ASKED, NO_TASK, RunTerms
from pate_fed.mechanisms import Size
from pate_fed.partition import PartitionScheme, units_by_hospital
from pate_fed.planning.budgets import budget_share, likely_noise, share_for_life, tightest_cost
from pate_fed.planning.defaults import (
    DEFAULTS,
    EVALUATION_EPSILON,
    LEARNING_BATCHES,
    LEAST_UNITS_PER_TEACHER,
    TEACHERS_IN_ALL,
    Defaults,
)
from pate_fed.planning.options import option_of
from pate_fed.planning.settings import RunSettings
from pate_fed.planning.sums import SumForm, Sums, require_enough
from pate_fed.queries import QueryPool
from pate_fed.votes import MAX_TOTAL_VOTES

_NOISE_STEP = 0.002
"""Relative accuracy of the noise that fills a budget."""


def resolve(settings: RunSettings, dataset: Dataset, *, sums: Sums, asked: int = 0) -> RunSettings:
    """Fill in all open settings, once the data are known.

    Args:
        settings: The user's settings.
        dataset: The records, split.
        sums: Forms of the secure sum.
        asked: Distinct inputs of the pool that earlier rounds asked.

    Raises:
        InvalidSettingError: more queries than the pool has.
        BudgetExhaustedError: the budget does not afford a single query.
    """
    return _resolved(settings, dataset, DEFAULTS[settings.data.name], sums, asked)


def resolve_for(
    settings: RunSettings, teachers: tuple[int, ...], *, pool: int, classes: int, sums: Sums
) -> RunSettings:
    """Fill in all open settings, for existing hospitals.

    Args:
        settings: The user's settings.
        teachers: Of each of them.
        pool: Distinct public inputs.
        classes: Number of classes.
        sums: Forms of the secure sum.

    Raises:
        See `resolve`.
    """
    require_enough(len(teachers), form=settings.form, sums=sums)
    usual_unit = "party" if set(teachers) == {1} else "record"
    settled = replace(
        settings,
        parties=len(teachers),
        party_teachers=teachers,
        teachers=None,
        unit=settings.unit or usual_unit,
    )
    known = DEFAULTS["csv"]
    return _filled(settled, known, pool=pool, classes=classes, sums=sums, for_life=True)


def terms_of(
    settings: RunSettings,
    *,
    name: str,
    classes: int,
    pool_digest: bytes,
    sums: Sums,
    task_digest: bytes = NO_TASK,
) -> RunTerms:
    """Return the terms of a run, hospitals in the data's order.

    Args:
        settings: Its settings, resolved.
        name: The run's name.
        classes: Number of classes.
        pool_digest: Of the query pool, 32 bytes.
        sums: Forms of the secure sum.
        task_digest: Of the task document, 32 bytes; a simulation has none.
    """
    asked = _Asked(settings, classes, sums[settings.form])
    terms = asked.draft(settings.queries or 0)
    return replace(terms, name=name, pool_digest=pool_digest, task_digest=task_digest)


def _resolved(
    settings: RunSettings, dataset: Dataset, known: Defaults, sums: Sums, asked: int
) -> RunSettings:
    has_hospitals = dataset.private.hospitals is not None
    scheme = settings.partition or ("column" if has_hospitals else "iid")
    if scheme == "column" and has_hospitals:
        parties = settings.parties or len(units_by_hospital(dataset.private))
    else:
        parties = settings.parties or known.parties
    require_enough(parties, form=settings.form, sums=sums)
    teachers = settings.teachers or known.teachers or _shared_out(dataset, parties, scheme)
    settled = replace(
        settings,
        partition=scheme,
        parties=parties,
        teachers=teachers,
        unit=settings.unit or ("party" if teachers == 1 else "record"),
    )
    if settled.evaluate == "private":
        price = settled.evaluation_epsilon or EVALUATION_EPSILON
        settled = replace(settled, evaluation_epsilon=price)
    pool = len(QueryPool(dataset.pool.features).distinct) - asked
    if asked and pool < (settings.queries or 1):
        raise InvalidSettingError(
            f"--queries must be at most {pool}, the distinct inputs that no earlier run asked",
            settings.queries or "none",
        )
    return _filled(settled, known, pool=pool, classes=len(dataset.class_names), sums=sums)


def _shared_out(dataset: Dataset, parties: int, scheme: PartitionScheme) -> int:
    """Divide `TEACHERS_IN_ALL`, but leave every teacher a few units to learn from."""
    private = dataset.private
    if scheme == "column" and private.hospitals is not None:
        smallest = min(units_by_hospital(private).values())
    else:
        smallest = private.unit_count // parties
    wanted = -(-TEACHERS_IN_ALL // parties)
    return max(1, min(wanted, smallest // LEAST_UNITS_PER_TEACHER))


def _filled(
    settings: RunSettings,
    known: Defaults,
    *,
    pool: int,
    classes: int,
    sums: Sums,
    for_life: bool = False,
) -> RunSettings:
    """Fill in lists, mechanism and queries, once parties and teachers are known."""
    form = sums[settings.form]
    asked = _Asked(_with_one_each(settings, form), classes, form, for_life=for_life)
    _require_possible(asked.settings, pool=pool)  # before the seconds that a price takes
    asked = replace(asked, settings=asked.with_mechanism(known))
    has = settings.spec.parameters  # a check of its own would take from the budget, too
    is_open = "sigma2" in has and "sigma1" not in has and settings.sigma2 is None
    if known.fills_budget and is_open and settings.spec.is_private:
        queries = settings.queries or min(known.queries, pool)
        filled = replace(asked.settings, sigma2=asked.smallest_noise(queries), queries=queries)
        asked = replace(asked, settings=filled)
    chosen = replace(asked.settings, select=asked.settings.select or known.select)
    return replace(asked, settings=chosen).with_queries(known, pool=pool)


def _require_possible(settings: RunSettings, *, pool: int) -> None:
    """Refuse more queries than there are inputs, and more votes than can be added."""
    if settings.queries is not None and settings.queries > pool:
        raise InvalidSettingError(
            f"--queries must be at most the pool's {pool} distinct inputs", settings.queries
        )
    if settings.votes > MAX_TOTAL_VOTES:
        raise InvalidSettingError(
            f"--weights and --teachers must come to at most {MAX_TOTAL_VOTES} votes",
            settings.votes,
        )


def _with_one_each(settings: RunSettings, form: SumForm) -> RunSettings:
    """Fill in the values of each party."""
    parties = settings.parties or 0
    settled = replace(
        settings,
        colluders=settings.colluders or 1 if settings.noise == "parties" else None,
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
    if settled.noise == "parties" and form.threshold(parties) <= (settled.colluders or 0):
        raise InvalidSettingError(
            f"--colluders must leave one of {parties} hospitals that is honest and present",
            settled.colluders,
        )
    return settled


@dataclass(frozen=True, slots=True)
class _Asked:
    """Settings on their way to be resolved, with the other facts that their price needs.

    Attributes:
        settings: The settings so far.
        classes: Number of classes.
        form: The secure sum.
        for_life: Whether the hospitals' ledgers for life must hold the run, too.
    """

    settings: RunSettings
    classes: int
    form: SumForm
    for_life: bool = False

    def with_mechanism(self, known: Defaults) -> RunSettings:
        """Fill in the mechanism's parameters."""
        settings = self.settings
        usual = self._usual_parameters(known)
        chosen: dict[str, Any] = {
            name: _first(getattr(settings, name), usual[name]) for name in settings.spec.parameters
        }
        return replace(settings, **chosen)

    def _usual_parameters(self, known: Defaults) -> dict[str, float]:
        settings = self.settings
        votes = settings.votes
        is_known_size = (settings.parties, settings.teachers, votes) == (
            known.parties,
            known.teachers,
            known.parties * (known.teachers or 0),
        )
        usual = dict(settings.spec.usual(Size(votes, settings.most_unit_votes, settings.delta)))
        at_parties = settings.noise == "parties"
        if is_known_size:
            chosen = known.at_parties if at_parties else known.parameters
            usual |= chosen.get(settings.mechanism, {})
        if at_parties:  # wide enough to be shared
            usual["sigma2"] = max(usual["sigma2"], float(math.ceil(self._least_noise)))
        return usual

    @property
    def _least_noise(self) -> float:
        """Noise below which no run can be: each of the shares it is the sum of varies by a vote."""
        if self.settings.noise != "parties":
            return 0.0
        honest = (self.settings.parties or 0) - (self.settings.colluders or 0) - self._dropouts
        return math.ceil(1e4 * math.sqrt(honest)) / 1e4

    @property
    def _dropouts(self) -> int:
        """Hospitals that may be lost before the sum opens."""
        parties = self.settings.parties or 0
        return parties - self.form.threshold(parties)

    def smallest_noise(self, queries: int) -> float:
        """Return about the smallest sigma2 whose price for so many queries fits all budgets.

        Raises:
            BudgetExhaustedError: no noise is enough.
        """

        def draft(sigma: float) -> RunTerms:
            noisy = replace(self, settings=replace(self.settings, sigma2=sigma))
            return noisy.draft(queries)

        # A cost takes seconds, and is about inversely proportional to the noise.
        low, high, most = self._least_noise, math.inf, RANGES["sigma2"].most
        tried, least = max(low, likely_noise(draft(1.0))), 0.0
        while high > low * (1 + _NOISE_STEP) and least < 1 - _NOISE_STEP / 2:
            if (found := self.share_of(draft(tried))) <= 1:
                high, least = tried, found
            else:
                low = tried
            if low >= most:
                raise BudgetExhaustedError(
                    requested=math.inf, budget=min(self.settings.party_epsilons or (0.0,))
                )
            aimed = tried * min(max(found, 0.5), 4.0) * (1 + _NOISE_STEP / 4)
            tried = aimed if low < aimed < high else math.sqrt(low * high) if low else high / 2
            tried = min(tried, most)
        filled = float(f"{high:.6g}")
        while self.share_of(draft(filled)) > 1:  # rounded down, or a bound that is not quite even
            filled = float(f"{filled * (1 + _NOISE_STEP / 4):.6g}")
        return filled

    def with_queries(self, known: Defaults, *, pool: int) -> RunSettings:
        """Fill in the number of queries, the caps and the batches."""
        settings = self.settings
        queries = settings.queries
        if queries is None:
            queries = self._affordable(min(known.queries, pool))
        else:
            self._require_affordable(queries)
        return replace(
            settings,
            queries=queries,
            max_answers=settings.max_answers and min(settings.max_answers, queries),
            batch_size=min(settings.batch_size or self._usual_batch(queries), queries, MOST_ASKED),
        )

    def _usual_batch(self, queries: int) -> int:
        """Ask all at once, unless the student is to learn in between."""
        learns = self.settings.spec.learns or self.settings.asks_by_student
        return -(-queries // LEARNING_BATCHES) if learns else queries

    def draft(self, queries: int) -> RunTerms:
        """Return terms of a run of so many queries, whose name, pool and task are still open."""
        settings = self.settings
        try:
            return RunTerms.from_record(
                {
                    "name": "draft",
                    "pool_digest": bytes(32),
                    "task_digest": NO_TASK,
                    "classes": self.classes,
                    "weights": [[list(team)] for team in settings.teams],
                    "mechanism": settings.mechanism,
                    "vote_threshold": settings.vote_threshold,
                    "sigma1": settings.sigma1,
                    "sigma2": settings.sigma2,
                    "confidence": settings.confidence,
                    "test_delta": settings.test_delta,
                    "noise_place": settings.noise,
                    "unit": settings.unit,
                    "max_asks": queries,
                    "max_answers": min(settings.max_answers or queries, queries),
                    "budgets": list(settings.party_epsilons or ()),
                    "delta": settings.delta,
                    "colluders": settings.colluders,
                    "dropouts": self._dropouts if settings.noise == "parties" else None,
                    "purpose": settings.purpose,
                }
            )
        except InvalidTermsError as error:
            cause = error.__cause__
            raise InvalidSettingError(
                f"the settings must fit together: {getattr(cause, 'must', error.must)}", "others"
            ) from error

    def share_of(self, draft: RunTerms) -> float:
        """Return the largest share of its budget that a draft costs any hospital.

        Their ledgers for life count, too, if they must hold the run.
        """
        share = budget_share(draft)
        return max(share, share_for_life(draft)) if self.for_life and share <= 1 else share

    def _require_affordable(self, queries: int) -> None:
        share = self.share_of(self.draft(queries)) if self.settings.spec.is_private else 0.0
        if share <= 1:
            return
        fit = self._affordable(queries - 1)
        _, budget = tightest_cost(self.draft(queries))
        said = "1 query fits" if fit == 1 else f"{fit} queries fit"
        raise BudgetExhaustedError(
            requested=share * budget,
            budget=budget,
            advice=f"at these settings at most {said}; see `pate-fed plan`",
        )

    def _affordable(self, most: int) -> int:
        """Return how many queries the budgets afford at the worst, at most `most`."""
        settings = self.settings
        if not settings.spec.is_private:
            return most
        found = most_queries(
            lambda queries: self.share_of(self.draft(queries)), budget=1.0, most=most
        )
        if found:
            return found
        requested, budget = tightest_cost(self.draft(1))
        noise = _first(settings.sigma2, settings.sigma1)
        raise BudgetExhaustedError(
            requested=requested,
            budget=budget,
            advice=f"{settings.votes} votes a query and noise of {noise:g} votes leave nothing to "
            "ask; take more teachers, more noise or a larger budget",
        )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
