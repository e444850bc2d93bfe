"""Many small clinics: BRFSS with half of the people ill, a whole clinic as the privacy unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pate_fed.data import DataSource, load_dataset
from pate_fed.lab.experiments.experiment import Result, Row, Tell, epsilon_of, noisy_labels
from pate_fed.mechanisms import GaussianMax
from pate_fed.report.scores import quality_of
from pate_fed.students import LabelFacts, Lesson, select_queries, train_student
from pate_fed.teachers import make_ensemble

_CLINICS, _PATIENTS = 250, 40
_POOL, _TEST = 2000, 15_000


def clinics(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield accuracy and area under the curve of students and of the clinics' own models."""
    data = load_dataset(
        DataSource("brfss", folder / "brfss_diabetes"), rng=np.random.default_rng(0)
    )
    found: dict[tuple[str, str], list[float]] = {}
    settings = {
        "sigma 105, 500 random queries": (105.0, 500, "random"),
        "sigma 80, 80 medoids": (80.0, 80, "medoids"),
    }
    for seed in seeds:
        rng = np.random.default_rng(seed)
        private = _balanced(data.private.labels, _CLINICS * _PATIENTS, rng)
        pool = data.pool.select(_balanced(data.pool.labels, _POOL, rng))
        test = data.test.select(_balanced(data.test.labels, _TEST, rng))
        votes = np.zeros((len(pool), 2), dtype=np.int64)
        own = []
        for rows in np.split(private, _CLINICS):
            teacher = make_ensemble("auto", data.kind, balance="natural")
            teacher.fit([data.private.select(rows)], classes=2, rng=rng, public=pool.inputs)
            [said] = teacher.vote(pool.inputs)
            votes[np.arange(len(said)), said] += 1
            own.append(quality_of(next(iter(teacher.scores(test.inputs))), test.labels))
        for measure in ("accuracy", "auc"):
            known = [value for one in own if (value := getattr(one, measure)) is not None]
            mean = float(np.mean(known))
            found.setdefault(("a clinic alone, mean", measure), []).append(mean)
        for words, (sigma, queries, method) in settings.items():
            asked = np.array(select_queries(pool.features, queries, method=method, rng=rng))
            said = noisy_labels(votes[asked], sigma, rng)
            facts = LabelFacts(_CLINICS, sigma)
            lesson = Lesson(pool.inputs, asked, said, 2, facts)
            student = train_student("logistic", data.kind, lesson, rng=rng)
            scores = quality_of(np.log(student.chances(test.inputs)), test.labels)
            for measure in ("accuracy", "auc"):
                value = getattr(scores, measure)
                assert value is not None, "both classes are in the test"
                found.setdefault((words, measure), []).append(value)
            tell(f"{words}, seed {seed}: {scores.accuracy:.4f}, AUC {scores.auc:.4f}")
    for (words, measure), values in found.items():
        if words not in settings:
            yield Result(Row(words, "none", 0.0, measure=measure), tuple(values))
            continue
        sigma, queries, _ = settings[words]
        epsilon = epsilon_of(GaussianMax(sigma), queries, classes=2)
        row = Row(f"GNMax, {words}", "logistic", epsilon, measure=measure)
        yield Result(row, tuple(values))


def _balanced(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return positions of as many of each class, in all `count` or as many as there are."""
    parts = [rng.permutation(np.flatnonzero(labels == label)) for label in (0, 1)]
    half = min(count // 2, *(len(part) for part in parts))
    return rng.permutation(np.concatenate([part[:half] for part in parts]))
