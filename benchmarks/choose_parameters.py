"""Choose threshold and noise of Threshold-GNMax, on simulated votes only.

    python -m benchmarks.choose_parameters            the choice, and what it gives and costs
    python -m benchmarks.choose_parameters --measure  the same on the bundled sets' real votes

Parameters that were tuned on private votes would leak them, so the choice looks at none. Votes
are `simulated_votes` for teachers of many accuracies, and all of them have to be content, so that
the choice hangs on none.

"No answer" costs as much as an answer, so noise and queries alone decide the price, and more noise
is always cheaper. The choice is the most noise, and with it the highest threshold, that at each
accuracy gives as many right answers as Confident-GNMax, whose check draws noise of its own, and
whose answers are right about as often. `Setting.loss` says what "about" is: digits has the most to
lose. More queries with more noise have as many right answers for less, but more wrong ones beside
them: its student learns less from them, and so its queries stay few.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pate_fed.accounting.composition import labels_epsilon
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.mechanisms.preview import simulated_votes
from pate_fed.partition import partition_records
from pate_fed.students import LabelFacts, Lesson, select_queries, train_student
from pate_fed.teachers import make_ensemble
from pate_fed.teachers.teacher_choice import shares_out
from pate_fed.votes import count_votes

DELTA = 1e-5
ACCURACIES = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Of an average teacher, each tried."""
SIGMAS = np.arange(0.16, 0.4, 0.002)
"""Standard deviations of the noise to try, as shares of the votes."""
THRESHOLDS = np.arange(0.3, 0.9, 0.02)
"""Thresholds to try, the same way."""
ROUNDING = 0.05
"""A number of right answers that other simulated votes would change."""
NODES = (np.arange(96) + 0.5) / 96
REACH = 6.5
"""Standard deviations of noise that count."""
SEEDS = range(20)

Votes = NDArray[np.int64]
Rates = tuple[float, float]
"""Shares of the queries that are answered, and that are answered right."""


@dataclass(frozen=True)
class Setting:
    """One kind of run, and what its choice is compared with.

    Attributes:
        name: Of the data set.
        votes: On a query.
        classes: Number of classes.
        queries: Most queries asked.
        check: Threshold, noise of the check and noise of the label of Confident-GNMax, in votes.
        check_queries: Queries that it asks.
        loss: How much less often an answer may be right.
    """

    name: str
    votes: int
    classes: int
    queries: int
    check: tuple[float, float, float]
    check_queries: int
    loss: float


SETTINGS = (
    Setting("digits", 50, 10, 30, (16.0, 11.0, 9.0), 30, loss=0.065),
    Setting("breast-cancer", 50, 2, 42, (30.0, 8.0, 8.75), 30, loss=0.016),
    Setting("all others", 250, 10, 100, (125.0, 87.5, 50.0), 100, loss=0.0175),
)


def threshold_rates(counts: Votes, labels: Votes, threshold: float, sigma: float) -> Rates:
    """Return the rates of Threshold-GNMax on votes: exact, but for a quadrature of 96 nodes."""
    answered = 1 - ndtr((threshold - counts) / sigma).prod(axis=1)
    return float(answered.mean()), float(_won(counts, labels, sigma, threshold).mean())


def confident_rates(counts: Votes, labels: Votes, check: tuple[float, float, float]) -> Rates:
    """Return those of Confident-GNMax: the check, then a label by noise of its own."""
    threshold, sigma1, sigma2 = check
    passes = ndtr((counts.max(axis=1) - threshold) / sigma1)
    won = _won(counts, labels, sigma2, -math.inf)
    return float(passes.mean()), float((passes * won).mean())


