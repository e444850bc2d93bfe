"""How good a student is on held-out patients, from noisy sums of counts, and their price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pate_fed.evaluation import CERTAINTY, CLASS, EvaluationPlan, neighbors_of, share_interval
from pate_fed.record.metrics import EvaluationScores, GroupScores, OutcomeCounts
from pate_fed.record.privacy import EvaluationPrice, WithLabels


def held_out_scores(plan: EvaluationPlan, noisy: NDArray[np.float64]) -> EvaluationScores:
    """Estimate the student's quality, with 95 % intervals for noise and choice of patients.

    Returns:
        The scores, without counts of public inputs. A share is None where noise leaves no
        patient.
    """
    parts = plan.parts(noisy)
    weights = np.array([1 / len(one.groups) for one in plan.groupings])
    weights /= weights.sum()
    right, wrong = (
        float(sum(weight * part[hit].sum() for weight, part in zip(weights, parts, strict=True)))
        for hit in (0, 1)
    )
    variance, own = _whole_variance(plan), plan.sigma**2
    patients = right + wrong
    tables = {
        one.name: {
            group: GroupScores(
                share=_share(hits + misses, patients - hits - misses),
                right=_share(hits, misses),
                interval=share_interval(hits, misses, own, own),
            )
            for group, hits, misses in zip(one.groups, *part, strict=True)
        }
        for one, part in zip(plan.groupings, parts, strict=True)
    }
    return EvaluationScores(
        patients=max(0.0, patients),
        accuracy=_share(right, wrong),
        accuracy_interval=share_interval(right, wrong, variance, variance),
        by_class=tables.pop(CLASS, {}),
        by_certainty=tables.pop(CERTAINTY, {}),
        groups=tables,
        no_answer={},
    )


def held_out_price(
    plan: EvaluationPlan, unit: str, *, view: str, method: str, trust: str, with_labels: WithLabels
) -> EvaluationPrice:
    """Return its price for the record of a run."""
    return EvaluationPrice(
        epsilon=plan.epsilon,
        delta=plan.delta,
        sigma=plan.sigma,
        unit_patients=plan.unit_patients,
        view=view,
        neighboring_definition=neighbors_of(unit),
        method=method,
        trust=trust,
        with_labels=with_labels,
    )


def half_width(plan: EvaluationPlan, patients: int) -> float:
    """Return about half the 95 % interval of an accuracy of 80 %, before anybody counts."""
    variance = _whole_variance(plan)
    low, high = share_interval(0.8 * patients, 0.2 * patients, variance, variance)
    return (high - low) / 2


def answered_by_group(
    groups: Mapping[str, tuple[Sequence[str], NDArray[np.int64]]], refused: NDArray[np.bool_]
) -> dict[str, dict[str, OutcomeCounts]]:
    """Count public queries with and without an answer: free, as released labels tell it."""
    return {
        grouping: {
            name: OutcomeCounts(
                answered=int((~refused & (places == place)).sum()),
                refused=int((refused & (places == place)).sum()),
            )
            for place, name in enumerate(names)
        }
        for grouping, (names, places) in groups.items()
    }


def _whole_variance(plan: EvaluationPlan) -> float:
    """Return the noise variance of all that are right: each grouping tells, weighted best."""
    return plan.sigma**2 / sum(1 / len(one.groups) for one in plan.groupings)


def _share(part: float, rest: float) -> float | None:
    return min(1.0, max(0.0, part / (part + rest))) if part + rest > 0 else None
