"""A party's teachers of several yes-no labels: each is one teacher for each label, with one cap.

They take and answer questions (`pate_fed.data.label_questions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.data.label_questions import asked_labels, of_label
from pate_fed.inputs import Inputs
from pate_fed.teachers.teacher import TeacherEnsemble


class TeachersOfLabels:
    """All teachers of one party.

    Guarantee: teacher i depends on shard i, public inputs and the generator only. Whatever was
    learned, a privacy unit says yes to at most `cap` labels of a record: a teacher, or with
    `are_one_unit` all teachers together. The price rests on it
    (docs/explanation/composition.md, section 5).

    Args:
        make: Makes the untrained teachers of one label.
        labels: How many labels.
        cap: Most labels of a record to which a unit says yes; None for all.
        are_one_unit: Whether the party is the privacy unit, and not each teacher's patient.
    """

    def __init__(
        self,
        make: Callable[[], TeacherEnsemble],
        labels: int,
        *,
        cap: int | None = None,
        are_one_unit: bool = False,
    ) -> None:
        self._of_label = tuple(make() for _ in range(labels))
        self._cap, self._are_one_unit = cap, are_one_unit

    @property
    def teachers(self) -> int:
        """Number of teachers; 0 before `fit`."""
        return self._of_label[0].teachers

    def fit(
        self,
        records_per_teacher: Sequence[Records],
        *,
        classes: int,
        rng: np.random.Generator,
        public: Inputs | None = None,
    ) -> None:
        """Train one teacher per shard and label; see `TeacherEnsemble.fit`.

        Each shard has all questions about its records.
        """
        labels = len(self._of_label)
        pool = None
        if public is not None:
            pool, asked = asked_labels(public, labels)
            pool = pool.select(np.flatnonzero(asked == 0))
        for label, (ensemble, seed) in enumerate(
            zip(self._of_label, rng.spawn(labels), strict=True)
        ):
            shards = [of_label(shard, label, labels) for shard in records_per_teacher]
            ensemble.fit(shards, classes=classes, rng=seed, public=pool)

    def vote(self, inputs: Inputs) -> NDArray[np.int64]:
        """Return each teacher's answer to each question; int64, shape (teachers, questions)."""
        records, asked = asked_labels(inputs, len(self._of_label))
        # All labels of a record count for the cap, whichever are asked here.
        features, place = np.unique(records.features, axis=0, return_inverse=True)
        distinct = Inputs(features)
        leads = np.stack([one.leads(distinct) for one in self._of_label], axis=-1)
        said_yes = capped_answers(leads, self._cap, are_one_unit=self._are_one_unit)
        return said_yes[:, place.ravel(), asked].astype(np.int64)

    def scores(self, inputs: Inputs) -> Iterator[NDArray[np.float64]]:
        """Yield each teacher's scores for the label that is asked; shape (questions, classes)."""
        records, asked = asked_labels(inputs, len(self._of_label))
        for of_each in zip(*(one.scores(records) for one in self._of_label), strict=True):
            yield np.stack(of_each)[asked, np.arange(len(asked))]


def capped_answers(
    leads: NDArray[np.float64], cap: int | None, *, are_one_unit: bool
) -> NDArray[np.bool_]:
    """Return to which labels teachers say yes, at most `cap` for each privacy unit and record.

    A unit keeps those that lead most; of equal ones the first.

    Args:
        leads: How far each teacher is for yes; it would say so above 0; shape (teachers, records,
            labels).
        cap: The cap; None for none.
        are_one_unit: Whether all teachers are one unit: then the sum of their leads above 0
            decides.
    """
    said_yes = leads > 0
    if cap is None:
        return said_yes
    ranked = np.where(said_yes, leads, 0.0)
    if are_one_unit:
        ranked = ranked.sum(axis=0, keepdims=True)
    order = np.argsort(-ranked, axis=-1, kind="stable")
    kept = np.zeros(ranked.shape, dtype=np.bool_)
    np.put_along_axis(kept, order[..., :cap], True, axis=-1)
    return np.asarray(said_yes & kept)
