"""A mechanism on simulated votes, to choose parameters.

Votes come from public numbers alone, an assumed accuracy of the teachers among them. Parameters
that were tried out on real votes would leak them, and the guarantee would not count it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.mechanism import Mechanism
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.votes import SummedHistogram

SIMULATED_QUERIES: Final = 400
ASSUMED_ACCURACY: Final = 0.7
"""Share of teachers that are right on an average query, where nobody says better."""

_SIMULATED_DRAWS: Final = 20
_SPREAD: Final = 4.0


@dataclass(frozen=True, slots=True)
class Preview:
    """The behavior of a mechanism on simulated votes."""

    answer_rate: float
    accuracy: float

    @property
    def right_rate(self) -> float:
        """Share of queries with a right answer."""
        return self.answer_rate * self.accuracy


def simulated_votes(
    *, votes: int, classes: int, teacher_accuracy: float = ASSUMED_ACCURACY
) -> NDArray[np.int64]:
    """Make votes from public numbers: the right class first, mistakes spread over the others.

    How many teachers are right on a query follows a beta law; which wrong classes get the others'
    votes, a uniform one.
    """
    rng = np.random.default_rng(0)
    beta = _SPREAD * teacher_accuracy, _SPREAD * (1 - teacher_accuracy)
    right = rng.beta(*beta, size=SIMULATED_QUERIES)
    wrong = rng.dirichlet(np.ones(classes - 1), size=SIMULATED_QUERIES)
    chances = np.column_stack([right, (1 - right)[:, None] * wrong])
    return np.array([rng.multinomial(votes, row) for row in chances], dtype=np.int64)


def preview(mechanism: Mechanism, counts: NDArray[np.int64]) -> Preview:
    """Return the rates of answers and of right answers, of some draws of the noise.

    The right class of the simulated votes comes first.
    """
    stream, answered, right = keyed_stream(b"", tag="preview"), 0, 0
    for _ in range(_SIMULATED_DRAWS):  # one draw in memory at a time: rows may be wide
        release = mechanism.release(
            SummedHistogram(counts, int(counts.sum(axis=1).max())),
            noise=CoordinatorNoise(),
            random_bytes=stream,
            max_answers=len(counts),
        )
        answered += release.answered
        right += int((release.labels == 0).sum())
    return Preview(answered / (_SIMULATED_DRAWS * len(counts)), right / max(answered, 1))
