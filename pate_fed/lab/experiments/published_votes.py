"""Votes that the papers published: SVHN's without images, and for MNIST an argmax without noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import DataSource, load_dataset
from pate_fed.lab.canary import audit_mechanism
from pate_fed.lab.experiments.experiment import (
    DELTA,
    Result,
    Row,
    Tell,
    accuracy,
    counts_of_2018,
    epsilon_of,
    noisy_labels,
    price_of_votes,
)
from pate_fed.lab.mechanisms import ConfidentGaussianMax, ImmutableMax
from pate_fed.mechanisms import GaussianMax, LaplaceMax, Mechanism
from pate_fed.rule import Rule
from pate_fed.students import Lesson, train_student

_SVHN_QUERIES = 8500
_SVHN_DELTA = 1e-6
_QUERIES = 640
_SIGMA = 40.0
_TRIALS = 20_000
_GAMMAS = (1.0, 0.1, 0.05, 0.01)
"""Inverse scales of Laplace noise; NZC makes it as large as it likes."""


def svhn_votes(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield how many queries are answered, how often as without noise, and the papers' price."""
    votes = counts_of_2018(folder, "svhn")
    votes = votes[:_SVHN_QUERIES]
    paper = "3,098 answered at 4.96 (data-dependent, delta 1e-6)"
    for threshold, sigma1, published in (
        (300.0, 200.0, paper),
        (250.0, 150.0, ""),
        (200.0, 100.0, ""),
    ):
        words = f"Confident-GNMax {threshold:g}/{sigma1:g}/{_SIGMA:g}, {_SVHN_QUERIES:,} queries"
        rule = ConfidentGaussianMax(Rule("confident", threshold, sigma1, _SIGMA))
        outcomes, agreed = [], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            tops = votes.max(axis=1) + rng.normal(0, sigma1, len(votes))
            answered = tops >= threshold
            said = noisy_labels(votes[answered], _SIGMA, rng)
            outcomes.append(answered)
            agreed.append(float((said == votes[answered].argmax(axis=1)).mean()))
            tell(f"{words}, seed {seed}: {answered.sum()} answered")
        most = max(int(one.sum()) for one in outcomes)
        epsilon = epsilon_of(rule, _SVHN_QUERIES, most, classes=10)
        prices = tuple(price_of_votes(rule, votes, one, delta=_SVHN_DELTA) for one in outcomes)
        for measure, values in (
            ("share answered", tuple(float(one.mean()) for one in outcomes)),
            ("answers as without noise", tuple(agreed)),
            ("epsilon of these votes, itself private, delta 1e-6", prices),
        ):
            yield Result(Row(words, "none", epsilon, published, measure), values)
    laplace = LaplaceMax(0.05)
    epsilon = epsilon_of(laplace, 500, classes=10)
    everything = np.ones(500, dtype=np.bool_)
    price = price_of_votes(laplace, votes[:500], everything, delta=_SVHN_DELTA)
    words = "LNMax, gamma 0.05, the first 500 queries"
    measure = "epsilon of these votes, itself private, delta 1e-6"
    yield Result(Row(words, "none", epsilon, "5.04 (2017, other votes)", measure), (price,))


