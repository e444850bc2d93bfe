"""Choose a student by name, and read a saved one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pate_fed.data.dataset import DatasetKind
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.students.model import DESCRIPTION_FILE, ConstantModel, read_description
from pate_fed.students.student import Student


def _propagation(kind: DatasetKind) -> Student:
    from pate_fed.students.propagation import PropagationStudent  # noqa: PLC0415 - a second

    return PropagationStudent(kind)


def _supervised(kind: DatasetKind) -> Student:
    from pate_fed.students.supervised import SupervisedStudent  # noqa: PLC0415 - a second

    return SupervisedStudent(kind)


def _network(_: DatasetKind) -> Student:
    from pate_fed.students.network import NetworkStudent  # noqa: PLC0415 - torch: several seconds

    return NetworkStudent()


STUDENTS: Final[dict[str, Callable[[DatasetKind], Student]]] = {
    "propagation": _propagation,
    "supervised": _supervised,
    "network": _network,
}
"""Every student: a function from the kind of the inputs to an untrained one, by name."""

_USUAL: Final = "propagation"


def make_student(name: str, kind: DatasetKind = "image") -> Student:
    """Make an untrained student.

    Args:
        name: One of `STUDENTS`, or "auto": a `propagation` student.
        kind: Kind of the inputs; it decides which classifier suits them.

    Raises:
        InvalidParameterError: an unknown name.
    """
    make = STUDENTS.get(_USUAL if name == "auto" else name)
    if make is None:
        raise InvalidParameterError(
            f"student must be one of auto, {', '.join(STUDENTS)}", repr(name)
        )
    return make(kind)


def load_student(directory: Path) -> Student:
    """Read a student that `Student.save` wrote.

    Nothing in the folder is run: JSON, safetensors, and skops with trusted types only.

    Args:
        directory: The folder.

    Raises:
        RunDirectoryError: a file is missing, damaged, or has content that a student never saves.
    """
    described = read_description(directory)
    name, features = described.get("student"), described.get("features")
    if (
        not isinstance(name, str)
        or name not in STUDENTS
        or not isinstance(features, int)
        or features < 1
    ):
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must name a student and its features", "less")
    student = make_student(name)
    model = (
        ConstantModel.read(described)
        if described.get("form") == ConstantModel.form
        else student.read_model(directory, described)
    )
    student.adopt(model, features=features)
    return student
