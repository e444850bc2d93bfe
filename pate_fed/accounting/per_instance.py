"""The cost of a run on its actual votes: the papers' number, itself private.

It depends on the votes, so showing it tells something about them: for the operator's eyes only.
It is never a guarantee and never steers a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.conversion import DENSE_ORDERS, convert_at_orders
from pate_fed.accounting.ranges import probability, vote_counts
from pate_fed.errors import InvalidParameterError
from pate_fed.releases import NoisyRelease, Outcome

PER_INSTANCE_METHOD = "data-dependent RDP bound of the PATE papers, converted by Mironov"


class InstanceBound(Protocol):
    """A rule whose release has a data-dependent RDP bound, such as a `Mechanism`."""

    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Bound the RDP of all that was released, in nats; shape (orders,)."""
        ...


@dataclass(frozen=True, slots=True)
class PerInstanceCost:
    """Cost of a release given its votes. Private: it may not be published.

    Attributes:
        epsilon: At the delta that was asked for.
        order: Renyi order at which it was reached.
        method: How it was computed, in words.
        is_at_edge: Whether the order was the grid's first or last: a warning.
    """

    releasable: ClassVar[bool] = False

    epsilon: float
    order: float
    method: str = PER_INSTANCE_METHOD
    is_at_edge: bool = False


class PerInstanceMeter:
    """Adds a run's cost up batch by batch, so that no batch's votes need to be kept.

    Private, as the cost itself.

    Args:
        mechanism: The rule of the run.
        delta: In (0, 1).
        weight: Votes that one neighboring change can move.
    """

    def __init__(self, mechanism: InstanceBound, *, delta: float, weight: float = 1.0) -> None:
        self._mechanism = mechanism
        self._delta = probability("delta", delta)
        self._weight = weight
        self._rdp = np.zeros(len(DENSE_ORDERS))

    def add(
        self, counts: ArrayLike, release: NoisyRelease, *, rule: InstanceBound | None = None
    ) -> None:
        """Add a batch.

        Args:
            counts: Its votes; shape (queries, classes).
            release: The release of that batch.
            rule: The rule of this batch, where it differs from the run's by public predictions.

        Raises:
            InvalidVotesError: no teachers can have cast `counts`.
            InvalidParameterError: shapes differ.
        """
        votes = vote_counts(counts)
        if len(votes) != len(release):
            raise InvalidParameterError(f"counts must have {len(release)} rows", len(votes))
        asked = release.outcomes != Outcome.NOT_ASKED
        self._rdp = self._rdp + (rule or self._mechanism).instance_rdp(
            votes[asked], release.outcomes[asked], DENSE_ORDERS, weight=self._weight
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
