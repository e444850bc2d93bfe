"""What a run cost, in words: for whom, within which caps and budgets, with which earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pate_fed import wording

MOST_OPEN_HOSPITALS = 8
"""Most hospitals whose table is open in the page; a longer one is folded."""


def is_at_parties(privacy: Mapping[str, Any]) -> bool:
    """Tell whether the hospitals added the noise."""
    return bool(privacy["noise"]["place"] == "parties")


def charged_view(privacy: Mapping[str, Any]) -> str:
    """Name the view of the budgets: that of the receiver of the hospitals' messages."""
    return "coordinator" if is_at_parties(privacy) else "public"


def protects_nobody(privacy: Mapping[str, Any]) -> bool:
    """Tell whether the mechanism has no price at all."""
    return bool(privacy["dp_flavor"] == "none")


def not_covered(privacy: Mapping[str, Any]) -> str | None:
    """Return a part of a simulation that the public number does not cover; None without one."""
    said: str | None = privacy["views"]["public"]["formal"].get("not_covered")
    return said


def headline_method(privacy: Mapping[str, Any]) -> str:
    """Name the method of the public number, as `short_method` does."""
    return short_method(privacy["views"]["public"]["formal"]["method"])


def short_method(method: str) -> str:
    """Name a method without its conversion to epsilon, which stands beside the number in full."""
    return method.removesuffix(", converted by CKS")


def removal_text(privacy: Mapping[str, Any]) -> str:
    """Write the smaller number of a hospital that casts no vote; "" where none is proved."""
    public = privacy["views"]["public"]
    if (removal := public["removal"]) is None:
        return ""
    epsilon = f"epsilon {wording.epsilon_text(removal['epsilon'])}, same delta, unit, view"
    if removal["method"] == public["formal"]["method"]:
        return f"{epsilon}, method"
    return f"{epsilon}; method: {short_method(removal['method'])}"


def fixed_text(privacy: Mapping[str, Any]) -> str:
    """Say when the caps, and with them the number, were fixed."""
    if len(privacy["runs"]) < 2:
        return "which were fixed before the run"
    return "which were fixed for each run before its own first query"


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


def caps_text(privacy: Mapping[str, Any]) -> str:
    """Name the caps that end the run."""
    asks, answers = (
        wording.count(privacy["mechanism"][name]) for name in ("max_asks", "max_answers")
    )
    return f"queries looked at: at most {asks}; answers: at most {answers}"


def charged_text(privacy: Mapping[str, Any]) -> str:
    """Say how many of the queries that the run's cost counts were charged."""
    if privacy["charged"] is None:
        return "nothing, because no finite epsilon holds"
    asks = sum(entry["charged"] for entry in privacy["ledger"])
    most = wording.plural(privacy["mechanism"]["max_asks"], "query", "queries")
    return f"{wording.count(asks)} of {most} ({wording.percent(privacy['charged'])})"


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
