"""The record of a run that has ended: `metrics.json` and `privacy.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting import FormalCost, event_additive_delta, neighbors
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.charges import RunLedger, charge_of, mechanism_of
from pate_fed.planning.fine_noise import delta_slack
from pate_fed.planning.sum_advice import SumForm
from pate_fed.prices import charged_price, most_exposed, removal_price
from pate_fed.record import SCHEMA_VERSION, Metrics, Privacy
from pate_fed.record import metrics as measured
from pate_fed.record import privacy as priced
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.report.guarantee_words import (
    DEALT_BY_CLASS,
    REMOVAL_NEIGHBORS,
    guarantee_sentence,
    not_protected,
    trust_sentence,
)
from pate_fed.report.outputs import POST_PROCESSING, outputs, trust_model
from pate_fed.rule import AGGREGATORS
from pate_fed.series import delta_of_series, order_of_series, price_of_runs, price_of_series
from pate_fed.terms import RunTerms

if TYPE_CHECKING:
    from pate_fed.students import Student

_NO_VOTES = "not computed: the sums opened with the noise in them, so nobody saw the votes"
_DEPLOYED = "not computed: it depends on the votes, and a deployment writes nothing down that does"
_LATER_RUN = "not computed: the votes of the earlier runs are gone"
_TRUSTED = FormalCost(math.inf, "trusted")
_YARDSTICKS = ("average_hospital", "best_hospital", "pooled", "private_baseline")

Answers = list[tuple[int, int, Outcome]]
"""Pool index, released class (or `ABSTAIN`) and outcome of each query, in the order asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """A simulation's knowledge of the pool, which nobody has in a deployment."""

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class UsedRun:
    """A run whose labels are used, as the guarantee sees it.

    Attributes:
        terms: Its terms, in the seat order of the run that uses its labels.
    """

    terms: RunTerms
    form: SumForm


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EndedRun:
    """A run that has ended, as its tables see it.

    Attributes:
        instance: The cost on the actual votes; private. None where nobody computed it.
        earlier: Runs that drew answers which it uses again.
        is_dealt_by_class: Whether a simulation dealt out its records by looking at them.
        asks_nothing: Whether they drew all its answers. That was known before any vote, so the run
            itself costs nothing under any caps.
        budgets: Of a simulation's later run, each party's budget of the whole series, in seat
            order; no number but those in `runs` is then of one run alone. Empty for a run whose
            budget is its own.
    """

    terms: RunTerms
    parties: tuple[str, ...]
    ledger: RunLedger
    releases: Mapping[int, NoisyRelease]
    instance: PerInstanceCost | None
    form: SumForm
    earlier: tuple[UsedRun, ...] = ()
    is_dealt_by_class: bool = False
    asks_nothing: bool = False
    budgets: tuple[float, ...] = ()

    @property
    def used(self) -> tuple[UsedRun, ...]:
        """All runs whose labels it uses; itself last, unless it asked nothing."""
        own = () if self.asks_nothing else (UsedRun(self.terms, self.form),)
        return (*self.earlier, *own)

    @property
    def used_terms(self) -> tuple[RunTerms, ...]:
        """Terms of all runs whose labels it uses."""
        return tuple(run.terms for run in self.used)

    def public_price(self, seat: int) -> FormalCost:
        """Return the cost of all of them for one party's units, to readers of the labels."""
        return self._cost_of_used(seat)

    def charged_price(self, seat: int) -> FormalCost:
        """Return the same in the view that this run charges."""
        if not self.terms.rule.opens_noisy:
            return self.public_price(seat)
        if not all(terms.rule.opens_noisy for terms in self.used_terms):
            return _TRUSTED
        return self._cost_of_used(seat, at_coordinator=True)

    @property
    def delta(self) -> float:
        """Delta of these costs."""
        if self.budgets:
            return delta_of_series(self.used_terms)
        return math.fsum(terms.delta for terms in self.used_terms)

    def _cost_of_used(self, seat: int, *, at_coordinator: bool = False) -> FormalCost:
        cost_of = price_of_series if self.budgets else price_of_runs
        return cost_of(self.used_terms, seat, unit=self.terms.unit, at_coordinator=at_coordinator)

    def budget(self, seat: int) -> float:
        """Return one party's budget: of the whole series, or of the run."""
        return (self.budgets or self.terms.budgets)[seat]

    @property
    def most_exposed(self) -> int:
        """The seat of a party whose units the runs may cost most."""
        if len(self.used) == 1 and not self.budgets:
            return most_exposed(self.used_terms[0])[0]
        costs = [self.charged_price(seat).epsilon for seat in range(len(self.terms.weights))]
        return costs.index(max(costs))


