"""A lower bound on epsilon from released labels of two neighboring worlds.

In one world a teacher was given a canary, a record with a wrong label, and votes for another class.
In the other it was not. Both worlds release labels many times over. The better somebody can tell
the worlds by the labels, the larger epsilon must be: a bound above the claim refutes the claim. A
bound below it proves nothing more than that this attack found nothing.

The trials are cut in two. On one half the attack learns: the weight of each outcome, which is its
log ratio of frequencies, and the threshold on the sum of weights. On the other half it is measured
once. So no choice makes the bound too large.

Source:
    Jagielski, Ullman, Oprea 2020, Auditing differentially private machine learning: how private is
    private SGD? https://arxiv.org/abs/2006.07709
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_fed.accounting.ranges import probability, whole
from pate_fed.errors import InvalidAnswersError, InvalidParameterError
from pate_fed.mechanisms import CoordinatorNoise, Mechanism, RandomBytes, keyed_stream
from pate_fed.votes import SummedHistogram

LEAST_TRIALS: Final = 100
_THRESHOLDS: Final = 200
MOST_ROWS: Final = 5_000_000
"""Most rows of votes that a command releases: a few seconds, half a gigabyte."""

Release = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Releases one outcome per row of counts; -1 for no answer."""


@dataclass(frozen=True, slots=True)
class CanaryAudit:
    """Findings of a canary audit."""

    epsilon: float
    found: float
    alarms: float
    trials: int

    def refutes(self, claim: float) -> bool:
        """Tell whether the claimed epsilon is too small."""
        return self.epsilon > claim


def epsilon_lower_bound(
    found: int,
    alarms: int,
    trials: int,
    *,
    delta: float,
    confidence: float = 0.95,
    others: int | None = None,
) -> float:
    """Return what epsilon must be at least, by the exact intervals of Clopper and Pearson.

    `others` are the trials without the canary, as many where it is None.
    """
    probability("delta", delta)
    risk = (1 - probability("confidence", confidence)) / 2
    others = trials if others is None else others
    if not (0 <= found <= trials and 0 <= alarms <= others and trials > 0 and others > 0):
        raise InvalidParameterError("both numbers must be in 0..trials", f"{found}, {alarms}")
    most_alarms = _upper(alarms, others, risk)
    least_found = 1 - _upper(trials - found, trials, risk)
    # The same two intervals also bound the opposite event: no canary.
    pairs = ((least_found, most_alarms), (1 - most_alarms, 1 - least_found))
    ratios = [(more - delta) / less for more, less in pairs if more > delta and less > 0]
    return max([0.0, *(math.log(ratio) for ratio in ratios)])


