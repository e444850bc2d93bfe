"""An experiment, its rows, and their shared parts: noisy labels of known votes, and their price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.formal_cost import labels_cost
from pate_fed.data import Dataset
from pate_fed.data.vote_file import load_vote_counts
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.mechanisms import Mechanism, spec_of
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.report.plots import results_plot, standalone
from pate_fed.students import Student

DELTA: Final = 1e-5
"""Delta of every epsilon here, as in the papers."""

Tell = Callable[[str], None]
"""Called with a line on the progress."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a protocol and a student.

    Attributes:
        epsilon: Formal epsilon of the labels at `DELTA`: one teacher's data, public view, fixed
            caps. 0 where nothing is released, infinite where no bound holds.
        at: Its place along the plot, where that is no epsilon.
    """

    protocol: str
    student: str
    epsilon: float
    published: str = ""
    measure: str = "test accuracy"
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A row with its measurement."""

    row: Row
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for a single one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def as_record(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "protocol": self.row.protocol,
            "student": self.row.student,
            "epsilon": self.row.epsilon if math.isfinite(self.row.epsilon) else None,
            "delta": DELTA,
            "published": self.row.published,
            "measure": self.row.measure,
            "values": list(self.values),
            "mean": self.mean,
            "spread": self.spread,
            "least": min(self.values),
        }


def picture_of(results: Sequence[Result], *, title: str, axis: str) -> str:
    """Draw results as a file of its own, in SVG."""
    points = []
    for one in results:
        row = one.row
        place = row.at
        if place is None and row.epsilon and math.isfinite(row.epsilon):
            place = row.epsilon
        series = row.student if place is not None and row.student != "none" else row.protocol
        points.append((row.measure, series, place, one.values))
    return standalone(results_plot(points, axis=axis, summary=title))


Run = Callable[[Path, Sequence[int], Tell], Iterator[Result]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A published experiment.

    Attributes:
        run: Yields its results; takes the folder of all data sets, seeds, and a listener.
    """

    title: str
    needs: tuple[str, ...]
    run: Run
    axis: str = "epsilon"


def epsilon_of(rule: Mechanism, asks: int, answers: int | None = None, *, classes: int) -> float:
    """Return the smallest formal epsilon of labels at fixed caps, for one teacher's data."""
    event = rule.worst_case_event(asks, asks if answers is None else answers, weight=1.0)
    options = classes + spec_of(rule.name).may_refuse
    return labels_cost(event, options=options, delta=DELTA).epsilon


def price_of_votes(
    rule: Mechanism, votes: NDArray[np.int64], answered: NDArray[np.bool_], *, delta: float
) -> float:
    """Return the papers' data-dependent epsilon of a release: itself private, and no guarantee."""
    meter = PerInstanceMeter(rule, delta=delta)
    labels = np.where(answered, votes.argmax(axis=1), ABSTAIN)
    outcomes = np.where(answered, Outcome.ANSWERED, Outcome.REFUSED).astype(np.int8)
    meter.add(votes, NoisyRelease(labels, outcomes))
    return meter.cost.epsilon


def noisy_labels(
    votes: NDArray[np.int64], sigma: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the class with the largest noisy count of each row; shape (queries,)."""
    return np.asarray((votes + rng.normal(0, sigma, votes.shape)).argmax(axis=1), dtype=np.int64)


def counts_of_2018(folder: Path, name: str) -> NDArray[np.int64]:
    """Read the counts that the paper's 250 teachers cast; int64, shape (queries, classes)."""
    return load_vote_counts(folder / "pate_votes" / "pate2018_counts" / f"{name}_250_teachers.npy")


def counted(said: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Count the votes of all teachers; shape (teachers, queries) to (queries, classes)."""
    return np.array([np.bincount(one, minlength=classes) for one in said.T])


def accuracy(student: Student, data: Dataset) -> float:
    """Return the share of the test that a student gets right."""
    return float((student.predict(data.test.inputs) == data.test.labels).mean())


def mean_of(values: Iterable[float]) -> float:
    """Return the mean."""
    return float(np.mean(list(values)))


def confident_rows(
    votes: NDArray[np.int64], threshold: float, sigma: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the rows whose noisy top count reaches a threshold."""
    tops = votes.max(axis=1) + rng.normal(0, sigma, len(votes))
    return np.flatnonzero(tops >= threshold)
