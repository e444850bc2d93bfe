"""Teachers whose labels are wrong: a few in every hospital, or all in a few hospitals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.lab.experiments.experiment import Result, Row, Tell, epsilon_of, noisy_labels
from pate_fed.mechanisms import GaussianMax
from pate_fed.report.scores import quality_of
from pate_fed.students import LabelFacts, Lesson, train_student
from pate_fed.teachers import make_ensemble

_TEACHERS, _RECORDS = 250, 100
_QUERIES, _SIGMA = 500, 60.0
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
_PLACES = ("everywhere", "in one place")


def mislabeled(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield areas under the curve by the share of wrong labels, and where they are."""
    data = load_dataset(DataSource("adult", folder / "adult"), rng=np.random.default_rng(0))
    epsilon = epsilon_of(GaussianMax(_SIGMA), _QUERIES, classes=2)
    for place in _PLACES:
        for share in _SHARES:
            found = [_one(data, share, place, np.random.default_rng(seed)) for seed in seeds]
            words = f"{share:.0%} wrong {place}, sigma {_SIGMA:g}, {_QUERIES} random queries"
            tell(f"{words}: {np.mean(found, axis=0).round(4).tolist()}")
            for name, price, values in zip(
                ("logistic", "teachers, mean"),
                (epsilon, 0.0),
                zip(*found, strict=True),
                strict=True,
            ):
                row = Row(words, f"{name}, {place}", price, measure="auc", at=share)
                yield Result(row, values)


def _one(data: Dataset, share: float, place: str, rng: np.random.Generator) -> tuple[float, float]:
    """Return the area under the curve of the student, and of an average teacher."""
    private = rng.permutation(len(data.private))[: _TEACHERS * _RECORDS].reshape(_TEACHERS, -1)
    labels = data.private.labels.copy()
    if place == "everywhere":
        wrong = private.ravel()[rng.random(private.size) < share]
    else:
        wrong = private[: round(share * _TEACHERS)].ravel()
    labels[wrong] = 1 - labels[wrong]
    votes = np.zeros((len(data.pool), 2), dtype=np.int64)
    own = []
    for rows in private:
        teacher = make_ensemble("logistic", data.kind)
        shard = replace(data.private.select(rows), labels=labels[rows])
        teacher.fit([shard], classes=2, rng=rng, public=data.pool.inputs)
        [said] = teacher.vote(data.pool.inputs)
        votes[np.arange(len(said)), said] += 1
        own.append(_area(next(teacher.scores(data.test.inputs)), data))
    asked = rng.choice(len(votes), size=_QUERIES, replace=False)
    facts = LabelFacts(_TEACHERS, _SIGMA)
    lesson = Lesson(data.pool.inputs, asked, noisy_labels(votes[asked], _SIGMA, rng), 2, facts)
    student = train_student("logistic", data.kind, lesson, rng=rng)
    return _area(np.log(student.chances(data.test.inputs)), data), float(np.mean(own))


def _area(scores: NDArray[np.float64], data: Dataset) -> float:
    found = quality_of(np.maximum(scores, -1e6), data.test.labels).auc
    assert found is not None, "both classes are in the test"
    return found
