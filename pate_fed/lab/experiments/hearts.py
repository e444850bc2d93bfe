"""Heart disease in four hospitals: real sites, few patients, other shares of ill ones in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.lab.experiments.experiment import Result, Row, Tell, counted, epsilon_of, noisy_labels
from pate_fed.mechanisms import GaussianMax
from pate_fed.partition import partition_records
from pate_fed.record.metrics import Quality
from pate_fed.report.scores import quality_of
from pate_fed.students import LabelFacts, Lesson, train_student
from pate_fed.teachers import make_ensemble

_TEACHERS = 8
"""Teachers of each hospital: some ten patients each."""

_PROTOCOLS = ((200, 15.0), (200, 25.0), (200, 60.0))
_NAMES = ("accuracy", "auc")


def hearts(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield each hospital's own model, and students; hospitals and teachers vary with the seed."""
    found: dict[tuple[str, str, float, str], list[float]] = {}

    def note(words: str, student: str, epsilon: float, measured: Quality) -> None:
        for name in _NAMES:
            value = getattr(measured, name)
            assert value is not None, "both classes are in the test"
            found.setdefault((words, student, epsilon, name), []).append(value)

    for seed in seeds:
        rng = np.random.default_rng(seed)
        data = load_dataset(DataSource("heart-disease", folder / "heart_disease"), rng=rng)
        for hospital, measured in _alone(data, rng):
            note(f"{hospital} alone", "none", 0.0, measured)
        votes = _votes(data, rng)
        total = int(votes[0].sum())
        for queries, sigma in _PROTOCOLS:
            asked = rng.choice(len(votes), size=min(queries, len(votes)), replace=False)
            said = noisy_labels(votes[asked], sigma, rng)
            lesson = Lesson(data.pool.inputs, asked, said, 2, LabelFacts(total, sigma))
            student = train_student("logistic", data.kind, lesson, rng=rng)
            measured = quality_of(np.log(student.chances(data.test.inputs)), data.test.labels)
            epsilon = epsilon_of(GaussianMax(sigma), len(asked), classes=2)
            words = f"GNMax, sigma {sigma:g}, {len(asked)} random queries, {total} teachers"
            note(words, "logistic", epsilon, measured)
        tell(f"seed {seed} done")
    for (words, model, epsilon, name), values in found.items():
        yield Result(Row(words, model, epsilon, measure=name), tuple(values))


def _alone(data: Dataset, rng: np.random.Generator) -> Iterator[tuple[str, Quality]]:
    hospitals = np.array(data.private.hospitals)
    for hospital in sorted(set(hospitals.tolist())):
        model = make_ensemble("logistic", data.kind, balance="natural")
        rows = np.flatnonzero(hospitals == hospital)
        model.fit([data.private.select(rows)], classes=2, rng=rng)
        scores = next(iter(model.scores(data.test.inputs)))
        yield hospital, quality_of(np.maximum(scores, -1e6), data.test.labels)


def _votes(data: Dataset, rng: np.random.Generator) -> np.ndarray:
    partition = partition_records(
        data.private, parties=None, teachers=_TEACHERS, scheme="column", rng=rng
    )
    ensemble = make_ensemble("logistic", data.kind)
    ensemble.fit(
        [data.private.select(shard.rows) for shard in partition.shards],
        classes=2,
        rng=rng,
        public=data.pool.inputs,
    )
    return counted(ensemble.vote(data.pool.inputs), 2)
