"""How good the student of a run is, in words: the same in summary, report and model card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from pate_fed import wording
from pate_fed.record import Metrics, Privacy
from pate_fed.record.metrics import AccuracyScores, EvaluationScores, Quality, StudentScores
from pate_fed.report.scores import wilson_interval

Model = Literal[
    "student", "average_hospital", "best_hospital", "private_baseline", "pooled", "labels"
]

YARDSTICKS: Final[tuple[tuple[Model, str], ...]] = (
    ("student", "Student (this run)"),
    ("average_hospital", "Average hospital on its own"),
    ("best_hospital", "Best hospital on its own"),
    ("private_baseline", "Noisy gradients, same epsilon"),
    ("pooled", "All records, no privacy"),
)
"""Models that are tried on the same test inputs, and their names."""


_UNEVEN = 0.6
"""Share of the most common class from which a constant answer looks good by its accuracy."""


class Accuracy(NamedTuple):
    """An accuracy with the two numbers without which it says little; None where unknown.

    Attributes:
        interval: Of 95 %, Wilson.
        majority: Share of the most common class: what a constant answer has.
    """

    name: str
    share: float | None
    interval: Sequence[float] | None
    majority: float | None
    balanced: float | None
    auc: float | None


def accuracy_of(metrics: Metrics, key: Model) -> Accuracy:
    """Return an accuracy on the test inputs; of "labels" on the queries that were answered."""
    if key == "labels":
        true = [row.answered for row in metrics.per_class.values()]
        records, most = sum(true), max(true, default=0)
        majority, share = most / records if records else None, metrics.label_accuracy
        return Accuracy("Released labels", share, interval_of(share, records), majority, None, None)
    name, student = dict(YARDSTICKS)[key], metrics.scores.student
    majority = student.majority if student else None
    scores: Quality | None = getattr(metrics.scores, key)
    if scores is None:
        return Accuracy(name, None, None, majority, None, None)
    records = student.records if student else metrics.data.records.test if metrics.data else 0
    interval = interval_of(scores.accuracy, records)
    return Accuracy(name, scores.accuracy, interval, majority, scores.balanced_accuracy, scores.auc)


def accuracy_bars(metrics: Metrics) -> list[tuple[str, float]]:
    """List the accuracies that are known, the student's first, and a constant's."""
    (student, _), *others = YARDSTICKS
    found = [accuracy_of(metrics, key) for key in (student, "labels", *(key for key, _ in others))]
    bars = [(one.name, one.share) for one in found if one.share is not None]
    if metrics.scores.student:
        bars.append(("Always the most common class", metrics.scores.student.majority))
    return bars


def interval_of(share: float | None, records: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a share of so many; None where it is unknown."""
    if share is None or not records:
        return None
    return wilson_interval(round(share * records), records)


def alarms(metrics: Metrics) -> Iterator[str]:
    """Say what must be read before any other result, worst first; nothing if all is well."""
    yield from public_alarms(metrics)
    yield from better_models(metrics)


def better_models(metrics: Metrics) -> Iterator[str]:
    """Say which models beat the student: the best hospital's own, and one by noisy gradients."""
    student = score_text(metrics, "student")
    if beats(metrics, "best_hospital"):
        yield (
            f"A hospital does better alone: {score_text(metrics, 'best_hospital')} against the "
            f"student's {student}. For that hospital the student is not worth its privacy cost."
        )
    if beats(metrics, "private_baseline"):
        yield (
            "Logistic regression by noisy gradients does better at the same unit, epsilon and "
            f"delta: {score_text(metrics, 'private_baseline')} against the student's {student}. "
            "Prefer it if one such model is all you need. Labels can teach any other model, too."
        )


def is_uneven(metrics: Metrics) -> bool:
    """Tell whether the ranking says more than the accuracy: most test records are of one class."""
    student = metrics.scores.student
    return student is not None and student.auc is not None and student.majority >= _UNEVEN


def score_text(metrics: Metrics, key: Model) -> str:
    """Write the AUC of a model where classes are uneven, else its accuracy."""
    found = accuracy_of(metrics, key)
    if is_uneven(metrics):
        return f"AUC {found.auc:.3f}" if found.auc is not None else "no AUC"
    return wording.percent(found.share)


def beats(metrics: Metrics, key: Model) -> bool:
    """Tell whether a model is better than the student, by the number that `score_text` writes."""
    student, other = (accuracy_of(metrics, one) for one in ("student", key))
    mine, theirs = (student.auc, other.auc) if is_uneven(metrics) else (student.share, other.share)
    return mine is not None and theirs is not None and theirs > mine


