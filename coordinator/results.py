"""What a run leaves behind: its metrics, its privacy statement, and its manifest, as plain data."""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator.labeling import LabelingRun, Member
from coordinator.store import RunStore
from coordinator.transport import Traffic
from pate_fed import __version__
from pate_fed.accounting import (
    ROW_SUMS_KEPT,
    VALID_VOTES,
    EntryState,
    FormalCost,
    Outcomes,
    guarantee_sentence,
    neighbors,
    not_protected,
    trust_sentence,
)
from pate_fed.charging import (
    charge_of,
    formal_bounds,
    formal_cost_at,
    ledger_of,
    noise_of,
    outcomes_of,
    public_cost_at,
)
from pate_fed.errors import InvalidSettingError
from pate_fed.federation import MOST_VOID_BATCHES, RunTerms
from pate_fed.mechanisms.sampling import laplace_variation_bound, total_variation_bound
from pate_fed.partition import Manifest
from pate_fed.planning import RunSettings
from pate_fed.releases import Outcome
from protocols.envelope import SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.forms import FORMS
from protocols.rounds import CoordinatorRound

if TYPE_CHECKING:
    from pate_fed.students import Student

SCHEMA_VERSION = 1
_SEALING: Mapping[str, str] = {
    SUITE_MLKEM768_X25519: (
        "What hospitals tell each other through the coordinator is sealed with ML-KEM-768 and "
        "X25519 together: whoever records it today and has a quantum computer one day still cannot "
        "open it, as long as one of the two holds."
    ),
    SUITE_X25519: (
        "What hospitals tell each other through the coordinator is sealed with X25519 alone: "
        "whoever records it today and has a quantum computer one day can open it, and then sees "
        "what single hospitals sent."
    ),
}
"""What each sealing suite means, for people."""

_NO_VOTES = "not computed: the hospitals added the noise, so nobody saw the votes"
_DEPLOYED = "not computed: it depends on the votes, and a deployment writes nothing down that does"
_NOTHING_ASKED = FormalCost(0.0, "no hospital was asked: every answer is an earlier run's")
_VERSIONS_OF = ("flwr", "torch", "scikit-learn", "numpy", "scipy", "cryptography")

_NO_YARDSTICKS: Mapping[str, None] = dict.fromkeys(("teacher_mean", "best_single_party", "pooled"))

