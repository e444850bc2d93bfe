"""What votes would cost, by every method side by side: `pate-fed account`.

Formal numbers follow from public parameters and caps. Per-instance numbers depend on the votes:
they are private, and so are caps that were taken from the votes.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from coordinator.errors import InvalidSettingError
from pate_fed.accounting import exact_epsilon, neighbors
from pate_fed.accounting.conversion import PAPER_ORDERS, convert_at_orders
from pate_fed.accounting.formal import FormalCosts, RunCaps, formal_costs
from pate_fed.accounting.pate_bounds import (
    gnmax_total_rdp,
    threshold_margin,
    threshold_total_rdp,
)
from pate_fed.accounting.sanitized import (
    SANITIZED_METHOD,
    choose_plan,
    expected_epsilon,
    instance_cost,
)
from pate_fed.accounting.smooth_conditions import SmoothSetting
from pate_fed.accounting.statement import FormalCost
from pate_fed.data.vote_file import load_vote_counts
from pate_fed.errors import InvalidParameterError

_PUBLIC = 'public: labels and "no answer"s'
_PAPER = "papers' data-dependent RDP bound, expected over the noise"
_SANITIZED_ORDERS: Final = (6.0, 8.0, 10.0, 12.0, 14.0, 17.0, 20.0, 25.0)


@dataclass(frozen=True, slots=True)
class AccountRequest:
    """Which votes, asked how.

    Attributes:
        votes: A `.npy` file of counts; shape (queries, classes).
        rows: First row and the one after the last; None for all.
        mechanism: "confident" or "gnmax".
        vote_threshold: Noisy top count from which a query is answered, in votes.
        sigma1: Noise of that check, in votes.
        sigma2: Noise of each count, in votes.
        delta: In (0, 1).
        max_answers: Cap on answers, or its expected number; None for all queries.
        max_refusals: Cap on refusals, likewise.
        unit_votes: Votes that one privacy unit can move.
    """

    votes: Path
    rows: tuple[int, int] | None
    mechanism: str
    vote_threshold: float | None
    sigma1: float | None
    sigma2: float
    delta: float
    max_answers: float | None = None
    max_refusals: float | None = None
    unit_votes: int = 1


def account(request: AccountRequest) -> dict[str, Any]:
    """Price votes by every method.

    Args:
        request: Which votes, asked how.

    Returns:
        "asked", "expected_answered", "teachers", "classes", and "epsilon": for each method its
        number with unit, neighbors, view, method and whether it may be shown.

    Raises:
        PateFedError: the file, the votes or a parameter is no good; nothing was computed.
    """
    if (request.mechanism == "confident") != (request.sigma1 is not None):
        raise InvalidSettingError(
            "--vote-threshold and --sigma1 belong to --mechanism confident", request.mechanism
        )
    votes = load_vote_counts(request.votes, rows=request.rows)
    chances = _answer_chances(votes, request)
    caps = _caps(votes, request)
    costs = formal_costs(caps, votes_are_valid=True)
    about = _about(request)
    return {
        "schema_version": 1,
        "asked": len(votes),
        "expected_answered": float(chances.sum()),
        "teachers": int(votes[0].sum()),
        "classes": votes.shape[1],
        "delta": request.delta,
        "epsilon": {
            **_formal(costs, caps, about),
            **_per_instance(votes, chances, request, about),
            "sanitized": _sanitized(votes, chances, request, about),
        },
    }


def render_account(found: dict[str, Any]) -> str:
    """Write the result of `account` for people: one block per method, at most 80 columns."""
    lines = [
        f"{found['asked']:,} queries of {found['classes']} classes, "
        f"{found['teachers']:,} teachers; delta {found['delta']:g}",
        f"{found['expected_answered']:,.1f} answers are expected",
        "",
    ]
    for name, row in found["epsilon"].items():
        epsilon = "no number" if row["epsilon"] is None else f"{_up(row['epsilon'])}"
        shown = "may be shown" if row["releasable"] else "PRIVATE, operator only"
        order = f" at order {row['order']:.4g}" if "order" in row else ""
        lines.append(f"{name:20} epsilon {epsilon}{order}; {shown}")
        lines += textwrap.wrap(
            f"unit {row['unit']}; view {row['view']}; method: {row['method']}",
            78,
            initial_indent="  ",
            subsequent_indent="  ",
        )
    lines.append("")
    lines += textwrap.wrap(f"neighbors: {found['epsilon']['formal_gdp']['neighbors']}", 80)
    return "\n".join(lines)


def _up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def _answer_chances(votes: NDArray[np.int64], request: AccountRequest) -> NDArray[np.float64]:
    if request.sigma1 is None or request.vote_threshold is None:
        return np.ones(len(votes))
    margin = threshold_margin(
        votes.max(axis=1), vote_threshold=request.vote_threshold, sigma1=request.sigma1
    )
    return np.asarray(ndtr(margin))


def _caps(votes: NDArray[np.int64], request: AccountRequest) -> RunCaps:
    queries = float(len(votes))
    answers = min(request.max_answers or queries, queries)
    refusals = min(request.max_refusals or queries, queries)
    # A run ends with its last allowed refusal or answer, so neither the caps' sum nor more than
    # all queries can be asked.
    asks = min(queries, answers + refusals) if request.sigma1 is not None else answers
    real = any(value != np.floor(value) for value in (answers, refusals))
    return RunCaps(
        teachers=int(votes[0].sum()),
        classes=votes.shape[1],
        vote_threshold=request.vote_threshold,
        sigma1=request.sigma1,
        sigma2=request.sigma2,
        asks=asks,
        answers=answers,
        refusals=refusals,
        weight=request.unit_votes,
        delta=request.delta,
        real=real,
    )


def _about(request: AccountRequest) -> dict[str, str]:
    unit = "record" if request.unit_votes == 1 else "party"
    return {
        "unit": unit,
        "neighbors": neighbors(unit, weight=request.unit_votes),  # type: ignore[arg-type]
        "view": _PUBLIC,
    }


def _formal(costs: FormalCosts, caps: RunCaps, about: dict[str, str]) -> dict[str, Any]:
    # Caps that are not whole were taken from votes: what follows from them may not be shown.
    releasable = not caps.real
    joint = costs.joint or FormalCost(float("inf"), "not known for these parameters")
    known = costs.joint is not None

    def row(cost: FormalCost, **more: object) -> dict[str, Any]:
        return {
            "epsilon": cost.epsilon,
            **about,
            "method": cost.method,
            "releasable": releasable,
            **more,
        }

    return {
        "formal_gdp": row(costs.gdp),
        "formal_label": row(costs.label),
        "formal_joint": {
            **row(joint, max_refusals=caps.refusals, max_answers=caps.answers),
            "epsilon": joint.epsilon if known else None,
        },
    }


def _per_instance(
    votes: NDArray[np.int64],
    chances: NDArray[np.float64],
    request: AccountRequest,
    about: dict[str, str],
) -> dict[str, Any]:
    rdp = gnmax_total_rdp(
        votes, PAPER_ORDERS, sigma=request.sigma2, weight=request.unit_votes, shares=chances
    )
    if request.sigma1 is not None and request.vote_threshold is not None:
        rdp = rdp + threshold_total_rdp(
            votes.max(axis=1),
            PAPER_ORDERS,
            vote_threshold=request.vote_threshold,
            sigma1=request.sigma1,
            weight=request.unit_votes,
        )
    mironov = convert_at_orders(rdp, PAPER_ORDERS, delta=request.delta, method="mironov")
    cks = convert_at_orders(rdp, PAPER_ORDERS, delta=request.delta, method="cks")
    exact = exact_epsilon(
        votes,
        sigma2=request.sigma2,
        delta=request.delta,
        vote_threshold=request.vote_threshold,
        sigma1=request.sigma1,
        weight=request.unit_votes,
    )

    def row(epsilon: float, order: float, method: str) -> dict[str, Any]:
        return {
            "epsilon": epsilon,
            "order": order,
            **about,
            "method": method,
            "releasable": False,
        }

    return {
        "per_instance_paper": row(mironov.epsilon, mironov.order, f"{_PAPER}; Mironov"),
        "per_instance_cks": row(cks.epsilon, cks.order, f"{_PAPER}; CKS"),
        "per_instance_exact": row(exact.epsilon, exact.order, exact.method),
    }


def _sanitized(
    votes: NDArray[np.int64],
    chances: NDArray[np.float64],
    request: AccountRequest,
    about: dict[str, str],
) -> dict[str, Any]:
    """Say what a sanitized release would come to, with parameters chosen on simulated votes.

    Nothing is released: a release draws noise once, and every further one would cost again.
    """
    try:
        teachers, classes = int(votes[0].sum()), votes.shape[1]
        simulated = _simulated_votes(len(votes), teachers=teachers, classes=classes)
        rehearsal = _answer_chances(simulated, request)
        costs = [_cost_at(order, simulated, rehearsal, request) for order in _SANITIZED_ORDERS]
        plan = choose_plan(costs, delta=request.delta, chosen_from="simulated")
        cost = _cost_at(plan.order, votes, chances, request)
    except InvalidParameterError as error:
        reason = f"not known for these parameters: {error.must}"
        return {"epsilon": None, **about, "method": reason, "releasable": False}
    return {
        "epsilon": expected_epsilon(cost, plan, delta=request.delta),
        **about,
        "method": f"{SANITIZED_METHOD}; what a release would come to on average",
        "releasable": False,
        "order": plan.order,
        "beta": plan.beta,
        "sigma_ss": plan.sigma_ss,
        "parameters_from": plan.chosen_from,
    }


def _cost_at(
    order: float,
    votes: NDArray[np.int64],
    chances: NDArray[np.float64],
    request: AccountRequest,
) -> Any:
    setting = SmoothSetting(
        teachers=int(votes[0].sum()),
        classes=votes.shape[1],
        sigma=request.sigma2,
        order=order,
        weight=request.unit_votes,
    )
    return instance_cost(
        votes,
        setting,
        answered=chances,
        vote_threshold=request.vote_threshold,
        sigma1=request.sigma1,
    )


def _simulated_votes(queries: int, *, teachers: int, classes: int) -> NDArray[np.int64]:
    """Make votes of the same shape from public numbers alone: most clear, some torn."""
    rng = np.random.default_rng(0)
    clarity = rng.beta(4.0, 1.5, size=queries)
    rest = rng.dirichlet(np.ones(classes - 1), size=queries)
    chances = np.column_stack([clarity, (1 - clarity)[:, None] * rest])
    return np.array([rng.multinomial(teachers, row) for row in chances], dtype=np.int64)
