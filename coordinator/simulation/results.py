"""What a run leaves behind: its metrics, its privacy statement, and its manifest, as plain data."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.config import SimulationSettings
from coordinator.labeling import LabelingRun
from coordinator.store import RunStore
from coordinator.transport import Traffic
from pate_fed import __version__
from pate_fed.accounting import (
    EntryState,
    formal_cost,
    gdp_epsilon,
    gdp_mu_squared,
    neighbors,
    not_protected,
    trust_sentence,
)
from pate_fed.data import Dataset
from pate_fed.federation import RunTerms
from pate_fed.mechanisms.sampling import total_variation_bound
from pate_fed.partition import Manifest
from pate_fed.releases import Outcome

SCHEMA_VERSION = 1
_VERSIONS_OF = ("flwr", "torch", "scikit-learn", "numpy", "scipy", "cryptography")

Outcomes = list[tuple[int, int, Outcome]]
"""Pool index, released class (or `ABSTAIN`) and outcome of each query, in the order asked."""


def outcomes_of(store: RunStore) -> Outcomes:
    """Return every query of every released batch, in order."""
    return [
        (index, int(label), Outcome(int(outcome)))
        for indices, release in store.releases().values()
        for index, label, outcome in zip(indices, release.labels, release.outcomes, strict=True)
    ]


def metrics_table(
    *,
    dataset: Dataset,
    settings: SimulationSettings,
    queries: tuple[int, ...],
    outcomes: Outcomes,
    void: int,
    student_accuracy: float | None,
    yardsticks: Mapping[str, float],
    traffic: Traffic,
    exchanges: Mapping[str, int],
    batches: int,
    seconds: Mapping[str, float],
    warnings: list[str],
) -> dict[str, Any]:
    """Return the content of `metrics.json`."""
    answered = [(index, label) for index, label, outcome in outcomes if outcome is Outcome.ANSWERED]
    refused = [index for index, _, outcome in outcomes if outcome is Outcome.REFUSED]
    looked_at = len(answered) + len(refused)
    right = [dataset.pool.labels[index] == label for index, label in answered]
    teachers = (settings.parties or 0) * (settings.teachers or 0)
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": True,
        "accuracy": {
            "student": student_accuracy,
            "labels": float(np.mean(right)) if right else None,
            **yardsticks,
        },
        "queries": {
            "pool": len(dataset.pool.labels),
            "asked": looked_at,
            "answered": len(answered),
            "refused": len(refused),
            "not_asked": len(queries) - looked_at - void,
            "void": void,
        },
        "parties": settings.parties,
        "teachers": teachers,
        "batches": batches,
        "exchanges": {
            "setup": exchanges["setup"],
            "per_batch": exchanges["batches"] // max(batches, 1),
            "closing": exchanges["closing"],
        },
        "per_class": _per_class(dataset, answered, refused),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "bytes": {
            "to_parties": traffic.sent,
            "from_parties": traffic.received,
        },
        "warnings": warnings,
    }


def _per_class(
    dataset: Dataset, answered: list[tuple[int, int]], refused: list[int]
) -> dict[str, dict[str, int]]:
    """Count by the true class, which a simulation knows and a real coordinator does not."""
    classes = len(dataset.class_names)
    answers = _counts(dataset.pool.labels[[index for index, _ in answered]], classes)
    refusals = _counts(dataset.pool.labels[refused], classes)
    return {
        name: {"answered": int(answers[place]), "refused": int(refusals[place])}
        for place, name in enumerate(dataset.class_names)
    }


def _counts(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    return np.bincount(labels.astype(np.int64), minlength=classes)


def privacy_table(
    *,
    run: LabelingRun,
    settings: SimulationSettings,
    queries: int,
    store: RunStore,
) -> dict[str, Any]:
    """Return the content of `privacy.json`."""
    terms = run.terms
    asks, answers = run.mechanism.caps(
        queries, max_answers=terms.max_answers, max_refusals=terms.max_refusals
    )
    worst = run.mechanism.worst_case_event(asks, answers, weight=float(terms.unit_votes))
    formal = formal_cost(worst, delta=terms.delta, budget_epsilon=terms.epsilon)
    instance = run.per_instance_cost
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": True,
        "delta": terms.delta,
        "unit": terms.unit,
        "unit_weight": terms.unit_votes,
        "neighbors": neighbors(terms.unit, weight=terms.unit_votes),
        "mechanism": {
            **run.mechanism.parameters(),
            "max_answers": terms.max_answers,
            "max_refusals": terms.max_refusals,
            "pricing": terms.pricing,
        },
        "noise": {
            "place": terms.noise_place,
            "source": noise_source(settings.seed),
            "delta_slack": delta_slack(terms, asks=asks, epsilon=formal.epsilon),
        },
        "budget": {"epsilon": terms.epsilon, "delta": terms.delta},
        "views": {
            "public": {
                "formal": {
                    "epsilon": formal.epsilon,
                    "method": formal.method,
                    "holds_for": formal.holds_for,
                }
            },
            "coordinator": {"formal": {"epsilon": None, "method": "trusted"}},
        },
        "per_instance": {
            "epsilon": instance.epsilon,
            "order": instance.order,
            "method": instance.method,
            "releasable": instance.releasable,
        },
        "sanitized": {"epsilon": None, "method": "not computed", "releasable": False},
        "charged": _charged(run, terms, store),
        "ledger": _ledger(store),
        "sum": settings.form,
        "trust": trust(settings.form, terms),
        "not_protected": list(
            not_protected(simulated=True, votes_in_the_clear=settings.form == "plain")
        ),
    }


def delta_slack(terms: RunTerms, *, asks: int, epsilon: float) -> float:
    """Bound what the computer's noise, so little unlike the ideal one, could add to delta.

    Args:
        terms: The run's.
        asks: Queries looked at, at most.
        epsilon: The formal one.

    Returns:
        (1 + e^epsilon) times the total variation distance of all draws together.
    """
    drawn = asks * terms.classes * total_variation_bound(terms.sigma2)
    if terms.sigma1 is not None:
        drawn += asks * total_variation_bound(terms.sigma1)
    return (1 + math.exp(min(epsilon, 700.0))) * drawn


def noise_source(seed: int | None) -> str:
    """Say where the noise came from."""
    if seed is None:
        return "the operating system's cryptographic random numbers"
    return f"a stream keyed with seed {seed}: repeatable, hence simulated only"


def trust(form: str, terms: RunTerms) -> str:
    """Say who had to be trusted."""
    if form == "plain":
        return (
            "Every hospital trusts the coordinator with everything: the votes were summed in the "
            "clear (--sum plain), so it saw each hospital's votes. For comparison only."
        )
    return trust_sentence(terms.noise_place)


def _charged(run: LabelingRun, terms: RunTerms, store: RunStore) -> list[dict[str, Any]]:
    """Return epsilon charged after each step: an odometer, no guarantee.

    A step is a query that was looked at, or a void batch whose reservation was forfeited.
    """
    rows: list[dict[str, Any]] = []
    releases = store.releases()
    settled, asked, answered = 0.0, 0, 0

    def step(mu_squared: float) -> None:
        epsilon = gdp_epsilon(math.sqrt(mu_squared), terms.delta)
        rows.append({"asked": asked, "answered": answered, "epsilon": epsilon})

    for batch, entry in enumerate(store.ledger().entries):
        if entry.state is EntryState.FORFEITED:
            settled += gdp_mu_squared(entry.reserved)
            step(settled)
        if batch not in releases:
            continue
        _, release = releases[batch]
        so_far = np.cumsum(release.outcomes == Outcome.ANSWERED)
        event = None
        for place in range(release.asked):
            event = run.mechanism.event(
                place + 1, int(so_far[place]), weight=float(terms.unit_votes)
            )
            asked += 1
            answered += int(release.outcomes[place] == Outcome.ANSWERED)
            step(settled + gdp_mu_squared(event))
        settled += 0.0 if event is None else gdp_mu_squared(event)
    return rows


def _ledger(store: RunStore) -> list[dict[str, Any]]:
    rows = []
    releases = store.releases()
    for batch, entry in enumerate(store.ledger().entries):
        _, release = releases.get(batch, ((), None))
        # What a void batch might have cost stays charged, but nothing of it was released.
        rows.append(
            {
                "batch": batch,
                "state": entry.state.value,
                "asked": 0 if release is None else release.asked,
                "answered": 0 if release is None else release.answered,
            }
        )
    return rows


def manifest_table(
    *, settings: SimulationSettings, partition: Manifest, run: LabelingRun, pool_digest: bytes
) -> dict[str, Any]:
    """Return the content of `manifest.json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "pate_fed": __version__,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _VERSIONS_OF},
        "seed": settings.seed,
        "partition": partition.as_json(),
        "pool_sha256": pool_digest.hex(),
        "run_id": run.round.run_id.hex(),
        "transcript_head": run.round.transcript.head.hex(),
    }
