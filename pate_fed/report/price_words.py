"""How a run was charged, in words: by which price, within which budget, for which hospital."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pate_fed import wording
from pate_fed.accounting.statement import (
    BELLMAN_ANSWERS_METHOD,
    BELLMAN_LABEL_METHOD,
    BELLMAN_METHOD,
    VALID_VOTES,
)

MOST_OPEN_HOSPITALS = 8
"""Most hospitals whose table is open in the page; a longer one is folded."""

_HONEST = "honest coordinator"
_SILENT = f"{_HONEST} that shows only labels and “no answer”"
_VALID = f"{_SILENT}; valid votes"
_FIXED = "a fixed charge for each label and each “no answer”"
_ALL = "all labels and “no answer”s of the run together (dynamic programming)"
_STOPS = "the charges so far; the run stops before they exceed this"


class Price(NamedTuple):
    """A way to compute the cost of a run, in words.

    Attributes:
        name: Its name.
        charges: The releases that it counts and how, as the rest of a sentence.
        holds_if: The parties that its number trusts, and for what.
    """

    name: str
    charges: str
    holds_if: str


_PRICES: Mapping[str, Price] = {
    "gdp": Price(
        "Gaussian composition (GDP)",
        "a charge for each use of noise: for each check of the threshold, and for each label",
        f"{_HONEST}; it may also show noisy counts, but no exact sums",
    ),
    "label": Price("Label level", f"{_FIXED}, computed for any votes", _SILENT),
    "joint": Price("Joint price", f"{_FIXED}, computed for valid votes", _VALID),
    "renyi": Price(
        "RDP of the mechanism",
        "every query is charged by the Renyi divergence of its noise, and a test of stability by "
        "the chance that it fails, which counts toward delta",
        _SILENT,
    ),
    "none": Price("No price", "nothing, because no finite epsilon holds", "never"),
}

_ENOUGH = "enough hospitals add their noise as agreed, and keep it secret"

_PRICES_AT_PARTIES: Mapping[str, Price] = {
    "renyi": Price(
        "Opened rows",
        "every noisy row that the coordinator opens is charged by the Renyi divergence of its "
        "noise, regardless of its outcome. The number holds against the coordinator too",
        _ENOUGH,
    ),
    "label": Price(
        "Label level",
        "every label is charged for the information that it reveals to a reader of labels alone",
        f"{_ENOUGH}; the coordinator shows labels only, and the right ones",
    ),
}
"""Where the hospitals add the noise."""


def price_of(pricing: str, *, at_parties: bool = False) -> Price:
    """Describe a way to charge; an unknown one by its name alone."""
    known = _PRICES_AT_PARTIES if at_parties else _PRICES
    return known.get(pricing, Price(pricing, "by its own rules", "see the documentation"))


def price(privacy: Mapping[str, Any]) -> Price:
    """Describe how a run was charged."""
    return price_of(privacy["mechanism"]["pricing"], at_parties=is_at_parties(privacy))


def is_at_parties(privacy: Mapping[str, Any]) -> bool:
    """Tell whether the hospitals added the noise."""
    return bool(privacy["noise"]["place"] == "parties")


def charged_view(privacy: Mapping[str, Any]) -> str:
    """Name the view of the budgets: that of the receiver of the hospitals' messages."""
    return "coordinator" if is_at_parties(privacy) else "public"


def assumption(privacy: Mapping[str, Any]) -> str | None:
    """Name the formal number's assumption besides the coordinator; None without one."""
    is_trusting = any(run["pricing"] == "joint" for run in privacy["runs"])
    return VALID_VOTES if is_trusting else None


def row_sums_kept(privacy: Mapping[str, Any]) -> str | None:
    """Return the public number's condition on other hospitals' row sums; None without one."""
    said: str | None = privacy["views"]["public"]["formal"].get("holds_if")
    return said


def not_covered(privacy: Mapping[str, Any]) -> str | None:
    """Return a part of a simulation that the public number does not cover; None without one."""
    said: str | None = privacy["views"]["public"]["formal"].get("not_covered")
    return said


def rounds_text(privacy: Mapping[str, Any]) -> str:
    """Say on which round a simulation stands, and what each cost; "" for a first round."""
    runs = privacy["runs"]
    if not privacy["simulated"] or len(runs) < 2:
        return ""
    each = ", ".join(f"{_cost_text(run['epsilon'])} for {run['run']}" for run in runs)
    together = _cost_text(privacy["views"]["public"]["formal"]["epsilon"])
    return (
        f"This run stands on {runs[-2]['run']}: epsilon {each}, {together} together at delta "
        f"{wording.delta_text(privacy['delta'])}."
    )


