"""Choose Confident-GNMax's parameters for the bundled sets, on simulated votes only.

    python -m benchmarks.choose_parameters            the table, and what is chosen
    python -m benchmarks.choose_parameters --measure  what the choice gives on the real data

Parameters that were tuned on private votes would leak them, so the choice looks at none. Votes
are drawn from a model with an assumed accuracy of the teachers; the student is judged by a proxy:

- A query stands for one cluster of the pool. A right label makes its cluster right.
- A cluster without an answer takes the label of another cluster of its class, and finds one of
  its class `NEIGHBOR_IS_ALIKE` of the time; without any answer in its class it is wrong.

Among all thresholds and noises that keep the budget, the strictest threshold whose proxy is
within `TOLERANCE` of the best is chosen: a release that few hospitals support is worth little to
a reader, even where the student would profit from it. Three assumed accuracies count alike, so
that the choice does not hang on one.

"Cheaper" are parameters of a smaller joint price that, at each of `WIDER` accuracies, give at
least as many right answers on simulated votes. The default of digits (16, 11 and 9) is one between
them and the choice: it answers more, up to one of 30 of it wrongly.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting import ConfidentGaussianMaxEvent, gdp_epsilon, gdp_mu, gdp_mu_squared
from pate_fed.accounting.formal import RunCaps, formal_costs
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.inputs import Inputs
from pate_fed.mechanisms import (
    ConfidentGaussianMax,
    GaussianMax,
    Mechanism,
    NoisePlan,
    keyed_stream,
)
from pate_fed.partition import Partition, partition_records
from pate_fed.students import Lesson, select_queries, train_student
from pate_fed.teachers import make_ensemble
from pate_fed.votes import SummedHistogram, count_votes

DELTA = 1e-5
EPSILON = 5.0
QUERIES = 30
RUNS = 4000
NEIGHBOR_IS_ALIKE = 0.8
TOLERANCE = 0.01
SIGMA1_GRID = (8.0, 10.0, 12.0, 15.0, 18.0, 22.0, 27.0)
THRESHOLD_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SEEDS = (1, 2, 3, 4, 5, 7)
WIDER = 0.1
"""How far beyond the assumed accuracies "cheaper" parameters have to hold."""
SIGMA2_STEPS = (1.0, 1.06, 1.12, 1.19, 1.26)
"""Noise of a label that cheaper parameters may have, in that of the choice."""


@dataclass(frozen=True)
class Setting:
    """One bundled set, and what is assumed about its teachers.

    Attributes:
        name: Of the data set.
        classes: Number of classes.
        teachers: One per party.
        accuracies: Assumed mean accuracies of a teacher on a medoid, each tried.
        spread: Standard deviation of that accuracy from query to query.
    """

    name: str
    classes: int
    teachers: int
    accuracies: tuple[float, ...]
    spread: float


SETTINGS = (
    # 20 records of 10 classes: two of each, so a good deal worse than a textbook classifier.
    Setting("digits", classes=10, teachers=50, accuracies=(0.6, 0.65, 0.7), spread=0.2),
    # 7 records of 2 well separated classes.
    Setting("breast-cancer", classes=2, teachers=50, accuracies=(0.8, 0.85, 0.9), spread=0.15),
)


@dataclass(frozen=True)
class Choice:
    """Parameters and what the simulation says of them.

    Attributes:
        vote_threshold: In votes.
        sigma1: In votes.
        sigma2: In votes.
        answered: Expected share of queries answered.
        right: Expected share of answers that are right.
        proxy: Expected accuracy of the student, by the proxy.
    """

    vote_threshold: float
    sigma1: float
    sigma2: float
    answered: float
    right: float
    proxy: float


def simulate_votes(
    setting: Setting, accuracy: float, *, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw histograms of `RUNS` federations; class 0 stands for the right one.

    Returns:
        int64, shape (RUNS, QUERIES, classes).
    """
    strength = accuracy * (1 - accuracy) / setting.spread**2 - 1
    right = rng.beta(accuracy * strength, (1 - accuracy) * strength, (RUNS, QUERIES, 1))
    # Wrong votes fall on few classes: a 4 is taken for a 9 rather than for a 0.
    wrong = rng.dirichlet(np.full(setting.classes - 1, 0.4), (RUNS, QUERIES))
    odds = np.concatenate([right, (1 - right) * wrong], axis=2)
    return rng.multinomial(setting.teachers, odds).astype(np.int64)


