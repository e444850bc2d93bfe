"""Settings filled in: open ones are chosen from public numbers and from the data's shape.

A refusal for too few parties is the form's own error, from `SumForm.require_enough`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.data import Dataset
from pate_fed.errors import InvalidSettingError
from pate_fed.mechanisms import Size
from pate_fed.partition import deal_to_parties, units_by_hospital
from pate_fed.planning.defaults import (
    DEFAULTS,
    EVALUATION_EPSILON,
    LEARNING_BATCHES,
    Defaults,
)
from pate_fed.planning.planner import Planner
from pate_fed.planning.run_settings import RunSettings
from pate_fed.planning.sum_advice import Sums, require_enough
from pate_fed.queries import QueryPool
from pate_fed.rule import AGGREGATORS, Rule
from pate_fed.terms import MOST_ASKED, NO_TASK, RunTerms
from pate_fed.votes import NEAR_SHARE, teachers_of


def resolve(
    settings: RunSettings,
    dataset: Dataset,
    *,
    sums: Sums,
    rng: np.random.Generator,
    asked: int = 0,
) -> RunSettings:
    """Fill in all open settings, once the data are known.

    Args:
        settings: The user's settings.
        dataset: The records, split.
        sums: Forms of the secure sum.
        rng: Deals patients to hospitals, as an equal one will in `partition_records`.
        asked: Distinct inputs of the pool that earlier rounds asked.

    Raises:
        InvalidSettingError: more queries than the pool has.
        BudgetExhaustedError: the budget does not afford a single query.
        See `partition_records`.
    """
    known, private = DEFAULTS[settings.data.name], dataset.private
    has_hospitals = private.hospitals is not None
    scheme = settings.partition or ("column" if has_hospitals else "iid")
    if scheme == "column" and has_hospitals:
        parties = settings.parties or len(units_by_hospital(private))
    else:
        parties = settings.parties or known.parties
    require_enough(parties, form=settings.form, sums=sums)
    teachers = usual_teachers(settings, known)
    party_teachers = records = None
    if teachers is None:
        records = usual_records(settings, known)
        homes = deal_to_parties(private, parties=parties, scheme=scheme, rng=rng)
        party_teachers = tuple(
            teachers_of(patients, records_per_teacher=records) for patients in homes.sizes
        )
    is_alone = set(party_teachers or (teachers,)) == {1} and not settings.do_records_vote
    usual_unit: PrivacyUnit = "party" if is_alone else "record"
    settled = replace(
        settings,
        partition=scheme,
        parties=parties,
        teachers=teachers,
        records_per_teacher=records,
        party_teachers=party_teachers,
        unit=settings.unit or usual_unit,
    )
    if settled.caps.label_cap is not None:  # votes that are shared out would be cut to all "no"
        settled = replace(settled, class_balance="natural")
    if settled.evaluate == "private":
        price = settled.evaluation_epsilon or EVALUATION_EPSILON
        settled = replace(settled, evaluation_epsilon=price)
    pool = len(QueryPool(dataset.pool.features).distinct) - asked
    if asked and pool < (settings.caps.max_asks or 1):
        raise InvalidSettingError(
            f"--queries must be at most {pool}, the distinct inputs that no earlier run asked",
            settings.caps.max_asks or "none",
        )
    planner = Planner.of(settled, len(dataset.class_names), sums[settled.form])
    return filled(planner, known, pool=pool)


def usual_teachers(settings: RunSettings, known: Defaults) -> int | None:
    """Return the number of every hospital's teachers; None if it follows from its records."""
    if settings.teachers is not None or settings.records_per_teacher is not None:
        return settings.teachers
    if settings.do_records_vote:
        return None
    return 1 if settings.unit == "party" else known.teachers


def usual_records(settings: RunSettings, known: Defaults) -> int:
    """Return the patients of a teacher: one where records vote."""
    usual = 1 if settings.do_records_vote else known.records_per_teacher
    return settings.records_per_teacher or usual


