"""How good a model is, as a clinician asks: beside the majority, by class, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.record.metrics import (
    AccuracyScores,
    CertaintyScores,
    ClassScores,
    Quality,
    StudentScores,
    SubgroupScores,
)

_CONFIDENCE: Final = 0.95
_BINS: Final = 10
_MOST_POINTS: Final = 101


def scores_of(
    chances: NDArray[np.float64],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    *,
    groups: Mapping[str, Sequence[str]] | None = None,
    labels_named: Sequence[str] = (),
    in_set: NDArray[np.bool_] | None = None,
) -> StudentScores:
    """Score a model's chances on records that it never saw.

    Args:
        chances: Shape (records, classes).
        labels: Their classes; shape (records,).
        class_names: In order.
        groups: Ways to group the records, as `evaluation_task.groups_of` gives them: the group of
            each record.
        labels_named: Names of several labels; "record" i * labels + l is then the question about
            label l of record i.
        in_set: Which classes are in the set of each record, of a model with sets; shape as
            `chances`.
    """
    decided = chances.argmax(axis=1)
    right = decided == labels
    counts = np.bincount(labels, minlength=len(class_names))
    recalls = [_share(right[labels == place]) for place in range(len(class_names))]
    covered = None if in_set is None else in_set[np.arange(len(labels)), labels]
    known = [recall for recall in recalls if recall is not None]
    by_label = _quality_by_label(chances, labels, labels_named)
    mean = mean_quality(list(by_label.values())) if by_label else None
    by_certainty = _by_certainty(chances.max(axis=1), right)
    return StudentScores(
        **dict(_hits(right, labels, questions=len(labels_named) or 1)),
        balanced_accuracy=mean.balanced_accuracy if mean else float(np.mean(known)),
        auc=mean.auc if mean else _area(chances, labels),
        by_label=by_label or None,
        calibration_error=_calibration_error(by_certainty),
        confusion=_confusion(decided, labels, class_names),
        by_certainty=by_certainty,
        roc=_roc(chances, labels) if len(class_names) == 2 and not by_label else None,
        decided_classes=len(np.unique(decided)),
        per_class={
            name: ClassScores(
                records=int(counts[place]),
                recall=recalls[place],
                decided=int((decided == place).sum()),
                precision=_share(right[decided == place]),
                covered=None if covered is None else _share(covered[labels == place]),
            )
            for place, name in enumerate(class_names)
        },
        subgroups={
            way: {
                name: _of_subgroup(
                    chances[owners == name],
                    labels[owners == name],
                    class_names,
                    labels_named=labels_named,
                )
                for name in sorted(set(owners))
            }
            for way, named in (groups or {}).items()
            for owners in (np.array(named, dtype=object),)
        },
        covered=None if covered is None else _share(covered),
        set_size=None if in_set is None else float(in_set.sum(axis=1).mean()),
    )


def _of_subgroup(
    chances: NDArray[np.float64],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    *,
    labels_named: Sequence[str],
) -> SubgroupScores:
    right = chances.argmax(axis=1) == labels
    by_label = _quality_by_label(chances, labels, labels_named)
    return SubgroupScores(
        **dict(_hits(right, labels, questions=len(labels_named) or 1)),
        recall={name: _share(right[labels == at]) for at, name in enumerate(class_names)},
        auc=mean_quality(list(by_label.values())).auc if by_label else _area(chances, labels),
        calibration_error=_calibration_error(_by_certainty(chances.max(axis=1), right)),
    )


def _quality_by_label(
    chances: NDArray[np.float64], answers: NDArray[np.int64], labels: Sequence[str]
) -> dict[str, Quality]:
    """Return the quality on each of several labels; none for one."""
    return {
        name: quality_of(np.log(np.maximum(chances[rows], 1e-300)), answers[rows])
        for place, name in enumerate(labels)
        for rows in (slice(place, None, len(labels)),)
    }


def mean_quality(found: Sequence[Quality]) -> Quality:
    """Average each measure; the area is None where a model has none."""
    areas = [one.auc for one in found if one.auc is not None]
    return Quality(
        accuracy=float(np.mean([one.accuracy for one in found])),
        balanced_accuracy=float(np.mean([one.balanced_accuracy for one in found])),
        auc=float(np.mean(areas)) if len(areas) == len(found) else None,
    )


def _hits(right: NDArray[np.bool_], labels: NDArray[np.int64], *, questions: int) -> AccuracyScores:
    """Count how often a model is right; the interval takes a record's questions for one."""
    records, hits = len(labels) // questions, int(right.sum())
    most = sum(int(np.bincount(of_label).max()) for of_label in labels.reshape(-1, questions).T)
    return AccuracyScores(
        records=records,
        accuracy=hits / len(labels),
        accuracy_interval=wilson_interval(round(hits / questions), records),
        majority=most / len(labels),
    )