def judge(
    votes: NDArray[np.int64],
    *,
    vote_threshold: float,
    sigma1: float,
    sigma2: float,
    rng: np.random.Generator,
) -> Choice:
    """Release labels from simulated votes, and judge them by the proxy."""
    tops = votes.max(axis=2)
    answered = tops + rng.normal(0.0, sigma1, tops.shape) >= vote_threshold
    winners = (votes + rng.normal(0.0, sigma2, votes.shape)).argmax(axis=2)
    right = answered & (winners == 0)
    return Choice(
        vote_threshold=vote_threshold,
        sigma1=sigma1,
        sigma2=sigma2,
        answered=float(answered.mean()),
        right=float(right.sum() / max(1, answered.sum())),
        proxy=_proxy(answered, right, classes=votes.shape[2]),
    )


def candidates(setting: Setting, *, rng: np.random.Generator) -> list[Choice]:
    """Judge the best noise of each threshold, all of the same price."""
    budget = gdp_mu(EPSILON, DELTA) ** 2
    drawn = [simulate_votes(setting, accuracy, rng=rng) for accuracy in setting.accuracies]
    best: list[Choice] = []
    for share in THRESHOLD_SHARES:
        judged: list[Choice] = []
        for sigma1 in SIGMA1_GRID:
            left = budget - QUERIES / sigma1**2
            if left <= 0:
                continue
            # Up to a twentieth of a vote, so that the printed number keeps the budget.
            sigma2 = math.ceil(20 * math.sqrt(2 * QUERIES / left)) / 20
            judged.append(
                _mean(
                    [
                        judge(
                            votes,
                            vote_threshold=round(share * setting.teachers),
                            sigma1=sigma1,
                            sigma2=sigma2,
                            rng=rng,
                        )
                        for votes in drawn
                    ]
                )
            )
        best.append(max(judged, key=lambda choice: choice.proxy))
    return best


def choose(judged: list[Choice]) -> Choice:
    """Take the strictest threshold that is nearly as good as the best."""
    top = max(choice.proxy for choice in judged)
    good = [choice for choice in judged if choice.proxy >= top - TOLERANCE]
    return max(good, key=lambda choice: choice.vote_threshold)


def cheaper(
    setting: Setting, chosen: Choice, *, rng: np.random.Generator
) -> list[tuple[float, Choice, float]]:
    """List parameters of smaller joint prices that give as many right answers or more.

    Returns:
        Joint price, parameters judged at the accuracy where they gain least, and that gain in right
        answers; the cheapest first.
    """
    low, high = min(setting.accuracies) - WIDER, max(setting.accuracies) + WIDER
    accuracies = np.linspace(low, min(high, 0.97), 5)
    tenth = RUNS // 10
    drawn = [simulate_votes(setting, float(accuracy), rng=rng)[:tenth] for accuracy in accuracies]
    seed = int(rng.integers(2**31))

    def judged(threshold: float, sigma1: float, sigma2: float) -> list[Choice]:
        # The same noise for all: what differs is the parameters.
        noise = np.random.default_rng(seed)
        return [
            judge(votes, vote_threshold=threshold, sigma1=sigma1, sigma2=sigma2, rng=noise)
            for votes in drawn
        ]

    before = judged(chosen.vote_threshold, chosen.sigma1, chosen.sigma2)
    found = []
    for share in THRESHOLD_SHARES:
        for sigma1 in SIGMA1_GRID:
            for step in SIGMA2_STEPS:
                threshold = round(share * setting.teachers)
                after = judged(threshold, sigma1, round(step * chosen.sigma2, 2))
                gains = [
                    QUERIES * (new.answered * new.right - old.answered * old.right)
                    for new, old in zip(after, before, strict=True)
                ]
                if min(gains) >= 0:
                    worst = after[int(np.argmin(gains))]
                    found.append((joint_epsilon(setting, worst), worst, min(gains)))
    limit = joint_epsilon(setting, chosen)
    return sorted((row for row in found if row[0] < limit), key=lambda row: row[0])


