"""The defaults of a run: parties, teachers, queries, mechanism and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pate_fed.mechanisms import SPECS
from pate_fed.votes import RECORDS_PER_TEACHER

LEARNING_BATCHES: Final = 5
"""Number of batches of a run whose student learns between them."""


EVALUATION_EPSILON: Final = 1.0
"""Price of a private evaluation, for a held-out patient."""


def usual_mechanism(data: str = "csv", *, may_refuse: bool = False) -> str:
    """Return the default mechanism."""
    return next(iter(SPECS)) if may_refuse else DEFAULTS[data].mechanism


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults for a data set.

    The mechanisms' parameters were chosen on simulated votes, never on private ones, by
    `benchmarks/choose_parameters.py`.

    Attributes:
        parties: Number of parties where the data name no hospitals.
        teachers: Teachers per party; None if they follow from its records.
        queries: Most queries asked; fewer if the budget affords fewer.
        fills_budget: Whether noise is as small as the budget affords for all queries.
        parameters: Of mechanisms, by name, for this many teachers.
        at_parties: The same with noise at the parties.
        records_per_teacher: Where a patient is the unit, noise does not grow with the number of
            teachers: small ones give more votes. Of tables it was chosen on BRFSS, Adult and
            diabetes130 (docs/explanation/students.md).
    """

    parties: int
    teachers: int | None
    queries: int
    mechanism: str = next(iter(SPECS))
    select: str = "medoids"
    fills_budget: bool = False
    parameters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    at_parties: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    records_per_teacher: int = 40

    def most_queries(self, labels: int) -> int:
        """Return the most queries asked where an input has so many labels, each its own query."""
        return self.queries * min(labels, _LABELS_WITH_MORE)


_LABELS_WITH_MORE: Final = 3
"""Labels up to which more of them mean more queries: on diabetes130 with five labels three times as
many were better than as many, and more than that no better (docs/how-to/several-labels.md).
"""


def _for_fifty(queries: int, threshold: Mapping[str, float]) -> Defaults:
    """Return the defaults of a bundled data set, with parameters of its own."""
    parameters = {"threshold": threshold, "interactive-threshold": threshold}
    return Defaults(50, 1, queries, parameters=parameters, at_parties=parameters)


_TABLE: Final = Defaults(
    10,
    None,
    500,
    mechanism="gnmax",
    select="random",
    fills_budget=True,
    records_per_teacher=RECORDS_PER_TEACHER,
)
_IMAGES: Final = Defaults(10, 25, 100, select="spectral")
DEFAULTS: Final[Mapping[str, Defaults]] = {
    "digits": _for_fifty(30, {"vote_threshold": 18.0, "sigma2": 10.1}),
    "breast-cancer": _for_fifty(42, {"vote_threshold": 37.0, "sigma2": 14.0}),
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "pneumoniamnist": _IMAGES,
    "images": Defaults(10, None, 100, select="spectral"),
    "adult": _TABLE,
    "brfss": _TABLE,
    "diabetes130": _TABLE,
    "heart-disease": _TABLE,
    "csv": _TABLE,
}
