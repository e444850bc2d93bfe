"""The vote leak of a finished run: what an attacker who repeats a question would learn of votes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.runs import transcripts
from pate_fed.audit import findings
from pate_fed.audit.disjointness import check_manifest
from pate_fed.audit.run_case import facts_of_run
from pate_fed.report import read_run

NEAR: Final = 10
"""Close queries that hospitals allow by default."""

LEAK: Final = 0.1
"""Error that counts as a leak."""


def leak_of_run(
    path: Path,
    votes: NDArray[np.int64] | None = None,
    *,
    asks: int | None = None,
    near: int = NEAR,
    error: float = LEAK,
    seed: int = 0,
) -> dict[str, Any]:
    """Attack votes under a run's mechanism, after a check of its transcript.

    Args:
        path: The run directory.
        votes: Vote counts; None for made-up rows: a run directory holds none, and then nothing of
            the findings is private.
        asks: Repetitions of the attacker whom nothing stops; None for the run's cap.
        near: Close queries that hospitals allow.
        error: Error that counts as a leak.
        seed: Of the simulated answers.

    Raises:
        RunDirectoryError: the run cannot be read, or has nothing to attack.
        BrokenTranscriptError: somebody changed its transcript.
    """
    record = read_run(path)
    queries = record.metrics["queries"]
    if queries.get("from_store", 0) < queries["asked"]:  # a public edition does not tell
        transcripts.check_transcript(path)
    labels = tuple(label for _, label in record.labels)
    repeated = _check_dealing(record.manifest)
    facts = facts_of_run(privacy=record.privacy, metrics=record.metrics, labels=labels)
    rows = facts.rows() if votes is None else findings.spread_rows(votes)
    case = findings.AuditCase(
        rows, facts.target, facts.asks if asks is None else asks, neighbors=near, error=error
    )
    found = findings.find(case, np.random.default_rng(seed))
    found["repeated_contents"] = repeated
    if facts.epsilon is not None and asks is None:
        found["ways"][-1]["epsilon"] = facts.epsilon
    return found


def _check_dealing(manifest: Mapping[str, Any]) -> int | None:
    """Return how many records also stand with another teacher; None in a deployment."""
    partition = manifest.get("partition")
    return None if partition is None else check_manifest(partition)