Answers = list[tuple[int, int, Outcome]]
"""Pool index, released class (or `ABSTAIN`) and outcome of each query, in the order asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What a simulation knows of the pool, and nobody in a deployment.

    Attributes:
        labels: True class of each input.
        class_names: Names of the classes.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EarlierSetup:
    """A setup of a run that was given up, so that the run was set up anew.

    Attributes:
        round: It.
        reason: Why it was given up.
    """

    round: CoordinatorRound
    reason: str


def answers_of(store: RunStore) -> Answers:
    """Return every query of every released batch, in order."""
    return [
        (index, int(label), Outcome(int(outcome)))
        for indices, release in store.releases().values()
        for index, label, outcome in zip(indices, release.labels, release.outcomes, strict=True)
    ]


def in_seat_order(
    drafted: RunTerms, *, names: tuple[str, ...], members: tuple[Member, ...]
) -> RunTerms:
    """Put terms that were drafted for parties in some order in the order of their seats.

    Args:
        drafted: The terms.
        names: Of the parties, in the order that they were drafted for.
        members: The parties, in seat order.
    """
    places = [names.index(member.name) for member in members]
    return replace(
        drafted,
        weights=tuple(member.weights for member in members),
        budgets=tuple(drafted.budgets[place] for place in places),
        orders=tuple(drafted.orders[place] for place in places) if drafted.orders else (),
    )


def metrics_table(
    *,
    settings: RunSettings,
    truth: Truth | None,
    pool: int,
    queries: tuple[int, ...],
    outcomes: Answers,
    void: int,
    reinforced: int,
    student_accuracy: float | None,
    yardsticks: Mapping[str, float],
    traffic: Traffic,
    exchanges: Mapping[str, int],
    batches: int,
    seconds: Mapping[str, float],
    warnings: list[str],
    earlier_runs: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the content of `metrics.json`.

    Args:
        settings: What was done.
        truth: The pool's true classes, which a simulation knows; None in a deployment.
        pool: Size of the pool.
        queries: What was to be asked.
        outcomes: What came of it.
        void: Queries of void batches.
        reinforced: Refused queries that the student labelled.
        student_accuracy: On test records, if there are any.
        yardsticks: What the student is held against; empty in a deployment.
        traffic: What was carried.
        exchanges: How often, by stage.
        batches: How many were asked.
        seconds: How long each stage took.
        warnings: For people.
        earlier_runs: How many of the outcomes were drawn in which earlier run.
    """
    earlier = dict(earlier_runs or {})
    answered = [(index, label) for index, label, outcome in outcomes if outcome is Outcome.ANSWERED]
    refused = [index for index, _, outcome in outcomes if outcome is Outcome.REFUSED]
    looked_at = len(answered) + len(refused)
    right = [truth.labels[index] == label for index, label in answered] if truth else []
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": truth is not None,
        "accuracy": {
            "student": student_accuracy,
            "labels": float(np.mean(right)) if right else None,
            **_NO_YARDSTICKS,
            **yardsticks,
        },
        "queries": {
            "pool": pool,
            "asked": looked_at,
            "answered": len(answered),
            "refused": len(refused),
            "not_asked": len(queries) - looked_at - void,
            "void": void,
            "reinforced": reinforced,
            "from_store": sum(earlier.values()),
        },
        "earlier_runs": earlier,
        "parties": settings.parties,
        "teachers": settings.all_teachers,
        "batches": batches,
        "exchanges": {
            "setup": exchanges["setup"],
            "per_batch": exchanges["batches"] // max(batches, 1),
            "closing": exchanges["closing"],
        },
        "per_class": {} if truth is None else _per_class(truth, answered, refused),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "bytes": {
            "to_parties": traffic.sent,
            "from_parties": traffic.received,
        },
        "warnings": warnings,
    }


def _per_class(
    truth: Truth, answered: list[tuple[int, int]], refused: list[int]
) -> dict[str, dict[str, int]]:
    """Count by the true class, which a simulation knows and a real coordinator does not."""
    classes = len(truth.class_names)
    answers = _counts(truth.labels[[index for index, _ in answered]], classes)
    refusals = _counts(truth.labels[refused], classes)
    return {
        name: {"answered": int(answers[place]), "refused": int(refusals[place])}
        for place, name in enumerate(truth.class_names)
    }


def _counts(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    return np.bincount(labels.astype(np.int64), minlength=classes)


def privacy_table(
    *,
    run: LabelingRun,
    settings: RunSettings,
    store: RunStore,
    simulated: bool,
    asks_nothing: bool = False,
) -> dict[str, Any]:
    """Return the content of `privacy.json`.

    Args:
        run: The run.
        settings: What was done.
        store: Its ledger and releases.
        simulated: Whether it was a simulation.
        asks_nothing: Whether all its answers are earlier runs'. That was known before any vote, so
            it costs nothing, whatever its caps allowed.
    """
    terms = run.terms
    seat = _most_exposed(terms)
    formal = _NOTHING_ASKED if asks_nothing else public_cost_at(terms, seat)
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": simulated,
        "delta": terms.delta,
        "unit": terms.unit,
        "unit_weight": terms.unit_votes_at(seat),
        "neighbors": neighbors(terms.unit, weight=terms.unit_votes_at(seat)),
        "mechanism": {
            **run.mechanism.parameters(),
            "max_asks": terms.max_asks,
            "max_answers": terms.max_answers,
            "max_refusals": terms.max_refusals,
            "pricing": terms.pricing,
        },
        "noise": {
            "place": terms.noise_place,
            "source": noise_source(settings.seed),
            "delta_slack": (
                0.0
                if asks_nothing
                else delta_slack(terms, epsilon=formal_cost_at(terms, seat).epsilon)
            ),
        },
        "budget": {
            "epsilon": terms.epsilon,
            "delta": terms.delta,
            "order": terms.orders[seat] if terms.orders else None,
        },
        "views": {
            "public": {
                "formal": _public_view(terms, formal),
                "bounds": (
                    {"formal": _number(formal)}
                    if asks_nothing
                    else _bounds(terms, seat, valid_votes=settings.valid_votes)
                ),
            },
            "coordinator": {
                "formal": _number(formal) if asks_nothing else _coordinator_view(terms, seat)
            },
        },
        "parties": [
            {**row, **_number(formal), "epsilon_without_trust": 0.0} if asks_nothing else row
            for row in _parties(run)
        ],
        "per_instance": _per_instance(run, simulated=simulated),
        "sanitized": {"epsilon": None, "method": "not computed", "releasable": False},
        "charged": _charged(terms, seat, store),
        "ledger": _ledger(store),
        "sum": settings.form,
        "guarantee": guarantee(terms, formal),
        "trust": f"{trust(settings.form, terms)}{sealing(settings.form, settings.suite)}",
        "not_protected": list(
            not_protected(
                simulated=simulated,
                votes_in_the_clear=settings.form == "plain",
                votes_trusted_valid=terms.pricing == "joint",
                noise_place=terms.noise_place,
            )
        ),
    }