def metrics_table(
    *,
    data: measured.Data | None,
    parties: int,
    teachers: int,
    truth: Truth | None,
    pool: int,
    queries: tuple[int, ...],
    outcomes: Answers,
    void: int,
    reinforced: int,
    student: Student | None,
    scores: measured.StudentScores | None,
    yardsticks: Mapping[str, measured.Quality],
    sent: int,
    received: int,
    exchanges: Mapping[str, int],
    batches: int,
    seconds: Mapping[str, float],
    warnings: Iterable[str],
    earlier_runs: Mapping[str, int] | None = None,
    evaluation: measured.EvaluationScores | None = None,
) -> Metrics:
    """Return the content of `metrics.json`.

    Numbers have the meaning that `Metrics` states: `pool` is a size, `void` and `reinforced` count
    queries, `sent` and `received` bytes. Only a simulation has `data`, `truth`, `scores` and
    `yardsticks`, which are models to compare the student with.
    """
    earlier = dict(earlier_runs or {})
    answered = [(index, label) for index, label, outcome in outcomes if outcome is Outcome.ANSWERED]
    refused = [index for index, _, outcome in outcomes if outcome is Outcome.REFUSED]
    looked_at = len(answered) + len(refused)
    right = [truth.labels[index] == label for index, label in answered] if truth else []
    return Metrics(
        schema_version=SCHEMA_VERSION,
        simulated=truth is not None,
        data=data,
        label_accuracy=float(np.mean(right)) if right else None,
        student=None if student is None else student_kind(student),
        scores=measured.Scores(
            student=scores, **{name: yardsticks.get(name) for name in _YARDSTICKS}
        ),
        evaluation=evaluation,
        queries=measured.Queries(
            pool=pool,
            asked=looked_at,
            answered=len(answered),
            refused=len(refused),
            not_asked=len(queries) - looked_at - void,
            void=void,
            reinforced=reinforced,
            from_store=sum(earlier.values()),
        ),
        earlier_runs=earlier,
        parties=parties,
        teachers=teachers,
        batches=batches,
        exchanges=measured.Exchanges(
            setup=exchanges["setup"],
            per_batch=exchanges["batches"] // max(batches, 1),
            closing=exchanges["closing"],
        ),
        per_class={} if truth is None else _per_class(truth, answered, refused),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        bytes=measured.SentBytes(to_parties=sent, from_parties=received),
        warnings=tuple(warnings),
    )


def student_kind(student: Student) -> measured.StudentKind:
    """Name a student, with the rule for its sets."""
    sets = student.sets
    return measured.StudentKind(
        kind=student.name,
        reason=student.reason,
        sets=None
        if sets is None
        else measured.StatedSets(
            coverage=sets.coverage,
            labels=sets.labels,
            labels_needed=sets.labels_needed,
            interval=sets.interval,
            least_chance=sets.least_chance,
        ),
    )


def _per_class(
    truth: Truth, answered: list[tuple[int, int]], refused: list[int]
) -> dict[str, measured.OutcomeCounts]:
    """Count by the true class, which only a simulation knows."""
    classes = len(truth.class_names)
    answers = _counts(truth.labels[[index for index, _ in answered]], classes)
    refusals = _counts(truth.labels[refused], classes)
    return {
        name: measured.OutcomeCounts(answered=int(answers[place]), refused=int(refusals[place]))
        for place, name in enumerate(truth.class_names)
    }


