"""The queries that a budget affords, before anything is spent: `pate-fed plan`.

Works from public numbers and simulated votes alone, never from a hospital's. For each choice of
threshold and noise it computes the queries that the budget affords, and the right answers to expect
from them.
"""

from __future__ import annotations

from typing import Any

from pate_fed.errors import UnfitSumError
from pate_fed.planning.offers import Split, best_offer, split_of
from pate_fed.planning.request import PlanRequest
from pate_fed.planning.sums import Sums, advised_sum


def plan(request: PlanRequest, *, sums: Sums) -> dict[str, Any]:
    """Find the queries that a budget affords.

    Args:
        request: The federation, its budget, and who adds the noise.
        sums: Forms of the secure sum that may be advised.

    Raises:
        BudgetExhaustedError: not a single query.
        UnfitSumError: the given secure sum does not fit, or none does and noise at the parties
            needs one.
        NarrowNoiseError: the given noise is too little to be shared.
        InvalidSettingError: too many colluders, or the hospitals cannot vote in this way.
    """
    advice = sum_for(request, sums)  # refuses an unfit one before the long computation
    split = split_of(request, advice, sums)
    best = best_offer(request, split)
    return {
        "schema_version": 1,
        "noise": request.noise,
        "parties": request.parties,
        "teachers": request.parties * request.teachers,
        "votes": request.votes,
        "classes": request.classes,
        "budget": {"epsilon": max(request.budgets), "delta": request.delta},
        "requested_queries": request.queries,
        "unit": request.unit,
        "neighbors": best["decides"]["neighbors"],
        "assumed_teacher_accuracy": request.teacher_accuracy,
        "sum": advice,
        "view": "public" if split is None else "coordinator",
        "shares": None if split is None else _shares(split),
        "best": best,
    }


def _shares(split: Split) -> dict[str, int]:
    return {
        "parties": split.parties,
        "colluders": split.colluders,
        "dropouts": split.dropouts,
        "suffice": split.shares,
    }


def sum_for(request: PlanRequest, sums: Sums) -> dict[str, object]:
    """Return a federation's secure sum: the given one, or else the one that fits.

    Returns:
        As `advised_sum`.

    Raises:
        UnfitSumError: the given one does not fit.
    """
    advice = advised_sum(
        request.parties, dropouts=request.expected_dropouts, sums=sums, form=request.form
    )
    if request.form is not None and advice["form"] is None:
        raise UnfitSumError(
            f"--sum {request.form} must fit {request.parties} hospitals of which "
            f"{request.expected_dropouts} may be lost",
            advice["why"],
        )
    return advice