def _public_view(terms: RunTerms, formal: FormalCost) -> dict[str, Any]:
    said = {**_number(formal), "holds_for": formal.holds_for}
    if terms.at_parties and terms.phases == 2:
        said["holds_if"] = ROW_SUMS_KEPT
    return said


def _coordinator_view(terms: RunTerms, seat: int) -> dict[str, Any]:
    """Say what the coordinator itself can learn: no number where it is trusted with the sum."""
    if not terms.at_parties:
        return {"epsilon": None, "method": "trusted"}
    cost = formal_cost_at(terms, seat)
    return {**_number(cost), "holds_for": cost.holds_for}


def _per_instance(run: LabelingRun, *, simulated: bool) -> dict[str, Any]:
    """Say what the votes that were met would have cost; a deployment writes no such thing down."""
    instance = run.per_instance_cost if simulated else None
    if instance is None:
        why = _NO_VOTES if run.terms.at_parties else _DEPLOYED
        return {"epsilon": None, "order": None, "method": why, "releasable": False}
    return {
        "epsilon": instance.epsilon if math.isfinite(instance.epsilon) else None,
        "order": instance.order,
        "method": instance.method,
        "releasable": instance.releasable,
    }


def guarantee(terms: RunTerms, formal: FormalCost) -> str:
    """Say the guarantee in words, with what it rests on."""
    if not math.isfinite(formal.epsilon):
        return f"None: {formal.method}."
    weight = terms.unit_votes_at(_most_exposed(terms))
    said = guarantee_sentence(formal, delta=terms.delta, unit=terms.unit, weight=weight)
    return f"{said} {VALID_VOTES}" if terms.pricing == "joint" else said


def _most_exposed(terms: RunTerms) -> int:
    """Return the seat of a party whose units the run may cost most."""
    costs = [formal_cost_at(terms, seat).epsilon for seat in range(len(terms.weights))]
    return costs.index(max(costs))


def _number(cost: FormalCost) -> dict[str, Any]:
    """Say a cost as JSON can: no number where none is finite."""
    return {
        "epsilon": cost.epsilon if math.isfinite(cost.epsilon) else None,
        "method": cost.method,
    }


def _bounds(terms: RunTerms, seat: int, *, valid_votes: bool) -> dict[str, Any]:
    """Return every formal bound at the caps, whichever the run was charged by.

    With noise at the parties, who sees labels only sees less than what is charged for.
    """
    bounds = dict(
        formal_bounds(terms, weight=terms.unit_votes_at(seat), votes_are_valid=valid_votes)
    )
    if terms.at_parties:
        bounds["label"] = public_cost_at(terms, seat)
    return {name: _number(bounds[name]) for name in sorted(bounds)}


