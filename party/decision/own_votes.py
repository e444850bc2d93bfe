"""The vector that a party sends for a batch: its teachers' votes, and its noise if it adds any."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from party.decision.agreed_run import AgreedRun
from party.storage.patient_votes import PatientVotes, TagOf
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
    """Counts the votes of a party's teachers, and draws its noise from `noise_bytes`.

    Where records vote it keeps each patient's cap: `cast` has the votes of all runs.
    """

    def __init__(
        self, noise_bytes: Callable[[int], bytes], *, cast: PatientVotes, tag_of: TagOf
    ) -> None:
        self._noise_bytes = noise_bytes
        self._cast = cast
        self._tag_of = tag_of

    def vector(
        self, run: AgreedRun, batch: QueryBatch, *, weights: TeacherWeights
    ) -> NDArray[np.int64]:
        """Return the vector for the secure sum, with noise if the parties add it. Secret.

        The noise is drawn before the teachers are asked. Only the sent vector holds it. Votes that
        patients use up are on disk when it returns; a `StorageError` says that they are not.
        """
        share = self._draw_noise(run.terms, len(batch))
        if run.terms.is_evaluation:
            votes = self._count_patients(run, batch)
        elif run.terms.do_records_vote:
            votes = self._count_records(run, batch, weights)
        else:
            votes = self._count(run, batch, weights)
        return (votes if share is None else share.add_to(votes)).counts.ravel()

    def _draw_noise(self, terms: RunTerms, queries: int) -> NoiseShare | None:
        if not terms.rule.at_parties:
            return None
        noise = noise_of(terms)
        return noise.draw(queries, terms.classes, random_bytes=self._noise_bytes)

    def _count(self, run: AgreedRun, batch: QueryBatch, weights: TeacherWeights) -> VoteHistogram:
        votes = _votes(run, batch, voters=weights.teachers, no_vote=INVALID_VOTE_CLASS)
        return count_votes(votes, classes=run.terms.classes, weights=weights)

    def _count_records(
        self, run: AgreedRun, batch: QueryBatch, weights: TeacherWeights
    ) -> VoteHistogram:
        """Count the patients' votes within their cap; every row sums to the public quota."""
        terms, patients, most = run.terms, run.task.patients, run.terms.caps.patient_votes
        assert patients is not None
        assert most is not None
        scope = run.scope.digest  # one cap, however often the run is set up
        tags = [self._tag_of(scope, one) for one in patients]
        votes = _votes(run, batch, voters=len(patients), no_vote=terms.classes)
        used = self._cast.used(scope, tags, most=most)
        capped, after = cap_votes(votes, used=used, most=most, classes=terms.classes)
        # Before anything of them can leave. No plan comes to this line twice: it claims its queries
        # before, once.
        self._cast.keep(scope, tags, after)
        voters = TeacherWeights.equal(len(patients), weight=weights.heaviest)
        counted = count_votes(capped, classes=terms.columns, weights=voters)
        counts = np.array(counted.counts)
        counts[:, -1] += weights.votes - voters.votes  # places of patients who do not vote
        return VoteHistogram(counts)

    def _count_patients(self, run: AgreedRun, batch: QueryBatch) -> VoteHistogram:
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


def _votes(run: AgreedRun, batch: QueryBatch, *, voters: int, no_vote: int) -> NDArray[np.float64]:
    """Return the class that each votes for, shape (voters, queries); `no_vote` after any fault."""
    shape = voters, len(batch)
    try:
        # A vote that is no number fails here, and not where the failure could be seen from
        # outside.
        votes = np.asarray(run.task.vote(batch), dtype=np.float64)
    except Exception as error:
        _log.error("votes could not be computed: %s", type(error).__name__)
        return np.full(shape, float(no_vote))
    if votes.shape != shape:
        _log.error("votes came in the wrong shape")
        return np.full(shape, float(no_vote))
    return votes
