"""RDP of every event, whatever the votes: a dispatch table from event to curve.

A new event joins the table with its curve and the source of its bound.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_mu_squared
from pate_fed.accounting.ranges import renyi_orders
from pate_fed.errors import UnsupportedEventError


@singledispatch
def event_rdp(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Bound the RDP of an event, whatever the votes.

    Args:
        event: What was released, or may be.
        orders: Renyi orders, each above 1; shape (orders,).

    Returns:
        RDP at each order, in nats; shape (orders,).

    Raises:
        UnsupportedEventError: the table has no curve for the event.
        InvalidParameterError: an order is not above 1.
    """
    del orders
    raise UnsupportedEventError("an event must have an RDP curve", type(event).__name__)


@event_rdp.register
def _(event: GaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return _gaussian_rdp(gdp_mu_squared(event), orders)


@event_rdp.register
def _(event: ConfidentGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return _gaussian_rdp(gdp_mu_squared(event), orders)


def _gaussian_rdp(mu_squared: float, orders: ArrayLike) -> NDArray[np.float64]:
    # Papernot et al. 2018, Proposition 8: order s^2 / (2 sigma^2) with L2 sensitivity s.
    return renyi_orders(orders) * (mu_squared / 2)