def _parties(run: LabelingRun) -> list[dict[str, Any]]:
    """Return, for each party, what the run may cost its own units; sorted by name."""
    terms = run.terms
    rows = []
    for seat, member in enumerate(run.members):
        weight = terms.unit_votes_at(seat)
        bounds = formal_bounds(terms, weight=weight, votes_are_valid=False)
        unconditional = min((cost.epsilon for cost in bounds.values()), default=math.inf)
        rows.append(
            {
                "party": member.name,
                "teachers": member.weights.teachers,
                "votes": member.weights.votes,
                "unit_votes": weight,
                "neighbors": neighbors(terms.unit, weight=weight),
                "budget": terms.budgets[seat],
                **_number(formal_cost_at(terms, seat)),
                # What holds at the caps even where somebody sends votes that are not valid.
                "epsilon_without_trust": (unconditional if math.isfinite(unconditional) else None),
            }
        )
    return sorted(rows, key=lambda row: str(row["party"]))


def delta_slack(terms: RunTerms, *, epsilon: float) -> float | None:
    """Bound what the computer's noise, so little unlike the ideal one, could add to delta.

    Args:
        terms: The run's.
        epsilon: The formal one.

    Returns:
        (1 + e^epsilon) times the total variation distance of all draws together; None where
        nothing is protected.
    """
    if terms.pricing == "none":
        return None
    counts = terms.max_asks * terms.classes
    if terms.at_parties:
        drawn = sum(
            counts * len(terms.weights) * noise_of(terms, phase=phase).variation
            for phase in range(terms.phases)
        )
        return (1 + math.exp(min(epsilon, 700.0))) * drawn
    drawn = 0.0
    if terms.sigma2 is not None:
        drawn += counts * _variation(terms, terms.sigma2)
    if terms.sigma1 is not None:
        drawn += terms.max_asks * _variation(terms, terms.sigma1)
    return (1 + math.exp(min(epsilon, 700.0))) * drawn


def require_fine_noise(terms: RunTerms) -> None:
    """Refuse a run whose noise may differ from the ideal one with a chance of delta or more.

    What that could add to delta is larger by e^epsilon: a warning, as delta is not its own.

    Raises:
        InvalidSettingError: it is that coarse.
    """
    slack = delta_slack(terms, epsilon=0.0)
    if slack is not None and slack >= terms.delta:
        raise InvalidSettingError(
            f"--delta must be above what the computer's noise could add to it, {slack:.1e}",
            terms.delta,
        )


def slack_warnings(privacy: Mapping[str, Any]) -> list[str]:
    """Say so where the computer's noise could add noticeably to delta."""
    slack = privacy["noise"]["delta_slack"]
    if slack is None or slack <= privacy["delta"] / 10:
        return []
    return [
        f"The computer's noise could add up to {slack:.1e} to delta: choose a larger delta "
        "or less noise."
    ]


def end_warnings(
    run: LabelingRun,
    *,
    ledger: Sequence[Mapping[str, Any]],
    queries: int,
    void: int,
    voids: int,
) -> list[str]:
    """Say what ended the run where that was no choice, or that nothing is protected.

    Args:
        run: It.
        ledger: What each of its batches gave, as `privacy.json` says.
        queries: How many it was to ask.
        void: How many of them void batches took with them.
        voids: How many batches were void, in whatever setup.
    """
    terms = run.terms
    if terms.pricing == "none":
        return ["This mechanism protects nobody: no finite epsilon holds. For comparison only."]
    asked, answered = (sum(row[what] for row in ledger) for what in ("asked", "answered"))
    if asked + void >= queries or not run.is_over:
        return []
    is_at_cap = (
        asked >= terms.max_asks
        or answered >= terms.max_answers
        or 0 < terms.max_refusals <= asked - answered
    )
    if voids and not is_at_cap:
        return [
            f"The run ended after {asked} of {queries} queries because {voids} of its batches "
            "were void: what a void batch might have given counts against the caps, unless its sum "
            f"can never open, and after {MOST_VOID_BATCHES} void ones a run is over."
        ]
    return [
        f"The run ended at a cap, after {asked} of {queries} queries: at most "
        f"{terms.max_refusals} refusals and {terms.max_answers} answers were allowed; that "
        "was fixed before it."
    ]


