"""What a run cost, in words: for whom, within which caps and budgets, with which earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pate_fed import wording
from pate_fed.record import Privacy
from pate_fed.record.privacy import PartyCost

MOST_OPEN_HOSPITALS = 8
"""Most hospitals whose table is open in the page; a longer one is folded."""


def unit_text(privacy: Privacy) -> str:
    """Name the privacy unit."""
    weight = privacy.unit_votes
    votes = "1 vote" if weight == 1 else f"up to {weight} votes"
    if privacy.privacy_unit == "party":
        return f"one whole hospital with all its records (party): {votes} on each query"
    return f"one patient with all rows (record): {votes} on {asks_text(privacy)}"


def asks_text(privacy: Privacy) -> str:
    """Name the queries on which a unit votes: where records vote, a patient's cap in a run."""
    most = privacy.mechanism.patient_votes
    if most is None or privacy.privacy_unit != "record":
        return "each query"
    return f"each of {most} {'query' if most == 1 else 'queries'} a run"


def short_unit(privacy: Privacy) -> str:
    """Name the privacy unit in a word or two."""
    return "one whole hospital" if privacy.privacy_unit == "party" else "one patient's records"


def secrecy_text(privacy: Privacy, *, simulated: bool) -> str:
    """State in one sentence which secrets of a hospital stayed hidden.

    In a simulation one machine held everything, so the sentence speaks of the protocol only.
    """
    if privacy.sum == "plain":
        if simulated:
            return (
                "The protocol hides every hospital's records, but shows its votes to the "
                "coordinator."
            )
        return "Every hospital hid its records, but showed its votes to the coordinator."
    total = "sum" if privacy.trust_model == "central" else "noisy sum"
    who = "coordinator and the tally" if privacy.at_aggregators else "coordinator"
    if simulated:
        return f"The protocol shows the {who} no records, and no votes except their {total}."
    return f"The {who} saw no records, and no votes except their {total}."


def headline_method(privacy: Privacy) -> str:
    """Name the method of the public number, as `short_method` does."""
    return short_method(privacy.views.public.method)


def short_method(method: str) -> str:
    """Name a method without its conversion to epsilon, which stands beside the number in full."""
    return method.removesuffix(", converted by CKS")


def removal_text(privacy: Privacy) -> str:
    """Write the smaller number of a hospital that casts no vote; "" where none is proved."""
    if (removal := privacy.views.removal) is None:
        return ""
    epsilon = f"epsilon {wording.epsilon_text(removal.epsilon)}, same delta, unit, view"
    if removal.method == privacy.views.public.method:
        return f"{epsilon}, method"
    return f"{epsilon}; method: {short_method(removal.method)}"


def fixed_text(privacy: Privacy) -> str:
    """Say when the caps, and with them the number, were fixed."""
    if len(privacy.runs) < 2:
        return "which were fixed before the run"
    return "which were fixed for each run before its own first query"


def series_text(privacy: Privacy) -> str:
    """Say on which run a simulation stands, and what each cost; "" for a first run."""
    runs = privacy.runs
    if not privacy.simulated or len(runs) < 2:
        return ""
    each = ", ".join(f"{_cost_text(one.epsilon)} for {one.run}" for one in runs)
    together = _cost_text(privacy.views.public.epsilon)
    return (
        f"This run stands on {runs[-2].run}: epsilon {each}, {together} together "
        f"at delta {wording.delta_text(privacy.delta)}."
    )


def _cost_text(epsilon: float | None) -> str:
    return "without a bound" if epsilon is None else wording.epsilon_text(epsilon)


def caps_text(privacy: Privacy) -> str:
    """Name the caps that end the run."""
    caps = privacy.mechanism
    return (
        f"queries looked at: at most {wording.count(caps.max_asks)}; "
        f"answers: at most {wording.count(caps.max_answers)}"
    )


def charged_text(privacy: Privacy) -> str:
    """Say how many of the queries that the run's cost counts were charged."""
    if privacy.charged is None:
        return "nothing, because no finite epsilon holds"
    asks = sum(entry.charged for entry in privacy.ledger)
    most = wording.plural(privacy.mechanism.max_asks, "query", "queries")
    return f"{wording.count(asks)} of {most} ({wording.percent(privacy.charged)})"


def are_alike(parties: Sequence[PartyCost]) -> bool:
    """Tell whether all hospitals are equal but for their names."""
    return len({party.facts for party in parties}) <= 1


def differ(numbers: Iterable[float | None]) -> bool:
    """Tell whether hospitals differ in a number."""
    return len(set(numbers)) > 1


def are_uneven(parties: Sequence[PartyCost]) -> bool:
    """Tell whether the run may cost hospitals differently, or one unit there moves other votes."""
    return len({(party.epsilon, party.unit_votes) for party in parties}) > 1


def spread(epsilons: Iterable[float | None]) -> str:
    """Write the range of one epsilon or more: "1 to 5", or "5" where all are equal."""
    values = list(epsilons)
    known = [epsilon for epsilon in values if epsilon is not None]
    if len(known) < len(values):
        return "no bound"
    ends = dict.fromkeys(wording.epsilon_text(end) for end in (min(known), max(known)))
    return " to ".join(ends)
