"""The cost of a run on its actual votes: the papers' number, itself private.

It depends on the votes, so showing it tells something about them: for the operator's eyes only.
It is never a guarantee and never steers a run.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.conversion import DENSE_ORDERS, convert_at_orders
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.accounting.curves import event_approximate_rdp, event_rdp
from pate_fed.accounting.ranges import probability, vote_counts
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.laplace_bounds import laplace_rdp
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.noisy_counts import NoisyCounts
from pate_fed.lab.pate_bounds import gnmax_total_rdp, threshold_total_rdp
from pate_fed.mechanisms import (
    GaussianMax,
    InteractiveThresholdMax,
    LaplaceMax,
    Mechanism,
    StableMax,
    ThresholdMax,
)
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.terms import RunTerms


def instance_rdp(
    rule: Mechanism,
    counts: NDArray[np.int64],
    outcomes: NDArray[np.int8],
    orders: NDArray[np.float64],
    *,
    weight: float,
) -> NDArray[np.float64]:
    """Bound the RDP of a release given its votes, as the papers do. The result is private.

    A mechanism without such a bound has the one that holds for all votes.
    """
    answered = counts[outcomes == Outcome.ANSWERED]
    match rule:
        case NoisyCounts():
            # Whoever sees counts gains from agreement, too: the bound for all votes.
            return np.asarray(orders * len(counts) * (weight / rule.sigma) ** 2)
        case ThresholdMax():
            # Each ask costs the same: "no answer" is one more option.
            offsets = None
            if isinstance(rule, InteractiveThresholdMax) and rule.predictions is not None:
                offsets = rule.predictions.votes[: len(counts)]
            return gnmax_total_rdp(
                counts,
                orders,
                sigma=rule.sigma,
                weight=weight,
                vote_threshold=rule.vote_threshold,
                offsets=offsets,
            )
        case GaussianMax():
            return gnmax_total_rdp(answered, orders, sigma=rule.sigma, weight=weight)
        case LaplaceMax():
            bounds = laplace_rdp(answered, orders, gamma=rule.gamma, weight=weight)
            return np.asarray(bounds.sum(axis=0))
        case StableMax():
            highest = np.sort(counts, axis=1)[:, -2:]
            if not (highest[:, 1] - highest[:, 0] > 2 * rule.unit_votes).all():
                return np.full(len(orders), math.inf)  # a neighbor may have another plurality
            return event_approximate_rdp(rule.event(len(counts), 0, weight=weight), orders)
        case ConfidentGaussianMax(rule=own):
            checks = threshold_total_rdp(
                rule.tops(counts),
                orders,
                vote_threshold=own.need("vote_threshold"),
                sigma=own.need("sigma1"),
                weight=weight,
            )
            sigma = own.need("sigma2")
            return checks + gnmax_total_rdp(answered, orders, sigma=sigma, weight=weight)
        case _:
            return event_rdp(rule.event(len(counts), len(answered), weight=weight), orders)


class PerInstanceMeter:
    """Adds a run's cost up batch by batch, so that no batch's votes need to be kept.

    Private, as the cost itself.
    """

    def __init__(self, mechanism: Mechanism, *, delta: float, weight: float = 1.0) -> None:
        self._mechanism = mechanism
        self._delta = probability("delta", delta)
        self._weight = weight
        self._rdp = np.zeros(len(DENSE_ORDERS))

    @classmethod
    def of(cls, mechanism: Mechanism, terms: RunTerms) -> PerInstanceMeter:
        """Return the meter of a run, with its delta and its unit's votes."""
        return cls(mechanism, delta=terms.delta, weight=float(terms.unit_votes))

    def add(
        self, counts: ArrayLike, release: NoisyRelease, *, rule: Mechanism | None = None
    ) -> None:
        """Add a batch.

        The rule of a batch may differ from the run's by public predictions.
        """
        votes = vote_counts(counts)
        if len(votes) != len(release):
            raise InvalidParameterError(f"counts must have {len(release)} rows", len(votes))
        asked = release.outcomes != Outcome.NOT_ASKED
        self._rdp = self._rdp + instance_rdp(
            rule or self._mechanism,
            votes[asked],
            release.outcomes[asked],
            DENSE_ORDERS,
            weight=self._weight,
        )

    @property
    def cost(self) -> PerInstanceCost:
        """Cost of all batches so far, on the dense grid of orders."""
        if not self._rdp.any():  # equal laws cost nothing, at every delta
            return PerInstanceCost(0.0, float(DENSE_ORDERS[-1]))
        best = convert_at_orders(self._rdp, DENSE_ORDERS, delta=self._delta, method="mironov")
        return PerInstanceCost(best.epsilon, best.order, is_at_edge=best.is_at_edge)

    def __repr__(self) -> str:
        return "PerInstanceMeter()"