def _cost_text(epsilon: float | None) -> str:
    return "without a bound" if epsilon is None else wording.epsilon_text(epsilon)


class WithoutTrust(NamedTuple):
    """The guarantee that still holds, in the hospital of the headline, where votes are not valid.

    Attributes:
        epsilon: At the caps; None without a finite bound.
        method: How it was computed.
        is_composition: Whether it is that of all outcomes, less than each way to charge gives.
        budget: The budget that it exceeds; None where it does not.
        others: Number of all hospitals whose own such number exceeds their budget.
    """

    epsilon: float | None
    method: str
    is_composition: bool
    budget: float | None
    others: int


def without_trust(privacy: Mapping[str, Any]) -> WithoutTrust | None:
    """Return the guarantee without valid votes; None where the number needs no trust."""
    if assumption(privacy) is None or not privacy["parties"]:
        return None
    row = max(privacy["parties"], key=lambda party: _exposure(privacy, party))
    listed = [bound for bound in bounds(privacy) if bound.price.name != _PRICES["joint"].name]
    method = listed[0].price.name if listed else "a bound that needs no valid votes"
    method, is_composition = f"{method}, at the caps", False
    if len(privacy["runs"]) > 1:
        method = "sum over all runs whose labels are used, at the caps"
    elif listed and (row["epsilon_without_trust"] or math.inf) < (listed[0].epsilon or math.inf):
        refuses = privacy["mechanism"]["max_refusals"] != 0
        method, is_composition = BELLMAN_LABEL_METHOD if refuses else BELLMAN_ANSWERS_METHOD, True
    return WithoutTrust(
        row["epsilon_without_trust"],
        method,
        is_composition,
        row["budget"] if _exceeds(row) else None,
        sum(map(_exceeds, privacy["parties"])),
    )


def _exposure(privacy: Mapping[str, Any], party: Mapping[str, Any]) -> tuple[float, bool, float]:
    """Rank hospitals; the headline's comes last."""
    is_headline = party["unit_votes"] == privacy["unit_votes"]
    return (party["epsilon"] or 0.0, is_headline, -party["budget"])


def _exceeds(party: Mapping[str, Any]) -> bool:
    return bool((party["epsilon_without_trust"] or 0.0) > party["budget"])


def formal_method(privacy: Mapping[str, Any]) -> str:
    """Name the method of the formal number, without the words of `assumption`."""
    return unassuming(privacy["views"]["public"]["formal"]["method"])


def headline_method(privacy: Mapping[str, Any]) -> str:
    """Name it without the conversion to epsilon, which the table of views names."""
    return formal_method(privacy).removesuffix(", converted by CKS")


def unassuming(method: str) -> str:
    """Name a method without its assumption."""
    return method.partition("; holds if")[0]


def protects_nobody(privacy: Mapping[str, Any]) -> bool:
    """Tell whether the mechanism has no price at all."""
    return bool(privacy["mechanism"]["pricing"] == "none")


class Bound(NamedTuple):
    """One formal bound of a run.

    Attributes:
        price: Its way to charge.
        epsilon: Its number; None where it is not finite.
        method: How it was computed.
        is_charged: Whether the run was charged by it.
    """

    price: Price
    epsilon: float | None
    method: str
    is_charged: bool


def bounds(privacy: Mapping[str, Any]) -> list[Bound]:
    """List the formal bounds by each way to charge, the smallest first."""
    charged, at_parties = privacy["mechanism"]["pricing"], is_at_parties(privacy)
    kept = at_parties and row_sums_kept(privacy) is not None
    return _sorted(
        Bound(
            _with_row_sums(price_of(name, at_parties=at_parties), kept=kept and name == "label"),
            bound["epsilon"],
            bound["method"],
            name == charged,
        )
        for name, bound in privacy["views"]["public"]["bounds"].items()
    )


def _with_row_sums(price: Price, *, kept: bool) -> Price:
    also = f"{price.holds_if}; every hospital's votes on a query add up to its number of votes"
    return price._replace(holds_if=also) if kept else price


