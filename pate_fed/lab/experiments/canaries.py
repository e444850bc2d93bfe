"""Trained canaries: a wrong label in one teacher's data, and the epsilon that labels then betray.

Teachers are trained on real digits. The canary is the record whose own image divides the others
most; its label becomes the class that nearly wins there. Only its teacher is trained anew. The
attacker asks about that image and a few images close to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.inputs import Inputs
from pate_fed.lab.canary import canary_audit, releases_of
from pate_fed.lab.experiments.experiment import DELTA, Result, Row, Tell, counted, epsilon_of
from pate_fed.lab.mechanisms import ConfidentGaussianMax, ImmutableMax
from pate_fed.mechanisms import GaussianMax, LaplaceMax, Mechanism, ThresholdMax, keyed_stream
from pate_fed.rule import Rule
from pate_fed.teachers import make_ensemble

_TEACHERS: Final = 21
_QUERIES: Final = 4
_CLASSES: Final = 10
_TRIALS: Final = 20_000
_STEP: Final = 0.02
"""Distance of the close images, as a part of the image's length."""

_RULES: Final[dict[str, Mechanism]] = {
    "GNMax, sigma 3": GaussianMax(3.0),
    "GNMax, noise 30 % too small": GaussianMax(2.1),
    "Confident-GNMax, threshold 11, sigma 3 and 3": ConfidentGaussianMax(
        Rule("confident", 11.0, 3.0, 3.0)
    ),
    "Threshold-GNMax, threshold 11, sigma 3": ThresholdMax(3.0, vote_threshold=11.0),
    "LNMax, sigma 0.5": LaplaceMax(0.5),
    "NZC's argmax, claimed as LNMax, sigma 0.5": ImmutableMax(0.5),
}
"""The mechanism that releases."""

_CLAIMED: Final[dict[str, Mechanism]] = {
    "GNMax, noise 30 % too small": GaussianMax(3.0),
    "NZC's argmax, claimed as LNMax, sigma 0.5": LaplaceMax(0.5),
}
"""The one whose price is claimed, where that is another."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedWorlds:
    """Votes of trained teachers in two worlds that differ in one label of one record.

    Attributes:
        with_canary: Counts with the wrong label; shape (queries, classes).
        changed_teachers: Teachers whose votes differ between the worlds.
    """

    with_canary: NDArray[np.int64]
    without: NDArray[np.int64]
    changed_teachers: int


def canaries(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:  # noqa: ARG001
    """Yield lower bounds on epsilon, one for each training, beside the claim."""
    worlds = []
    for seed in seeds:
        data = load_dataset(DataSource("digits"), rng=np.random.default_rng(seed))
        worlds.append(trained_worlds(data, rng=np.random.default_rng(seed)))
    moved = [float((one.with_canary != one.without).any(axis=1).mean()) for one in worlds]
    words = f"digits, {_TEACHERS} teachers, a wrong label, {_QUERIES} queries"
    yield Result(
        Row(words, "none", 0.0, measure="share of queries whose votes moved"), tuple(moved)
    )
    for name, rule in _RULES.items():
        bounds = [
            bound_of(rule, one, seed=seed, trials=_TRIALS)
            for seed, one in zip(seeds, worlds, strict=True)
        ]
        claim = epsilon_of(_CLAIMED.get(name, rule), _QUERIES, classes=_CLASSES)
        tell(f"{name}: largest bound {max(bounds):.3f}, claimed {claim:.3f}")
        row = Row(f"{words}, {name}", "none", claim, measure="lower bound on epsilon")
        yield Result(row, tuple(bounds))


def trained_worlds(
    data: Dataset, *, rng: np.random.Generator, teachers: int = _TEACHERS
) -> TrainedWorlds:
    """Train all teachers, give one record a wrong label, and train its teacher anew."""
    classes = len(data.class_names)
    parts = np.array_split(rng.permutation(len(data.private)), teachers)
    shards = [data.private.select(part) for part in parts]
    ensemble = make_ensemble("auto", data.kind, balance="natural")
    ensemble.fit(shards, classes=classes, rng=rng)
    counts = counted(ensemble.vote(data.private.inputs), classes)
    order = np.sort(counts, axis=1)
    canary = int((order[:, -1] - order[:, -2]).argmin())
    place = next(at for at, part in enumerate(parts) if canary in part)
    features = data.private.features[canary]
    ways = rng.normal(size=(_QUERIES - 1, len(features)))
    ways *= _STEP * np.linalg.norm(features) / np.linalg.norm(ways, axis=1, keepdims=True)
    asked = Inputs(np.vstack([features, features + ways]))
    before = ensemble.vote(asked)
    labels = shards[place].labels.copy()
    labels[np.flatnonzero(parts[place] == canary)] = _nearly_winning(
        counts[canary], int(before[place, 0])
    )
    spoiled = replace(shards[place], labels=labels)
    ensemble.retrain(place, spoiled, rng=np.random.default_rng(0))
    after = ensemble.vote(asked)
    return TrainedWorlds(
        counted(after, classes), counted(before, classes), int((before != after).any(axis=1).sum())
    )


def bound_of(rule: Mechanism, worlds: TrainedWorlds, *, seed: int, trials: int) -> float:
    """Return the lower bound on a mechanism's epsilon, at 95 %."""
    release = releases_of(rule, keyed_stream(b"%d" % seed, tag="trained canary"))
    found = canary_audit(release, worlds.with_canary, worlds.without, trials=trials, delta=DELTA)
    return found.epsilon


def _nearly_winning(counts: NDArray[np.int64], own: int) -> int:
    """Return the class that a wrong label helps most: one of the first two, not the own vote."""
    first, second = np.argsort(-counts, kind="stable")[:2]
    return int(second if own != second else first)
