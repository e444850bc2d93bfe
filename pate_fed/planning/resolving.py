"""Settings filled in: open ones are chosen from public numbers and from the data's shape.

A refusal for too few parties is the form's own error, from `SumForm.require_enough`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pate_fed.accounting import Outcomes
from pate_fed.accounting.calibration import most_queries
from pate_fed.charging import require_room_for_life
from pate_fed.data import Dataset
from pate_fed.errors import BudgetExhaustedError, InvalidSettingError, InvalidTermsError
from pate_fed.federation import MOST_ASKED, NO_TASK, RunTerms
from pate_fed.mechanisms import DistributedNoise, Size, usual_vote_threshold
from pate_fed.mechanisms.preview import Preview, preview_confident, simulated_votes
from pate_fed.partition import PartitionScheme, units_by_hospital
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
from pate_fed.pricing import affordable_queries, priced, tightest_cost
from pate_fed.queries import QueryPool
from pate_fed.votes import MAX_TOTAL_VOTES

_NOISE_STEP = 0.002
"""Relative accuracy of the noise that fills a budget."""

_FILLED = ("gnmax", "counts")
"""Mechanisms whose noise may fill a budget."""


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


def affordable(settings: RunSettings, dataset: Dataset, *, sums: Sums, asked: int = 0) -> int:
    """Return how many of the requested queries the budgets afford at the worst.

    Args:
        settings: The user's settings.
        dataset: The records, split.
        sums: Forms of the secure sum.
        asked: As for `resolve`.

    Raises:
        BudgetExhaustedError: not a single one.
    """
    known = DEFAULTS[settings.data.name]
    most = replace(known, queries=settings.queries or known.queries)
    return _resolved(replace(settings, queries=None), dataset, most, sums, asked).queries or 0


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
    """Return the terms of a run, hospitals in the data's order, with the price chosen.

    Args:
        settings: Its settings, resolved.
        name: The run's name.
        classes: Number of classes.
        pool_digest: Of the query pool, 32 bytes.
        sums: Forms of the secure sum.
        task_digest: Of the task document, 32 bytes; a simulation has none.
    """
    asked = _Asked(settings, classes, sums[settings.form])
    terms = asked.priced(asked.draft(asked.caps(settings.queries or 0, None)))
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
    asked = replace(asked, settings=asked.with_mechanism(known))
    if known.fills_budget and settings.mechanism in _FILLED and settings.sigma2 is None:
        queries = settings.queries or min(known.queries, pool)
        filled = replace(asked.settings, sigma2=asked.smallest_noise(queries), queries=queries)
        asked = replace(asked, settings=filled)
    chosen = replace(asked.settings, select=asked.settings.select or known.select)
    return replace(asked, settings=chosen).with_queries(known, pool=pool)


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
        if settings.noise == "parties":
            usual |= self._usual_at_parties(usual["sigma2"])
            if is_known_size:
                usual |= known.at_parties.get(settings.mechanism, {})
        elif is_known_size:
            usual |= known.parameters.get(settings.mechanism, {})
        return usual

    def _usual_at_parties(self, sigma2: float) -> dict[str, float]:
        """Return noise that is wide enough to be shared, and a threshold for the biased check."""
        settings = self.settings
        parties, colluders = settings.parties or 0, settings.colluders or 0
        found = {"sigma2": max(sigma2, float(math.ceil(self._least_noise)))}
        # Rows of both kinds cost alike here.
        found["sigma1"] = _first(settings.sigma1, settings.sigma2, found["sigma2"])
        if not settings.spec.may_refuse:
            return found
        noise = DistributedNoise(found["sigma1"], parties, colluders, self._dropouts)
        # A student's predictions are subtracted from the rows.
        votes = 0 if settings.spec.learns else settings.votes
        threshold = usual_vote_threshold(votes=votes, classes=self.classes, noise=noise)
        found["vote_threshold"] = float(threshold)
        return found

    @property
    def _least_noise(self) -> float:
        """Noise below which no run can be: each of the shares it is the sum of varies by a vote."""
        if self.settings.noise != "parties":
            return 0.0
        honest = (self.settings.parties or 0) - (self.settings.colluders or 0) - self._dropouts
        return math.sqrt(honest)

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
        valid, wanted = self.settings.valid_votes, self.settings.wanted_pricings

        def fits(sigma: float) -> bool:
            noisy = replace(self, settings=replace(self.settings, sigma2=sigma))
            draft = noisy.draft(noisy.caps(queries, None))
            fits_run = affordable_queries(
                lambda _: draft, most=1, votes_are_valid=valid, wanted=wanted
            )
            return fits_run == 1 and noisy.has_room_for_life(draft)

        low, high = self._least_noise, max(1.0, float(self.settings.votes))
        while not fits(high):
            low, high = high, 2 * high
            if high > MAX_TOTAL_VOTES:
                raise BudgetExhaustedError(
                    requested=math.inf, budget=min(self.settings.party_epsilons or (0.0,))
                )
        while high - low > _NOISE_STEP * high:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return float(f"{high * (1 + 1e-6):.6g}")

    def with_queries(self, known: Defaults, *, pool: int) -> RunSettings:
        """Fill in the number of queries, the caps and the batches."""
        settings = self.settings
        if settings.queries is not None and settings.queries > pool:
            raise InvalidSettingError(
                f"--queries must be at most the pool's {pool} distinct inputs", settings.queries
            )
        if settings.votes > MAX_TOTAL_VOTES:
            raise InvalidSettingError(
                f"--weights and --teachers must come to at most {MAX_TOTAL_VOTES} votes",
                settings.votes,
            )
        preview, most = self._preview(), min(known.queries, pool)
        queries = settings.queries or self._affordable(most, preview)
        caps = self.caps(queries, preview)
        if preview is not None and self.priced(self.draft(caps)).pricing != "joint":
            # A cap on refusals lowers only the joint price.
            queries = settings.queries or self._affordable(most, None)
            caps = self.caps(queries, None)
        return replace(
            settings,
            queries=queries,
            max_answers=caps.answers,
            max_refusals=caps.refusals if settings.spec.may_refuse else None,
            batch_size=min(settings.batch_size or self._usual_batch(queries), queries, MOST_ASKED),
        )

    def _usual_batch(self, queries: int) -> int:
        """Ask all at once, unless the student is to learn in between."""
        learns = self.settings.spec.learns or self.settings.asks_by_student
        return -(-queries // LEARNING_BATCHES) if learns else queries

    def _preview(self) -> Preview | None:
        """Use simulated votes where a cap on refusals makes a run cheaper."""
        settings = self.settings
        may_be_joint = (
            "joint" in settings.wanted_pricings
            and "joint" in settings.prices
            and settings.valid_votes
        )
        if not may_be_joint or settings.max_refusals is not None:
            return None
        return preview_confident(
            simulated_votes(votes=settings.votes, classes=self.classes),
            vote_threshold=_first(settings.vote_threshold),
            sigma1=_first(settings.sigma1),
            sigma2=_first(settings.sigma2),
        )

    def caps(self, queries: int, preview: Preview | None) -> Outcomes:
        """Return the caps of a run of so many queries."""
        settings = self.settings
        answers = min(settings.max_answers or queries, queries)
        if not settings.spec.may_refuse:
            return Outcomes(0, answers)
        usual = queries if preview is None else preview.refusals(queries)
        refusals = min(settings.max_refusals or usual, queries)
        # The last ask ends the run by an answer or a refusal, not by both.
        return Outcomes(refusals, answers, min(queries, answers + refusals - 1))

    def draft(self, caps: Outcomes) -> RunTerms:
        """Return terms whose pool, task and pricing are still open."""
        settings = self.settings
        unpriced = settings.prices[0]
        orders = [2.0] * (settings.parties or 0) if unpriced == "renyi" else []
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
                    "pricing": unpriced,
                    "orders": orders,
                    "max_asks": caps.asks,
                    "max_answers": caps.answers,
                    "max_refusals": caps.refusals,
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

    def priced(self, draft: RunTerms) -> RunTerms:
        """Choose the price of a draft."""
        settings = self.settings
        return priced(draft, votes_are_valid=settings.valid_votes, wanted=settings.wanted_pricings)

    def has_room_for_life(self, draft: RunTerms) -> bool:
        """Tell whether the hospitals' ledgers for life hold a draft, if they must."""
        if not self.for_life:
            return True
        try:
            require_room_for_life(self.priced(draft), draft.max_asks)
        except BudgetExhaustedError:
            return False
        return True

    def _affordable(self, most: int, preview: Preview | None) -> int:
        """Return how many queries the budgets afford at the worst, at most `most`."""
        settings = self.settings
        if not settings.spec.is_private:
            return most

        def drafted(queries: int) -> RunTerms:
            return self.draft(self.caps(queries, preview))

        valid, wanted = settings.valid_votes, settings.wanted_pricings
        found = affordable_queries(drafted, most=most, votes_are_valid=valid, wanted=wanted)
        if found and not self.has_room_for_life(drafted(found)):
            found = most_queries(
                lambda queries: 0.0 if self.has_room_for_life(drafted(queries)) else math.inf,
                budget=1.0,
                most=found - 1,
            )
        if found:
            return found
        requested, budget = tightest_cost(drafted(1), votes_are_valid=valid, wanted=wanted)
        noise = _first(settings.sigma2, settings.sigma1)
        raise BudgetExhaustedError(
            requested=requested,
            budget=budget,
            advice=f"{settings.votes} votes a query and noise of {noise:g} votes leave nothing to "
            "ask; take more teachers, more noise or a larger budget",
        )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
