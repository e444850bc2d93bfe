"""Consensus by subgroup: what votes on people of Adult tell about them.

Teachers agree less on people of a kind that they rarely saw. Whoever rebuilds the votes on a person
from repeated answers reads that off. The vote-leak paper's case are holders of a doctorate. Its
teachers never saw an education, and it scales each of the two groups by itself, so that the holders
are classified badly by design. All other groups here are of people without a doctorate.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.audit import Noise, Target, normalized_error
from pate_fed.audit.exposure import guess
from pate_fed.errors import UnreadableFileError
from pate_fed.lab.experiments.experiment import Result, Row, Tell, epsilon_of, mean_of
from pate_fed.lab.membership_inference import area_under_curve
from pate_fed.mechanisms import GaussianMax
from pate_fed.regular_files import open_regular

_TEACHERS: Final = 250
_SIGMA: Final = 40.0
_ASKS: Final = (None, 1, 11, 100, 1000)
"""Answers a person; None for the votes themselves."""

_LOW: Final = 0.75
"""Share of votes for the top class below which the paper calls consensus low."""

_MOST_PEOPLE: Final = 400
"""Most people of a group that are attacked."""

_HOLDERS: Final = "doctorate"

Rows = NDArray[np.int64]
"""Votes on people; shape (people, 2)."""


def adult_consensus(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Yield how well votes tell a doctorate, and the consensus on each group of people."""
    groups = _groups(folder)
    yield from _doctorates(groups, seeds, tell)
    for name, people in groups.items():
        for asks in (None, 11, 1000):
            low = []
            for seed in seeds:
                rng = np.random.default_rng(seed)
                some = people[rng.permutation(len(people))[:_MOST_PEOPLE]]
                low.append(mean_of(_agreement(_seen(one, asks, rng)) < _LOW for one in some))
            tell(f"adult, {name}, {asks} answers: low consensus {low[-1]:.3f}")
            row = Row(
                f"adult, {name}, {_words(asks)}",
                name,
                _epsilon(asks),
                measure="share of people with low consensus",
            )
            yield Result(row, tuple(low))


def _doctorates(groups: Mapping[str, Rows], seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
    """Tell holders of a doctorate from as many others by how little teachers agree."""
    holders, others = groups[_HOLDERS], groups["no doctorate"]
    for name, group in (("holders of a doctorate", holders), ("others", others)):
        row = Row(f"adult, {name}", "none", math.inf, measure="mean agreement of teachers")
        yield Result(row, (mean_of(_agreement(one) for one in group),))
    for asks in _ASKS:
        found, off = [], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            picked = rng.choice(len(others), len(holders), replace=False)
            asked = [*holders, *(others[place] for place in picked)]
            rebuilt = [_seen(one, asks, rng) for one in asked]
            agreement = np.array([_agreement(one) for one in rebuilt])
            found.append(area_under_curve(-agreement[: len(holders)], -agreement[len(holders) :]))
            off.append(mean_of(normalized_error(a, b) for a, b in zip(rebuilt, asked, strict=True)))
        tell(f"adult, {_words(asks)}: AUC {found[-1]:.3f}, error {off[-1]:.4f}")
        words = f"adult, {_words(asks)} a person"
        for measure, values in (("AUC of a doctorate", found), ("error", off)):
            yield Result(Row(words, "none", _epsilon(asks), measure=measure), tuple(values))


def _groups(folder: Path) -> dict[str, Rows]:
    """Return the votes on each group of people, from the paper's votes and its test rows."""
    path = folder / "pate_votes" / "adult_250_teachers.npz"
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as stored:
            votes = [_counts(stored[f"{name}_votes"]) for name in ("not_phd", "phd")]
            rows = stored["not_phd_rows"].tolist()
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableFileError(
            f"{path.name} must hold votes of 250 teachers", type(error).__name__
        ) from error
    others, holders = votes
    people = _people(folder / "adult" / "vote_leak_splits" / "adult_income_test_0.csv.gz")
    if len(rows) != len(others) or not all(0 <= row < len(people) for row in rows):
        raise UnreadableFileError(f"{path.name} must number the rows of its test")
    found: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        for name in _names(people[row]):
            found.setdefault(name, []).append(place)
    named = {name: others[places] for name, places in sorted(found.items())}
    return {_HOLDERS: holders, "no doctorate": others, **named}


def _people(path: Path) -> list[dict[str, str]]:
    try:
        with (
            open_regular(path) as packed,
            gzip.GzipFile(fileobj=packed) as plain,
            io.TextIOWrapper(plain, encoding="utf-8", newline="") as file,
        ):
            people = list(csv.DictReader(file))
            for one in people:
                int(one["age"]), one["gender"], one["race"]
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UnreadableFileError(
            f"{path.name} must hold age, gender and race of each row", type(error).__name__
        ) from error
    return people


def _names(person: Mapping[str, str]) -> tuple[str, ...]:
    """Return the groups of a person."""
    age = int(person["age"])
    years = "under 30" if age < 30 else "30 to 59" if age < 60 else "60 and over"
    return (f"age {years}", f"gender {person['gender']}", f"race {person['race']}")


def _counts(said: NDArray[np.uint8]) -> Rows:
    if said.ndim != 2 or len(said) != _TEACHERS or (said > 1).any():
        raise ValueError("other votes")
    ones = said.sum(axis=0, dtype=np.int64)
    return np.stack([_TEACHERS - ones, ones], axis=1)


def _seen(
    votes: NDArray[np.int64], asks: int | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    if asks is None:
        return votes.astype(np.float64)
    target = Target(Noise(_SIGMA))
    return guess(target.ask(votes, asks=asks, rng=rng), target, teachers=_TEACHERS)


def _agreement(votes: NDArray[np.int64] | NDArray[np.float64]) -> float:
    return float(votes.max()) / _TEACHERS


def _words(asks: int | None) -> str:
    return "the votes themselves" if asks is None else f"GNMax, sigma {_SIGMA:g}, {asks:,} answers"


def _epsilon(asks: int | None) -> float:
    if asks is None:
        return math.inf
    return epsilon_of(GaussianMax(_SIGMA), asks, classes=2)
