"""How good the student of a run is, in words: the same in summary, report and model card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pate_fed import wording

YARDSTICKS = (
    ("student", "Student (this run)"),
    ("best_single_party", "Best single hospital"),
    ("teacher_mean", "Average teacher"),
    ("pooled", "All records, no privacy"),
)
"""Models that are tried on the same test inputs, and their names."""


class ClassQuality(NamedTuple):
    """A class of the test inputs, and how the student does on it; shares, None without a case."""

    name: str
    records: int
    recall: float | None
    precision: float | None


def alarms(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Say what must be read before any other result, worst first; nothing if all is well.

    Args:
        metrics: Content of `metrics.json`.
    """
    yield from public_alarms(metrics)
    if said := better_alone(metrics):
        yield said


def better_alone(metrics: Mapping[str, Any]) -> str:
    """Say that the best hospital's own model beats the student; "" if it does not."""
    student, best = metrics["accuracy"]["student"], metrics["accuracy"]["best_single_party"]
    if student is None or best is None or student >= best:
        return ""
    return (
        f"A hospital does better alone: the best one has {wording.percent(best)}, the student "
        f"{wording.percent(student)}. To that hospital the student is not worth its privacy cost."
    )


def public_alarms(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Say those that follow from the student and public test inputs alone."""
    scores = metrics["scores"]["student"]
    if scores is not None:
        yield from _against_a_constant(scores)


def accuracy_text(metrics: Mapping[str, Any]) -> str:
    """Write the student's accuracy with its interval and the share of the most common class."""
    accuracy, scores = metrics["accuracy"], metrics["scores"]["student"]
    if scores is None:
        return wording.percent(accuracy["student"])
    return (
        f"{wording.percent(scores['accuracy'])} (95 %: {interval_text(scores)}), "
        f"guessing the most common class {wording.percent(scores['majority'])}"
    )


def held_out_text(metrics: Mapping[str, Any], privacy: Mapping[str, Any]) -> str:
    """Write the accuracy on held-out patients with its price; "" where nobody asked for it."""
    found, price = metrics["evaluation"], privacy["evaluation"]
    if found is None or price is None:
        return ""
    return (
        f"student {wording.percent(found['accuracy'])} (95 %: {interval_text(found)}) on patients "
        f"whom hospitals kept back; costs epsilon {wording.epsilon_text(price['epsilon'])} at "
        f"delta {wording.delta_text(price['delta'])}"
    )


def interval_text(scores: Mapping[str, Any]) -> str:
    """Write the interval of an accuracy: "78.1 to 80.3 %"."""
    low, high = scores["accuracy_interval"]
    return f"{100 * low:.1f} to {wording.percent(high)}"


def ranking_text(scores: Mapping[str, Any]) -> str:
    """Write balanced accuracy and AUC: "balanced 73.0 %, AUC 0.808"."""
    return (
        f"balanced {wording.percent(scores['balanced_accuracy'])}, AUC {area_text(scores['auc'])}"
    )


def area_text(area: float | None) -> str:
    """Write an area under the curve with three decimals."""
    return "not measured" if area is None else f"{area:.3f}"


def by_class(metrics: Mapping[str, Any]) -> list[ClassQuality]:
    """List the classes of the test inputs; none where nobody measured."""
    scores = metrics["scores"]["student"]
    rows = {} if scores is None else scores["per_class"]
    return [ClassQuality(name, **row) for name, row in rows.items()]


def _against_a_constant(scores: Mapping[str, Any]) -> Iterator[str]:
    majority, accuracy = scores["majority"], scores["accuracy"]
    if scores["decided_classes"] == 1:
        [said] = [name for name, row in scores["per_class"].items() if row["precision"] is not None]
        yield (
            f"The student is of no use: it says {said!r} of every test input. Its "
            f"{wording.percent(accuracy)} are the share of that class."
        )
    elif accuracy <= majority:
        constant = 1 / sum(1 for row in scores["per_class"].values() if row["records"])
        finds = scores["balanced_accuracy"] > constant
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
