"""MNIST in two rounds: a student learns from the first, and the second asks where it errs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.lab.experiments.experiment import DELTA, Result, Row, Tell, accuracy, counts_of_2018
from pate_fed.lab.mechanisms import ConfidentGaussianMax, InteractiveGaussianMax
from pate_fed.mechanisms import CoordinatorNoise
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.rule import Rule
from pate_fed.students import Lesson, Student, train_student
from pate_fed.votes import SummedHistogram

_VOTES = 250
_PUBLISHED = "Glyph, two rounds: 73.2 % at 0.84 (data-dependent)"


@dataclass(frozen=True, slots=True)
class Round:
    """One round, with parameters of its own.

    Attributes:
        rule: Its mechanism; an `InteractiveGaussianMax` hears the student of the rounds before.
    """

    rule: ConfidentGaussianMax
    asks: int
    answers: int

    @property
    def mu_squared(self) -> float:
        """Its price at its caps, which adds up over rounds: Gaussian composition is exact."""
        return gdp_mu_squared(self.rule.worst_case_event(self.asks, self.answers))


ONE_ROUND = (Round(ConfidentGaussianMax(Rule("confident", 200, 150, 40)), 640, 290),)
TWO_ROUNDS = (
    Round(ConfidentGaussianMax(Rule("confident", 200, 150, 40)), 200, 100),
    Round(InteractiveGaussianMax(Rule("interactive", 150, 100, 60), confidence=0.9), 200, 40),
)


def epsilon_of_rounds(rounds: Sequence[Round]) -> float:
    """Return the formal epsilon of all rounds at their caps, for one teacher's data."""
    return gdp_epsilon(math.sqrt(math.fsum(one.mu_squared for one in rounds)), DELTA)


def interactive(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield a student of one round, and one of two."""
    data = load_dataset(DataSource("mnist", folder / "mnist"), rng=np.random.default_rng(0))
    votes = counts_of_2018(folder, "mnist")
    for words, rounds, published in (
        ("Confident-GNMax 200/150/40, 640 queries, at most 290 answers", ONE_ROUND, ""),
        (
            "Interactive-GNMax: 200/150/40 on 200 queries, at most 100 answers; then 150/100/60 "
            "on 200 others, at most 40",
            TWO_ROUNDS,
            _PUBLISHED,
        ),
    ):
        found = []
        for seed in seeds:
            known = labels_of_rounds(rounds, votes, data, seed=seed)
            student = _taught(known, data, seed)
            found.append(accuracy(student, data))
            tell(f"{words}, seed {seed}: {len(known)} labels, {found[-1]:.4f}")
        row = Row(words, "propagation", epsilon_of_rounds(rounds), published)
        yield Result(row, tuple(found))


def labels_of_rounds(
    rounds: Sequence[Round], votes: NDArray[np.int64], data: Dataset, *, seed: int
) -> dict[int, int]:
    """Ask the pool in its order, round by round; return each known label by its query.

    Known are released labels, and those that a sure student kept where teachers did not disagree.
    """
    random_bytes = keyed_stream(str(seed).encode(), tag="rounds")
    known: dict[int, int] = {}
    begun = 0
    for one in rounds:
        asked = np.arange(begun, begun + one.asks)
        begun += one.asks
        rule = one.rule
        if isinstance(rule, InteractiveGaussianMax):
            chances = _taught(known, data, seed).chances(data.pool.inputs.select(asked))
            rule = rule.with_predictions(chances, total_votes=_VOTES)
        release = rule.release(
            SummedHistogram(votes[asked], total_votes=_VOTES),
            noise=CoordinatorNoise(),
            random_bytes=random_bytes,
            max_answers=one.answers,
        )
        labels = release.labels
        if isinstance(rule, InteractiveGaussianMax):
            labels = rule.reinforced_labels(release)
        known |= {int(asked[place]): int(labels[place]) for place in np.flatnonzero(labels >= 0)}
    return known


def _taught(known: dict[int, int], data: Dataset, seed: int) -> Student:
    indices, labels = (np.array(list(each)) for each in (known, known.values()))
    lesson = Lesson(data.pool.inputs, indices, labels, data.classes)
    return train_student("propagation", data.kind, lesson, rng=np.random.default_rng(seed))
