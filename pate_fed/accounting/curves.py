"""RDP of every event, for all votes: dispatch tables from event to curve, one per view.

`event_rdp` holds against an observer of the noisy counts, hence against everybody;
`event_label_rdp` against an observer of labels and "no answer"s only, and is smaller. A new event
joins the tables with its curves and the source of its bounds. All tables take and return the same.
"""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.distributed_bounds import distributed_label_rdp
from pate_fed.accounting.distributed_law import distributed_row_rdp
from pate_fed.accounting.events import (
    CappedGaussianMaxEvent,
    ConfidentGaussianMaxEvent,
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_mu_squared
from pate_fed.accounting.label_bounds import label_rdp, threshold_bit_rdp
from pate_fed.accounting.pure_bounds import pure_dp_rdp
from pate_fed.accounting.ranges import renyi_orders
from pate_fed.errors import UnsupportedEventError


@singledispatch
def event_rdp(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Bound the RDP of an event, for all votes; of one without a curve an UnsupportedEventError."""
    del orders
    raise UnsupportedEventError("an event must have an RDP curve", type(event).__name__)


@event_rdp.register
def _(event: GaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return _gaussian_rdp(gdp_mu_squared(event), orders)


@event_rdp.register
def _(event: CappedGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return _gaussian_rdp(gdp_mu_squared(event), orders)


@event_rdp.register
def _(event: ConfidentGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return _gaussian_rdp(gdp_mu_squared(event), orders)


@event_rdp.register
def _(event: LaplaceMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # Two counts move by `weight` each: epsilon = 2 gamma weight.
    epsilon = 2 * event.gamma * event.weight
    return event.asks * pure_dp_rdp(orders, epsilon=epsilon)


@event_rdp.register
def _(event: ImmutableMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # docs/explanation/immutable-argmax.md: two neighbors whose labels differ almost surely.
    return np.full(len(renyi_orders(orders)), math.inf if event.asks else 0.0)


@event_rdp.register
def _(event: DistributedGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # docs/explanation/noise-at-the-parties.md, Theorem 1: every row is seen noisy.
    return event.asks * distributed_row_rdp(
        orders, sigma=event.sigma, shares=event.shares, weight=event.weight
    )


@event_rdp.register
def _(event: DistributedCountsEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # The same rows. No table below has a smaller curve: everybody reads the counts.
    return event.rows * distributed_row_rdp(
        orders, sigma=event.sigma, shares=event.shares, weight=event.weight
    )


@singledispatch
def event_approximate_rdp(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Bound the RDP of an event but for the chance `event_additive_delta`.

    An event that has a curve in `event_rdp` has that one. One with an infinite RDP there may have a
    finite one here: both laws are mixtures in which a part of this chance is arbitrary, and the
    rest has this RDP. Any epsilon that follows from the RDP at delta holds at delta plus that
    chance; both add up over events.

    Source:
        Bun, Steinke 2016, section 8. https://arxiv.org/abs/1605.02065.
        `pate_fed.mechanisms.stable_max` has the proof for tests of stability.
    """
    return event_rdp(event, orders)


@event_approximate_rdp.register
def _(event: StableLaplaceMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return event.asks * pure_dp_rdp(orders, epsilon=event.test_epsilon)


@event_approximate_rdp.register
def _(event: StableGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # The test looks at one number of sensitivity 1, in units of `weight` votes.
    return _gaussian_rdp(event.asks * (1 / event.sigma) * (1 / event.sigma), orders)


@singledispatch
def event_additive_delta(event: PrivacyEvent) -> float:
    """Return the chance that `event_approximate_rdp` leaves out, to be added to delta."""
    del event
    return 0.0


@event_additive_delta.register
def _(event: StableLaplaceMaxEvent) -> float:
    return event.asks * event.test_delta


@event_additive_delta.register
def _(event: StableGaussianMaxEvent) -> float:
    return event.asks * event.test_delta


@singledispatch
def event_label_rdp(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Bound the RDP of an event for an observer of its labels and "no answer"s only.

    An event without a bound of its own uses that of `event_rdp`, which holds against everybody.
    """
    return event_rdp(event, orders)


@event_label_rdp.register
def _(event: GaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # docs/explanation/label-level-bound.md, Theorems 1 to 3.
    return event.asks * label_rdp(orders, sigma=event.sigma, weight=event.weight)


@event_label_rdp.register
def _(event: ConfidentGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # The same, and section 5: the label is drawn after the bit, from fresh noise.
    checks = event.asks * threshold_bit_rdp(orders, sigma=event.sigma1, weight=event.weight)
    return checks + event.answers * label_rdp(orders, sigma=event.sigma2, weight=event.weight)


@event_label_rdp.register
def _(event: DistributedGaussianMaxEvent, orders: ArrayLike) -> NDArray[np.float64]:
    # docs/explanation/noise-at-the-parties.md, Theorem 2.
    return event.asks * distributed_label_rdp(
        orders, sigma=event.sigma, shares=event.shares, weight=event.weight
    )


def event_public_rdp(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Bound the RDP for an observer of labels and "no answer"s, but for `event_additive_delta`.

    The smallest valid curve: that of `event_label_rdp` where the event has one, otherwise that of
    `event_approximate_rdp`.
    """
    own = event_approximate_rdp.dispatch(type(event)) is not event_approximate_rdp.dispatch(object)
    return event_approximate_rdp(event, orders) if own else event_label_rdp(event, orders)


@singledispatch
def event_charged_rdp(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Bound the RDP for the receiver of a party's messages: a ledger charges it (rule R13).

    With noise at the coordinator, which is trusted, that is the public: `event_public_rdp`. With
    noise at the parties it is the coordinator, who opens every noisy row: `event_rdp`.
    """
    return event_public_rdp(event, orders)


@event_charged_rdp.register(DistributedGaussianMaxEvent)
def _(event: PrivacyEvent, orders: ArrayLike) -> NDArray[np.float64]:
    return event_rdp(event, orders)


def _gaussian_rdp(mu_squared: float, orders: ArrayLike) -> NDArray[np.float64]:
    # Papernot et al. 2018, Proposition 8: order s^2 / (2 sigma^2) with L2 sensitivity s.
    return renyi_orders(orders) * (mu_squared / 2)