def _counts(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    return np.bincount(labels.astype(np.int64), minlength=classes)


def privacy_table(*, ended: EndedRun, sealing: str, seed: int | None, simulated: bool) -> Privacy:
    """Return the content of `privacy.json`.

    `sealing` is the meaning of the sealing suite, a sentence, empty without secrets; `seed` is
    that of a simulation's noise.
    """
    terms, seat = ended.terms, ended.most_exposed
    return Privacy(
        schema_version=SCHEMA_VERSION,
        simulated=simulated,
        delta=ended.delta,
        dp_flavor="(epsilon, delta)" if terms.spec.is_private else "none",
        privacy_unit=terms.unit,
        unit_votes=_unit_votes(ended, seat),
        neighboring_definition=neighbors(
            terms.unit,
            weight=_unit_votes(ended, seat),
            label_cap=terms.caps.label_cap,
            patient_votes=_patient_votes(ended),
        ),
        mechanism=_mechanism(terms),
        noise=priced.AddedNoise(
            place=terms.rule.noise_place, source=noise_source(seed), delta_slack=_slack(ended, seat)
        ),
        budget=_budget(ended, seat, simulated=simulated),
        views=priced.Views(
            public=_public_bound(ended, seat),
            removal=_removal(ended),
            coordinator=_coordinator_bound(ended, seat),
            # It opens the same rows, and knows as much of the noise.
            tally=_coordinator_bound(ended, seat) if terms.rule.at_aggregators else None,
        ),
        runs=tuple(
            priced.RunBound(
                run=used.name,
                delta=used.delta,
                **dict(_number(price_of_runs([used], seat, unit=terms.unit))),
            )
            for used in ended.used_terms
        ),
        parties=tuple(_parties(ended)),
        per_instance=_per_instance(ended, simulated=simulated),
        # Of the queries that epsilon counts, however few were asked.
        charged=ended.ledger.used_share() if terms.spec.is_private else None,
        ledger=tuple(_ledger(ended)),
        evaluation=None,
        sum=ended.form.name,
        guarantee=guarantee(ended),
        trust_model=trust_model(ended.used),
        outputs=outputs(ended.used),
        post_processing=POST_PROCESSING,
        threat_model=f"{' '.join(_once(trust(run) for run in ended.used))} {sealing}".rstrip(),
        unprotected=_once(
            gap
            for run in ended.used
            for gap in not_protected(
                simulated=simulated,
                unit=run.terms.unit,
                votes_in_the_clear=not run.form.hides_vectors,
                noise_place=run.terms.rule.noise_place,
                records_vote=run.terms.do_records_vote,
            )
        ),
    )


def _once(said: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(said))


def _patient_votes(ended: EndedRun) -> int | None:
    """Return the most queries of one run that a patient votes on; None where teachers vote."""
    caps = [terms.caps.patient_votes for terms in ended.used_terms]
    known = [one for one in caps if one is not None]
    return max(known, default=None)


def _mechanism(terms: RunTerms) -> priced.UsedMechanism:
    """Return rule and caps as the record has them."""
    parameters = mechanism_of(terms).parameters()
    if terms.rule.at_aggregators:
        parameters = {**parameters, "shares": None, "aggregators": AGGREGATORS}
    return priced.UsedMechanism.model_validate({
        **parameters,
        "max_asks": terms.caps.most.asks,
        "max_answers": terms.caps.most.answers,
        "labels": terms.caps.labels,
        "label_cap": terms.caps.label_cap,
        "patient_votes": terms.caps.patient_votes,
    })  # fmt: skip


def _budget(ended: EndedRun, seat: int, *, simulated: bool) -> priced.Budget:
    terms = ended.terms
    # Epsilons and deltas of the whole series add up to it.
    budgeted = ended.used_terms if ended.budgets else (terms,)
    in_order = simulated and terms.spec.is_private
    return priced.Budget(
        epsilon=max(ended.budgets or terms.budgets),
        delta=math.fsum(used.delta for used in budgeted),
        order_of_series=order_of_series(ended.used_terms[0], seat, unit=terms.unit)
        if in_order
        else None,
        kept_for_tests=None
        if terms.rule.test_delta is None
        else math.fsum(
            event_additive_delta(charge_of(used, used.caps.most, weight=used.unit_votes_at(seat)))
            for used in budgeted
        ),
    )


def _slack(ended: EndedRun, seat: int) -> float | None:
    """Bound the delta that the computer's noise could add, over all runs whose labels are used."""
    slacks = [
        delta_slack(terms, epsilon=charged_price(terms, seat).epsilon) for terms in ended.used_terms
    ]
    known = [slack for slack in slacks if slack is not None]
    return math.fsum(known) if len(known) == len(slacks) else None


def _public_bound(ended: EndedRun, seat: int) -> priced.PublicBound:
    formal = ended.public_price(seat)
    return priced.PublicBound(
        holds_for=formal.holds_for,
        not_covered=DEALT_BY_CLASS if ended.is_dealt_by_class else None,
        **dict(_number(formal)),
    )


def _removal(ended: EndedRun) -> priced.RemovalBound | None:
    """Return the smaller number of a hospital that casts no vote; None where none is proved.

    Not for patients: a teacher without a patient's records votes, too, and perhaps differently.
    """
    first, *others = ended.used_terms
    if others or {first.unit, ended.terms.unit} != {"party"}:
        return None
    if (cost := removal_price(first, ended.most_exposed)) is None:
        return None
    return priced.RemovalBound(
        privacy_unit=ended.terms.unit,
        neighboring_definition=REMOVAL_NEIGHBORS,
        **dict(_number(cost)),
    )


def _coordinator_bound(ended: EndedRun, seat: int) -> priced.CoordinatorBound:
    """Describe the coordinator's own view: no number where it is trusted with a sum."""
    if not all(terms.rule.opens_noisy for terms in ended.used_terms):
        return priced.CoordinatorBound(**dict(_number(_TRUSTED)))
    cost = ended.charged_price(seat)
    return priced.CoordinatorBound(holds_for=cost.holds_for, **dict(_number(cost)))


def _per_instance(ended: EndedRun, *, simulated: bool) -> priced.PerInstance:
    """Return the cost on the actual votes; a deployment never writes it down."""
    instance = ended.instance if simulated and not ended.budgets else None
    if instance is None:
        why = _NO_VOTES if ended.terms.rule.opens_noisy else _LATER_RUN if simulated else _DEPLOYED
        return priced.PerInstance(epsilon=None, order=None, method=why, releasable=False)
    return priced.PerInstance(
        epsilon=instance.epsilon if math.isfinite(instance.epsilon) else None,
        order=instance.order,
        method=instance.method,
        releasable=instance.releasable,
    )


def guarantee(ended: EndedRun) -> str:
    """State the guarantee in words."""
    terms, seat = ended.terms, ended.most_exposed
    formal = ended.public_price(seat)
    if not math.isfinite(formal.epsilon):
        return f"None: {formal.method}."
    weight = _unit_votes(ended, seat)
    said = guarantee_sentence(
        formal,
        delta=ended.delta,
        unit=terms.unit,
        weight=weight,
        runs=len(ended.used),
        label_cap=terms.caps.label_cap,
        patient_votes=_patient_votes(ended),
    )
    limit = f" Not covered: {DEALT_BY_CLASS}." if ended.is_dealt_by_class else ""
    return f"{said}{limit}"


def _unit_votes(ended: EndedRun, seat: int) -> int:
    """Return the most votes that one unit of a party could move, in any run that is used."""
    unit = ended.terms.unit
    return max(replace(terms, unit=unit).unit_votes_at(seat) for terms in ended.used_terms)


def _number(cost: FormalCost) -> priced.Bound:
    """Return a cost as a bound: no number where it is not finite."""
    epsilon = cost.epsilon if math.isfinite(cost.epsilon) else None
    return priced.Bound(epsilon=epsilon, method=cost.method)


def _parties(ended: EndedRun) -> list[priced.PartyCost]:
    """Return each party's possible cost for its own units; sorted by name."""
    rows = [
        priced.PartyCost(
            party=name,
            teachers=weights.teachers,
            votes=weights.votes,
            unit_votes=_unit_votes(ended, seat),
            budget=ended.budget(seat),
            **dict(_number(ended.charged_price(seat))),
        )
        for seat, (name, weights) in enumerate(zip(ended.parties, ended.terms.weights, strict=True))
    ]
    return sorted(rows, key=lambda row: row.party)


def _ledger(ended: EndedRun) -> Iterator[priced.Booked]:
    """List the batches of a run: the state of each reservation, and the queries that it charged."""
    for batch, entry in enumerate(ended.ledger.outcomes.entries):
        release = ended.releases.get(batch)
        # The possible cost of a void batch stays charged, but nothing of it was released.
        yield priced.Booked(
            batch=batch,
            state=entry.state.value,
            asked=0 if release is None else release.asked,
            answered=0 if release is None else release.answered,
            charged=ended.ledger.charged(entry),
        )


def noise_source(seed: int | None) -> str:
    """Describe the source of the noise."""
    if seed is None:
        return "the operating system's cryptographic random numbers"
    return f"seed {seed}, which makes the noise repeatable: for rehearsals only"


def trust(run: UsedRun) -> str:
    """Name the trusted parties."""
    form, terms = run.form, run.terms
    if not form.hides_vectors:
        return (
            "Every hospital trusts the coordinator with its votes: they were summed in the clear "
            f"(--sum {form.name}), so the coordinator saw them. It also had to add the noise. For "
            "comparison only."
        )
    sentence = trust_sentence(terms.rule.noise_place, records_vote=terms.do_records_vote)
    if terms.rule.at_aggregators:
        return sentence
    parties = len(terms.weights)
    colluders = form.most_colluders(parties)
    if not colluders:
        limit = "as long as no hospital colludes with it"
    else:
        collude = "colludes" if colluders == 1 else "collude"
        limit = f"even if {colluders} of the other {parties - 1} {collude} with it"
    # Noise that the hospitals added stays in what colluders know.
    known = (
        "they know the noisy sum of the votes of the hospitals that do not collude."
        if terms.rule.at_parties
        else "they know the sum of the votes of the hospitals that do not collude. If this sum "
        "shows that these hospitals all agree, the colluders also know how each of them voted."
    )
    return (
        f"{sentence} The votes of a hospital stay hidden from the coordinator, "
        f"{limit} ({form.name} sum). But colluders know their own votes. So "
        f"{known}"
    )