def resolve_for(
    settings: RunSettings, teachers: tuple[int, ...], *, pool: int, classes: int, sums: Sums
) -> RunSettings:
    """Fill in all open settings, for existing hospitals."""
    require_enough(len(teachers), form=settings.form, sums=sums)
    is_alone = set(teachers) == {1} and not settings.do_records_vote
    usual_unit: PrivacyUnit = "party" if is_alone else "record"
    settled = replace(
        settings,
        parties=len(teachers),
        party_teachers=teachers,
        teachers=None,
        unit=settings.unit or usual_unit,
    )
    planner = Planner.of(settled, classes, sums[settled.form], for_life=True)
    return filled(planner, DEFAULTS["csv"], pool=pool)


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


def filled(planner: Planner, known: Defaults, *, pool: int) -> RunSettings:
    """Fill in mechanism, queries and batches, once parties and teachers are known.

    Args:
        planner: With the settings so far.
        known: The defaults of the data.
        pool: Distinct public inputs that may be asked.

    Raises:
        InvalidSettingError: more queries than the pool has.
        BudgetExhaustedError: the budget does not afford the queries, or a single one.
    """
    settings = planner.settings
    asked = settings.caps
    if asked.max_asks is not None and asked.max_asks > pool:  # before the seconds of a price
        raise InvalidSettingError(
            f"--queries must be at most the pool's {pool} distinct inputs", asked.max_asks
        )
    if settings.do_records_vote and asked.patient_votes is None:
        asked = replace(
            asked, patient_votes=_usual_votes(asked.max_asks or min(known.queries, pool))
        )
        planner = replace(planner, settings=replace(settings, caps=asked))
    planner = planner.with_rule(_filled_rule(planner, known))
    queries, has = asked.max_asks, settings.spec.parameters
    # A check of its own would take from the budget, too.
    is_open = "sigma2" in has and "sigma1" not in has and settings.rule.sigma2 is None
    labels = asked.labels or 1
    usual = min(known.most_queries(labels), pool) // labels * labels  # all labels of each input
    fills = known.fills_budget or settings.do_records_vote
    if fills and is_open and settings.spec.is_private:
        queries = queries or usual
        planner = planner.with_noise(planner.smallest_noise(queries))
    if queries is None:
        queries = planner.affordable(usual)
    else:
        planner.require_affordable(queries)
    if settings.coverage is not None:
        _require_labels(settings.coverage, queries)
    chosen = replace(planner.settings, select=settings.select or known.select)
    learns = chosen.spec.learns or chosen.asks_by_student
    # All at once, unless the student is to learn in between.
    usual_batch = -(-queries // LEARNING_BATCHES) if learns else queries
    caps = replace(
        asked,
        max_asks=queries,
        max_answers=asked.max_answers and min(asked.max_answers, queries),
        batch_size=min(asked.batch_size or usual_batch, queries, MOST_ASKED // labels * labels),
        patient_votes=asked.patient_votes and min(asked.patient_votes, queries),
    )
    return replace(chosen, caps=caps)


def _usual_votes(queries: int) -> int:
    """Return the cap of a patient's votes: what an average one would cast without any."""
    return math.ceil(NEAR_SHARE * queries)


def _require_labels(coverage: float, queries: int) -> None:
    """Refuse a coverage that so few queries cannot calibrate, whatever their answers are."""
    from pate_fed.students.label_sets import CALIBRATING_PART, labels_needed  # noqa: PLC0415

    needed = labels_needed(coverage)
    if queries // CALIBRATING_PART < needed:
        raise InvalidSettingError(
            f"--coverage {coverage:.10g} needs {needed} held-out labels, so "
            f"{needed * CALIBRATING_PART} queries or more: ask more, or state less",
            f"{queries} queries",
        )


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
        chosen = known.at_parties if rule.opens_noisy else known.parameters
        usual |= chosen.get(rule.mechanism, {})
    if rule.at_aggregators and "sigma2" in usual:  # so labels see as much as in other forms
        usual["sigma2"] = float(f"{usual['sigma2'] / math.sqrt(AGGREGATORS):.6g}")
    if rule.opens_noisy:  # wide enough to be shared
        usual["sigma2"] = max(usual["sigma2"], float(math.ceil(planner.narrowest_noise)))
    open_ones = [name for name in settings.spec.parameters if getattr(rule, name) is None]
    filled: dict[str, Any] = {name: usual[name] for name in open_ones}
    return replace(rule, **filled)
