"""What an audit takes from a finished run: mechanism, votes per query, classes and caps.

A run directory holds no votes. So the attacked rows are made up, from close votes to clear ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.audit.exposure import MOST_ASKS, Target, votes_of_agreement
from pate_fed.errors import RunDirectoryError
from pate_fed.record import Metrics, Privacy

AGREEMENTS: Final = (0.4, 0.6, 0.8, 0.95)
"""Shares of votes for the top class in the made-up rows."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run, as an attacker meets it.

    Attributes:
        target: Its mechanism.
        teachers: Votes on each query.
        classes: Number of classes.
        asks: Cap on its queries, fixed before it.
        epsilon: Its formal epsilon for readers of labels; None where no finite number holds.
    """

    target: Target
    teachers: int
    classes: int
    asks: int
    epsilon: float | None

    def rows(self) -> NDArray[np.int64]:
        """Return made-up rows, one for each of `AGREEMENTS` that is above an even share."""
        shares = [share for share in AGREEMENTS if share * self.classes > 1]
        return np.array(
            [
                votes_of_agreement(share, teachers=self.teachers, classes=self.classes)
                for share in shares
            ]
        )


def facts_of_run(*, privacy: Privacy, metrics: Metrics, labels: tuple[str, ...]) -> RunFacts:
    """Take the facts from a run's files.

    Args:
        privacy: `privacy.json`.
        metrics: `metrics.json`.
        labels: The released labels, "" for "no answer".

    Raises:
        RunDirectoryError: the files do not say how many votes or classes there were.
        InvalidParameterError: an audit does not know the run's mechanism.
    """
    target = Target.of(privacy.mechanism.as_json())
    votes = sum(party.votes for party in privacy.parties)
    # A deployment does not know the classes that nobody was given; they hold few votes.
    known = list(metrics.per_class) or sorted({label for label in labels if label})
    if votes < 1 or len(known) < 2:
        raise RunDirectoryError("an audited run must have votes and 2 classes", len(known))
    asks = min(max(privacy.mechanism.max_asks, 1), MOST_ASKS)
    return RunFacts(target, votes, len(known), asks, privacy.public.epsilon)
