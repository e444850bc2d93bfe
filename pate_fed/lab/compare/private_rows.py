"""Private rows: the cost on the votes as they are, and a public release of it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
)
from pate_fed.accounting.conversion import PAPER_ORDERS, ConversionMethod, convert_at_orders
from pate_fed.accounting.pure_bounds import PureBound
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.compare.case import MethodCost, VoteCase, no_finite_epsilon
from pate_fed.lab.exact import exact_epsilon
from pate_fed.lab.laplace_bounds import laplace_rdp
from pate_fed.lab.pate_bounds import (
    checked_tops,
    gnmax_total_rdp,
    threshold_total_rdp,
)
from pate_fed.lab.sanitized import (
    SANITIZED_METHOD,
    InstanceCost,
    choose_plan,
    expected_epsilon,
    instance_cost,
)
from pate_fed.lab.smooth_conditions import SmoothSetting

PER_INSTANCE_METHODS: Final = ("per_instance_paper", "per_instance_cks", "per_instance_exact")

_PAPER_2018: Final = "papers' data-dependent RDP bound"
_EXPECTED: Final = f"{_PAPER_2018}, expected over the noise"
_ONE_MORE: Final = f'{_PAPER_2018}, with "no answer" as one more class'
_PAPER_2017: Final = "2017 paper's data-dependent moments, where q is at most 1 / (e^epsilon + 1)"
_SANITIZED_ORDERS: Final = (6.0, 8.0, 10.0, 12.0, 14.0, 17.0, 20.0, 25.0)
_PURE_BOUNDS: Final[tuple[PureBound, PureBound]] = ("paper", "sharp")
_NO_PLAN: Final = dict.fromkeys(("order", "beta", "sigma_ss", "parameters_from"))


def per_instance_rows(case: VoteCase) -> dict[str, MethodCost]:
    """Price these votes: a row for each of `PER_INSTANCE_METHODS`, never to be shown."""
    match case.event:
        case GaussianMaxEvent(sigma=sigma) | ConfidentGaussianMaxEvent(sigma2=sigma) as event:
            return _per_instance_gaussian(case, event, sigma)
        case LaplaceMaxEvent(gamma=gamma):
            return _per_instance_laplace(case, gamma)
        case ImmutableMaxEvent():
            return dict.fromkeys(PER_INSTANCE_METHODS, no_finite_epsilon({"order": None}))
    why = "no bound: a plurality that one change can turn has no finite cost of its own"
    return dict.fromkeys(PER_INSTANCE_METHODS, _private(None, why))


def sanitized_row(case: VoteCase) -> MethodCost:
    """Price a sanitized release, with parameters chosen on simulated votes.

    Nothing is released: a release draws noise once, and every further one would cost again.
    """
    match case.event:
        case GaussianMaxEvent(sigma=sigma) | ConfidentGaussianMaxEvent(sigma2=sigma):
            return _sanitized_gaussian(case, sigma)
        case ImmutableMaxEvent():
            return no_finite_epsilon(_NO_PLAN)
    return MethodCost(
        None,
        "no number: smooth sensitivity is known for bounds of Gaussian noise only",
        releasable=False,
        details=_NO_PLAN,
    )


def _per_instance_gaussian(
    case: VoteCase, event: GaussianMaxEvent | ConfidentGaussianMaxEvent, sigma: float
) -> dict[str, MethodCost]:
    check = case.check
    if check is None:
        method = _PAPER_2018 if case.vote_threshold is None else _ONE_MORE
        rdp = gnmax_total_rdp(
            case.votes,
            PAPER_ORDERS,
            sigma=sigma,
            weight=case.weight,
            vote_threshold=case.vote_threshold,
            offsets=case.offsets,
        )
    else:
        method = _EXPECTED
        rdp = gnmax_total_rdp(
            case.votes, PAPER_ORDERS, sigma=sigma, weight=case.weight, shares=case.chances
        ) + threshold_total_rdp(
            checked_tops(case.votes, case.offsets),
            PAPER_ORDERS,
            vote_threshold=check[0],
            sigma=check[1],
            weight=case.weight,
        )
    exact = exact_epsilon(
        case.votes,
        event,
        delta=case.delta,
        vote_threshold=case.vote_threshold,
        offsets=case.offsets,
    )
    return {
        "per_instance_paper": _converted(rdp, "mironov", method, case),
        "per_instance_cks": _converted(rdp, "cks", method, case),
        "per_instance_exact": _private(exact.epsilon, exact.method, exact.order),
    }


def _per_instance_laplace(case: VoteCase, gamma: float) -> dict[str, MethodCost]:
    # Histograms repeat, and their classes are interchangeable.
    rows, times = np.unique(np.sort(case.votes, axis=1), axis=0, return_counts=True)
    as_published, sharp = (
        times @ laplace_rdp(rows, PAPER_ORDERS, gamma=gamma, weight=case.weight, pure_bound=pure)
        for pure in _PURE_BOUNDS
    )
    why = "no number: the exact law of the winner is integrated for Gaussian noise only"
    return {
        "per_instance_paper": _converted(as_published, "mironov", _PAPER_2017, case),
        "per_instance_cks": _converted(sharp, "cks", f"{_PAPER_2017}, sharp pure bound", case),
        "per_instance_exact": _private(None, why),
    }


def _converted(
    rdp: NDArray[np.float64], conversion: ConversionMethod, method: str, case: VoteCase
) -> MethodCost:
    best = convert_at_orders(rdp, PAPER_ORDERS, delta=case.delta, method=conversion)
    name = "CKS" if conversion == "cks" else "Mironov"
    return _private(best.epsilon, f"{method}; {name}", best.order)


def _private(epsilon: float | None, method: str, order: float | None = None) -> MethodCost:
    return MethodCost(epsilon, method, releasable=False, details={"order": order})


def _sanitized_gaussian(case: VoteCase, sigma: float) -> MethodCost:
    if case.vote_threshold is not None and case.check is None:
        why = "no number: smooth sensitivity is not known for a threshold on the labels' own noise"
        return MethodCost(None, why, releasable=False, details=_NO_PLAN)
    simulated = _simulated_votes(case)
    rehearsals: list[InstanceCost] = []
    refused: InvalidParameterError | None = None
    for order in _SANITIZED_ORDERS:
        # The conditions of smooth sensitivity fail at some orders and hold at others.
        try:
            rehearsals.append(_cost_at(order, simulated, case, sigma))
        except InvalidParameterError as error:
            refused = refused or error
    if not rehearsals:
        reason = "" if refused is None else refused.must
        return MethodCost(None, f"not known for these parameters: {reason}", False, _NO_PLAN)
    plan = choose_plan(rehearsals, delta=case.delta, chosen_from="simulated")
    cost = _cost_at(plan.order, case.votes, case, sigma)
    return MethodCost(
        expected_epsilon(cost, plan, delta=case.delta),
        f"{SANITIZED_METHOD}; the average result of a release",
        releasable=False,
        details={
            "order": plan.order,
            "beta": plan.beta,
            "sigma_ss": plan.sigma_ss,
            "parameters_from": plan.chosen_from,
        },
    )


def _cost_at(order: float, votes: NDArray[np.int64], case: VoteCase, sigma: float) -> InstanceCost:
    setting = SmoothSetting(
        teachers=case.teachers,
        classes=case.classes,
        sigma=sigma,
        order=order,
        weight=case.weight,
    )
    return instance_cost(
        votes,
        setting,
        answered=case.chances_of(votes),
        check=case.check,
        offsets=case.offsets,
    )


def _simulated_votes(case: VoteCase) -> NDArray[np.int64]:
    """Make votes of the same shape from public numbers alone: most clear, some torn."""
    queries, classes = case.votes.shape
    rng = np.random.default_rng(0)
    clarity = rng.beta(4.0, 1.5, size=(queries,))
    rest = rng.dirichlet(np.ones(classes - 1), size=queries)
    chances = np.column_stack([clarity, (1 - clarity)[:, None] * rest])
    drawn = [rng.multinomial(case.teachers, row) for row in chances]
    votes: NDArray[np.int64] = np.array(drawn, dtype=np.int64)
    if case.offsets is not None:
        # Teachers mostly agree with the student: the clear class is the one that it predicts.
        everyone, predicted = np.arange(queries), case.offsets.argmax(axis=1)
        clear = votes[:, 0].copy()
        votes[:, 0] = votes[everyone, predicted]
        votes[everyone, predicted] = clear
    return votes
