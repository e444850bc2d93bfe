"""A made-up run with the shape of a real one, for the tests of reports."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from pate_fed.accounting.costs import COMPOSED_METHOD, NO_BOUND_METHOD
from pate_fed.record import Metrics, Privacy, Settings
from pate_fed.report import FinishedRun, RunDirectory, read_run

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ANSWERED = (3, 2, 3, 2, 2, 2, 3, 2, 1, 2)
_REFUSED = (0, 1, 0, 1, 1, 1, 0, 0, 2, 2)
_DELTA = 1e-5


_EPSILON = 4.98663
"""Of about the right size; no accountant's."""


def sample_metrics() -> dict[str, Any]:
    """Content of a `metrics.json`."""
    return {
        "schema_version": 1,
        "simulated": True,
        "data": {
            "records": {"private": 1078, "pool": 500, "test": 450},
            "patients": {"private": 1078, "pool": 500, "test": 450},
            "classes": dict.fromkeys(DIGITS, 0.1),
            "columns": [],
            "outlook": "",
        },
        "label_accuracy": 0.9545,
        "student": {"kind": "propagation", "reason": "few labels reach further over a graph"},
        "scores": {
            "student": sample_scores(),
            "average_hospital": {"accuracy": 0.5312, "balanced_accuracy": 0.5298, "auc": 0.7411},
            "best_hospital": {"accuracy": 0.6734, "balanced_accuracy": 0.6701, "auc": 0.8305},
            "pooled": {"accuracy": 0.9663, "balanced_accuracy": 0.9651, "auc": 0.9987},
            "private_baseline": {"accuracy": 0.7412, "balanced_accuracy": 0.7388, "auc": 0.9102},
        },
        "evaluation": None,
        "queries": {
            "pool": 500,
            "asked": 30,
            "answered": 22,
            "refused": 8,
            "not_asked": 0,
            "void": 0,
            "reinforced": 0,
            "from_store": 0,
        },
        "earlier_runs": {},
        "parties": 50,
        "teachers": 50,
        "batches": 2,
        "exchanges": {"setup": 3, "per_batch": 1, "closing": 1},
        "per_class": {
            name: {"answered": answered, "refused": refused}
            for name, answered, refused in zip(DIGITS, _ANSWERED, _REFUSED, strict=True)
        },
        "seconds": {"total": 14.25, "teachers": 3.125, "rounds": 6.5, "student": 1.75},
        "bytes": {"from_parties": 214_500, "to_parties": 1_182_340},
        "warnings": [],
    }


def sample_scores(accuracy: float = 0.8418, *, majority: float = 0.1067) -> dict[str, Any]:
    """A student's scores, as `pate_fed.report.scores.scores_of` returns them."""
    return {
        "records": 450,
        "accuracy": accuracy,
        "accuracy_interval": [accuracy - 0.0331, accuracy + 0.0288],
        "majority": majority,
        "balanced_accuracy": 0.8397,
        "auc": 0.9712,
        "calibration_error": 0.0725,
        "decided_classes": 10,
        "confusion": {
            name: {name: 38, DIGITS[0]: 7} if name != DIGITS[0] else {name: 45} for name in DIGITS
        },
        "by_certainty": [
            {"certainty": 0.75, "right": 0.66, "records": 150},
            {"certainty": 0.95, "right": 0.93, "records": 300},
        ],
        "roc": None,
        "per_class": {
            name: {
                "records": 45,
                "recall": 0.8 + 0.01 * place,
                "decided": 40,
                "precision": 0.9 - 0.01 * place,
            }
            for place, name in enumerate(DIGITS)
        },
        "subgroups": {},
    }


def sample_parties(hospitals: int = 50, *, alike: bool = True) -> list[dict[str, Any]]:
    """The hospitals of a `privacy.json`; if not alike, the last one has the largest epsilon."""
    most = _EPSILON
    return [
        {
            "party": f"party-{number:02}",
            "teachers": 1,
            "votes": 1 if alike else 1 + number % 3,
            "unit_votes": 1 if alike else 1 + number % 3,
            "budget": 5.0 if alike else 2.0 + 6.0 * number / hospitals,
            "epsilon": most if alike else most * number / hospitals,
            "method": COMPOSED_METHOD,
        }
        for number in range(1, hospitals + 1)
    ]


