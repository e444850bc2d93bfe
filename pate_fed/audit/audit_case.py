"""The findings of an audit: what an attacker learns with and without a deployment's defenses.

Two attackers ask about the same query.

- *One answer*: the query is answered once, and the coordinator's store gives that answer for ever.
- *Repetition*: the attacker asks variants of it, as many as the caps, or the number that it was
  given, allow. Their votes count as equal, which is the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting import RenyiAccountant
from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.ranges import whole
from pate_fed.audit.exposure import (
    MOST_ASKS,
    Target,
    asks_for_error,
    leak_error,
    votes_of_agreement,
)
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.mechanisms import Mechanism
from pate_fed.record import SCHEMA_VERSION, Audit, Metrics, Privacy
from pate_fed.record.audit import Step, Way
from pate_fed.wording import plural

AGREEMENTS: Final = (0.4, 0.6, 0.8, 0.95)
"""Shares of votes for the top class in made-up rows."""

MOST_ROWS: Final = 30
"""Most rows of votes that are attacked: an attack of one takes half a second."""


@dataclass(frozen=True, slots=True)
class AuditCase:
    """The attacked votes, and the attackers' means.

    Attributes:
        asks: How often the attacker asks.
        error: Normalized error that counts as a leak.
    """

    votes: NDArray[np.int64]
    target: Target
    asks: int
    error: float = 0.1
    repeats: int = 5

    def __post_init__(self) -> None:
        if whole("asks", self.asks) < 1 or self.asks > MOST_ASKS:
            raise InvalidParameterError(f"--answers must be in 1..{MOST_ASKS}", self.asks)
        if not 0 < self.error < 1:
            raise InvalidParameterError("--error must be in (0, 1)", self.error)
        if not self.votes.sum(axis=1).all():
            raise InvalidParameterError("every audited row must have votes")


def spread_rows(votes: NDArray[np.int64], *, most: int = MOST_ROWS) -> NDArray[np.int64]:
    """Return at most so many rows, evenly spread from the closest vote to the clearest."""
    if len(votes) <= most:
        return votes
    order = np.argsort(votes.max(axis=1), kind="stable")
    return votes[order[np.linspace(0, len(votes) - 1, most).round().astype(np.int64)]]


def made_up_rows(privacy: Privacy, metrics: Metrics, labels: Sequence[str]) -> NDArray[np.int64]:
    """Return rows in place of a run's votes, from close ones to clear ones; its files hold none.

    Returns:
        One row for each of `AGREEMENTS` that is above an even share.

    Raises:
        RunDirectoryError: the files do not say how many votes or classes there were.
    """
    votes = sum(party.votes for party in privacy.parties)
    # A deployment does not know the classes that nobody was given; they hold few votes.
    classes = len(metrics.per_class or {label for label in labels if label})
    if votes < 1 or classes < 2:
        raise RunDirectoryError("an audited run must have votes and 2 classes", classes)
    shares = [share for share in AGREEMENTS if share * classes > 1]
    rows = [votes_of_agreement(share, teachers=votes, classes=classes) for share in shares]
    return np.array(rows)


def price(mechanism: Mechanism, asks: int, *, delta: float) -> float:
    """Return the formal epsilon of so many repetitions, one teacher's data, public view."""
    accountant = RenyiAccountant()
    accountant.compose(mechanism.worst_case_event(asks, asks, weight=1.0))
    return accountant.get_converted(delta).epsilon


def asks_within(mechanism: Mechanism, *, epsilon: float, delta: float) -> int:
    """Return how many repetitions a budget pays for, at most `MOST_ASKS`; 0 if none."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InvalidParameterError("--epsilon must be finite and above 0", epsilon)
    return most_queries(
        lambda asks: price(mechanism, asks, delta=delta), budget=epsilon, most=MOST_ASKS
    )


def find(case: AuditCase, rng: np.random.Generator) -> Audit:
    """Attack every row in every way, and say how often one must ask.

    Its numbers of asks are null beyond a million.
    """
    asked = {"one answer": 1, "repetition": case.asks}
    ways = tuple(
        Way(way=way, asks=asks, mean_error=float(np.mean(_errors(case, asks, rng))))
        for way, asks in asked.items()
    )
    steps = sorted({1, case.asks, *(10**power for power in range(7) if 10**power < case.asks)})
    curve = tuple(Step(asks=asks, errors=tuple(_errors(case, asks, rng))) for asks in steps)
    needed = tuple(
        asks_for_error(row, case.target, error=case.error, rng=rng) for row in case.votes
    )
    return Audit(
        schema_version=SCHEMA_VERSION,
        rows=len(case.votes),
        teachers=int(case.votes[0].sum()),
        classes=case.votes.shape[1],
        error=case.error,
        ways=ways,
        curve=curve,
        asks_for_error=needed,
        median=_median(needed),
        repeated_contents=None,
    )


def render(found: Audit) -> str:
    """Say the findings in lines."""
    lines = [
        f"Vote leak: {plural(found.rows, 'row')} of {found.teachers:,} votes in "
        f"{found.classes} classes.",
        "Error: the share of votes that an attacker puts into a wrong class.",
        "",
    ]
    for way in found.ways:
        priced = "" if way.epsilon is None else f" (epsilon {way.epsilon:.2f})"
        lines.append(
            f"{way.way:12} {way.asks:>9,} answers: error {100 * way.mean_error:.1f} %{priced}"
        )
    percent = f"{100 * found.error:g} %"
    if found.median is None:
        lines.append(f"For an error of {percent} more than {MOST_ASKS:,} answers are needed.")
    else:
        lines.append(
            f"For an error of {percent} half of the rows need at most {found.median:,} answers."
        )
    lines.append("Figures of real votes are private; those of made-up rows are not.")
    if found.repeated_contents is not None:
        lines.append(
            f"The manifest agrees with itself. {plural(found.repeated_contents, 'record')}: the "
            "content of one of another teacher, under another id."
        )
    return "\n".join(lines)


def _errors(case: AuditCase, asks: int, rng: np.random.Generator) -> list[float]:
    """Return the mean error on each row."""
    return [
        leak_error(row, case.target, asks=asks, repeats=case.repeats, rng=rng) for row in case.votes
    ]


def _median(needed: Sequence[int | None]) -> int | None:
    ordered = sorted(math.inf if one is None else one for one in needed)
    middle = ordered[(len(ordered) - 1) // 2]
    return None if math.isinf(middle) else int(middle)
