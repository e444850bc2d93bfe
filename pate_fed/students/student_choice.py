"""Choose a student by name, and read a saved one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np

from pate_fed.array_models import DESCRIPTION_FILE
from pate_fed.class_shares import ENOUGH_RECORDS, is_any_rare
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.students.arrays import ArraysModel
from pate_fed.students.facts import LabelFacts
from pate_fed.students.kernel_ridge import left_out_labels as by_kernel
from pate_fed.students.label_sets import LabelSets
from pate_fed.students.model import ConstantModel, Model, read_description
from pate_fed.students.student import Lesson, Student
from pate_fed.students.students_of_labels import ONE_PER_LABEL, StudentOfLabels, lessons_of
from pate_fed.wording import percent

IMAGE_STUDENTS: Final = {
    "self-training": ("self_training", "SelfTrainingStudent"),
    "vat": ("virtual_adversarial", "AdversarialStudent"),
    "fixmatch": ("fixmatch", "FixMatchStudent"),
    "gan": ("generative", "GenerativeStudent"),
    "co-teaching": ("co_teaching", "CoTeachingStudent"),
    "pate-plus": ("co_teaching", "PatePlusStudent"),
    "pate-plus-plus": ("co_teaching", "PatePlusPlusStudent"),
}
"""Module and class of each student that looks at images."""


def _imported(module: str, name: str) -> Callable[[DatasetKind], Student]:
    def make(kind: DatasetKind) -> Student:
        found = import_module(f"pate_fed.students.{module}")  # torch: several seconds
        student: Student = getattr(found, name)(kind)
        return student

    return make


_PLACES: Final = {
    "propagation": ("propagation", "PropagationStudent"),
    "supervised": ("supervised", "SupervisedStudent"),
    "network": ("network_student", "NetworkStudent"),
    "logistic": ("logistic", "LogisticStudent"),
    "forest": ("trees", "ForestStudent"),
    "boosting": ("trees", "BoostingStudent"),
    "kernel-ridge": ("kernel_ridge", "KernelRidgeStudent"),
    **IMAGE_STUDENTS,
}
STUDENTS: Final = {name: _imported(*place) for name, place in _PLACES.items()}
"""Every student: a function from the kind of the inputs to an untrained one, by name."""

MANY_LABELS: Final = 20
"""Labels of a class from which an image student needs no neighbors to learn from."""


SURE_LABELS: Final = 400
"""Labels that noisy ones must be worth before trees may learn from them: each is worth
(votes / sigma)^2.
"""


def choose_student(
    kind: DatasetKind, *, labels: int, classes: int, facts: LabelFacts
) -> tuple[str, str]:
    """Choose a student by public facts."""
    if kind == "table":
        if _teach_curves(labels, facts):
            return "boosting", "teachers with many records each gave labels with little noise"
        return "logistic", "for noisy labels of a table a simple model is safer"
    if labels < MANY_LABELS * classes:
        return "propagation", "each label is passed on to similar images"
    return "kernel-ridge", f"{labels} labels suffice to learn each class from its own"


def _better_on_left_out(lesson: Lesson) -> tuple[str, str]:
    """Choose kernel ridge where it predicts left-out labels clearly better than propagation.

    Clearly: by a standard error. Less tells nothing, because kernel ridge errs like the teachers
    whose labels judge it. It sees released labels and public images only, so the choice costs no
    privacy.
    """
    from pate_fed.students.propagation import left_out_labels as by_graph  # noqa: PLC0415 - a second

    right = {
        "kernel-ridge": by_kernel(lesson) == lesson.labels,
        "propagation": by_graph(lesson) == lesson.labels,
    }
    gain = right["kernel-ridge"].astype(float) - right["propagation"]
    is_better = gain.mean() > gain.std() / np.sqrt(len(gain))
    shares = " and ".join(f"{name} {percent(float(one.mean()))}" for name, one in right.items())
    clearly = "clearly more" if is_better else "not clearly more"
    return (
        "kernel-ridge" if is_better else "propagation",
        f"kernel-ridge predicts {clearly} of the left-out labels: {shares}",
    )


def _teach_curves(labels: int, facts: LabelFacts) -> bool:
    """Tell whether labels show more than a line: teachers knew more, and noise hides little."""
    if facts.records < ENOUGH_RECORDS or facts.prevalence is None or not facts.sigma:
        return False
    worth = labels * (facts.votes / facts.sigma) ** 2
    return worth >= SURE_LABELS and not is_any_rare(np.array(facts.prevalence))


def make_student(name: str, kind: DatasetKind) -> Student:
    """Make an untrained student; refuse an unknown name."""
    if name not in STUDENTS:
        raise InvalidParameterError(f"student must be one of {', '.join(STUDENTS)}", repr(name))
    return STUDENTS[name](kind)


def students_for(kind: DatasetKind) -> tuple[str, ...]:
    """Return the names of all students that learn from records of a kind, "auto" first."""
    return ("auto", *(name for name in STUDENTS if kind == "image" or name not in IMAGE_STUDENTS))


def require_student(
    name: str,
    kind: DatasetKind,
    *,
    pool: Inputs | None,
    classes: int,
    facts: LabelFacts,
    device: str = "cpu",
) -> None:
    """Refuse a student that could not learn, whatever labels are released; nothing is trained.

    Args:
        pool: The whole public pool; None while nobody has read it.

    Raises:
        InvalidParameterError: an unknown name, a student of images for a table or for images that
            are too small, a device that cannot be used here, or a prevalence of other classes.
    """
    if name not in students_for(kind):
        known = name in STUDENTS
        raise InvalidParameterError(
            f"--student for a {kind} must be one of {', '.join(students_for(kind))}",
            f"{name}, which learns from images" if known else repr(name),
        )
    if classes:
        facts.require_classes(classes)
    if name != "auto" and pool is not None:
        student = make_student(name, kind)
        student.device = device
        student.require(pool)


def train_student(
    name: str,
    kind: DatasetKind,
    lesson: Lesson,
    *,
    rng: np.random.Generator,
    device: str = "cpu",
) -> Student:
    """Train a student, or one for each of several labels; `reason` says why it was chosen."""
    if lesson.facts.by_label:
        parts = {
            label: train_student(name, kind, one, rng=rng, device=device)
            for label, one in lessons_of(lesson)
        }
        return StudentOfLabels(parts)
    reason = ""
    if name == "auto":
        name, reason = choose_student(
            kind, labels=len(lesson.labels), classes=lesson.classes, facts=lesson.facts
        )
        if lesson.counts is not None:
            name, reason = "kernel-ridge", "it learns from noisy counts, not from labels alone"
        elif kind == "image" and name == "kernel-ridge":
            name, reason = _better_on_left_out(lesson)
    student = make_student(name, kind)
    student.reason, student.device = reason, device
    student.fit(lesson, rng=rng)
    return student


def read_student(directory: Path) -> Student:
    """Read a student that `Student.save` wrote.

    Nothing in the folder is run: JSON, safetensors, and skops with trusted types only.
    """
    described = read_description(directory)
    name = described.get("student")
    features, classes = described.get("features"), described.get("classes")
    if name == ONE_PER_LABEL:
        raise RunDirectoryError(
            "a student of several labels must be read with load_students, or one of its folders "
            "label-1, label-2, ... be named"
        )
    if (
        not isinstance(name, str)
        or name not in STUDENTS
        or type(features) is not int
        or type(classes) is not int
        or min(features, classes) < 1
    ):
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must name a student, its features and classes")
    student = make_student(name, "table")
    known: tuple[type[Model], ...] = (ConstantModel, ArraysModel, student.model_class)
    form = next((one for one in known if one.form == described.get("form")), None)
    if form is None:
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must describe a model")
    student.adopt(form.read(directory, described), features=features, classes=classes)
    student.sets = _sets_in(described)
    return student


def _sets_in(described: dict[str, object]) -> LabelSets | None:
    must = f"{DESCRIPTION_FILE}: sets must have a coverage, a number of labels and a least chance"
    match described.get("sets", "none"):
        case "none":
            return None
        case {"coverage": float(coverage), "labels": int(labels), "least_chance": float(least)}:
            try:
                return LabelSets(coverage, labels, least)
            except InvalidParameterError as error:
                raise RunDirectoryError(must, "others") from error
    raise RunDirectoryError(must)