def sample_privacy(method: str = COMPOSED_METHOD) -> dict[str, Any]:
    """Content of a `privacy.json`.

    Args:
        method: How epsilon was computed; there is none by `NO_BOUND_METHOD`.
    """
    is_private = method != NO_BOUND_METHOD
    number = {"epsilon": _EPSILON if is_private else None, "method": method}
    return {
        "schema_version": 1,
        "simulated": True,
        "delta": _DELTA,
        "dp_flavor": "(epsilon, delta)" if is_private else "none",
        "privacy_unit": "party",
        "unit_votes": 1,
        "neighboring_definition": (
            "Two cases that differ in all the records of one hospital, hence of any of its "
            "patients: its one vote may be for another class on every query."
        ),
        "mechanism": {
            "name": "threshold",
            "vote_threshold": 27.5,
            "sigma2": 7.75,
            "max_asks": 30,
            "max_answers": 30,
        },
        "noise": {
            "place": "coordinator",
            "source": "keyed stream of seed 7 (simulated)",
            "delta_slack": 4.25e-9 if is_private else None,
        },
        "budget": {
            "epsilon": 5.0,
            "delta": _DELTA,
            "order_of_series": 6.90836 if is_private else None,
        },
        "views": {
            "public": {
                **number,
                "holds_for": 'everyone who sees the released labels and every "no answer"',
            },
            "removal": {
                "epsilon": 3.456789,
                "method": method,
                "privacy_unit": "party",
                "neighboring_definition": "Two cases: a hospital votes, or casts no vote.",
            }
            if is_private
            else None,
            "coordinator": {"epsilon": None, "method": "trusted"},
        },
        "runs": [{"run": "rehearsal", **number, "delta": _DELTA}],
        "parties": [{**party, **number} for party in sample_parties()],
        "per_instance": {
            "epsilon": 2.134567,
            "order": 7.5,
            "method": "data-dependent RDP (Papernot 2018)",
            "releasable": False,
        },
        "charged": 1.0 if is_private else None,
        "ledger": [
            {"batch": 1, "state": "committed", "asked": 15, "answered": 11, "charged": 15},
            {"batch": 2, "state": "committed", "asked": 15, "answered": 11, "charged": 15},
        ],
        "evaluation": None,
        "sum": "additive",
        "guarantee": (
            "For everyone who sees the released labels: any outcome they see has nearly the "
            "same chance whether one hospital's records were as they are or entirely different."
        ),
        "trust_model": "central",
        "outputs": [
            {
                "output": "exact sum of all votes on a query",
                "seen_by": "the coordinator",
                "bounded_by": "nothing: you must trust it",
            }
        ],
        "post_processing": "The student costs nothing further.",
        "threat_model": (
            "The coordinator, for adding the declared noise and for keeping the exact sum of votes "
            "to itself. No hospital's own votes are seen by anyone while at least two hospitals "
            "keep their shares to themselves."
        ),
        "unprotected": [
            "A hospital that votes wrongly: it can bend labels, not learn others' records.",
            "A coordinator that adds less noise than it declares.",
            "That a hospital takes part, the timing and the size of messages.",
        ],
    }


def sample_settings() -> dict[str, Any]:
    """Content of a `run.toml`."""
    return {
        "data": "digits",
        **{"parties": 50, "teachers": 1, "partition": "iid", "form": "additive"},
        **{"queries": 30, "select": "medoids", "unit": "party"},
        "seed": 7,
    }


def sample_manifest() -> dict[str, Any]:
    """Content of a `manifest.json`."""
    return {
        "schema_version": 1,
        "begun_on": "2026-03-09",
        "pate_fed": "0.1.0",
        "python": "3.11.7",
        "seed": 7,
        "suite": "mlkem768-x25519-hkdf-sha256-aes-256-gcm",
        "versions": {"flwr": "1.41.0", "numpy": "2.4.6"},
        "pool_sha256": "5d" * 32,
        "run_id": "c0" * 32,
        "transcript_head": "a7" * 32,
        "heads_compared": [],
        "not_heard": [],
        "earlier_setups": [],
    }


def sample_labels() -> list[tuple[int, str]]:
    """Rows of a `labels.csv`."""
    labels = [
        name for name, answered in zip(DIGITS, _ANSWERED, strict=True) for _ in range(answered)
    ]
    return [(11 * row + 4, label) for row, label in enumerate(labels + [""] * sum(_REFUSED))]


def fill(
    run: RunDirectory,
    *,
    metrics: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write everything but the report."""
    run.write_record(settings_of(settings or sample_settings()))
    run.write_json("manifest.json", sample_manifest())
    run.write_json("metrics.json", metrics or sample_metrics())
    run.write_json("privacy.json", privacy or sample_privacy())
    run.write_labels(sample_labels())
    run.write_transcript(['{"entry": 1}', '{"entry": 2}'])
    (run.student_directory() / "model_card.md").write_text("# Student\n", encoding="utf-8")


def write_sample(path: Path, **changed: Any) -> FinishedRun:
    """Write a whole run without a report and read it."""
    with RunDirectory.open_new(path) as run:
        fill(run, **copy.deepcopy(changed))
    return read_run(path)


def settings_of(content: dict[str, Any]) -> Settings:
    """The record that `run.toml` of this content is read as."""
    return Settings.read(json.dumps(content))


def metrics_of(content: dict[str, Any]) -> Metrics:
    """The record that `metrics.json` of this content is read as."""
    return Metrics.read(json.dumps(content))


def privacy_of(content: dict[str, Any]) -> Privacy:
    """The record that `privacy.json` of this content is read as."""
    return Privacy.read(json.dumps(content))
