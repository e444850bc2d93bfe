"""The accountant: adds up events and gives the epsilon of the whole, for all votes.

    accountant = RenyiAccountant()
    accountant.compose(GaussianMaxEvent(asks=100, sigma=20.0))
    accountant.get_converted(1e-5).epsilon

The sum is a guarantee only where the events were fixed before the run, or where a budget set in
advance stopped it (`ledger`). The actual spending of a run is not one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.conversion import ConvertedEpsilon, convert_curve
from pate_fed.accounting.curves import event_additive_delta, event_approximate_rdp
from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.ranges import probability
from pate_fed.errors import InvalidParameterError


class RenyiAccountant:
    """Adds RDP curves and converts at the best order."""

    def __init__(self) -> None:
        self._events: tuple[PrivacyEvent, ...] = ()

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """The composed events, in order."""
        return self._events

    def compose(self, *events: PrivacyEvent) -> None:
        """Add events, all or none: one without a bound is an UnsupportedEventError."""
        for event in events:
            event_approximate_rdp(event, [2.0])  # refuses one without a bound
        self._events += events

    @property
    def additive_delta(self) -> float:
        """Extra chance that adds to delta: that of the tests of stability, 0 without any."""
        return math.fsum(event_additive_delta(event) for event in self.events)

    def get_rdp(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the RDP of all events together, in nats; shape (orders,).

        It holds but for the chance `additive_delta`.
        """
        total = np.zeros(len(orders))
        for event in self.events:
            total += event_approximate_rdp(event, orders)
        return total

    def get_converted(self, delta: float) -> ConvertedEpsilon:
        """Return epsilon at `delta`, which must be above `additive_delta`, and its order."""
        left = probability("delta", delta) - self.additive_delta
        if left <= 0:
            raise InvalidParameterError(
                f"delta must be above the tests' own {self.additive_delta:g}", delta
            )
        return convert_curve(self.get_rdp, delta=left, method="cks")
