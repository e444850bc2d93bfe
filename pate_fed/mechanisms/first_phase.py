"""The outcome of a batch's first phase, where the parties add the noise."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome


@dataclass(frozen=True, slots=True, eq=False)
class FirstPhase:
    """The outcome of a first phase. Public.

    Attributes:
        outcomes: `Outcome` of each opened query: "answered" means that its second row will be
            opened; int8, shape (queries,), read-only.
    """

    outcomes: NDArray[np.int8]

    def __post_init__(self) -> None:
        outcomes = np.array(self.outcomes)
        if outcomes.ndim != 1 or not np.isin(outcomes, list(Outcome)).all():
            raise InvalidParameterError("outcomes must be known, on one axis", "others")
        stopped = outcomes == Outcome.NOT_ASKED
        if (stopped[:-1] & ~stopped[1:]).any():
            raise InvalidParameterError("queries after a cap must come last", "another order")
        outcomes = outcomes.astype(np.int8)
        outcomes.flags.writeable = False
        object.__setattr__(self, "outcomes", outcomes)

    @property
    def opened(self) -> int:
        """Rows that the first phase opened, each of which costs."""
        return len(self.outcomes)

    @property
    def passed(self) -> NDArray[np.int64]:
        """Positions in the batch of the second rows to open, in order."""
        return np.flatnonzero(self.outcomes == Outcome.ANSWERED).astype(np.int64)

    def as_release(self, labels: ArrayLike = 0) -> NoisyRelease:
        """Return the release with these labels of the rows that passed.

        Args:
            labels: One for each of `passed`, in order, or one for all.

        Raises:
            InvalidParameterError: another number of labels.
        """
        given = np.asarray(labels, dtype=np.int64)
        if given.ndim and len(given) != len(self.passed):
            raise InvalidParameterError(f"labels must be {len(self.passed)}", len(given))
        released = np.full(self.opened, ABSTAIN, dtype=np.int64)
        released[self.passed] = given
        return NoisyRelease(released, self.outcomes)

    def as_record(self) -> dict[str, list[int]]:
        """Return plain data, for the signed result of the first phase."""
        return {"outcomes": self.outcomes.tolist()}

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Read plain data back, strictly.

        Raises:
            InvalidTermsError: it holds other fields than outcomes, or they contradict each other.
        """
        if not isinstance(record, dict) or set(record) != {"outcomes"}:
            raise InvalidTermsError("a first phase must have outcomes", "others")
        outcomes = record["outcomes"]
        if not isinstance(outcomes, list) or not all(
            type(value) is int and value in list(Outcome) for value in outcomes
        ):
            raise InvalidTermsError("outcomes must be known", "others")
        try:
            return cls(np.array(outcomes, dtype=np.int64))
        except InvalidParameterError as error:
            raise InvalidTermsError("outcomes must agree with each other", "others") from error

    @property
    def digest(self) -> bytes:
        """SHA-256 over the outcomes in order, 32 bytes: the second phase is bound to it."""
        head = f"pate-fed first phase {self.opened}\n".encode()
        return hashlib.sha256(head + self.outcomes.tobytes()).digest()