def joint_epsilon(setting: Setting, choice: Choice) -> float:
    """Return the price that the run is charged where votes are trusted valid."""
    costs = formal_costs(
        RunCaps(
            setting.teachers,
            setting.classes,
            float(choice.vote_threshold),
            choice.sigma1,
            choice.sigma2,
            asks=QUERIES,
            answers=QUERIES,
            refusals=QUERIES,
            weight=1,
            delta=DELTA,
        ),
        votes_are_valid=True,
    )
    return costs.smallest.epsilon


def measure(setting: Setting, mechanism: Mechanism, seed: int) -> dict[str, float]:
    """Run the chosen parameters on the real data, without a network."""
    rng = np.random.default_rng(seed)
    data = load_dataset(DataSource(setting.name), rng=rng)
    partition = partition_records(
        data.private, parties=setting.teachers, teachers=1, scheme="iid", rng=rng
    )
    queries = np.array(select_queries(data.pool.features, QUERIES, method="medoids", rng=rng))
    inputs = np.concatenate([data.pool.features[queries], data.test.features])
    votes = teachers_votes(data, partition, inputs, rng=rng)
    asked, tested = votes[:, :QUERIES], votes[:, QUERIES:]
    counts = count_votes(asked, classes=data.classes).counts
    release = mechanism.release(
        SummedHistogram(counts, setting.teachers),
        noise=NoisePlan("coordinator"),
        random_bytes=keyed_stream(seed.to_bytes(8, "big"), tag="benchmark"),
        max_answers=QUERIES,
        max_refusals=QUERIES,
    )
    answered = release.labels >= 0
    lesson = Lesson(
        data.pool.inputs, queries[answered], release.labels[answered], classes=data.classes
    )
    student = train_student("auto", data.kind, lesson, rng=rng)
    everything = np.arange(len(data.private))
    lesson = Lesson(data.private.inputs, everything, data.private.labels, classes=data.classes)
    pooled = train_student("supervised", data.kind, lesson, rng=rng)
    per_teacher = (tested == data.test.labels).mean(axis=1)
    right = release.labels[answered] == data.pool.labels[queries[answered]]
    return {
        "teacher mean": float(per_teacher.mean()),
        "best party": float(per_teacher.max()),
        "plurality": float((counts.argmax(axis=1) == data.pool.labels[queries]).mean()),
        "pooled": _accuracy(pooled.predict(data.test.inputs), data),
        "answered": float(release.answered),
        "right": float(right.mean()),
        "student": _accuracy(student.predict(data.test.inputs), data),
    }


