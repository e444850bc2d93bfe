"""The vote-leak paper: votes rebuilt from repeated answers, and what a deployment's rules do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.audit import (
    Answers,
    Noise,
    Target,
    leak_error,
    normalized_error,
    rebuild_votes,
    win_chances,
)
from pate_fed.audit.exposure import guess
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.errors import UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.lab.experiments.adult_consensus import adult_consensus
from pate_fed.lab.experiments.experiment import Result, Row, Tell, counted, epsilon_of, mean_of
from pate_fed.lab.gradient_descent import descend
from pate_fed.lab.mechanisms import ConfidentGaussianMax
from pate_fed.mechanisms import GaussianMax
from pate_fed.regular_files import open_regular
from pate_fed.rule import Rule
from pate_fed.teachers import TeacherEnsemble, make_ensemble

_TEACHERS: Final = 250
_CLASSES: Final = 10
_ANSWERS: Final = 10_000
_SIGMAS: Final = (40, 60, 80, 100)
_NEIGHBORS: Final = 10
_RULES: Final = {
    "mnist": ConfidentGaussianMax(Rule("confident", 200.0, 150.0, 40.0)),
    "svhn": ConfidentGaussianMax(Rule("confident", 300.0, 200.0, 40.0)),
}
"""The paper's mechanism on each set."""

_TARGETS: Final = 10
_VARIANTS: Final = (10, 100, 1000)
_STEPS: Final = (0.03, 0.1, 0.3)
"""How far a perturbing attacker moves inputs: parts of their length, beyond the 2 % that count."""


