"""What leaves the system: a label or "no answer" for each query asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError


class Outcome(IntEnum):
    """What became of one query."""

    ANSWERED = 0
    REFUSED = 1  # the teachers disagree: "no answer", itself a release that is paid for
    NOT_ASKED = 2  # a cap was reached before its turn: nothing was looked at


ABSTAIN = -1
"""Label of a query without an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class NoisyRelease:
    """The public result of one batch.

    Attributes:
        labels: Released class, or `ABSTAIN`; int64, shape (queries,), read-only.
        outcomes: `Outcome` of each query; int8, shape (queries,), read-only. A query that a cap
            stopped comes after all that were looked at.
    """

    labels: NDArray[np.int64]
    outcomes: NDArray[np.int8]

    def __post_init__(self) -> None:
        labels = np.array(self.labels, dtype=np.int64)
        outcomes = np.array(self.outcomes, dtype=np.int8)
        if labels.ndim != 1 or labels.shape != outcomes.shape:
            raise InvalidParameterError(
                "labels and outcomes must have one axis of equal length",
                f"{labels.shape} and {outcomes.shape}",
            )
        if not np.array_equal(labels != ABSTAIN, outcomes == Outcome.ANSWERED):
            raise InvalidParameterError("exactly the answered queries must have a label", "others")
        for array in (labels, outcomes):
            array.flags.writeable = False
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "outcomes", outcomes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def answered(self) -> int:
        """Number of labels released."""
        return int((self.outcomes == Outcome.ANSWERED).sum())

    @property
    def refused(self) -> int:
        """Number of "no answer"s released."""
        return int((self.outcomes == Outcome.REFUSED).sum())

    @property
    def asked(self) -> int:
        """Number of queries that were looked at, each of which costs."""
        return self.answered + self.refused

    @property
    def digest(self) -> bytes:
        """SHA-256 over labels and outcomes in order, 32 bytes."""
        body = self.labels.astype("<i8").tobytes() + self.outcomes.tobytes()
        return hashlib.sha256(f"pate-fed release {len(self)}\n".encode() + body).digest()