def _won(counts: Votes, labels: Votes, sigma: float, least: float) -> NDArray[np.float64]:
    """Return the chance of each query that its right class is on top, with at least so much."""
    own = np.take_along_axis(counts, labels[:, np.newaxis], axis=1)
    high = own + REACH * sigma
    low = np.clip(least, own - REACH * sigma, high)
    places = low + (high - low) * NODES
    density = np.exp(-(((places - own) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    for label in range(counts.shape[1]):
        below = ndtr((places - counts[:, label, np.newaxis]) / sigma)
        density *= np.where(labels[:, np.newaxis] == label, 1.0, below)
    return np.asarray(density.mean(axis=1) * (high - low)[:, 0])


def epsilon(sigma: float, queries: int) -> float:
    """Return the price of a run: a threshold is one option more, so two classes cost as three."""
    return labels_epsilon(3, sigma, asks=queries, delta=DELTA)


def choose(setting: Setting) -> tuple[float, float]:
    """Return the threshold and the noise to take, in votes."""
    seen = _simulated(setting)
    wanted = [confident_rates(*votes, setting.check) for votes in seen]

    def is_enough(threshold: float, sigma: float) -> bool:
        for votes, (asked, right) in zip(seen, wanted, strict=True):
            answered, good = threshold_rates(*votes, threshold, sigma)
            if setting.queries * good < setting.check_queries * right - ROUNDING:
                return False
            if good / answered < right / asked - setting.loss:
                return False
        return True

    for sigma in setting.votes * SIGMAS[::-1]:
        for threshold in setting.votes * THRESHOLDS[::-1]:
            if is_enough(threshold, sigma):
                return round(float(threshold), 2), round(float(sigma), 2)
    raise ValueError(setting)


def _simulated(setting: Setting) -> list[tuple[Votes, Votes]]:
    draw = partial(simulated_votes, votes=setting.votes, classes=setting.classes)
    drawn = [draw(teacher_accuracy=accuracy) for accuracy in ACCURACIES]
    return [(counts, np.zeros(len(counts), dtype=np.int64)) for counts in drawn]


def measure(setting: Setting, threshold: float, sigma: float) -> None:
    """Print what students learn from both, on the real votes of several federations."""
    first, sigma1, sigma2 = setting.check

    def check(counts: Votes, rng: np.random.Generator) -> Votes:
        passed = counts.max(axis=1) + rng.normal(0, sigma1, len(counts)) >= first
        return np.where(passed, (counts + rng.normal(0, sigma2, counts.shape)).argmax(axis=1), -1)

    def one_noise(counts: Votes, rng: np.random.Generator) -> Votes:
        noisy = counts + rng.normal(0, sigma, counts.shape)
        return np.where(noisy.max(axis=1) >= threshold, noisy.argmax(axis=1), -1)

    for name, rule, queries, noise in (
        ("two noises", check, setting.check_queries, sigma2),
        ("one noise", one_noise, setting.queries, sigma),
    ):
        rows = np.array([_measured(setting, rule, queries, noise, seed) for seed in SEEDS])
        answered, right, student = rows.mean(axis=0)
        spread = rows[:, 2].std(ddof=1)
        print(
            f"  real votes, {name}: {answered:.2f} answers, {right:.2f} right, "
            f"student {student:.4f} (standard deviation {spread:.4f}, {len(rows)} seeds)"
        )


def _measured(
    setting: Setting,
    rule: Callable[[Votes, np.random.Generator], Votes],
    queries: int,
    sigma: float,
    seed: int,
) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    data = load_dataset(DataSource(setting.name), rng=rng)
    asked = np.array(
        select_queries(
            data.pool.features, queries, method="medoids", rng=np.random.default_rng(seed)
        )
    )
    counts = _real_votes(data, setting.votes, rng=rng)[asked]
    said = rule(counts, rng)
    facts = LabelFacts(setting.votes, sigma)
    if shares_out("auto", data.kind):
        shares = np.bincount(data.pool.labels, minlength=setting.classes) / len(data.pool)
        facts = LabelFacts(setting.votes, sigma, shared_out=True, prevalence=tuple(shares))
    kept = said >= 0
    lesson = Lesson(data.pool.inputs, asked[kept], said[kept], data.classes, facts)
    student = train_student("auto", data.kind, lesson, rng=rng)
    tested = student.predict(data.test.inputs) == data.test.labels
    right = said[kept] == data.pool.labels[asked[kept]]
    return float(kept.sum()), float(right.sum()), float(tested.mean())


def _real_votes(data: Dataset, parties: int, *, rng: np.random.Generator) -> Votes:
    """Train a teacher for each party, and return the votes on the pool."""
    dealt = partition_records(data.private, parties=parties, teachers=1, scheme="iid", rng=rng)
    votes = []
    for party in range(parties):
        teacher = make_ensemble("auto", data.kind)
        shards = [data.private.select(shard.rows) for shard in dealt.shards_of(party)]
        teacher.fit(shards, classes=data.classes, rng=rng, public=data.pool.inputs)
        votes.append(teacher.vote(data.pool.inputs))
    return count_votes(np.concatenate(votes), classes=data.classes).counts


def main() -> None:
    parser = argparse.ArgumentParser(description=Path(__file__).name)
    parser.add_argument("--measure", action="store_true", help="train on the real data, too")
    arguments = parser.parse_args()
    for setting in SETTINGS:
        threshold, sigma = choose(setting)
        print(
            f"\n{setting.name}, {setting.votes} votes, {setting.queries} queries: "
            f"threshold {threshold:g} ({threshold / setting.votes:.2f} of the votes), "
            f"sigma {sigma:g} ({sigma / setting.votes:.3f}), "
            f"epsilon {epsilon(sigma, setting.queries):.4f} at delta {DELTA:g}"
        )
        print("  accuracy   right: two noises, one   share right: two noises, one")
        for accuracy, votes in zip(ACCURACIES, _simulated(setting), strict=True):
            asked, right = confident_rates(*votes, setting.check)
            answered, good = threshold_rates(*votes, threshold, sigma)
            print(
                f"  {accuracy:8.2f}   {setting.check_queries * right:17.2f}  "
                f"{setting.queries * good:6.2f}   {right / asked:22.3f}  {good / answered:.3f}"
            )
        if arguments.measure and setting.name != "all others":
            measure(setting, threshold, sigma)


if __name__ == "__main__":
    main()
