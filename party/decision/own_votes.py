"""The vector that a party sends for a batch: its teachers' votes, and its noise if it adds any."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from party.decision.agreed_run import AgreedRun
from pate_fed.charges import noise_of
from pate_fed.queries import QueryBatch
from pate_fed.terms import RunTerms
from pate_fed.votes import (
    INVALID_VOTE_CLASS,
    NoiseShare,
    TeacherWeights,
    VoteHistogram,
    cap_votes,
    count_votes,
)

_log = logging.getLogger(__name__)


class OwnVotes:
    """Counts the votes of a party's teachers, and draws its noise from `noise_bytes`."""

    def __init__(self, noise_bytes: Callable[[int], bytes]) -> None:
        self._noise_bytes = noise_bytes
        self._used: dict[bytes, NDArray[np.int64]] = {}

    def vector(
        self, run: AgreedRun, batch: QueryBatch, *, weights: TeacherWeights
    ) -> NDArray[np.int64]:
        """Return the vector for the secure sum, with noise if the parties add it. Secret.

        The noise is drawn before the teachers are asked. Only the sent vector holds it.
        """
        share = self._draw_noise(run.terms, len(batch))
        count = self._count_patients if run.terms.is_evaluation else self._count
        votes = count(run, batch, weights)
        return (votes if share is None else share.add_to(votes)).counts.ravel()

    def _draw_noise(self, terms: RunTerms, queries: int) -> NoiseShare | None:
        if not terms.rule.at_parties:
            return None
        noise = noise_of(terms)
        return noise.draw(queries, terms.classes, random_bytes=self._noise_bytes)

    def _count(self, run: AgreedRun, batch: QueryBatch, weights: TeacherWeights) -> VoteHistogram:
        shape, terms = (weights.teachers, len(batch)), run.terms
        no_vote = terms.classes if terms.do_records_vote else INVALID_VOTE_CLASS
        try:
            # A vote that is no number fails here, and not where the failure could be seen from
            # outside.
            votes = np.asarray(run.task.vote(batch), dtype=np.float64)
        except Exception as error:
            _log.error("teachers could not vote: %s", type(error).__name__)
            votes = np.full(shape, float(no_vote))
        if votes.shape != shape:
            _log.error("teachers voted in the wrong shape")
            votes = np.full(shape, float(no_vote))
        if terms.caps.patient_votes is not None:
            scope = run.scope.digest  # one cap, however often the run is set up
            used = self._used.get(scope, np.zeros(weights.teachers, dtype=np.int64))
            most = terms.caps.patient_votes
            capped = cap_votes(votes, used=used, most=most, classes=terms.classes)
            votes, self._used[scope] = capped[0].astype(np.float64), capped[1]
        return count_votes(votes, classes=terms.columns, weights=weights)

    def _count_patients(
        self, run: AgreedRun, batch: QueryBatch, _: TeacherWeights
    ) -> VoteHistogram:
        """Count held-out patients; every row sums to this party's public number of places."""
        places, columns = run.terms.quotas[run.seat], run.terms.classes
        counts = np.zeros((len(batch), columns), dtype=np.int64)
        counts[:, -1] = places  # nobody is counted
        try:
            assert run.task.evaluation is not None
            counted = run.task.evaluation.rows()[list(batch.indices)]
            if counted.shape == counts.shape and (counted.sum(axis=1) == places).all():
                counts = counted
            else:
                _log.error("patients were counted in the wrong shape")
        except Exception as error:
            _log.error("patients could not be counted: %s", type(error).__name__)
        return VoteHistogram(counts)
