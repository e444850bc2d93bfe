"""The student of a run between its batches, for Interactive-GNMax: its labels and predictions.

All of it follows from released labels and public inputs. Predictions are stored before their batch
is asked, so a restart decides that batch with the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.database import RunStore
from coordinator.runs.later_steps import NO_STUDENT, attempt
from pate_fed.charging import mechanism_of
from pate_fed.errors import NoLabelError
from pate_fed.federation import RunTerms
from pate_fed.inputs import DatasetKind
from pate_fed.mechanisms import HearsStudent
from pate_fed.queries import QueryPool
from pate_fed.releases import ABSTAIN, Outcome

if TYPE_CHECKING:
    from pate_fed.students import LabelFacts, Student


def reinforced_labels(store: RunStore) -> dict[int, int]:
    """Return the labels that a confident student kept for refused queries; they cost nothing.

    Args:
        store: The run's batches and releases.

    Returns:
        Its class by position in the pool, in the order asked.
    """
    terms, asked = store.ledger().terms, store.asked()
    mechanism, kept = mechanism_of(terms), dict[int, int]()
    for batch, (indices, release) in store.releases().items():
        predictions = asked[batch].predictions
        if predictions is None or not isinstance(mechanism, HearsStudent):
            continue
        rule = mechanism.with_predictions(predictions, total_votes=terms.total_votes)
        labels = rule.reinforced_labels(release)
        own = (release.outcomes == Outcome.REFUSED) & (labels != ABSTAIN)
        kept |= {indices[place]: int(labels[place]) for place in np.flatnonzero(own)}
    return kept


def teach(
    known: Mapping[int, int],
    *,
    name: str,
    pool: QueryPool,
    kind: DatasetKind,
    classes: int,
    facts: LabelFacts,
    rng: np.random.Generator,
    warnings: list[str],
    again: str,
    counts: Mapping[int, NDArray[np.float64]] = MappingProxyType({}),
    device: str = "cpu",
) -> Student | None:
    """Return the student of a run; None, with a warning, if no label is known or training fails.

    `counts` are the released noisy counts, by position in the pool, of all labels or of none.
    `device` is where a student of images learns. `again` says how to get one after a failure.
    """
    if not known:
        error = NoLabelError()
        warnings.append(f"{NO_STUDENT} {error.code}: {error}.")
        return None

    def learn() -> Student:
        from pate_fed.students import Lesson, train_student  # noqa: PLC0415 - takes seconds

        indices, labels = (np.array(list(each), dtype=np.int64) for each in (known, known.values()))
        noisy = np.stack([counts[index] for index in known]) if counts else None
        lesson = Lesson(pool.views, indices, labels, classes, facts, noisy)
        return train_student(name, kind, lesson, rng=rng, device=device)

    notes: list[str] = []
    student = attempt(notes, "It", learn)
    warnings += [f"{NO_STUDENT} {note}. {again}." for note in notes]
    return student


def predictions_for(
    batch: tuple[int, ...], *, known: Mapping[int, int], pool: QueryPool, terms: RunTerms
) -> NDArray[np.float64] | None:
    """Return a student's chances of each class for the next batch.

    Args:
        batch: Positions in the pool.
        known: The labels to learn from, by position in the pool.
        pool: The public inputs.
        terms: Of the run.

    Returns:
        float64, shape (queries, classes). None where the mechanism takes no predictions, and while
        fewer than two classes have a label.
    """
    return chances_of(batch, known, pool, classes=terms.classes) if terms.spec.learns else None


def chances_of(
    asked: Sequence[int], known: Mapping[int, int], pool: QueryPool, *, classes: int
) -> NDArray[np.float64] | None:
    """Return the chances of each class at some inputs, as `predictions_for` does."""
    from pate_fed.students import interim_chances  # noqa: PLC0415 - takes seconds

    return interim_chances(
        pool.inputs[list(known)],
        np.array(list(known.values()), dtype=np.int64),
        pool.inputs[list(asked)],
        classes=classes,
    )
