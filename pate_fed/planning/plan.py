"""The queries that a budget affords, before anything is spent: `pate-fed plan`.

Works from public numbers and simulated votes alone, never from a hospital's. For each choice of
threshold and noise it computes the queries that the budget affords, and the right answers to expect
from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NotRequired, TypedDict

from pate_fed.accounting.ranges import in_range
from pate_fed.errors import InvalidParameterError, InvalidSettingError, UnfitSumError
from pate_fed.mechanisms.preview import ASSUMED_ACCURACY
from pate_fed.planning.offers import BestOffer, best_offer
from pate_fed.planning.planner import Planner
from pate_fed.planning.run_settings import RunSettings
from pate_fed.planning.sum_advice import SumAdvice, SumForm, Sums, advised_sum


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A federation and its budget, with what nobody knows before its run.

    Attributes:
        settings: Parties, teachers, unit, budgets; a threshold, its open parameters to be chosen;
            at most so many queries.
        expected_dropouts: Hospitals that may be lost in a batch, at the worst.
    """

    settings: RunSettings
    classes: int
    teacher_accuracy: float = ASSUMED_ACCURACY
    expected_dropouts: int = 0
    form: str | None = None

    def __post_init__(self) -> None:
        self.settings.check_alone()
        for name in ("classes", "expected_dropouts"):
            try:
                in_range(name, getattr(self, name))
            except InvalidParameterError as error:
                raise InvalidSettingError(f"--{error.must}", error.got) from error
        if self.expected_dropouts >= self.parties:
            raise InvalidSettingError(
                f"--expected-dropouts must be below {self.parties}", self.expected_dropouts
            )
        if not 1 / self.classes < self.teacher_accuracy < 1:
            raise InvalidSettingError(
                "--teacher-accuracy must lie between that of guessing and 1", self.teacher_accuracy
            )

    @property
    def parties(self) -> int:
        """Number of hospitals."""
        return self.settings.parties or 0


class Outlook(TypedDict):
    """Whether the answers are likely to teach a student; see `pate_fed.planning.outlook`."""

    evidence: float
    says: str


class QueryPlan(TypedDict):
    """The queries that a budget affords, with the assumptions."""

    schema_version: int
    noise: str
    parties: int
    teachers: int
    votes: int
    classes: int
    budget: dict[str, float]
    requested_queries: int | None
    unit: str | None
    neighbors: str
    assumed_teacher_accuracy: float
    sum: SumAdvice
    view: str
    shares: dict[str, int | None] | None
    best: BestOffer
    outlook: NotRequired[Outlook]


def plan(request: PlanRequest, *, sums: Sums) -> QueryPlan:
    """Find the queries that a budget affords.

    Raises:
        UnfitSumError: the given secure sum does not fit, or none does and noise at the parties
            needs one.
        InvalidSettingError: too many colluders, or the hospitals cannot vote in this way.
    """
    advice = sum_for(request, sums)  # refuses an unfit one before the long computation
    form = None if advice["form"] is None else sums[advice["form"]]
    if request.settings.rule.at_parties:
        _require_withstood(request, form, why=advice["why"])
    planner = Planner.of(request.settings, request.classes, form)
    best = best_offer(planner, teacher_accuracy=request.teacher_accuracy)
    settings, rule, parties = planner.settings, planner.settings.rule, request.parties
    return {
        "schema_version": 1,
        "noise": rule.noise_place,
        "parties": parties,
        "teachers": settings.all_teachers,
        "votes": settings.votes,
        "classes": request.classes,
        "budget": {"epsilon": max(settings.party_epsilons or ()), "delta": settings.delta},
        "requested_queries": settings.caps.max_asks,
        "unit": settings.unit,
        "neighbors": best["decides"]["neighbors"],
        "assumed_teacher_accuracy": request.teacher_accuracy,
        "sum": advice,
        "view": "coordinator" if rule.at_parties else "public",
        "shares": {
            "parties": parties,
            "colluders": rule.colluders,
            "dropouts": rule.dropouts,
            "suffice": rule.shares(parties),
        }
        if rule.at_parties
        else None,
        "best": best,
    }


def _require_withstood(request: PlanRequest, form: SumForm | None, *, why: str) -> None:
    """Refuse noise at the parties that no secure sum hides, or not from so many colluders."""
    if form is None:
        raise UnfitSumError("--noise parties must come with a secure sum that fits", why)
    colluders, most = request.settings.rule.colluders, form.most_colluders(request.parties)
    if not 1 <= (colluders or 1) <= most:
        raise InvalidSettingError(
            f"--colluders must be from 1 to {most} with --sum {form.name} of {request.parties} "
            "hospitals",
            colluders,
        )


def sum_for(request: PlanRequest, sums: Sums) -> SumAdvice:
    """Return the given secure sum, or the one that fits; one that does not is an UnfitSumError."""
    advice = advised_sum(
        request.parties, dropouts=request.expected_dropouts, sums=sums, form=request.form
    )
    if request.form is not None and advice["form"] is None:
        raise UnfitSumError(
            f"--sum {request.form} must fit {request.parties} hospitals of which "
            f"{request.expected_dropouts} may be lost",
            advice["why"],
        )
    return advice
