"""MNIST with labels of 2017, votes of 2018 and teachers of our own; Fashion-MNIST with our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.data.vote_file import load_array
from pate_fed.lab.experiments.experiment import (
    DELTA,
    Result,
    Row,
    Tell,
    accuracy,
    confident_rows,
    counts_of_2018,
    epsilon_of,
    price_of_votes,
)
from pate_fed.lab.mechanisms import ConfidentGaussianMax
from pate_fed.mechanisms import GaussianMax, LaplaceMax, ThresholdMax
from pate_fed.networks import fastest_device
from pate_fed.rule import Rule
from pate_fed.students import Lesson, select_queries, train_student
from pate_fed.teachers import make_ensemble

_TEACHERS = 250
_RECORDS = 240
_CAP = 290
_GAMMA = 0.05
_FASHION_QUERIES = 2050
"""Few enough for the papers' epsilon to stay below 4.6 in every draw that was looked at."""

Asked = Callable[[np.random.Generator], NDArray[np.int64]]


def mnist_2018(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield the rows of MNIST, on the counts that the paper's teachers cast."""
    data = _load("mnist", folder / "mnist")
    votes = counts_of_2018(folder, "mnist")
    known = _Known(data, votes, tell)
    rule = GaussianMax(40.0)
    for count, method, student in (
        (12, "spectral", "self-training"),
        (12, "spectral", "propagation"),
        (20, "spectral", "propagation"),
        (100, "random", "propagation"),
    ):
        row = _priced(rule, count, f"{count} {method} queries", student)
        choose = partial(_chosen, method, data, count)
        slow = student != "propagation"
        yield _measured(known, row, choose, rule, seeds[:1] if slow else seeds)
    epsilon = epsilon_of(
        ConfidentGaussianMax(Rule("confident", 200.0, 150.0, 40.0)), 640, _CAP, classes=10
    )
    for student in ("propagation", "vat", "self-training"):
        words = f"Confident-GNMax 200/150/40, 640 queries, at most {_CAP} answers"
        row = Row(words, student, epsilon, "VAT 98.5 % at 1.97 (data-dependent)")
        slow = student != "propagation"
        yield _measured(known, row, partial(_paper, votes), rule, seeds[:1] if slow else seeds)
    # About as many labels, as often right, from one noise: chosen on the votes after the 640th.
    once = ThresholdMax(57.0, vote_threshold=170.0)
    row = _priced(once, 480, "the first 480 queries", "propagation")
    yield _measured(known, row, lambda _: np.arange(480), once, seeds)


def mnist_2017(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield the rows of the first paper: its own 100 labels, and teachers of our own."""
    data = _load("mnist", folder / "mnist")
    asked, labels = _labels_of_2017(folder / "pate_votes")
    words = f"LNMax, gamma {_GAMMA:g}, the paper's {len(asked)} labels"
    epsilon = epsilon_of(LaplaceMax(_GAMMA), len(asked), classes=10)
    lesson = Lesson(data.pool.inputs, asked, labels, data.classes)
    for student in ("propagation", "gan"):
        row = Row(words, student, epsilon, "GAN 98.0 % at 2.04 (data-dependent)")
        values = []
        for seed in seeds if student == "propagation" else seeds[:1]:
            rng = np.random.default_rng(seed)
            trained = train_student(student, data.kind, lesson, rng=rng, device=fastest_device())
            values.append(accuracy(trained, data))
            tell(f"{words}, {student}, seed {seed}: {values[-1]:.4f}")
        yield Result(row, tuple(values))
    known = _Known(data, own_votes(data, tell), tell)
    rule = GaussianMax(50.0)
    for method in ("spectral", "random"):
        row = _priced(rule, 12, f"12 {method} queries, own teachers", "propagation")
        yield _measured(known, row, partial(_chosen, method, data, 12), rule, seeds)


def _labels_of_2017(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the queries that the paper's student learned from, and their released labels."""
    asked, labels = (
        load_array(folder / f"mnist_250_{name}.npy").astype(np.int64)
        for name in ("teachers_100_indices_used_by_student", "student_labels_lap_20")
    )
    return asked, labels[asked]


def fashion(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield the rows of Fashion-MNIST: 250 teachers of 240 images each."""
    data = _load("fashion-mnist", folder / "fashion_mnist")
    known = _Known(data, own_votes(data, tell), tell)
    for rule, queries, words, published in (
        (
            GaussianMax(46.0),
            _FASHION_QUERIES,
            "random queries",
            "PATE++ 82.9 % at 5.04, 79.6 % at 4.05 (data-dependent)",
        ),
        (GaussianMax(62.0), 1000, "random queries", ""),
        (GaussianMax(60.0), 230, "medoids", ""),
    ):
        choose = partial(_chosen, "medoids" if words == "medoids" else "random", data, queries)
        row = _priced(rule, queries, f"{queries} {words}", "kernel-ridge", published)
        yield _measured(known, row, choose, rule, seeds)
        if published:
            chosen = [known.votes[choose(np.random.default_rng(seed))] for seed in seeds]
            every = np.ones(queries, dtype=np.bool_)
            prices = [price_of_votes(rule, one, every, delta=DELTA) for one in chosen]
            measure = "the papers' epsilon of these votes, itself private"
            yield Result(replace(row, student="none", measure=measure), tuple(prices))
    rule, choose = GaussianMax(40.0), partial(_chosen, "random", data, _FASHION_QUERIES)
    for student, published in (
        ("kernel-ridge", ""),
        ("co-teaching", "co-teaching 82.5 % at 5.04 (data-dependent)"),
        ("pate-plus", ""),
        ("pate-plus-plus", "PATE++ 82.9 % at 5.04 (data-dependent)"),
        ("gan", "PATE 82.1 % at 5.04 (data-dependent)"),
        ("vat", ""),
    ):
        words = f"{_FASHION_QUERIES} random queries"
        row = _priced(rule, _FASHION_QUERIES, words, student, published)
        yield _measured(known, row, choose, rule, seeds)


def own_votes(data: Dataset, tell: Tell) -> NDArray[np.int64]:
    """Train teachers on 240 private images each, and count their votes on the pool."""
    counts = np.zeros((len(data.pool), data.classes), dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(data.private))[: _TEACHERS * _RECORDS]
    right = []
    for number, rows in enumerate(np.split(order, _TEACHERS), start=1):
        teacher = make_ensemble("svm", data.kind)
        teacher.fit(
            [data.private.select(rows)],
            classes=data.classes,
            rng=np.random.default_rng(number),
            public=data.pool.inputs,
        )
        [said] = teacher.vote(data.pool.inputs)
        counts[np.arange(len(said)), said] += 1
        right.append(float((said == data.pool.labels).mean()))
        if number % 50 == 0:
            tell(f"{number} of {_TEACHERS} teachers trained")
    plurality = float((counts.argmax(axis=1) == data.pool.labels).mean())
    tell(f"teachers: mean {np.mean(right):.3f}, plurality {plurality:.3f}")
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Data that all rows of an experiment share."""

    data: Dataset
    votes: NDArray[np.int64]
    tell: Tell


def _measured(
    known: _Known, row: Row, choose: Asked, rule: GaussianMax, seeds: Sequence[int]
) -> Result:
    """Ask once and teach once for each seed; a query below a threshold gives no label."""
    values, data = [], known.data
    threshold = rule.vote_threshold if isinstance(rule, ThresholdMax) else -math.inf
    for seed in seeds:
        rng = np.random.default_rng(seed)
        asked = choose(rng)
        noisy = known.votes[asked] + rng.normal(0, rule.sigma, (len(asked), data.classes))
        answered = noisy.max(axis=1) >= threshold
        asked, labels = asked[answered], noisy.argmax(axis=1)[answered]
        student = train_student(
            row.student,
            data.kind,
            Lesson(data.pool.inputs, asked, labels, data.classes),
            rng=rng,
            device=fastest_device(),
        )
        values.append(accuracy(student, data))
        right = float((labels == data.pool.labels[asked]).mean())
        known.tell(
            f"{row.protocol}, {row.student}, seed {seed}: {values[-1]:.4f}, "
            f"{len(labels)} labels, {right:.3f} right"
        )
    return Result(row, tuple(values))


def _priced(rule: GaussianMax, queries: int, words: str, student: str, published: str = "") -> Row:
    name = f"GNMax, sigma {rule.sigma:g}"
    if isinstance(rule, ThresholdMax):
        name = f"Threshold-{name}, threshold {rule.vote_threshold:g}"
    epsilon = epsilon_of(rule, queries, classes=10)
    return Row(f"{name}, {words}", student, epsilon, published)


def _load(name: str, folder: Path) -> Dataset:
    return load_dataset(DataSource(name, folder), rng=np.random.default_rng(0))


def _chosen(method: str, data: Dataset, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.array(select_queries(data.pool.features, count, method=method, rng=rng))


def _paper(votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Ask the paper's 640 queries in order, until the cap on answers."""
    return confident_rows(votes[:640], 200.0, 150.0, rng)[:_CAP]
