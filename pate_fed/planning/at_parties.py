"""Offers with noise at the parties, priced as the coordinator sees it, who opens every noisy row.

Budgets bound that view. Plain GNMax comes first, because it takes one vector and one exchange. The
two-phase check stands beside it, with its rate of passing. It looks at the largest of C noisy
counts, so it passes more than the coordinator's own check would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting import FormalCost, distributed_row_rdp, neighbors
from pate_fed.charging import noise_of
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import (
    DistributedNoise,
    flat_row,
    pass_chances,
    preview_two_phases,
    row_of_top,
    usual_vote_threshold,
)
from pate_fed.mechanisms.preview import Preview, right_chances, simulated_votes
from pate_fed.planning.offers import Offer, PricedOffer, Split, affordable, nothing_affordable
from pate_fed.planning.request import PlanRequest
from pate_fed.pricing import public_cost_at

_SIGMAS: Final = (0.06, 0.08, 0.12, 0.16, 0.2, 0.24, 0.3)
"""Default noises to try, as shares of the number of votes, for both phases."""

_KEPT: Final = 0.9
"""Least accuracy of an offer, as a share of the best one: more noise buys more, worse labels."""

_USEFUL: Final = 0.5
"""Least chance that a unanimous query passes the check, for the check to be worth its rows."""

_LEADS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Leads of the first class to preview, as shares of the votes."""

_SOURCES: Final = {
    "coordinator": (
        "docs/explanation/noise-at-the-parties.md, Theorems 1 and 4; Kairouz, Liu, Steinke "
        "2021, arXiv:2102.06387"
    ),
    "public": (
        "docs/explanation/noise-at-the-parties.md, Theorems 2 and 3; "
        "docs/explanation/label-level-bound.md"
    ),
}


def offers_at_parties(request: PlanRequest, split: Split) -> list[dict[str, Any]]:
    """Return the offers with noise at the parties, plain GNMax first.

    Raises:
        BudgetExhaustedError: not a single query.
        NarrowNoiseError: the given noise is too little to be shared.
        InvalidSettingError: the hospitals cannot vote in this way.
    """
    counts = simulated_votes(
        votes=request.votes, classes=request.classes, teacher_accuracy=request.teacher_accuracy
    )
    plain, queries = _best(list(_plain_offers(request, split, counts)), request, split)
    if not queries:
        raise nothing_affordable(plain, request, split)
    found = [(plain, queries)]
    phased, queries = _best(list(_phased_offers(request, split, counts)), request, split)
    if queries:
        found.append((phased, queries))
    return [_said(offer, request, split, queries) for offer, queries in found]


# Choosing ---------------------------------------------------------------------------------------


def _tried(value: float | None, request: PlanRequest, split: Split) -> tuple[float, ...]:
    if value is not None:
        return (value,)
    wide = {max(share * request.votes, split.least_sigma) for share in _SIGMAS}
    return tuple(sorted(wide))


def _plain_offers(request: PlanRequest, split: Split, counts: NDArray[np.int64]) -> Iterator[Offer]:
    for sigma in _tried(request.sigma2, request, split):
        noise = split.noise(sigma, option="--sigma2")
        # All hospitals that send add their noise: more than is promised.
        right = right_chances(counts, sigma=noise.sum_sigma(noise.parties))
        yield Offer("gnmax", None, None, sigma, Preview(1.0, float(right.mean())))


def _phased_offers(
    request: PlanRequest, split: Split, counts: NDArray[np.int64]
) -> Iterator[Offer]:
    for narrowest, sigma1 in _first_marked(_tried(request.sigma1, request, split)):
        first = split.noise(sigma1, option="--sigma1")
        threshold = request.vote_threshold
        if threshold is None:
            threshold = float(
                usual_vote_threshold(votes=request.votes, classes=request.classes, noise=first)
            )
        alike = row_of_top(request.votes, votes=request.votes, classes=request.classes)
        useful = pass_chances([alike], vote_threshold=threshold, noise=first)[0] >= _USEFUL
        for sigma2 in _tried(request.sigma2, request, split) if useful or narrowest else ():
            seen = preview_two_phases(
                counts,
                vote_threshold=threshold,
                first=first,
                second=split.noise(sigma2, option="--sigma2"),
            )
            yield Offer("confident", threshold, sigma1, sigma2, seen)


