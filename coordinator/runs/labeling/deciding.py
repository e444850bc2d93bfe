"""From an opened sum to labels: a batch's rule, and noise where it is the coordinator's to add.

In a simulation the cost on the actual votes is added up here, where those votes are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.runs.labeling.job import MakeMeter, Meter
from pate_fed.accounting import Outcomes
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.charges import mechanism_of, noise_of
from pate_fed.class_shares import share_offsets
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms import CoordinatorNoise, GaussianMax, HearsStudent, Mechanism, RandomBytes
from pate_fed.opened_sums import open_noisy_sum, open_sum
from pate_fed.releases import NoisyRelease
from pate_fed.terms import RunTerms
from pate_fed.votes import NoisyHistogram, SummedHistogram


class Decider:
    """The rule of a run, applied to opened sums, if its mechanism and noise can be."""

    def __init__(
        self,
        terms: RunTerms,
        *,
        noise_bytes: RandomBytes,
        meter: MakeMeter | None,
        shares_out: bool = False,
    ) -> None:
        self._terms = terms
        self._shares_out = shares_out and terms.do_records_vote and not terms.spec.may_refuse
        self._noise_bytes = noise_bytes
        self.mechanism = mechanism_of(terms)
        if terms.rule.opens_noisy:
            noise_of(terms).require_room(terms.total_votes)
        self._meter: Meter | None = None
        # The papers' number is of teachers that vote on every query.
        if meter is not None and not terms.rule.opens_noisy and not terms.do_records_vote:
            self._meter = meter(self.mechanism, terms)

    @property
    def per_instance_cost(self) -> PerInstanceCost | None:
        """The run's cost on the actual votes, if it was metered. Private.

        None with noise at the parties: nobody sees the votes that it would be computed from.
        """
        return None if self._meter is None else self._meter.cost

    def rule_for(
        self, indices: tuple[int, ...], predictions: NDArray[np.float64] | None
    ) -> Mechanism:
        """Return the mechanism of one batch; the student's predictions are public."""
        if predictions is None:
            return self.mechanism
        if not isinstance(self.mechanism, HearsStudent):
            raise InvalidParameterError(
                "predictions must be for a mechanism that learns", self._terms.rule.mechanism
            )
        if predictions.shape != (len(indices), self._terms.classes):
            raise InvalidParameterError(
                f"predictions must have shape {(len(indices), self._terms.classes)}",
                str(predictions.shape),
            )
        return self.mechanism.with_predictions(predictions, total_votes=self._terms.total_votes)

    def open(
        self, words: NDArray[np.int64], *, queries: int, places: Sequence[int]
    ) -> SummedHistogram | NoisyHistogram:
        """Check the rows of the sum of a batch's vectors, shape (queries * classes,).

        `places` are the seats, by number, of the parties in it. Returns the exact histogram, a
        secret, where the coordinator adds the noise: the only copy, as the sum is overwritten.

        Raises:
            RowSumError: a row is impossible for these parties' votes.
        """
        votes = sum(self._terms.quotas[place] for place in places)
        shape = {"queries": queries, "classes": self._terms.columns}
        if self._terms.rule.at_parties:
            noise, senders = noise_of(self._terms), len(places)
            return open_noisy_sum(
                words,
                **shape,
                total_votes=votes,
                sigma=noise.sum_sigma(senders),
                row_sum_bound=noise.row_sum_bound(**shape, senders=senders),
            )
        if self._terms.rule.at_aggregators:
            noise = noise_of(self._terms)
            counts = words.reshape(queries, self._terms.columns).astype(np.float64)
            return NoisyHistogram(counts, noise.sum_sigma(noise.parties))
        try:
            opened = open_sum(words, **shape, total_votes=votes)
        finally:
            words.fill(0)
        return opened.of_classes(self._terms.classes)

    def decide(
        self, opened: SummedHistogram | NoisyHistogram, *, rule: Mechanism, left: Outcomes
    ) -> NoisyRelease:
        """Turn an opened sum into labels; adds noise only where it is the coordinator's to add.

        `left` are the outcomes that the caps still allow. An exact sum is overwritten afterwards.
        """
        if isinstance(opened, NoisyHistogram):
            assert isinstance(rule, GaussianMax)
            return rule.label(opened, max_answers=left.answers)
        try:
            if self._shares_out and isinstance(rule, GaussianMax):
                noisy = rule.add_noise(
                    opened, noise=CoordinatorNoise(), random_bytes=self._noise_bytes
                )
                return rule.decide(_shared_out(noisy), max_answers=left.answers)
            release = rule.release(
                opened,
                noise=CoordinatorNoise(),
                random_bytes=self._noise_bytes,
                max_answers=left.answers,
            )
            if self._meter is not None:
                self._meter.add(opened.counts, release, rule=rule)
        finally:
            opened.erase()
        return release


def _shared_out(noisy: NoisyHistogram) -> NoisyHistogram:
    """Weigh the noisy counts of a batch, so that each class wins about equally often.

    Records vote for their own class, so a rare one would hardly ever win. Each count is taken as a
    share of its class's mean, and then shifted. The price of records that vote covers a reader of
    noisy counts, so all that follows from them is free.
    """
    least = noisy.sigma / math.sqrt(len(noisy.counts))  # the noise of a mean
    scaled = noisy.counts / np.maximum(noisy.counts.mean(axis=0), least)
    return NoisyHistogram(scaled + share_offsets(scaled), noisy.sigma)


def digest_of_predictions(predictions: NDArray[np.float64] | None) -> bytes:
    """Return the digest of the student's predictions, for a batch's terms; empty without any."""
    if predictions is None:
        return b""
    shape = ",".join(str(size) for size in predictions.shape)
    body = np.ascontiguousarray(predictions, dtype="<f8").tobytes()
    return hashlib.sha256(f"pate-fed predictions {shape}\n".encode() + body).digest()