def numbers(privacy: Mapping[str, Any]) -> list[Bound]:
    """List the formal numbers of this run's labels, the smallest first.

    These are the bounds at the caps by each way to charge; the composition of all outcomes, for
    valid votes and for any, where it is smaller; and the budget, where it stops the run before.
    """
    listed = bounds(privacy)
    if not listed:
        return listed
    budget = stopping_budget(privacy)
    if budget is not None:
        stops = Price("Budget", _STOPS, price(privacy).holds_if)
        listed.append(Bound(stops, budget, "filter", is_charged=False))
    if len(privacy["runs"]) > 1:
        return _sorted(listed)
    formal, trusting = privacy["views"]["public"]["formal"], assumption(privacy) is not None
    if formal["method"] in _COMPOSITIONS and counts_less(privacy):
        name = "Composition, valid votes" if trusting else "Composition"
        counted = Price(name, _ALL, _VALID if trusting else _SILENT)
        listed.append(Bound(counted, formal["epsilon"], formal_method(privacy), is_charged=False))
    without = without_trust(privacy)
    if without is not None and without.is_composition:
        counted = Price("Composition, any votes", _ALL, _SILENT)
        listed.append(Bound(counted, without.epsilon, without.method, is_charged=False))
    return _sorted(listed)


_COMPOSITIONS = (BELLMAN_METHOD, BELLMAN_LABEL_METHOD, BELLMAN_ANSWERS_METHOD)


def stopping_budget(privacy: Mapping[str, Any]) -> float | None:
    """Return the budget that stops the run before its caps; None where the caps cost less.

    It is that of the hospital of the headline.
    """
    charged = [bound.epsilon for bound in bounds(privacy) if bound.is_charged]
    if protects_nobody(privacy) or not privacy["parties"] or not charged:
        return None
    row = max(privacy["parties"], key=lambda party: _exposure(privacy, party))
    budget: float = row["budget"]
    return budget if charged[0] is None or charged[0] > budget else None


def _sorted(listed: Iterable[Bound]) -> list[Bound]:
    return sorted(
        listed, key=lambda bound: (bound.epsilon is None, bound.epsilon or 0.0, bound.price.name)
    )


def counts_less(privacy: Mapping[str, Any]) -> bool:
    """Tell whether the public number is visibly smaller than the price that was charged."""
    epsilon = privacy["views"]["public"]["formal"]["epsilon"]
    charged = [bound.epsilon for bound in bounds(privacy) if bound.is_charged]
    return epsilon is not None and any(
        bound is not None and bound - epsilon >= 0.001 for bound in charged
    )


def caps_text(privacy: Mapping[str, Any]) -> str:
    """Name the caps that end the run."""
    mechanism = privacy["mechanism"]

    def most(name: str) -> str:
        cap = mechanism[name]
        return "all queries" if cap is None else f"at most {wording.count(cap)}"

    refusals = (
        most("max_refusals")
        if mechanism["max_refusals"] != 0
        else "never, because every query is answered"
    )
    return (
        f"queries looked at: {most('max_asks')}; answers: {most('max_answers')}; "
        f"“no answer”: {refusals}"
    )


def budget_method(privacy: Mapping[str, Any]) -> str:
    """Name the filter that keeps the budget."""
    order = privacy["budget"]["order"]
    if order is None:
        return "a running total (GDP filter), a preset limit"
    if not differ(privacy["parties"], "unit_votes"):
        return (
            "a running total, whose limit and settings were fixed before the run (for specialists: "
            f"RDP filter at order {order:.4g})"
        )
    return (
        "a running total (RDP filter at an order of each hospital's own), limits and orders fixed "
        f"before the run (order {order:.4g} where the run may cost most)"
    )


def are_alike(parties: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether all hospitals are equal but for their names."""
    first = _facts(parties[0]) if parties else {}
    return all(_facts(party) == first for party in parties)


def differ(parties: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Tell whether hospitals differ in "budget" or "epsilon"."""
    return len({party[key] for party in parties}) > 1


def are_uneven(parties: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the run may cost hospitals differently, or one unit there moves other votes."""
    return differ(parties, "epsilon") or differ(parties, "unit_votes")


def spread(parties: Sequence[Mapping[str, Any]], key: str) -> str:
    """Write the range of hospitals' epsilons: "1 to 5", or "5" where all are equal.

    Args:
        parties: At least one.
        key: "budget" or "epsilon".
    """
    values = [party[key] for party in parties]
    if None in values:
        return "no bound"
    ends = dict.fromkeys(wording.epsilon_text(end) for end in (min(values), max(values)))
    return " to ".join(ends)


def _facts(party: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in party.items() if key != "party"}