def public_alarms(metrics: Metrics) -> Iterator[str]:
    """Say those that follow from the labels, the student and public test inputs alone."""
    if metrics.student is None:
        queries = metrics.queries
        asked = wording.plural(queries.asked, "query", "queries")
        labels = wording.plural(queries.answered, "label")
        why = (
            f"none could be trained from {labels}. Labels and cost stand."
            if queries.answered
            else f"of {asked} none was answered. Asking has its privacy cost all the same, as "
            "stated below."
        )
        yield f"There is no student: {why}"
    scores = metrics.scores.student
    if scores is not None:
        yield from _against_a_constant(scores)


def accuracy_text(metrics: Metrics) -> str:
    """Write the student's accuracy and ranking, what says more first, and a constant's accuracy."""
    scores = metrics.scores.student
    if metrics.student is None:
        return "none"
    if scores is None:
        return wording.percent(None)
    hits = f"{wording.percent(scores.accuracy)} (95 %: {interval_text(scores)})"
    constant = f"always guessing the most common class {wording.percent(scores.majority)}"
    if is_uneven(metrics):
        balanced = wording.percent(scores.balanced_accuracy)
        return f"{score_text(metrics, 'student')}, balanced {balanced}; right on {hits}; {constant}"
    return f"{hits}, {ranking_text(scores)}; {constant}"


def sets_text(metrics: Metrics) -> str:
    """Write what a student's sets of classes hold, stated and measured; "" without sets."""
    sets = metrics.student.sets if metrics.student else None
    if sets is None:
        return ""
    promise = wording.sets_promise(
        sets.coverage, labels=sets.labels, labels_needed=sets.labels_needed
    )
    scores = metrics.scores.student
    if sets.labels < sets.labels_needed:
        return promise
    if scores is None or scores.set_size is None:
        return f"{promise}; nobody measured how often the true class is in its set"
    return (
        f"{promise}; of the test inputs {wording.percent(scores.covered)} have their true class "
        f"in their set, of {scores.set_size:.2f} classes on average"
    )


def labels_text(metrics: Metrics) -> str:
    """Write the share of right labels with its interval and the most common class."""
    found = accuracy_of(metrics, "labels")
    if found.interval is None or found.majority is None:
        return wording.percent(found.share)
    return (
        f"{wording.percent(found.share)} (95 %: {span_text(found.interval)}); always guessing the "
        f"most common class {wording.percent(found.majority)}"
    )


def held_out_text(metrics: Metrics, privacy: Privacy) -> str:
    """Write the accuracy on held-out patients with its price; "" where nobody asked for it."""
    found, price = metrics.evaluation, privacy.evaluation
    if found is None or price is None:
        return ""
    return (
        f"student {wording.percent(found.accuracy)} (95 %: {interval_text(found)}) on patients "
        f"whom hospitals kept back; costs epsilon {wording.epsilon_text(price.epsilon)} at "
        f"delta {wording.delta_text(price.delta)}"
    )


def interval_text(scores: AccuracyScores | EvaluationScores) -> str:
    """Write the interval of an accuracy: "78.1 to 80.3 %"."""
    return span_text(scores.accuracy_interval)


def span_text(interval: Sequence[float] | None) -> str:
    """Write an interval of shares; "" without one."""
    if interval is None:
        return ""
    low, high = interval
    return f"{100 * low:.1f} to {wording.percent(high)}"


def ranking_text(scores: Quality) -> str:
    """Write balanced accuracy and AUC: "balanced 73.0 %, AUC 0.808"."""
    return f"balanced {wording.percent(scores.balanced_accuracy)}, AUC {area_text(scores.auc)}"


def area_text(area: float | None) -> str:
    """Write an area under the curve with three decimals."""
    return "not measured" if area is None else f"{area:.3f}"


def _against_a_constant(scores: StudentScores) -> Iterator[str]:
    majority, accuracy = scores.majority, scores.accuracy
    if scores.decided_classes == 1:
        [said] = [name for name, row in scores.per_class.items() if row.precision is not None]
        yield (
            f"The student is of no use: it says {said!r} of every test input. Its "
            f"accuracy of {wording.percent(accuracy)} is the share of that class."
        )
    elif accuracy <= majority:
        constant = 1 / sum(1 for row in scores.per_class.values() if row.records)
        finds = scores.balanced_accuracy > constant
        yield (
            f"Always saying the most common class is right as often or more often: "
            f"{wording.percent(majority)} against {wording.percent(accuracy)}. "
            + (
                f"The student still tells classes apart: {ranking_text(scores)} (a constant has "
                f"{wording.percent(constant)} and 0.5)."
                if finds
                else f"Nor does it tell classes apart: {ranking_text(scores)}."
            )
        )


def class_rows(metrics: Metrics) -> list[tuple[str, int, int]]:
    """List class name, answered and refused, names with numbers in them in counting order."""
    rows = [(name, counts.answered, counts.refused) for name, counts in metrics.per_class.items()]
    return sorted(rows, key=lambda row: _counting_order(row[0]))


def _counting_order(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]
