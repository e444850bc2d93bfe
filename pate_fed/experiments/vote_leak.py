"""The vote-leak paper: votes rebuilt from repeated answers, and what a deployment's rules do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.audit import (
    Answers,
    Check,
    Noise,
    Target,
    descend,
    leak_error,
    normalized_error,
    rebuild_votes,
    win_chances,
)
from pate_fed.audit.exposure import guess
from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.errors import UnreadableFileError
from pate_fed.experiments.experiment import Result, Row, Tell, epsilon_of, epsilon_of_event
from pate_fed.inputs import Inputs
from pate_fed.mechanisms import GaussianMax
from pate_fed.query_sketches import LEAST_NEAR_DISTANCE, SHORTEST
from pate_fed.teachers import TeacherEnsemble, make_ensemble

_TEACHERS: Final = 250
_CLASSES: Final = 10
_ANSWERS: Final = 10_000
_SIGMAS: Final = (40, 60, 80, 100)
_NEIGHBORS: Final = 10
_CHECKS: Final = {"mnist": Check(200.0, 150.0), "svhn": Check(300.0, 200.0)}
"""The paper's Confident-GNMax on each set."""

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
    yield from _doctorates(folder / "pate_votes" / "adult_250_teachers.npz", seeds, tell)
    data = load_dataset(DataSource("mnist", folder / "mnist"), rng=np.random.default_rng(0))
    yield from _perturbed(data, seeds, tell)


def _over_noise(
    name: str, votes: Sequence[NDArray[np.int64]], seeds: Sequence[int], tell: Tell
) -> Iterator[Result]:
    """More noise helps the attacker: both searches, by sigma."""
    for sigma in _SIGMAS:
        noise, epsilon = Noise(float(sigma)), _epsilon_of_answers(sigma, _ANSWERS)
        ours, theirs = [], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            asked = [Target(noise).ask(one, asks=_ANSWERS, rng=rng) for one in votes]
            ours.append(
                _mean(
                    rebuild_votes(a, noise, teachers=_TEACHERS).error(h)
                    for a, h in zip(asked, votes, strict=True)
                )
            )
            theirs.append(
                _mean(
                    normalized_error(descend(a, noise, teachers=_TEACHERS), h)
                    for a, h in zip(asked, votes, strict=True)
                )
            )
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
    check, sigma = _CHECKS[name], 40.0
    target = Target(Noise(sigma), check)
    allowed = {
        "one answer for ever": 1,
        "its ten neighbors as well": 1 + _NEIGHBORS,
        "no rule": 1000,
        "no rule, ten times as many": _ANSWERS,
    }
    for words, asks in allowed.items():
        errors = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            errors.append(
                _mean(leak_error(one, target, asks=asks, repeats=1, rng=rng) for one in votes)
            )
        tell(f"{name}, {words}: {errors[-1]:.4f}")
        epsilon = epsilon_of(
            votes=_TEACHERS,
            classes=_CLASSES,
            vote_threshold=check.vote_threshold,
            sigma1=check.sigma1,
            sigma2=sigma,
            asks=asks,
        )
        row = Row(
            f"Confident-GNMax, {name}, {asks:,} answers, {words}", "none", epsilon, measure="error"
        )
        yield Result(row, tuple(errors))


def _doctorates(path: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Tell holders of a doctorate, whom teachers never saw as such, by how little teachers agree.

    As in the paper each group of people is scaled by itself, so that the group is classified badly
    by design.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            groups = [stored[name].T.astype(np.int64) for name in ("not_phd_votes", "phd_votes")]
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableFileError(
            f"{path.name} must hold votes of 250 teachers", type(error).__name__
        ) from error
    others, holders = ([np.bincount(one, minlength=2) for one in group] for group in groups)
    for name, group in (("holders of a doctorate", holders), ("others", others)):
        agreed = _mean(one.max() / _TEACHERS for one in group)
        row = Row(f"adult, {name}", "none", math.inf, measure="mean agreement of teachers")
        yield Result(row, (agreed,))
    for asks in (None, 1, 1 + _NEIGHBORS, 100, 1000):
        found, off = [], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            picked = rng.choice(len(others), len(holders), replace=False)
            asked = [*holders, *(others[place] for place in picked)]
            rebuilt = [_seen(one, asks, rng) for one in asked]
            agreement = np.array([one.max() / _TEACHERS for one in rebuilt])
            found.append(_auc(-agreement[: len(holders)], -agreement[len(holders) :]))
            off.append(_mean(normalized_error(a, b) for a, b in zip(rebuilt, asked, strict=True)))
        words = "the votes themselves" if asks is None else f"GNMax, sigma 40, {asks:,} answers"
        tell(f"adult, {words}: AUC {found[-1]:.3f}, error {off[-1]:.4f}")
        epsilon = math.inf if asks is None else _epsilon_of_answers(40, asks)
        words = f"adult, {words} a person"
        yield Result(Row(words, "none", epsilon, measure="AUC of a doctorate"), tuple(found))
        yield Result(Row(words, "none", epsilon, measure="error"), tuple(off))


def _seen(
    votes: NDArray[np.int64], asks: int | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    if asks is None:
        return votes.astype(np.float64)
    target = Target(Noise(40.0))
    return guess(target.ask(votes, asks=asks, rng=rng), target, teachers=_TEACHERS)


def _perturbed(data: Dataset, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """An attacker moves a query further than the limit, so that each copy gets its own answer."""
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
            assert step > LEAST_NEAR_DISTANCE
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
                found.setdefault((step, count), []).append(_mean(off))
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
    return np.asarray(query + step * max(float(np.linalg.norm(query)), SHORTEST) * ways)


def _votes_on(teachers: TeacherEnsemble, features: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the teachers' counts; shape (inputs, classes)."""
    said = teachers.vote(Inputs(features))
    return np.array([np.bincount(one, minlength=_CLASSES) for one in said.T])


def _histograms(path: Path) -> dict[str, list[NDArray[np.int64]]]:
    """Return the paper's histograms, 15 of each set.

    Raises:
        UnreadableFileError: the file is missing or holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            votes = {name: stored[name].astype(np.int64) for name in _CHECKS}
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableFileError(
            f"{path.name} must hold each teacher's votes", type(error).__name__
        ) from error
    return {
        name: [np.bincount(one, minlength=_CLASSES) for one in rows] for name, rows in votes.items()
    }


def _epsilon_of_answers(sigma: float, answers: int) -> float:
    return epsilon_of_event(GaussianMax(float(sigma)).event_of_answers(answers, 1.0))


def _auc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Return how often a positive scores above a negative; half for equal ones."""
    pairs = positive[:, np.newaxis] - negative
    return float((pairs > 0).mean() + 0.5 * (pairs == 0).mean())


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
