"""What repeated answers would tell about votes, said before anybody asks: a simulated attack.

An attacker repeats a query, rebuilds the votes, and is compared with the votes. Answers are drawn
by the chances that the mechanism gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.ranges import whole
from pate_fed.audit.vote_leak import (
    Answers,
    ThresholdCheck,
    normalized_error,
    rebuild_votes,
)
from pate_fed.audit.win_chances import Law, Noise, win_chances
from pate_fed.errors import InvalidParameterError

AUDITED: Final = ("threshold", "gnmax", "confident", "lnmax")
"""Mechanisms whose releases an audit can simulate."""

MOST_ASKS: Final = 1_000_000
"""Most repetitions of a query that an audit tries."""


@dataclass(frozen=True, slots=True)
class Target:
    """A mechanism, as an attacker meets it."""

    noise: Noise
    check: ThresholdCheck | None = None

    @classmethod
    def of(cls, mechanism: Mapping[str, object]) -> Target:
        """Return the target of a mechanism's parameters; refuse one that no audit knows."""
        name = str(mechanism.get("name"))
        if name not in AUDITED:
            raise InvalidParameterError(
                f"an audit must be of a mechanism among {', '.join(AUDITED)}", repr(name)
            )
        law: Law = "laplace" if name == "lnmax" else "gaussian"
        noise = Noise(_number(mechanism, "sigma2"), law)
        if name in ("gnmax", "lnmax"):
            return cls(noise)
        sigma = _number(mechanism, "sigma1") if name == "confident" else None
        return cls(noise, ThresholdCheck(_number(mechanism, "vote_threshold"), sigma))

    def ask(self, votes: NDArray[np.int64], *, asks: int, rng: np.random.Generator) -> Answers:
        """Ask a query with these votes again and again."""
        if whole("asks", asks) < 1:
            raise InvalidParameterError("asks must be at least 1", asks)
        counts = np.asarray(votes, dtype=np.float64)
        if self.check is None:
            return Answers(rng.multinomial(asks, win_chances(counts, self.noise)))
        chances = np.exp(self.check.log_outcomes(counts, self.noise)[0])
        seen = rng.multinomial(asks, chances / chances.sum())
        return Answers(seen[:-1], int(seen[-1]))


def guess(answers: Answers, target: Target, *, teachers: int) -> NDArray[np.float64]:
    """Return an attacker's votes by answers, equal ones without any; shape (classes,)."""
    classes = len(answers.labels)
    if not answers.labels.sum():
        return np.full(classes, teachers / classes)
    return rebuild_votes(
        answers, target.noise, teachers=teachers, check=target.check, few_answers=True
    ).votes


def leak_error(
    votes: NDArray[np.int64],
    target: Target,
    *,
    asks: int,
    repeats: int,
    rng: np.random.Generator,
) -> float:
    """Return the mean error of `repeats` attackers who ask this often."""
    teachers, errors = int(votes.sum()), []
    for _ in range(repeats):
        answers = target.ask(votes, asks=asks, rng=rng)
        found = guess(answers, target, teachers=teachers)
        errors.append(normalized_error(found, votes))
    return float(np.mean(errors))


def asks_for_error(
    votes: NDArray[np.int64],
    target: Target,
    *,
    error: float,
    rng: np.random.Generator,
    most: int = MOST_ASKS,
) -> int | None:
    """Return how often one must ask to be this exact, to a tenth; None beyond `most`."""
    if not 0 < error < 1:
        raise InvalidParameterError("the error must be in (0, 1)", error)
    asks, before = 1, None
    while True:
        found = leak_error(votes, target, asks=asks, repeats=10, rng=rng)
        if found <= error:
            break
        if asks == most:
            return None
        before = (asks, found)
        asks = min(2 * asks, most)
    if before is None or before[1] == found:
        return int(asks)
    # Between two powers of two the error falls as a power of the asks.
    few, worse = before
    share = math.log(worse / error) / math.log(worse / max(found, 1e-12))
    needed: float = few * (asks / few) ** min(share, 1.0)
    return math.ceil(needed)


def votes_of_agreement(share: float, *, teachers: int, classes: int) -> NDArray[np.int64]:
    """Return a made-up row: this share for the first class, of the rest half to each next one.

    Real rows are alike: the votes of 250 teachers of MNIST and SVHN fall about so from class to
    class.

    Args:
        share: Of the votes for the first class, in (0, 1].
    """
    if not 0 < share <= 1:
        raise InvalidParameterError("the share of the top class must be in (0, 1]", share)
    row = np.zeros(classes, dtype=np.int64)
    row[0] = round(share * teachers)
    left = teachers - int(row[0])
    for place in range(1, classes - 1):
        row[place] = min(-(-left // 2), int(row[0]))
        left -= int(row[place])
    row[-1] = left
    return row


def _number(mechanism: Mapping[str, object], name: str) -> float:
    value = mechanism.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidParameterError(f"the mechanism must have {name}", repr(value))
    return float(value)
