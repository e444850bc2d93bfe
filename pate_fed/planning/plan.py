"""The queries that a budget affords, before anything is spent: `pate-fed plan`.

Works from public numbers and simulated votes alone, never from a hospital's. What is left open is
chosen as a run and a simulation choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Self, TypedDict

from pate_fed.accounting.ranges import in_range
from pate_fed.errors import InvalidParameterError, InvalidSettingError, UnfitSumError
from pate_fed.mechanisms.preview import ASSUMED_ACCURACY
from pate_fed.planning.defaults import DEFAULTS, usual_mechanism
from pate_fed.planning.forecast import Forecast, ForecastTable, drawn_noise
from pate_fed.planning.planner import Planner
from pate_fed.planning.resolving import filled, usual_records, usual_teachers
from pate_fed.planning.run_settings import RunSettings
from pate_fed.planning.sum_advice import (
    SumAdvice,
    SumForm,
    Sums,
    advised_sum,
    require_place,
)
from pate_fed.votes import teachers_of


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A federation and its budget, with what nobody knows before its run.

    Attributes:
        settings: Parties, teachers, unit, budgets, mechanism; what is open is chosen.
        data: Name of a data set whose defaults apply; "csv" for any table, "images" for images.
        pool: Distinct public inputs; None if there are enough.
        teacher_accuracy: Assumed share of teachers that are right on an average query.
        expected_dropouts: Hospitals that may be lost in a batch, at the worst.
    """

    settings: RunSettings
    classes: int
    data: str = "csv"
    pool: int | None = None
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
        if self.settings.caps.labels is not None and self.classes != 2:
            raise InvalidSettingError("--classes must be 2 with --labels", self.classes)
        if not 1 / self.classes < self.teacher_accuracy < 1:
            raise InvalidSettingError(
                "--teacher-accuracy must lie between that of guessing and 1", self.teacher_accuracy
            )

    @classmethod
    def of(
        cls, given: Mapping[str, Any], *, records: int, labels: int | None = None, **others: Any
    ) -> Self:
        """Return the request of values that a person gave, and the usual ones.

        Args:
            given: Values by names of `pate_fed.options`; None for those that are not given.
            records: Patients (or records) of each hospital.
            labels: Labels of each input, if it has several.
            others: Its other attributes.
        """
        known = DEFAULTS[given["data"]]
        # It looks at no data.
        asked = RunSettings.of({**given, "data": "digits", "form": others.get("form")})
        asked = replace(asked, caps=replace(asked.caps, labels=labels))
        if given["mechanism"] is None and not asked.do_records_vote:
            usual = usual_mechanism(given["data"], may_refuse=given["vote_threshold"] is not None)
            asked = replace(asked, rule=replace(asked.rule, mechanism=usual))
        asked.check_alone()
        parties = asked.parties or known.parties
        teachers = usual_teachers(asked, known)
        if teachers is None:
            teachers = teachers_of(records, records_per_teacher=usual_records(asked, known))
        is_alone = teachers == 1 and not asked.do_records_vote
        unit = asked.unit or ("party" if is_alone else "record")
        settled = replace(asked, parties=parties, teachers=teachers, unit=unit)
        if asked.do_records_vote:  # as many votes as patients, which nobody chooses
            settled = replace(settled, teachers=None, party_teachers=(teachers,) * parties)
        settled = replace(settled, records_per_teacher=None)
        return cls(settled, data=given["data"], **others)

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
    unit: str | None
    neighbors: str
    assumed_teacher_accuracy: float
    sum: SumAdvice
    view: str
    shares: dict[str, int | None] | None
    forecast: ForecastTable
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
    if form is not None:
        require_place(request.settings.rule, form)
    if request.settings.rule.at_parties:
        _require_withstood(request, form, why=advice["why"])
    planner = resolve_plan(request, form)
    forecast = Forecast.of(planner, teacher_accuracy=request.teacher_accuracy).as_table()
    settings, rule, parties = planner.settings, planner.settings.rule, request.parties
    return {
        "schema_version": 1,
        "noise": rule.noise_place,
        "parties": parties,
        "teachers": settings.all_teachers,
        "votes": settings.votes,
        "classes": request.classes,
        "budget": {"epsilon": max(settings.party_epsilons or ()), "delta": settings.delta},
        "unit": settings.unit,
        "neighbors": forecast["decides"]["neighbors"],
        "assumed_teacher_accuracy": request.teacher_accuracy,
        "sum": advice,
        "view": "coordinator" if rule.opens_noisy else "public",
        "shares": {
            "parties": parties,
            "colluders": rule.colluders,
            "dropouts": rule.dropouts,
            "suffice": rule.shares(parties),
        }
        if rule.at_parties
        else None,
        "forecast": forecast,
    }


def resolve_plan(request: PlanRequest, form: SumForm | None) -> Planner:
    """Return a federation with all settings filled in, as a run's are."""
    planner = Planner.of(request.settings, request.classes, form)
    rule = planner.settings.rule
    if rule.opens_noisy and rule.sigma2 is not None:
        drawn_noise(rule, request.parties)
    known = DEFAULTS[request.data]
    caps, labels = request.settings.caps, request.settings.caps.labels or 1
    most = known.most_queries(labels) // labels * labels
    pool = (request.pool or 0) * labels or max(most, caps.max_asks or 0)
    return replace(planner, settings=filled(planner, known, pool=pool))


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
