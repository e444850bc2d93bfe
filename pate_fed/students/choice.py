"""Choose a student by name, and read a saved one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pate_fed.data.dataset import DatasetKind
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.students.model import DESCRIPTION_FILE, ConstantModel, Model, read_description
from pate_fed.students.model import read_sklearn as _read_sklearn
from pate_fed.students.propagation import PropagationStudent
from pate_fed.students.student import Student
from pate_fed.students.supervised import SupervisedStudent

STUDENT_NAMES = ("auto", "propagation", "supervised", "network")
"""Every name that `make_student` knows."""


def make_student(name: str, kind: DatasetKind = "image") -> Student:
    """Make an untrained student.

    Args:
        name: One of `STUDENT_NAMES`; "auto" is "propagation".
        kind: Kind of the inputs; it decides which classifier suits them.

    Raises:
        InvalidParameterError: an unknown name.
    """
    if name in ("auto", "propagation"):
        return PropagationStudent(kind)
    if name == "supervised":
        return SupervisedStudent(kind)
    if name == "network":
        # torch takes seconds to load, and most runs do without.
        from pate_fed.students.network import NetworkStudent  # noqa: PLC0415

        return NetworkStudent()
    raise InvalidParameterError(f"student must be one of {', '.join(STUDENT_NAMES)}", repr(name))


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
    if name not in STUDENT_NAMES[1:] or not isinstance(features, int) or features < 1:
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must name a student and its features", "less")
    student = make_student(str(name))
    student.adopt(_read_model(directory, described), features=features)
    return student


def _read_model(directory: Path, described: dict[str, Any]) -> Model:
    form = described.get("form")
    if form == "sklearn":
        return _read_sklearn(directory)
    if form == "network":
        from pate_fed.students.network import read_network  # noqa: PLC0415 - loads torch

        return read_network(directory)
    label = described.get("label")
    if form != "constant" or not isinstance(label, int) or label < 0:
        raise RunDirectoryError(f"{DESCRIPTION_FILE} must describe a model", "another form")
    return ConstantModel(label)
