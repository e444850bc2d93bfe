"""A student for each of several yes-no labels, which learn apart and answer together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.array_models import DESCRIPTION_FILE, SCHEMA_VERSION
from pate_fed.data.label_questions import asked_labels
from pate_fed.errors import InvalidParameterError, NoLabelError
from pate_fed.inputs import Inputs
from pate_fed.students.model import Model
from pate_fed.students.student import Lesson, Student

ONE_PER_LABEL: Final = "one-per-label"
"""Name of such a student."""


def lessons_of(lesson: Lesson) -> Iterator[tuple[str, Lesson]]:
    """Yield each label's name and lesson: records and their answers, from questions of a run.

    Raises:
        NoLabelError: nobody answered for a label.
    """
    facts = lesson.facts.by_label
    records, asked = asked_labels(lesson.pool, len(facts))
    for place, (name, of_label) in enumerate(facts.items()):
        rows = np.flatnonzero(asked == place)
        mine = np.flatnonzero(asked[lesson.indices] == place)
        if not len(mine):
            raise NoLabelError
        pool = records.select(rows)
        indices = np.searchsorted(rows, lesson.indices[mine])
        yield name, Lesson(pool, indices, lesson.labels[mine], lesson.classes, of_label)


class StudentOfLabels(Student):
    """A trained student for each label; its inputs are questions.

    Its folder has one of a student for each label, which can be used alone.

    Attributes:
        parts: The students, by label.
    """

    name: ClassVar[str] = ONE_PER_LABEL

    def __init__(self, parts: Mapping[str, Student]) -> None:
        first = next(iter(parts.values()))
        super().__init__(first.kind)
        self.parts = dict(parts)
        self.features, self.classes = first.features + len(parts), first.classes
        kinds = dict.fromkeys(one.name for one in self.parts.values())
        self.reason = f"{' and '.join(kinds)}, one for each of {len(parts)} labels"

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """Return the chances of no and yes to each question; see `Student.chances`."""
        if inputs.features.shape[1] != self.features:
            raise InvalidParameterError(
                f"inputs must have {self.features} features", inputs.features.shape[1]
            )
        records, asked = asked_labels(inputs, len(self.parts))
        found = np.zeros((len(inputs), self.classes))
        for place, part in enumerate(self.parts.values()):
            rows = np.flatnonzero(asked == place)
            found[rows] = part.chances(records.select(rows)) if len(rows) else 0.0
        return found

    def save(self, directory: Path) -> None:
        """Write each student into a folder of its own, and their names beside them."""
        directory.mkdir(parents=True, exist_ok=True)
        for part, folder in zip(self.parts.values(), self.folders(directory), strict=True):
            part.save(folder)
        described = {
            "schema_version": SCHEMA_VERSION,
            "student": self.name,
            "labels": list(self.parts),
        }
        text = json.dumps(described, indent=2, sort_keys=True) + "\n"
        (directory / DESCRIPTION_FILE).write_text(text, "utf-8")

    def folders(self, directory: Path) -> list[Path]:
        """Return the folder of each label's student; see `Student.folders`."""
        return [folder_of_label(directory, place) for place in range(len(self.parts))]

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:  # noqa: ARG002
        raise InvalidParameterError("students of labels must be trained apart")


def folder_of_label(directory: Path, place: int) -> Path:
    """Return the folder of one label's student."""
    return directory / f"label-{place + 1}"