def vote_leak(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield the attack's errors over noise and answers, with each rule, and the Adult case."""
    rows = _histograms(folder / "pate_votes" / "mnist_svhn_15_queries_250_teachers.npz")
    for name, votes in rows.items():
        yield from _over_noise(name, votes, seeds, tell)
    for name, votes in rows.items():
        yield from _over_answers(name, votes, seeds, tell)
    for name, votes in rows.items():
        yield from _beside_the_top(name, votes, seeds, tell)
    yield from adult_consensus(folder, seeds, tell)
    data = load_dataset(DataSource("mnist", folder / "mnist"), rng=np.random.default_rng(0))
    yield from _perturbed(data, seeds, tell)


def _over_noise(
    name: str, votes: Sequence[NDArray[np.int64]], seeds: Sequence[int], tell: Tell
) -> Iterator[Result]:
    """More noise helps the attacker: both searches, by sigma."""
    for sigma in _SIGMAS:
        noise, epsilon = Noise(float(sigma)), _epsilon_of_answers(sigma, _ANSWERS)
        ours, theirs = list[float](), list[float]()
        for seed in seeds:
            rng = np.random.default_rng(seed)
            asked = [Target(noise).ask(one, asks=_ANSWERS, rng=rng) for one in votes]
            likeliest = (rebuild_votes(a, noise, teachers=_TEACHERS).votes for a in asked)
            descended = (descend(a, noise, teachers=_TEACHERS) for a in asked)
            for errors, found in ((ours, likeliest), (theirs, descended)):
                errors.append(mean_of(map(normalized_error, found, votes)))
        tell(f"{name}, sigma {sigma}: {ours[-1]:.4f}, gradient {theirs[-1]:.4f}")
        words = f"GNMax, {name}, {_ANSWERS:,} answers, sigma {sigma}"
        for search, errors in (("likelihood", ours), ("gradient descent", theirs)):
            measure = f"error of {_ANSWERS:,} answers"
            row = Row(words, f"{name}, {search}", epsilon, measure=measure, at=float(sigma))
            yield Result(row, tuple(errors))


def _over_answers(
    name: str, votes: Sequence[NDArray[np.int64]], seeds: Sequence[int], tell: Tell
) -> Iterator[Result]:
    """The rules of a deployment allow 1 or 11 answers; without them the budget is the limit."""
    rule = _RULES[name]
    target = Target.of(rule.parameters())
    allowed = {
        "one answer for ever": 1,
        "three neighbors as well": 1 + 3,
        "its ten neighbors as well": 1 + _NEIGHBORS,
        "two runs, had hospitals no memory": 2 * (1 + _NEIGHBORS),
        "no rule": 1000,
        "no rule, ten times as many": _ANSWERS,
    }
    for words, asks in allowed.items():
        errors = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            errors.append(
                mean_of(leak_error(one, target, asks=asks, repeats=1, rng=rng) for one in votes)
            )
        tell(f"{name}, {words}: {errors[-1]:.4f}")
        epsilon = epsilon_of(rule, asks, classes=_CLASSES)
        row = Row(
            f"Confident-GNMax, {name}, {asks:,} answers, {words}", "none", epsilon, measure="error"
        )
        yield Result(row, tuple(errors))


def _beside_the_top(
    name: str, votes: Sequence[NDArray[np.int64]], seeds: Sequence[int], tell: Tell
) -> Iterator[Result]:
    """Which classes teachers confuse: the second class, and all counts below the largest."""
    split = [one for one in votes if one.max() < _TEACHERS]
    for sigma in (40, 100):
        for asks in (100, 1000, _ANSWERS):
            edges, correlations = [], []
            for seed in seeds:
                rng, target = np.random.default_rng(seed), Target(Noise(float(sigma)))
                found = [
                    guess(target.ask(one, asks=asks, rng=rng), target, teachers=_TEACHERS)
                    for one in split
                ]
                pairs = list(zip(found, split, strict=True))
                edges.append(mean_of(_finds_second(there, true) for there, true in pairs))
                rest = [_beside(one, int(true.argmax())) for one, true in pairs]
                true_rest = [_beside(true, int(true.argmax())) for true in split]
                correlations.append(_correlation(np.concatenate(rest), np.concatenate(true_rest)))
            epsilon = _epsilon_of_answers(sigma, asks)
            tell(f"{name}, sigma {sigma}, {asks:,}: edges {edges[-1]:.3f}")
            words, series = f"GNMax, {name}, {asks:,} answers, sigma {sigma}", f"{name}, {sigma}"
            for measure, values in (
                ("edge: second class found", edges),
                ("correlation of the counts beside the largest", correlations),
            ):
                yield Result(Row(words, series, epsilon, measure=measure), tuple(values))


def _finds_second(there: NDArray[np.float64], true: NDArray[np.int64]) -> bool:
    """Tell whether rebuilt votes name a class, beside the first, that no other one exceeds."""
    rest = true.copy()
    rest[true.argmax()] = -1
    rebuilt = there.copy()
    rebuilt[true.argmax()] = -1.0
    return bool(rest[rebuilt.argmax()] == rest.max())


def _beside(votes: NDArray[np.int64] | NDArray[np.float64], top: int) -> NDArray[np.float64]:
    return np.delete(votes, top).astype(np.float64)


def _correlation(here: NDArray[np.float64], there: NDArray[np.float64]) -> float:
    """Return Pearson's correlation; 0 where one side is constant."""
    if not (here.std() and there.std()):
        return 0.0
    return float(np.corrcoef(here, there)[0, 1])


def _perturbed(data: Dataset, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """An attacker moves a query a little, so that each copy gets its own answer."""
    found: dict[tuple[float, int], list[float]] = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(data.private.labels))
        shards = [data.private.select(part) for part in np.array_split(rows, _TEACHERS)]
        teachers = make_ensemble("nearest", data.kind, balance="natural")
        teachers.fit(shards, classes=_CLASSES, rng=rng, public=data.pool.inputs)
        queries = data.pool.features[rng.choice(len(data.pool), _TARGETS, replace=False)]
        true = _votes_on(teachers, queries)
        for step in _STEPS:
            errors: dict[int, list[float]] = {count: [] for count in _VARIANTS}
            for query, votes in zip(queries, true, strict=True):
                copies = _variants(query, step, max(_VARIANTS), rng)
                chances = [
                    win_chances(one.astype(np.float64), Noise(40.0))
                    for one in _votes_on(teachers, copies)
                ]
                said = np.array([rng.choice(_CLASSES, p=one) for one in chances])
                for count in _VARIANTS:
                    answers = Answers.of(said[:count], classes=_CLASSES)
                    rebuilt = guess(answers, Target(Noise(40.0)), teachers=_TEACHERS)
                    errors[count].append(normalized_error(rebuilt, votes))
            for count, off in errors.items():
                found.setdefault((step, count), []).append(mean_of(off))
            tell(f"perturbed by {step:g}, seed {seed}: {found[step, max(_VARIANTS)][-1]:.4f}")
    for (step, count), errors_of in found.items():
        words = f"GNMax, mnist, sigma 40, {count:,} copies moved by {100 * step:g} %"
        row = Row(words, "none", _epsilon_of_answers(40, count), measure="error")
        yield Result(row, tuple(errors_of))


def _variants(
    query: NDArray[np.float64], step: float, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return copies moved by this part of the query's length, each into a direction of its own."""
    ways = rng.normal(size=(count, len(query)))
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    return np.asarray(query + step * max(float(np.linalg.norm(query)), 1.0) * ways)


def _votes_on(teachers: TeacherEnsemble, features: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the teachers' counts; shape (inputs, classes)."""
    return counted(teachers.vote(Inputs(features)), _CLASSES)


def _histograms(path: Path) -> dict[str, list[NDArray[np.int64]]]:
    """Return the paper's histograms, 15 of each set."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as stored:
            votes = {name: stored[name].astype(np.int64) for name in _RULES}
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableFileError(
            f"{path.name} must hold each teacher's votes", type(error).__name__
        ) from error
    return {name: list(counted(rows.T, _CLASSES)) for name, rows in votes.items()}


def _epsilon_of_answers(sigma: float, answers: int) -> float:
    return epsilon_of(GaussianMax(float(sigma)), answers, classes=_CLASSES)