def teachers_votes(
    data: Dataset, partition: Partition, inputs: NDArray[np.float64], *, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Train every party's teachers and let them vote; shape (teachers, inputs)."""
    votes = []
    for party in range(partition.parties):
        ensemble = make_ensemble("auto", data.kind)
        shards = [data.private.select(shard.rows) for shard in partition.shards_of(party)]
        ensemble.fit(shards, classes=data.classes, rng=rng)
        votes.append(ensemble.vote(Inputs(inputs)))
    return np.concatenate(votes)


def main() -> None:
    parser = argparse.ArgumentParser(description=Path(__file__).name)
    parser.add_argument("--measure", action="store_true", help="run the choice on the real data")
    parser.add_argument("--data", choices=[setting.name for setting in SETTINGS])
    arguments = parser.parse_args()
    for setting in SETTINGS:
        if arguments.data in (None, setting.name):
            judged = candidates(setting, rng=np.random.default_rng(2024))
            chosen = choose(judged)
            _print_choice(setting, judged, chosen)
            _print_cheaper(setting, chosen)
            if arguments.measure:
                _print_measured(setting, chosen)


def _print_choice(setting: Setting, judged: list[Choice], chosen: Choice) -> None:
    print(
        f"\n{setting.name}: {setting.teachers} teachers, {QUERIES} queries, "
        f"epsilon at most {EPSILON:g} at delta {DELTA:g}"
    )
    print("  threshold  sigma1  sigma2   epsilon  answered   right   proxy")
    for choice in judged:
        event = ConfidentGaussianMaxEvent(
            asks=QUERIES, answers=QUERIES, sigma1=choice.sigma1, sigma2=choice.sigma2
        )
        epsilon = gdp_epsilon(math.sqrt(gdp_mu_squared(event)), DELTA)
        print(
            f"  {choice.vote_threshold:9g}  {choice.sigma1:6g}  {choice.sigma2:6.2f}  "
            f"{epsilon:8.4f}  {choice.answered:8.3f}  {choice.right:6.3f}  {choice.proxy:6.3f}"
            f"{'  <- chosen' if choice is chosen else ''}"
        )


def _print_cheaper(setting: Setting, chosen: Choice) -> None:
    rows = cheaper(setting, chosen, rng=np.random.default_rng(2025))
    print(f"  cheaper than its joint price of {joint_epsilon(setting, chosen):.4f}:")
    for epsilon, choice, gain in rows[:5]:
        print(
            f"  {choice.vote_threshold:9g}  {choice.sigma1:6g}  {choice.sigma2:6.2f}  "
            f"{epsilon:8.4f}  {choice.answered:8.3f}  {choice.right:6.3f}  {gain:+6.2f} right"
        )


def _print_measured(setting: Setting, chosen: Choice) -> None:
    plain_sigma = math.ceil(20 * math.sqrt(2 * QUERIES) / gdp_mu(EPSILON, DELTA)) / 20
    mechanisms: tuple[Mechanism, ...] = (
        ConfidentGaussianMax(chosen.vote_threshold, chosen.sigma1, chosen.sigma2),
        GaussianMax(plain_sigma),
    )
    for mechanism in mechanisms:
        print(f"  {mechanism}")
        rows = [measure(setting, mechanism, seed) for seed in SEEDS]
        print("    seed   " + "  ".join(f"{name:>12}" for name in rows[0]))
        for seed, row in zip(SEEDS, rows, strict=True):
            print(f"    {seed:<7}" + "  ".join(f"{value:12.3f}" for value in row.values()))
        means = [np.mean([row[name] for row in rows]) for name in rows[0]]
        print("    mean   " + "  ".join(f"{value:12.3f}" for value in means))


def _proxy(answered: NDArray[np.bool_], right: NDArray[np.bool_], *, classes: int) -> float:
    cluster_class = np.arange(answered.shape[1]) % classes
    accuracy = right.astype(np.float64)
    for label in range(classes):
        mine = cluster_class == label
        answers = answered[:, mine].sum(axis=1)
        borrowed = NEIGHBOR_IS_ALIKE * right[:, mine].sum(axis=1) / np.maximum(answers, 1)
        accuracy[:, mine] = np.where(answered[:, mine], accuracy[:, mine], borrowed[:, None])
    return float(accuracy.mean())


def _mean(choices: list[Choice]) -> Choice:
    first = choices[0]
    return Choice(
        first.vote_threshold,
        first.sigma1,
        first.sigma2,
        answered=float(np.mean([choice.answered for choice in choices])),
        right=float(np.mean([choice.right for choice in choices])),
        proxy=float(np.mean([choice.proxy for choice in choices])),
    )


def _accuracy(predicted: NDArray[np.int64], data: Dataset) -> float:
    return float((predicted == data.test.labels).mean())


if __name__ == "__main__":
    main()
