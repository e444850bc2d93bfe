"""Membership inference: tell by a model's answers whether a record was among its training records.

The likelihood-ratio attack. Many models of one recipe are trained, each with about half of the
records. For each record two normal distributions are fitted to the models' confidence in its class:
of models with the record, and of models without it. A model is attacked by the ratio of the two
densities at its own confidence; its own value is left out of the fit.

The models are cut in two. On one half the attack chooses its thresholds, on the other half it is
measured. What counts is how many records are found while hardly any alarm is false: epsilon bounds
that, at each rate of alarms. All records of one model share its training, so the trials are not
independent, and the intervals are too narrow. A bound above the claim is a reason to look closer;
`canary` refutes a claim.

Source:
    Carlini et al. 2022, Membership inference attacks from first principles.
    https://arxiv.org/abs/2112.03570
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.ranges import probability
from pate_fed.errors import InvalidAnswersError
from pate_fed.lab.canary import clopper_pearson, epsilon_lower_bound

ALARM_RATES: Final = (0.001, 0.01, 0.1)
"""Shares of other records for which the attack may raise a false alarm."""

LEAST_MODELS: Final = 8
_LEAST_KNOWN: Final = 3
"""Fewest models with, and without, each record."""

_SUREST: Final = 1e-9
"""Distance from 0 and 1 within which a confidence counts as that."""


@dataclass(frozen=True, slots=True, eq=False)
class ShadowModels:
    """Models of one recipe, and what each says about each record.

    Attributes:
        confidences: Chance that a model gives to a record's own class; in [0, 1], shape (models,
            records).
    """

    confidences: NDArray[np.float64]
    members: NDArray[np.bool_]

    def __post_init__(self) -> None:
        confidences = np.asarray(self.confidences, dtype=np.float64)
        members = np.asarray(self.members)
        if members.dtype != np.bool_ or members.shape != confidences.shape or members.ndim != 2:
            raise InvalidAnswersError(
                "confidences and members must have the same shape, models by records",
                str(members.shape),
            )
        if not ((confidences >= 0) & (confidences <= 1)).all():  # NaN neither
            raise InvalidAnswersError("confidences must be in [0, 1]")
        if len(members) < LEAST_MODELS:
            raise InvalidAnswersError(f"there must be at least {LEAST_MODELS} models", len(members))
        count = members.sum(axis=0)
        fewest = int(min([*count, *(len(members) - count)], default=0))
        if fewest < _LEAST_KNOWN:
            raise InvalidAnswersError(
                f"each record must be in {_LEAST_KNOWN} models, and missing in as many", fewest
            )
        object.__setattr__(self, "confidences", confidences)
        object.__setattr__(self, "members", members)


@dataclass(frozen=True, slots=True)
class AlarmPoint:
    """The attack with one threshold, measured on models that did not choose it.

    Attributes:
        aimed: Share of false alarms that the threshold was chosen for.
        found: Members that were recognized, of `members`.
        alarms: Others that were taken for members, of `others`.
    """

    aimed: float
    found: int
    members: int
    alarms: int
    others: int

    def interval(self) -> tuple[float, float]:
        """Return the interval of the share found, by Clopper and Pearson, at 95 %."""
        return clopper_pearson(self.found, self.members)

    def most_found(self, epsilon: float, delta: float) -> float:
        """Return the largest share that a true epsilon allows beside this rate of alarms."""
        _, alarms = clopper_pearson(self.alarms, self.others)
        return min(1.0, math.exp(min(epsilon, 700.0)) * alarms + delta)


@dataclass(frozen=True, slots=True, eq=False)
class MembershipAudit:
    """What a likelihood-ratio attack found.

    Attributes:
        area: Area under the curve: how often a member scores above another record.
        epsilon: The largest lower bound on epsilon of the points, by trials taken as independent.
        scores: Log ratio of densities; of the measured models, shape (models * records,).
    """

    points: tuple[AlarmPoint, ...]
    area: float
    epsilon: float
    scores: NDArray[np.float64]
    members: NDArray[np.bool_]


def likelihood_scores(shadows: ShadowModels) -> NDArray[np.float64]:
    """Return ln of the ratio "with the record" to "without it"; shape (models, records).

    Each record has its own means; the two variances are those of all records, which is the better
    choice with fewer than some hundred models.
    """
    sure = np.clip(shadows.confidences, _SUREST, 1 - _SUREST)
    logits = np.log(sure) - np.log1p(-sure)
    found = []
    for mine in (shadows.members, ~shadows.members):
        total, count = (logits * mine).sum(axis=0), mine.sum(axis=0)
        # The attacked model's own value is left out of the mean. A mean of fewer values is further
        # off: without the last factor members would seem less likely than others.
        known = count - mine
        off = (logits - (total - logits * mine) / known) / np.sqrt(1 + 1 / known)
        variance = max(float((off[mine] ** 2).mean()), _SUREST)
        found.append(-0.5 * (off**2 / variance + math.log(variance)))
    return np.asarray(found[0] - found[1])


def membership_audit(shadows: ShadowModels, *, delta: float) -> MembershipAudit:
    """Attack the second half of the models, with thresholds from the first.

    All points' bounds at this delta hold with a chance of 95 %, were trials independent.
    """
    probability("delta", delta)
    sure = 1 - 0.05 / len(ALARM_RATES)
    scores, half = likelihood_scores(shadows), len(shadows.members) // 2
    learned = scores[:half][~shadows.members[:half]]
    measured, members = scores[half:].ravel(), shadows.members[half:].ravel()
    inside, outside = measured[members], measured[~members]
    points = []
    for rate in ALARM_RATES:
        limit = np.quantile(learned, 1 - rate, method="higher")
        found, alarms = int((inside > limit).sum()), int((outside > limit).sum())
        points.append(AlarmPoint(rate, found, len(inside), alarms, len(outside)))
    bounds = [
        epsilon_lower_bound(
            one.found, one.alarms, one.members, others=one.others, delta=delta, confidence=sure
        )
        for one in points
    ]
    return MembershipAudit(
        tuple(points), area_under_curve(inside, outside), max(bounds), measured, members
    )


def area_under_curve(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Return how often a positive scores above a negative; half for equal ones."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    up_to = np.searchsorted(ordered, positive, side="right")
    return float((below + up_to).mean() / (2 * len(negative)))
