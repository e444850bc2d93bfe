"""Accountants: add up events, give the epsilon of the whole, whatever the votes were.

    accountant = GaussianAccountant()
    accountant.compose(GaussianMaxEvent(answers=100, sigma=20.0))
    accountant.get_epsilon(1e-5)

The sum may be read as a guarantee only where the events were fixed before the run, or where a
budget set in advance stopped it (`ledger`): what a run happened to spend is not one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.conversion import ConversionMethod, ConvertedEpsilon, convert_curve
from pate_fed.accounting.curves import (
    event_additive_delta,
    event_approximate_rdp,
    has_curve,
)
from pate_fed.accounting.events import PrivacyEvent
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.ranges import probability
from pate_fed.errors import InvalidParameterError, UnsupportedEventError


class Accountant(ABC):
    """Computes the cost of events together."""

    def __init__(self) -> None:
        self._events: tuple[PrivacyEvent, ...] = ()

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """What was composed, in order."""
        return self._events

    @abstractmethod
    def supports(self, event: PrivacyEvent) -> bool:
        """Tell whether this accountant has a bound for `event`."""

    @abstractmethod
    def get_epsilon(self, delta: float) -> float:
        """Return an epsilon at `delta` that holds for all events together.

        Raises:
            InvalidParameterError: `delta` is not in (0, 1).
        """

    def compose(self, *events: PrivacyEvent) -> None:
        """Add events, all or none.

        Raises:
            UnsupportedEventError: one of them has no bound here; nothing was added.
        """
        for event in events:
            if not self.supports(event):
                raise UnsupportedEventError(
                    f"{type(self).__name__} must have a bound for every event",
                    type(event).__name__,
                )
        self._events += events


class GaussianAccountant(Accountant):
    """Exact for Gaussian noise: the mu^2 of Gaussian differential privacy add up."""

    def supports(self, event: PrivacyEvent) -> bool:
        """Tell whether `event` is made of Gaussian noise."""
        return gdp_mu_squared.dispatch(type(event)) is not gdp_mu_squared.dispatch(object)

    @property
    def mu(self) -> float:
        """The whole is mu-GDP."""
        return math.sqrt(math.fsum(gdp_mu_squared(event) for event in self.events))

    def get_epsilon(self, delta: float) -> float:
        """Return the exact epsilon of mu-GDP at `delta`, rounded up."""
        return gdp_epsilon(self.mu, delta)


class RenyiAccountant(Accountant):
    """Adds RDP curves and converts at the best order.

    Args:
        method: Conversion to use; "cks" is never worse than "mironov".
    """

    def __init__(self, *, method: ConversionMethod = "cks") -> None:
        super().__init__()
        self._method = method

    def supports(self, event: PrivacyEvent) -> bool:
        """Tell whether `event` has an RDP curve."""
        return has_curve(event)

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
        """Return epsilon at `delta` with its order, and whether that was the grid's edge.

        Raises:
            InvalidParameterError: `delta` is not in (0, 1), or not above `additive_delta`.
        """
        left = probability("delta", delta) - self.additive_delta
        if left <= 0:
            raise InvalidParameterError(
                f"delta must be above the tests' own {self.additive_delta:g}", delta
            )
        return convert_curve(self.get_rdp, delta=left, method=self._method)

    def get_epsilon(self, delta: float) -> float:
        """Return the best epsilon that the curves give at `delta`."""
        return self.get_converted(delta).epsilon
