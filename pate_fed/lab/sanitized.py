"""A private release of the per-instance cost: an upper estimate of its result.

The cost f(D) of a run on its votes is private. With S = SS_beta(D), its smooth sensitivity, and
one fresh Gaussian draw Z,

    f(D) + margin sigma_ss S + sigma_ss S Z

may be released at the price of `gnss_rdp`, which is added to it. At a margin of 2 the number is
below f(D) in 2.3 % of all releases: an estimate from above, one-sided, never a guarantee. The noise
is proportional to S, which is private too, so the margin moves with it. S and S' of neighbors
differ by a factor of at most e^beta, the shifted f by at most L = 1 + margin sigma_ss (e^beta - 1)
times the smaller S. That is in the price.

Order, beta, sigma_ss and margin must be fixed from public or simulated votes: chosen on the
votes of the run they would tell something about them that nothing accounts for.

Source:
    Papernot et al. 2018, section 5.2 and Theorem 23. https://arxiv.org/abs/1802.08908
    Its price of the Gaussian release is too small; the one used here is the exact supremum of
    the Renyi divergence of two Gaussians whose means and scales smooth sensitivity allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.accounting.ranges import positive, renyi_orders
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.pate_bounds import checked_tops, gnmax_log_q, threshold_rdp
from pate_fed.lab.smooth_conditions import (
    SmoothSetting,
    capped_rdp,
    smooth_conditions,
)
from pate_fed.lab.smooth_sensitivity import (
    shares_of,
    smooth_sensitivity,
    threshold_local_sensitivities,
    total_gnmax_local_sensitivities,
    two_class_label_costs,
    two_class_local_sensitivities,
    votes_of,
)

SANITIZED_METHOD = "smooth sensitivity, Gaussian release; an upper estimate, not a guarantee"

ParameterSource = Literal["public", "simulated"]


@dataclass(frozen=True, slots=True)
class SanitizingPlan:
    """The public parameters of a release, fixed before anyone looks at the votes.

    Attributes:
        beta: Smoothness, above 0, with order (1 - e^(-2 beta)) < 1.
        margin: By how many standard deviations the estimate is raised, at least 0.
    """

    order: float
    beta: float
    sigma_ss: float
    chosen_from: ParameterSource
    margin: float = 2.0

    def __post_init__(self) -> None:
        if self.chosen_from not in ("public", "simulated"):
            raise InvalidParameterError(
                'parameters must be chosen from "public" or "simulated" votes', self.chosen_from
            )
        gnss_rdp(self.order, beta=self.beta, sigma_ss=self.sigma_ss, margin=self.margin)

    @property
    def rdp(self) -> float:
        """RDP of the release itself, at `order`, in nats."""
        return gnss_rdp(self.order, beta=self.beta, sigma_ss=self.sigma_ss, margin=self.margin)


@dataclass(frozen=True, slots=True, repr=False)
class InstanceCost:
    """The cost of a run on its votes at one order, and how far that can move. Private."""

    order: float
    rdp: float
    local_sensitivities: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"InstanceCost(distances={len(self.local_sensitivities)})"


def gnss_rdp(order: float, *, beta: float, sigma_ss: float, margin: float = 0.0) -> float:
    """Return the RDP of releasing f(D) with noise sigma_ss SS_beta(D), raised by a margin.

    Returns:
        The exact supremum of the divergence over all means and scales that smooth sensitivity
        allows (an upper bound on it where the margin is not 0), in nats.
    """
    order = float(renyi_orders([order])[0])
    positive("beta", beta)
    positive("sigma_ss", sigma_ss)
    if not 0 <= margin < math.inf:
        raise InvalidParameterError("margin must be finite and at least 0", margin)
    # The worst case: the neighbor's noise is smaller by e^-beta.
    mixed = -math.expm1(-2 * beta) * order
    if mixed >= 1:
        raise InvalidParameterError("order (1 - e^(-2 beta)) must be below 1", mixed)
    lifted = 1 + margin * sigma_ss * math.expm1(beta)
    spread = 1 - (order - 1) * math.expm1(2 * beta)
    mean_part = order * (lifted / sigma_ss) ** 2 / (2 * spread)
    scale_part = (order * beta + math.log1p(-mixed) / 2) / (order - 1)
    return mean_part - scale_part


def instance_cost(
    counts: ArrayLike,
    setting: SmoothSetting,
    *,
    answered: ArrayLike,
    check: tuple[float, float] | None = None,
    offsets: ArrayLike | None = None,
) -> InstanceCost:
    """Compute the cost of GNMax, Confident- or Interactive-GNMax on its votes, at one order.

    For two classes the cost of a label is its largest Renyi divergence and every vote is looked at.
    For more it is the papers' bound, and the conditions of `smooth_conditions` must hold.

    Args:
        setting: Public parameters of the labels: sigma is that of the counts.
        answered: 1 for each query with a released label, 0 for each refused one. The chance of an
            answer in its place gives the papers' expected cost, for analysis only. Shape
            (queries,).
        check: Noisy top count from which a query is answered, and the standard deviation of the
            noise in that check, in votes; None where nothing was checked.
        offsets: Public whole numbers to subtract from the counts for the check, of
            Interactive-GNMax; shape (queries, classes). None for none.
    """
    votes = votes_of(counts, teachers=setting.teachers, classes=setting.classes)
    shares = shares_of(answered, len(votes))
    if setting.classes == 2:
        return _two_class_cost(votes, shares, setting, check, offsets)
    labels = np.flatnonzero(shares)
    log_q = gnmax_log_q(votes[labels], sigma=setting.sigma)
    log_q0 = smooth_conditions(setting).log_q0
    rdp = float(shares[labels] @ capped_rdp(log_q, setting, log_q0=log_q0))
    listed = total_gnmax_local_sensitivities(votes[labels], setting, shares=shares[labels])
    if check is not None:
        # Repeated top counts share one list.
        tops, times = np.unique(checked_tops(votes, offsets), return_counts=True)
        rdp += float(times @ _check_costs(tops, setting, check))
        listed = listed + times @ threshold_local_sensitivities(
            tops,
            vote_threshold=check[0],
            sigma=check[1],
            order=setting.order,
            teachers=setting.teachers,
            weight=setting.weight,
            lowest=_lowest_top(setting, offsets),
        )
    return InstanceCost(setting.order, rdp, listed)


def expected_epsilon(cost: InstanceCost, plan: SanitizingPlan, *, delta: float) -> float:
    """Return the average result of a release. Private, unless the votes are simulated."""
    total = cost.rdp + plan.margin * _noise_sigma(cost, plan) + plan.rdp
    return convert_at_orders([total], [plan.order], delta=delta, method="cks").epsilon


def choose_plan(
    costs: Sequence[InstanceCost],
    *,
    delta: float,
    chosen_from: ParameterSource,
) -> SanitizingPlan:
    """Choose order, beta and sigma_ss for votes that are public or simulated.

    `chosen_from` is the kind of the votes behind `costs`: the run's own are no choice.
    """
    if not costs:
        raise InvalidParameterError("there must be a cost at one order at least")
    candidates = (
        (expected_epsilon(cost, plan, delta=delta), index, plan)
        for index, cost in enumerate(costs)
        for plan in _plans(cost.order, chosen_from)
    )
    return min(candidates, key=lambda candidate: candidate[:2])[2]


def _noise_sigma(cost: InstanceCost, plan: SanitizingPlan) -> float:
    if cost.order != plan.order:
        raise InvalidParameterError(
            f"the cost must be at the plan's order {plan.order:g}", cost.order
        )
    return plan.sigma_ss * smooth_sensitivity(cost.local_sensitivities, beta=plan.beta)


def _plans(order: float, chosen_from: ParameterSource) -> list[SanitizingPlan]:
    return [
        SanitizingPlan(order, product / order, float(sigma_ss), chosen_from)
        for product in (0.04, 0.07, 0.1, 0.14, 0.18, 0.22, 0.26, 0.3, 0.34, 0.38)
        for sigma_ss in np.geomspace(1, 64, 25)
        if -math.expm1(-2 * product / order) * order < 1
    ]


def _check_costs(
    tops: NDArray[np.int64], setting: SmoothSetting, check: tuple[float, float]
) -> NDArray[np.float64]:
    costs = threshold_rdp(
        tops, [setting.order], vote_threshold=check[0], sigma=check[1], weight=setting.weight
    )
    return costs[:, 0]


def _lowest_top(setting: SmoothSetting, offsets: ArrayLike | None) -> int:
    """Return a number that no checked top count is below, from public numbers alone."""
    if offsets is None:
        return 1
    # The largest of the whole n_j - c_j is at least their mean, rounded up.
    most = int(np.asarray(offsets).sum(axis=1).max(initial=0))
    return min(-((most - setting.teachers) // setting.classes), setting.teachers - 1)


def _two_class_cost(
    votes: NDArray[np.int64],
    shares: NDArray[np.float64],
    setting: SmoothSetting,
    check: tuple[float, float] | None,
    offsets: ArrayLike | None,
) -> InstanceCost:
    """Put check and label into one table over the votes for class 0, per kind of query."""
    label_costs = two_class_label_costs(
        sigma=setting.sigma,
        order=setting.order,
        teachers=setting.teachers,
        weight=setting.weight,
    )
    class0 = np.arange(setting.teachers + 1)
    every_vote = np.column_stack([class0, setting.teachers - class0])
    checked_tops(votes, offsets)  # refuses offsets of another shape
    off = np.zeros_like(votes) if offsets is None else np.asarray(offsets)
    kinds, of_kind = np.unique(np.column_stack([shares, off]), axis=0, return_inverse=True)
    rdp, listed = 0.0, np.zeros(1)
    for index, (share, off0, off1) in enumerate(kinds):
        table = share * label_costs
        if check is not None:
            tops = (every_vote - [int(off0), int(off1)]).max(axis=1)
            table = table + _check_costs(tops, setting, check)
        rows, times = np.unique(votes[of_kind.ravel() == index], axis=0, return_counts=True)
        rdp += float(times @ table[rows[:, 0]])
        listed = listed + times @ two_class_local_sensitivities(
            rows, cost_of_class0=table, weight=setting.weight
        )
    return InstanceCost(setting.order, rdp, listed)