def clopper_pearson(cases: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share, of Clopper and Pearson."""
    risk = (1 - probability("confidence", confidence)) / 2
    if not 0 <= cases <= trials or not trials:
        raise InvalidParameterError("cases must be in 0..trials", f"{cases} of {trials}")
    return 1 - _upper(trials - cases, trials, risk), _upper(cases, trials, risk)


def canary_audit(
    release: Release,
    with_canary: NDArray[np.int64],
    without: NDArray[np.int64],
    *,
    trials: int,
    delta: float,
    confidence: float = 0.95,
) -> CanaryAudit:
    """Tell two neighboring worlds by their labels.

    Both worlds are counts of each query of one run, of equal sums. The attack learns on half of
    the trials.
    """
    here, there = (np.asarray(one, dtype=np.int64) for one in (with_canary, without))
    if here.shape != there.shape or here.ndim != 2 or not here.size:
        raise InvalidParameterError("both worlds must have the same queries", str(here.shape))
    if trials < LEAST_TRIALS:
        raise InvalidParameterError(f"there must be at least {LEAST_TRIALS} trials", trials)
    seen = [_outcomes(release, world, trials) for world in (here, there)]
    half = trials // 2
    weights = _weights(*(one[:half] for one in seen), outcomes=here.shape[1] + 1)
    queries = np.arange(here.shape[0])
    scores = [weights[queries, one].sum(axis=1) for one in seen]
    limit = _best_limit(scores[0][:half], scores[1][:half], delta=delta, confidence=confidence)
    found, alarms = (int((one[half:] >= limit).sum()) for one in scores)
    measured = trials - half
    bound = epsilon_lower_bound(found, alarms, measured, delta=delta, confidence=confidence)
    return CanaryAudit(bound, found / measured, alarms / measured, measured)


def audit_mechanism(
    mechanism: Mechanism, *, teachers: int, queries: int, trials: int, delta: float, seed: bytes
) -> CanaryAudit:
    """Tell the worlds of `neighboring_worlds` by a mechanism's labels, noise at the coordinator."""
    here, there = neighboring_worlds(teachers, queries=queries)
    release = releases_of(mechanism, keyed_stream(seed, tag="canary audit"))
    return canary_audit(release, here, there, trials=trials, delta=delta)


def neighboring_worlds(
    teachers: int, *, queries: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the counts of two classes with and without a canary: it breaks the closest votes."""
    if whole("teachers", teachers) < 1 or whole("queries", queries) < 1:
        raise InvalidParameterError("a canary must have teachers and queries")
    less, more = teachers // 2, teachers - teachers // 2
    here = [less, more] if less < more else [less - 1, more + 1]
    return np.tile([here], (queries, 1)), np.tile([[here[0] + 1, here[1] - 1]], (queries, 1))


def releases_of(mechanism: Mechanism, random_bytes: RandomBytes) -> Release:
    """Return the release of a mechanism whose noise the coordinator adds, without caps."""

    def release(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = len(counts)
        summed = SummedHistogram(counts, total_votes=int(counts[0].sum()))
        released = mechanism.release(
            summed,
            noise=CoordinatorNoise(),
            random_bytes=random_bytes,
            max_answers=rows,
        )
        return released.labels

    return release


def _outcomes(release: Release, world: NDArray[np.int64], trials: int) -> NDArray[np.int64]:
    """Return outcomes from 0, "no answer" first; shape (trials, queries)."""
    labels = np.asarray(release(np.tile(world, (trials, 1))))
    if labels.shape != (trials * len(world),):
        raise InvalidAnswersError("a mechanism must release one outcome per row", str(labels.shape))
    if ((labels < -1) | (labels >= world.shape[1])).any():
        raise InvalidAnswersError(f"labels must be in -1..{world.shape[1] - 1}")
    return labels.reshape(trials, len(world)) + 1


def _weights(
    here: NDArray[np.int64], there: NDArray[np.int64], *, outcomes: int
) -> NDArray[np.float64]:
    """Return the log ratio of frequencies of each query's outcomes, half a case added to each."""
    counted = [
        np.stack([np.bincount(column, minlength=outcomes) for column in one.T]) + 0.5
        for one in (here, there)
    ]
    return np.asarray(np.log(counted[0] / counted[1]))


def _best_limit(
    here: NDArray[np.float64], there: NDArray[np.float64], *, delta: float, confidence: float
) -> float:
    """Return the limit that gives the largest bound on the learning half."""
    limits = np.unique(np.quantile(np.concatenate([here, there]), np.linspace(0, 1, _THRESHOLDS)))
    trials = len(here)
    bounds = [
        epsilon_lower_bound(
            int((here >= limit).sum()),
            int((there >= limit).sum()),
            trials,
            delta=delta,
            confidence=confidence,
        )
        for limit in limits
    ]
    return float(limits[int(np.argmax(bounds))])


def _upper(cases: int, trials: int, risk: float) -> float:
    """Return the one-sided upper end of Clopper and Pearson's interval."""
    if cases == trials:
        return 1.0
    return float(scipy.special.betaincinv(cases + 1, trials - cases, 1 - risk))