def _first_marked(values: tuple[float, ...]) -> Iterator[tuple[bool, float]]:
    """Mark the first value: the one to fall back to."""
    return ((place == 0, value) for place, value in enumerate(values))


def _best(offers: list[Offer], request: PlanRequest, split: Split) -> tuple[Offer, int]:
    """Return the offer with the most right labels, of those with little spoiled by noise."""
    most = max(offer.preview.accuracy for offer in offers)
    good = [offer for offer in offers if offer.preview.accuracy >= _KEPT * most]
    queries = {offer: affordable(offer, request, split) for offer in good}
    chosen = max(good, key=lambda offer: offer.expected_right(queries[offer]))
    return chosen, queries[chosen]


# Saying -----------------------------------------------------------------------------------------


def _said(offer: Offer, request: PlanRequest, split: Split, queries: int) -> dict[str, Any]:
    priced = PricedOffer.of(offer, request, split, queries)
    terms, seat = priced.terms, priced.decides
    weight, table = terms.unit_votes_at(seat), priced.as_table()
    views = {"coordinator": priced.costs[seat], "public": public_cost_at(terms, seat)}
    said = neighbors(terms.unit, weight=weight)
    return {
        **table,
        "exchanges": _exchanges(terms),
        "noise_shares": [_share(terms, phase, weight) for phase in range(terms.phases)],
        "prices": {view: _price(cost, view, terms, said) for view, cost in views.items()},
        "parties": _with_afforded(table["parties"], offer, request, split),
        "passing": _passing(offer, request, noise_of(terms)),
    }


def _exchanges(terms: RunTerms) -> int:
    """Exchanges of a batch: for each phase one of the additive sum, three of the masked."""
    return (3 if terms.dropouts else 1) * terms.phases


def _price(cost: FormalCost, view: str, terms: RunTerms, said: str) -> dict[str, Any]:
    return {
        "epsilon": cost.epsilon,
        "delta": terms.delta,
        "unit": terms.unit,
        "neighbors": said,
        "view": cost.holds_for,
        "method": cost.method,
        "source": _SOURCES[view],
    }


def _share(terms: RunTerms, phase: int, weight: int) -> dict[str, Any]:
    """Return each hospital's noise in a phase, and the extra price for the shape of the sum."""
    noise, order = noise_of(terms, phase=phase), terms.orders[0]
    [row] = distributed_row_rdp([order], sigma=noise.sigma, shares=noise.shares, weight=weight)
    gaussian = order * weight**2 / noise.sigma**2
    return {
        "sigma": noise.sigma,
        "share_sigma": noise.share_sigma,
        "sum_sigma": noise.sum_sigma(noise.parties),
        "least_sigma": math.ceil(1e4 * math.sqrt(noise.shares)) / 1e4,
        "correction": max(0.0, float(row) / gaussian - 1),
    }


def _with_afforded(
    rows: list[dict[str, Any]], offer: Offer, request: PlanRequest, split: Split
) -> list[dict[str, Any]]:
    """Add how many queries each hospital's own budget affords."""
    kinds = [(row["unit_votes"], row["budget"]) for row in rows]

    @lru_cache
    def affords(kind: tuple[int, float]) -> int:
        return affordable(offer, request, split, seat=kinds.index(kind))

    return [{**row, "affords": affords(kind)} for row, kind in zip(rows, kinds, strict=True)]


def _passing(
    offer: Offer, request: PlanRequest, noise: DistributedNoise
) -> list[dict[str, float | int]]:
    """Return the rate at which rows pass the check, beside that of noise at the coordinator."""
    if offer.vote_threshold is None:
        return []
    assert offer.sigma1 is not None
    votes, classes = request.votes, request.classes
    even = int(flat_row(votes, classes)[0])
    tops = sorted(
        {max(even, round((votes + (classes - 1) * lead * votes) / classes)) for lead in _LEADS}
    )
    rows = np.array([row_of_top(top, votes=votes, classes=classes) for top in tops])
    two_phases = pass_chances(rows, vote_threshold=offer.vote_threshold, noise=noise)
    one_check = scipy.special.ndtr((rows.max(axis=1) - offer.vote_threshold) / offer.sigma1)
    return [
        {
            "top_votes": int(row[0]),
            "lead": int(row[0] - row[1]),
            "passes": float(passes),
            "passes_at_coordinator": float(beside),
        }
        for row, passes, beside in zip(rows, two_phases, one_check, strict=True)
    ]