def quality_of(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> Quality:
    """Return the quality of scores, higher for likelier classes.

    Scores are finite; shape (records, classes).
    """
    right = scores.argmax(axis=1) == labels
    recalls = [float(right[labels == place].mean()) for place in np.unique(labels)]
    # Chances, as a student's are ranked; with two classes the lead alone decides, unrounded.
    lead = np.exp(scores - scores.max(axis=1, keepdims=True))
    lead = lead / lead.sum(axis=1, keepdims=True)
    if scores.shape[1] == 2:
        lead = scores - scores[:, ::-1]
    return Quality(
        accuracy=float(right.mean()),
        balanced_accuracy=float(np.mean(recalls)),
        auc=_area(lead, labels),
    )


def wilson_interval(right: int, records: int) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    Source:
        Wilson 1927, Probable inference, the law of succession, and statistical inference.
        https://doi.org/10.1080/01621459.1927.10502953
    """
    from scipy.special import ndtri  # noqa: PLC0415 - takes a moment

    quantile = float(ndtri(0.5 + _CONFIDENCE / 2))
    share, spread = right / records, quantile**2 / records
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    # At the ends the bounds are the share itself, but for rounding.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _share(hits: NDArray[np.bool_]) -> float | None:
    return float(hits.mean()) if len(hits) else None


def _area(chances: NDArray[np.float64], labels: NDArray[np.int64]) -> float | None:
    """Return the area under the curve; the mean over classes, each against all others."""
    classes = chances.shape[1]
    if classes == 2:
        return _area_of(chances[:, 1], labels == 1)
    areas = [_area_of(chances[:, place], labels == place) for place in range(classes)]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else None


def _area_of(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    from scipy.stats import rankdata  # noqa: PLC0415 - takes a moment

    hits, others = int(positive.sum()), int((~positive).sum())
    if not hits or not others:
        return None
    ranks = rankdata(scores)
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * others))


def _by_certainty(
    certainty: NDArray[np.float64], right: NDArray[np.bool_]
) -> tuple[CertaintyScores, ...]:
    bins = np.minimum((certainty * _BINS).astype(np.int64), _BINS - 1)
    return tuple(
        CertaintyScores(
            certainty=min(1.0, float(certainty[inside].mean())),
            right=float(right[inside].mean()),
            records=int(inside.sum()),
        )
        for place in range(_BINS)
        for inside in (bins == place,)
        if inside.any()
    )


def _calibration_error(bins: Sequence[CertaintyScores]) -> float:
    records = sum(one.records for one in bins)
    return sum(one.records / records * abs(one.certainty - one.right) for one in bins)


def _confusion(
    decided: NDArray[np.int64], labels: NDArray[np.int64], class_names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Count records by class and by answer; only what occurs, so that many classes stay short."""
    table: dict[str, dict[str, int]] = {}
    pairs, counts = np.unique(np.stack([labels, decided], axis=1), axis=0, return_counts=True)
    for (true, said), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        table.setdefault(class_names[true], {})[class_names[said]] = count
    return table


def _roc(
    chances: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[tuple[float, float], ...] | None:
    """Walk the limits on the second class's chance; None where one class occurs."""
    positive = labels == 1
    if positive.all() or not positive.any():
        return None
    limits, places = np.unique(-chances[:, 1], return_inverse=True)
    found = np.cumsum(np.bincount(places, weights=positive, minlength=len(limits)))
    wrong = np.cumsum(np.bincount(places, weights=~positive, minlength=len(limits)))
    kept = np.unique(np.linspace(0, len(limits) - 1, _MOST_POINTS - 1).astype(np.int64))
    shares = zip(wrong[kept] / (~positive).sum(), found[kept] / positive.sum(), strict=True)
    return ((0.0, 0.0), *((float(one), float(other)) for one, other in shares))