def earlier_warnings(earlier_runs: Mapping[str, int]) -> list[str]:
    """Say so where answers were drawn in earlier runs: what they cost is said there."""
    if not earlier_runs:
        return []
    named = ", ".join(f"{name} ({count})" for name, count in earlier_runs.items())
    return [
        f"{sum(earlier_runs.values())} queries had been asked before: their answers were drawn in "
        f"{named} and cost nothing here; those runs' reports say what they cost."
    ]


def setup_warnings(earlier: Sequence[EarlierSetup]) -> list[str]:
    """Say how often a run had to be set up anew, and why."""
    return [f"The run was set up anew: {setup.reason}." for setup in earlier]


def run_warnings(run: LabelingRun) -> list[str]:
    """Say which hospitals were lost, in a batch or at the closing, and whose shares were wrong."""
    found = [
        f"{count} of its batches went on without {', '.join(names)}."
        for names, count in Counter(run.lost).items()
        if names
    ]
    found += [
        f"A share did not fit what its dealer signed: {' or '.join(names)} is at fault."
        for names in dict.fromkeys(run.share_faults)
    ]
    if run.not_heard:
        parties = len(run.members)
        found.append(
            f"Heads of {parties - len(run.not_heard)} of {parties} hospitals agree; not heard: "
            f"{', '.join(run.not_heard)}."
        )
    return found


def write_results(
    out: Path,
    *,
    metrics: dict[str, Any],
    privacy: dict[str, Any],
    settings: Mapping[str, object],
    manifest: dict[str, Any],
    outcomes: Answers,
    class_names: tuple[str, ...],
    run: LabelingRun,
    student: Student | None,
    drawn_in: Mapping[int, str] | None = None,
    earlier: Sequence[EarlierSetup] = (),
) -> None:
    """Write a run directory: all of it, or nothing.

    A run that asked nobody has no transcript.

    Raises:
        RunDirectoryError: it exists, or cannot be written.
    """
    # What plots takes a second to load, and most commands write no report.
    from pate_fed.report import (  # noqa: PLC0415
        EARLIER,
        SEAL,
        RunDirectory,
        render_model_card,
        render_report,
    )

    with RunDirectory.open_new(out) as directory:
        directory.write_settings(settings)
        directory.write_json("metrics.json", metrics)
        directory.write_json("privacy.json", privacy)
        directory.write_json("manifest.json", manifest)
        directory.write_labels(
            (
                (index, class_names[label] if outcome is Outcome.ANSWERED else "")
                for index, label, outcome in outcomes
                if outcome is not Outcome.NOT_ASKED
            ),
            drawn_in=drawn_in,
        )
        if earlier:
            lost = (line for setup in earlier for line in _transcript_of(setup.round))
            directory.write_transcript(lost, name=EARLIER)
        if run.round.run_id:
            directory.write_transcript(_transcript_of(run.round))
        if student is not None:
            folder = directory.student_directory()
            student.save(folder)
            card = render_model_card(metrics, privacy, settings)
            (folder / "model_card.md").write_text(card, encoding="utf-8")
        if run.round.run_id:
            files = directory.read_back().digests
            directory.write_json(SEAL, run.round.seal_results(files))
        directory.write_report(render_report(directory.read_back()))


def _transcript_of(setup: CoordinatorRound) -> Iterator[str]:
    return (json.dumps(line, sort_keys=True) for line in setup.signed_transcript())


def _variation(terms: RunTerms, sigma: float) -> float:
    if terms.spec.laplace:
        return laplace_variation_bound(math.sqrt(2) / sigma)
    return total_variation_bound(sigma)


def noise_source(seed: int | None) -> str:
    """Say where the noise came from."""
    if seed is None:
        return "the operating system's cryptographic random numbers"
    return f"a stream keyed with seed {seed}: repeatable, hence simulated only"


def trust(form: str, terms: RunTerms) -> str:
    """Say who had to be trusted."""
    joint = terms.pricing == "joint"
    if form == "plain":
        seen = (
            "Every hospital trusts the coordinator with everything: the votes were summed in the "
            "clear (--sum plain), so it saw each hospital's votes. For comparison only."
        )
        return f"{seen} {VALID_VOTES}" if joint else seen
    sentence = trust_sentence(terms.noise_place, votes_trusted_valid=joint)
    parties = len(terms.weights)
    colluders = FORMS[form].most_colluders(parties)
    return (
        f"{sentence} One hospital's votes stay hidden from the coordinator even if it works "
        f"together with up to {colluders} of the {parties} hospitals (--sum {form})."
    )


