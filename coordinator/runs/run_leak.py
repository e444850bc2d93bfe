"""The vote leak of a finished run: what an attacker who repeats a question would learn of votes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.runs import transcripts
from pate_fed.audit import MOST_ASKS, Target, audit_case
from pate_fed.audit.disjointness import check_manifest
from pate_fed.record import Audit
from pate_fed.report import read_run
from pate_fed.rule import AGGREGATORS

LEAK: Final = 0.1
"""Error that counts as a leak."""


def leak_of_run(
    path: Path,
    votes: NDArray[np.int64] | None = None,
    *,
    asks: int | None = None,
    error: float = LEAK,
    seed: int = 0,
) -> Audit:
    """Attack votes under a run's mechanism, after a check of its transcript.

    Without votes, made-up rows are attacked: a run directory holds none, and then nothing of the
    findings is private. `asks` are the attacker's repetitions, by default the run's cap; `error`
    counts as a leak.

    Raises:
        RunDirectoryError: the run cannot be read, or has nothing to attack.
        BrokenTranscriptError: somebody changed its transcript.
    """
    record = read_run(path)
    queries, proof = record.metrics.queries, record.manifest.partition
    if queries.from_store < queries.asked:
        transcripts.check_transcript(path)
    labels = tuple(label for _, label in record.labels)
    repeated = None if proof is None else check_manifest(proof)
    made_up = audit_case.made_up_rows(record.privacy, record.metrics, labels)
    rows = made_up if votes is None else audit_case.spread_rows(votes)
    rule = record.privacy.mechanism
    cap = min(max(rule.max_asks, 1), MOST_ASKS)
    parameters = rule.as_json()
    if record.privacy.at_aggregators and rule.sigma2 is not None:  # both ends' noise is in labels
        parameters |= {"sigma2": rule.sigma2 * math.sqrt(AGGREGATORS)}
    target = Target.of(parameters)
    case = audit_case.AuditCase(rows, target, cap if asks is None else asks, error=error)
    found = audit_case.find(case, np.random.default_rng(seed))
    *others, last = found.ways
    priced = last if asks is not None else last.changed(epsilon=record.privacy.views.public.epsilon)
    return found.changed(repeated_contents=repeated, ways=(*others, priced))
