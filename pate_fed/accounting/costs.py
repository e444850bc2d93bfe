"""Costs: a number, whom and what it holds for, and how it was computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pate_fed.errors import InvalidParameterError

PrivacyUnit = Literal["record", "party"]
"""The privacy unit: the records of one patient, or a whole hospital."""

DeployedPlace = Literal["coordinator", "parties"]
"""Who adds the noise of a deployed run."""

NoisePlace = Literal[DeployedPlace, "aggregators"]
"""Who adds the noise; "aggregators" are the coordinator and the tally, each the full amount."""

GDP_METHOD: Final = "exact Gaussian composition (GDP) at the caps"
COMPOSED_METHOD: Final = "composition of all queries at the caps (dynamic programming)"
RENYI_METHOD: Final = "RDP at the caps, converted by CKS"
NO_BOUND_METHOD: Final = "no finite epsilon holds: this mechanism is not differentially private"
ROWS_METHOD: Final = "composition of all noisy rows at the caps, by the law of their noise"
ROWS_RDP_METHOD: Final = (
    "RDP of every opened row of summed discrete Gaussian noise at the caps, converted by CKS"
)
RUNS_METHOD: Final = (
    "sum over all runs whose labels are used: their epsilons and their deltas add up"
)
SERIES_METHOD: Final = (
    "RDP of all runs at their caps, at an order fixed before the first run, converted by CKS"
)
PUBLIC_VIEW: Final = 'everyone who sees the released labels and every "no answer"'

AGGREGATOR_VIEW: Final = (
    "the coordinator or the tally, each of whom opens every noisy row and knows its own noise, "
    "even together with all other hospitals, if the other one keeps its noise secret"
)
COUNTS_VIEW: Final = "everyone who sees the released labels and the noisy counts"


@dataclass(frozen=True, slots=True)
class FormalCost:
    """A guarantee that holds for every data set.

    Attributes:
        holds_for: Against whom it protects, in words.
        order: Renyi order at which it was found; None where it came without.
    """

    epsilon: float
    method: str
    holds_for: str = PUBLIC_VIEW
    order: float | None = None


def neighbors(
    unit: PrivacyUnit,
    weight: int,
    *,
    label_cap: int | None = None,
    patient_votes: int | None = None,
) -> str:
    """Name the two cases that nobody can tell apart well.

    Args:
        weight: Votes that one unit can move: those of one teacher for "record", those of all
            teachers of a hospital for "party".
        label_cap: Most of several labels to which it says yes; None without such a cap.
        patient_votes: Where records vote, the queries on which a patient votes in a run, at most.
    """
    if label_cap is not None:
        most = f"{label_cap} labels" if label_cap > 1 else "1 label"
        return f"{neighbors(unit, weight)} In both cases it says yes to at most {most} of an input."
    if patient_votes is not None and unit == "record" and weight >= 1:
        votes = "" if weight == 1 else f", each vote counted {weight} times"
        return (
            "Compared with the case in which one patient's records were another's. Either patient "
            "votes on the queries close to a record of their own, once on each and at most "
            f"{patient_votes} times in a run{votes}; all other votes are the same."
        )
    if unit == "record" and weight >= 1:
        votes = "" if weight == 1 else f" with each of its {weight} votes"
        return (
            "Compared with the case in which one patient's records were another's: only the "
            f"teacher that learned from them may vote differently then, on any query{votes}."
        )
    if unit == "party" and weight >= 1:
        votes = "the vote" if weight == 1 else f"each of the {weight} votes"
        return (
            "Compared with the case in which all records of one hospital were others: "
            f"{votes} of this hospital on each query may be different then."
        )
    raise InvalidParameterError(
        'unit must be "record" or "party", with a weight of at least 1',
        f"{unit} with {weight}",
    )


PER_INSTANCE_METHOD = "data-dependent RDP bound of the PATE papers, converted by Mironov"


@dataclass(frozen=True, slots=True)
class PerInstanceCost:
    """Cost of a release given its votes. Private: it may not be published."""

    releasable: ClassVar[bool] = False

    epsilon: float
    order: float
    method: str = PER_INSTANCE_METHOD
    is_at_edge: bool = False
