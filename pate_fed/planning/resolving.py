"""Settings filled in: open ones are chosen from public numbers and from the data's shape.

A refusal for too few parties is the form's own error, from `SumForm.require_enough`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.data import Dataset
from pate_fed.errors import InvalidSettingError
from pate_fed.mechanisms import Size
from pate_fed.partition import PartitionScheme, units_by_hospital
from pate_fed.planning.defaults import (
    DEFAULTS,
    EVALUATION_EPSILON,
    LEARNING_BATCHES,
    LEAST_UNITS_PER_TEACHER,
    TEACHERS_IN_ALL,
    Defaults,
)
from pate_fed.planning.planner import Planner
from pate_fed.planning.run_settings import RunSettings
from pate_fed.planning.sum_advice import Sums, require_enough
from pate_fed.queries import QueryPool
from pate_fed.rule import Caps, Rule
from pate_fed.terms import MOST_ASKED, NO_TASK, RunTerms


def resolve(settings: RunSettings, dataset: Dataset, *, sums: Sums, asked: int = 0) -> RunSettings:
    """Fill in all open settings, once the data are known."""
    return _resolved(settings, dataset, DEFAULTS[settings.data.name], sums, asked)


def resolve_for(
    settings: RunSettings, teachers: tuple[int, ...], *, pool: int, classes: int, sums: Sums
) -> RunSettings:
    """Fill in all open settings, for existing hospitals."""
    require_enough(len(teachers), form=settings.form, sums=sums)
    usual_unit: PrivacyUnit = "party" if set(teachers) == {1} else "record"
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
    """Return the terms of a run, hospitals in the data's order."""
    planner = Planner.of(settings, classes, sums[settings.form])
    terms = planner.terms(settings.caps.max_asks or 0)
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
    if asked and pool < (settings.caps.max_asks or 1):
        raise InvalidSettingError(
            f"--queries must be at most {pool}, the distinct inputs that no earlier run asked",
            settings.caps.max_asks or "none",
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
    planner = Planner.of(settings, classes, sums[settings.form], for_life=for_life)
    asked = settings.caps
    if asked.max_asks is not None and asked.max_asks > pool:  # before the seconds of a price
        raise InvalidSettingError(
            f"--queries must be at most the pool's {pool} distinct inputs", asked.max_asks
        )
    planner = planner.with_rule(_filled_rule(planner, known))
    queries, has = asked.max_asks, settings.spec.parameters
    # A check of its own would take from the budget, too.
    is_open = "sigma2" in has and "sigma1" not in has and settings.rule.sigma2 is None
    if known.fills_budget and is_open and settings.spec.is_private:
        queries = queries or min(known.queries, pool)
        planner = planner.with_noise(planner.smallest_noise(queries))
    if queries is None:
        queries = planner.affordable(min(known.queries, pool))
    else:
        planner.require_affordable(queries)
    chosen = replace(planner.settings, select=settings.select or known.select)
    learns = chosen.spec.learns or chosen.asks_by_student
    # All at once, unless the student is to learn in between.
    usual_batch = -(-queries // LEARNING_BATCHES) if learns else queries
    caps = Caps(
        queries,
        asked.max_answers and min(asked.max_answers, queries),
        min(asked.batch_size or usual_batch, queries, MOST_ASKED),
    )
    return replace(chosen, caps=caps)


def _filled_rule(planner: Planner, known: Defaults) -> Rule:
    """Fill in the mechanism's parameters."""
    settings, rule = planner.settings, planner.settings.rule
    votes = settings.votes
    usual = dict(settings.spec.usual(Size(votes, settings.most_unit_votes, settings.delta)))
    # Better ones are known for federations of this size.
    if (settings.parties, settings.teachers, votes) == (
        known.parties,
        known.teachers,
        known.parties * (known.teachers or 0),
    ):
        chosen = known.at_parties if rule.at_parties else known.parameters
        usual |= chosen.get(rule.mechanism, {})
    if rule.at_parties:  # wide enough to be shared
        usual["sigma2"] = max(usual["sigma2"], float(math.ceil(planner.narrowest_noise)))
    open_ones = [name for name in settings.spec.parameters if getattr(rule, name) is None]
    filled: dict[str, Any] = {name: usual[name] for name in open_ones}
    return replace(rule, **filled)