def sealing(form: str, suite: str) -> str:
    """Say what the sealing suite means, a sentence to follow another; nothing without secrets."""
    return "" if form == "plain" else f" {_SEALING[suite]}"


def _charged(terms: RunTerms, seat: int, store: RunStore) -> list[dict[str, Any]]:
    """Return epsilon charged after each step to the party that the run may cost most.

    An odometer, no guarantee. A step is a query that was looked at (with noise at the parties a
    batch), or a void batch whose reservation was forfeited.
    """
    if terms.pricing == "none":
        return []
    rows: list[dict[str, Any]] = []
    weight, releases = terms.unit_votes_at(seat), store.releases()
    ledger = ledger_of(terms, seat)
    asked = answered = 0
    for batch, state in enumerate(store.ledger().states):
        name, held = f"batch {batch}", store.ledger().outcomes.entries[batch].reserved
        if state is EntryState.FORFEITED:
            charge = charge_of(terms, held, weight=weight)
            ledger = ledger.reserve(name, charge).forfeit(name)
            epsilon = ledger.charged_epsilon()
            rows.append({"asked": asked, "answered": answered, "epsilon": epsilon})
        if batch not in releases:
            continue
        _, release = releases[batch]
        before = ledger
        if terms.at_parties:  # all rows of a batch are opened at once
            paid = store.ledger().paid_for(name, outcomes_of(release))
            ledger = before.reserve(name, charge_of(terms, paid, weight=weight))
            rows.append(
                {
                    "asked": asked + release.asked,
                    "answered": answered + release.answered,
                    "epsilon": ledger.charged_epsilon(),
                }
            )
        for place in range(0 if terms.at_parties else release.asked):
            looked_at = release.outcomes[: place + 1]
            answers = int((looked_at == Outcome.ANSWERED).sum())
            charge = charge_of(terms, Outcomes(place + 1 - answers, answers), weight=weight)
            ledger = before.reserve(name, charge)
            rows.append(
                {
                    "asked": asked + place + 1,
                    "answered": answered + answers,
                    "epsilon": ledger.charged_epsilon(),
                }
            )
        asked, answered = asked + release.asked, answered + release.answered
    return rows


def _ledger(store: RunStore) -> list[dict[str, Any]]:
    rows = []
    releases = store.releases()
    for batch, state in enumerate(store.ledger().states):
        _, release = releases.get(batch, ((), None))
        # What a void batch might have cost stays charged, but nothing of it was released.
        rows.append(
            {
                "batch": batch,
                "state": state.value,
                "asked": 0 if release is None else release.asked,
                "answered": 0 if release is None else release.answered,
            }
        )
    return rows


def manifest_table(
    *,
    settings: RunSettings,
    partition: Manifest | None,
    run: LabelingRun,
    pool_digest: bytes,
    earlier: Sequence[EarlierSetup] = (),
) -> dict[str, Any]:
    """Return the content of `manifest.json`.

    Args:
        settings: What was done.
        partition: Who holds which record, which a simulation alone knows.
        run: The run.
        pool_digest: Digest of its query pool, 32 bytes.
        earlier: Its earlier setups, oldest first.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "pate_fed": __version__,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _VERSIONS_OF},
        "seed": settings.seed,
        "suite": settings.suite,
        # Who holds which record is known to a simulation alone.
        **({} if partition is None else {"partition": partition.as_json()}),
        "pool_sha256": pool_digest.hex(),
        "run_id": run.round.run_id.hex(),
        "transcript_head": run.round.transcript.head.hex(),
        "heads_compared": [seat.hex() for seat in run.round.heads_compared],
        "not_heard": list(run.not_heard),
        "earlier_setups": [
            {
                "run_id": setup.round.run_id.hex(),
                "transcript_head": setup.round.transcript.head.hex(),
                "reason": setup.reason,
            }
            for setup in earlier
        ],
    }
