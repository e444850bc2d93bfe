"""How a batch's votes are laid out for their proof, and how sound that proof is.

A row holds the votes of one hospital on one query, a whole number for each column, which add up to
its votes. Each number is written as one or two digits, so that every entry is 0 to base - 1: that
is the rule which the proof shows. All digits of a batch fill a grid, column by column a polynomial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocols.errors import InvalidVectorError
from protocols.forms import Verified
from protocols.verified.prime_field import WIRE_TYPE, Elements, PrimeField
from protocols.vote_messages import MAX_ANSWER_BYTES

_MOST_OF_ONE_DIGIT = 31
_FEWEST_ROWS, _MOST_ROWS = 16, 256


@dataclass(frozen=True, slots=True)
class VoteLayout:
    """The numbers of a proof, which all three ends compute alike.

    Attributes:
        queries: Rows of the batch.
        columns: Numbers of a row: classes, and one more where teachers may abstain.
        votes: What a row adds up to, K.
        digits: Of one number, D.
        base: Of a digit: entries are below it.
        height: Entries of a grid's column, G.
        repetitions: Independent checks, R.
        field: In which it is computed.
    """

    queries: int
    columns: int
    votes: int
    digits: int
    base: int
    height: int
    repetitions: int = 4
    field: PrimeField = field(default_factory=PrimeField)

    def __post_init__(self) -> None:
        prime = self.field.prime
        if min(self.queries, self.columns, self.votes, self.digits, self.repetitions) < 1:
            raise InvalidVectorError("a layout's numbers must be at least 1")
        if not self.votes < self.base**self.digits:
            raise InvalidVectorError("a row's votes must fit its digits")
        # A row's sum then is the sum of whole numbers, and never wraps around.
        if self.columns * self.base**self.digits >= prime:
            raise InvalidVectorError(f"a row's largest sum must be below {prime}", self.columns)
        if self.height + self.proof_points >= prime:
            raise InvalidVectorError(f"points of a polynomial must be below {prime}", self.height)

    @classmethod
    def of(cls, *, queries: int, columns: int, votes: int) -> VoteLayout:
        """Choose digits and grid for a batch: the smallest proof of a party, nearly."""
        if not 1 <= votes <= Verified.most_votes:
            raise InvalidVectorError(f"votes of a row must be 1 to {Verified.most_votes}")
        digits = 1 if votes <= _MOST_OF_ONE_DIGIT else 2
        base = votes + 1 if digits == 1 else math.isqrt(votes) + 1
        entries = queries * columns * digits
        fitting = math.sqrt(entries / (2 * (base - 1)))
        height = 2 ** round(math.log2(max(fitting, 1)))
        height = min(max(height, _FEWEST_ROWS), _MOST_ROWS)
        found = cls(queries, columns, votes, digits, base, height)
        # Known before anybody votes: an aggregator could not tell its answer.
        if 2 * WIRE_TYPE.itemsize * found.answer_length > MAX_ANSWER_BYTES:
            raise InvalidVectorError("a batch must have fewer queries and columns", queries)
        return found

    @property
    def entries(self) -> int:
        """Digits of a batch, N."""
        return self.queries * self.columns * self.digits

    @property
    def width(self) -> int:
        """Columns of the grid, M; the last one is filled up with zeros."""
        return -(-self.entries // self.height)

    @property
    def proof_points(self) -> int:
        """Values that fix a quotient, Y: of degree (base - 1) height + base."""
        return (self.base - 1) * self.height + self.base + 1

    @property
    def witness_length(self) -> int:
        """Elements of a party's digits, and of two masks for each column of the grid."""
        return self.entries + 2 * self.width

    @property
    def proof_length(self) -> int:
        """Elements of the quotients."""
        return self.repetitions * self.proof_points

    @property
    def answer_length(self) -> int:
        """Elements of the extension that an aggregator says about one party."""
        return self.width + self.repetitions + 1

    @property
    def data_points(self) -> range:
        """Where the polynomials hold the digits."""
        return range(1, self.height + 1)

    @property
    def quotient_points(self) -> range:
        """Where the quotients are given."""
        return range(self.height + 1, self.height + 1 + self.proof_points)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that a proof depends on, for a digest."""
        return (
            *(self.queries, self.columns, self.votes, self.digits, self.base, self.height),
            *(self.repetitions, self.field.prime),
        )

    @property
    def offline_bits(self) -> float:
        """Minus log2 of the chance of one trial before anything is sent: p^-R."""
        return self.repetitions * math.log2(self.field.prime)

    @property
    def online_bits(self) -> float:
        """Minus log2 of the chance that a report with an invalid row is accepted, once it is sent.

        The evaluation point hits a root of a polynomial of degree base (height + 1), among p^2 - p.
        """
        prime = self.field.prime
        return math.log2((prime * prime - prime) / (self.base * (self.height + 1)))

    def require_rows(self, rows: NDArray[np.int64]) -> None:
        """Refuse rows that a proof could not be made of: a hospital looks at its own before."""
        if rows.shape != (self.queries, self.columns):
            raise InvalidVectorError(
                f"rows must be {self.queries} of {self.columns} numbers", str(rows.shape)
            )
        if int(rows.min()) < 0 or (rows.sum(axis=1) != self.votes).any():
            raise InvalidVectorError("a row must hold its number of votes, none below 0")

    def digits_of(self, rows: NDArray[np.int64]) -> Elements:
        """Write rows as digits, the smallest first; shape (entries,)."""
        rest = rows.ravel().astype(np.uint64)
        digits = np.empty((len(rest), self.digits), dtype=np.uint64)
        for place in range(self.digits):
            rest, digits[:, place] = np.divmod(rest, np.uint64(self.base))
        return digits.ravel()

    def numbers_of(self, digits: Elements) -> Elements:
        """Return the numbers of digits, or of shares of them; shape (queries, columns)."""
        parts = digits.reshape(-1, self.digits)
        found = parts[:, 0].copy()
        for place in range(1, self.digits):
            weight = np.uint64(self.base**place % self.field.prime)
            found = self.field.add(found, self.field.multiply(parts[:, place], weight))
        return found.reshape(self.queries, self.columns)

    def grid_of(self, digits: Elements) -> Elements:
        """Fill the grid with digits, row by row; shape (height, width)."""
        grid = np.zeros(self.height * self.width, dtype=np.uint64)
        grid[: len(digits)] = digits
        return grid.reshape(self.height, self.width)
