"""The output of the system: a label or "no answer" for each query, or tallies of an evaluation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError, InvalidTermsError


class Outcome(IntEnum):
    """The outcome of one query."""

    ANSWERED = 0
    REFUSED = 1  # the teachers disagree: "no answer", itself a release that is paid for
    NOT_ASKED = 2  # a cap was reached before its turn: nothing was looked at


ABSTAIN = -1
"""Label of a query without an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class NoisyRelease:
    """The public result of one batch.

    Attributes:
        outcomes: `Outcome` of each query; int8, shape (queries,), read-only. A query stopped by a
            cap comes after all that were looked at.
        counts: Noisy counts of the answered queries, in order, where they were released too and
            paid for; float64, shape (answered, classes). None otherwise, and in every record.
        tallies: In a private evaluation the noisy counts, which are released instead of labels;
            int64, shape (queries, columns), read-only. Otherwise None.
    """

    labels: NDArray[np.int64]
    outcomes: NDArray[np.int8]
    counts: NDArray[np.float64] | None = None
    tallies: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        labels, outcomes = _checked_integers(self.labels), _checked_integers(self.outcomes)
        if labels.ndim != 1 or labels.shape != outcomes.shape:
            raise InvalidParameterError(
                "labels and outcomes must have one axis of equal length",
                f"{labels.shape} and {outcomes.shape}",
            )
        if not np.isin(outcomes, list(Outcome)).all():
            raise InvalidParameterError("outcomes must be known")
        if (labels < ABSTAIN).any():
            raise InvalidParameterError("labels must be classes or abstain")
        stopped = outcomes == Outcome.NOT_ASKED
        if (stopped[:-1] & ~stopped[1:]).any():
            raise InvalidParameterError("queries after a cap must come last")
        outcomes = outcomes.astype(np.int8)
        if self.tallies is not None:
            object.__setattr__(self, "tallies", _checked_tallies(self.tallies, labels))
        elif not np.array_equal(labels != ABSTAIN, outcomes == Outcome.ANSWERED):
            raise InvalidParameterError("exactly the answered queries must have a label")
        if self.counts is not None:
            counts = np.array(self.counts, dtype=np.float64)
            if counts.ndim != 2 or len(counts) != self.answered:
                raise InvalidParameterError(
                    "noisy counts must be of all answers", str(counts.shape)
                )
            counts.flags.writeable = False
            object.__setattr__(self, "counts", counts)
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
        """Number of queries looked at, each of which costs."""
        return self.answered + self.refused

    @property
    def digest(self) -> bytes:
        """SHA-256 over labels, outcomes and tallies in order, 32 bytes."""
        body = self.labels.astype("<i8").tobytes() + self.outcomes.tobytes()
        if self.tallies is not None:
            body += b"tallies\n" + self.tallies.astype("<i8").tobytes()
        return hashlib.sha256(f"pate-fed release {len(self)}\n".encode() + body).digest()

    def as_record(self) -> dict[str, list[Any]]:
        """Return plain data, for the signed outcome list that parties receive."""
        record = {"labels": self.labels.tolist(), "outcomes": self.outcomes.tolist()}
        return record if self.tallies is None else {**record, "tallies": self.tallies.tolist()}

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read plain data back, strictly: anything else is an InvalidTermsError."""
        known = {"labels", "outcomes"}
        if not isinstance(record, dict) or not known <= set(record) <= known | {"tallies"}:
            raise InvalidTermsError("a release must have labels and outcomes")
        rows = record.get("tallies", [])
        if not isinstance(rows, list):
            raise InvalidTermsError("tallies must be rows")
        for values in (record["labels"], record["outcomes"]):
            _require_whole(values, least=-1)
        for values in rows:
            _require_whole(values, least=-(2**31))
        if not set(record["outcomes"]) <= set(Outcome):
            raise InvalidTermsError("outcomes must be known")
        try:
            tallies = np.array(rows, dtype=np.int64) if "tallies" in record else None
            return cls(np.array(record["labels"]), np.array(record["outcomes"]), tallies=tallies)
        except (InvalidParameterError, ValueError) as error:
            raise InvalidTermsError("a release must agree with itself") from error


def _require_whole(values: object, *, least: int) -> None:
    if not isinstance(values, list) or not all(
        type(value) is int and least <= value < 2**31 for value in values
    ):
        raise InvalidTermsError("labels, outcomes and tallies must be whole numbers")


def _checked_tallies(tallies: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    checked = _checked_integers(tallies)
    if checked.ndim != 2 or len(checked) != len(labels) or (labels != ABSTAIN).any():
        raise InvalidParameterError("tallies must be released instead of labels")
    checked.flags.writeable = False
    return checked


def _checked_integers(values: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    raw = np.asarray(values)
    # An empty list has no type of its own.
    if raw.size and not np.issubdtype(raw.dtype, np.integer):
        raise InvalidParameterError("labels and outcomes must be integers", str(raw.dtype))
    return np.array(raw, dtype=np.int64)
