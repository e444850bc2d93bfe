"""Adult with the votes of 2018."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pate_fed.data import Inputs
from pate_fed.data.known_tables import KNOWN_TABLES, read_known_table
from pate_fed.data.table_features import fit_table_encoder
from pate_fed.data.tables import find_roles
from pate_fed.lab.experiments.experiment import (
    Result,
    Row,
    Tell,
    counts_of_2018,
    epsilon_of,
    noisy_labels,
)
from pate_fed.mechanisms import GaussianMax
from pate_fed.students import LabelFacts, Lesson, train_student

_TEACHERS = 250
_POOL = 8000


def adult_2018(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield the rows of Adult: random questions of the published test rows, the rest to test."""
    votes = counts_of_2018(folder, "adult")
    text, is_public = read_known_table("adult", folder / "adult")
    table = find_roles(text, KNOWN_TABLES["adult"].roles)
    public = np.flatnonzero(is_public)
    labels = table.labels[public]
    for queries, sigma, published in (
        (500, 60.0, "83.7 % at 1.90 (data-dependent)"),
        (500, 195.0, ""),
    ):
        epsilon = epsilon_of(GaussianMax(sigma), queries, classes=2)
        for student in ("boosting", "forest", "logistic"):
            words = f"GNMax, sigma {sigma:g}, {queries} random queries"
            values = []
            for seed in seeds:
                rng = np.random.default_rng(seed)
                order = rng.permutation(len(public))
                pool, test = order[:_POOL], order[_POOL:]
                encoder = fit_table_encoder(table.columns, public[pool])
                inputs = Inputs(encoder.apply(table.columns, public[pool]))
                asked = np.arange(queries)  # of a shuffled pool
                said = noisy_labels(votes[pool[asked]], sigma, rng)
                lesson = Lesson(inputs, asked, said, 2, LabelFacts(_TEACHERS, sigma))
                trained = train_student(student, "table", lesson, rng=rng)
                found = trained.predict(Inputs(encoder.apply(table.columns, public[test])))
                values.append(float((found == labels[test]).mean()))
                tell(f"{words}, {student}, seed {seed}: {values[-1]:.4f}")
            yield Result(Row(words, student, epsilon, published), tuple(values))