def nzc_mnist(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield an argmax that noise cannot change, beside one that is private, and who sees a vote."""
    votes = counts_of_2018(folder, "mnist")
    data = load_dataset(DataSource("mnist", folder / "mnist"), rng=np.random.default_rng(0))
    asked = {
        "immutable argmax": (math.inf, None),
        f"GNMax, sigma {_SIGMA:g}": (
            epsilon_of(GaussianMax(_SIGMA), _QUERIES, classes=10),
            _SIGMA,
        ),
    }
    for name, (epsilon, sigma) in asked.items():
        words = f"{name}, {_QUERIES} queries"
        right, tested = [], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            said = noisy_labels(_boosted(votes[:_QUERIES], sigma), sigma or 1.0, rng)
            lesson = Lesson(data.pool.inputs, np.arange(_QUERIES), said, 10)
            student = train_student("propagation", data.kind, lesson, rng=rng)
            right.append(float((said == data.pool.labels[:_QUERIES]).mean()))
            tested.append(accuracy(student, data))
            tell(f"{words}, seed {seed}: {tested[-1]:.4f}, labels {right[-1]:.3f}")
        yield Result(Row(words, "propagation", epsilon), tuple(tested))
        yield Result(Row(words, "none", epsilon, measure="labels right"), tuple(right))
        # All votes but one are known; the label of a query with the closest votes tells the last.
        guessed = tuple(last_vote_told(sigma, np.random.default_rng(seed)) for seed in seeds)
        yield Result(Row(words, "none", epsilon, measure="last vote told by one label"), guessed)
    yield from _published_tables(folder, seeds)


def _published_tables(folder: Path, seeds: Sequence[int]) -> Iterator[Result]:
    """Yield what NZC claims on all published votes, and its figure: labels over the noise.

    Its argument exempts votes whose lead is above 3. So it answers every query, and claims next to
    nothing. Two neighbors refute each claim: the bound on epsilon from their labels is beside it.
    """
    for name in ("mnist", "svhn", "adult"):
        votes = counts_of_2018(folder, name)
        ordered = np.sort(votes, axis=1)
        lead = ordered[:, -1] - ordered[:, -2]
        words = f"{name}, all {len(votes):,} queries, 250 teachers"
        exempt = Row(words, "none", math.inf, measure="share with a lead above 3")
        yield Result(exempt, (float((lead > 3).mean()),))
        top = votes.argmax(axis=1)
        for gamma in _GAMMAS:
            scale = math.sqrt(2) / gamma
            for rule, boost in (("NZC's argmax", 10**6), ("LNMax", 0)):
                kept = []
                for seed in seeds:
                    rng = np.random.default_rng(seed)
                    boosted = votes.copy()
                    boosted[np.arange(len(votes)), top] += boost
                    said = (boosted + rng.laplace(0, 1 / gamma, votes.shape)).argmax(axis=1)
                    kept.append(float((said == top).mean()))
                epsilon = (
                    math.inf
                    if boost
                    else epsilon_of(LaplaceMax(gamma), len(votes), classes=votes.shape[1])
                )
                row = Row(
                    f"{words}, gamma {gamma:g}",
                    f"{rule}, {name}",
                    epsilon,
                    measure="answers as without noise, by sigma",
                    at=scale,
                )
                yield Result(row, tuple(kept))
    for gamma in _GAMMAS:
        claim = epsilon_of(LaplaceMax(gamma), 1, classes=2)
        rules: dict[str, Mechanism] = {
            "NZC's argmax": ImmutableMax(gamma),
            "LNMax": LaplaceMax(gamma),
        }
        for name, mechanism in rules.items():
            bounds = [
                audit_mechanism(
                    mechanism,
                    teachers=251,
                    queries=1,
                    trials=_TRIALS,
                    delta=DELTA,
                    seed=b"%d" % seed,
                ).epsilon
                for seed in seeds
            ]
            words = f"{name}, two neighbors, one label, gamma {gamma:g}"
            row = Row(words, "none", claim, measure="lower bound on epsilon, beside the claim")
            yield Result(row, tuple(bounds))


def _boosted(votes: NDArray[np.int64], sigma: float | None) -> NDArray[np.int64]:
    """Add a constant to the largest count, which noise of one vote cannot overcome."""
    if sigma is not None:
        return votes
    found = votes.copy()
    found[np.arange(len(found)), found.argmax(axis=1)] += 100
    return found


def last_vote_told(sigma: float | None, rng: np.random.Generator) -> float:
    """Return how often a label tells the last vote beside 250 known ones, half for each class."""
    last = rng.integers(2, size=_TRIALS)
    votes = np.full((_TRIALS, 2), 125)
    votes[np.arange(_TRIALS), last] += 1
    said = noisy_labels(_boosted(votes, sigma), sigma or 1.0, rng)
    return float((said == last).mean())
