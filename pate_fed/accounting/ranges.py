"""Ranges of numbers: one table of those that terms, settings and records bring, and their checks.

The table bounds the memory and the time of every price: whoever reads a number from outside checks
it first, and computes afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InvalidParameterError, InvalidVotesError

_TOO_MANY = 2**31


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from one to another; never nan.

    Attributes:
        is_open: Whether all numbers below `most` are inside, and `most` is not.
    """

    least: float
    most: float
    is_open: bool = False

    @property
    def largest(self) -> float:
        """The largest number that is inside."""
        return math.nextafter(self.most, self.least) if self.is_open else self.most

    @property
    def metadata(self) -> dict[str, float]:
        """The bounds of a dataclass's field, as settings files name them."""
        return {"ge": self.least, ("lt" if self.is_open else "le"): self.most}

    def broken_rule(self, value: float) -> str:
        """Return the rule that a number breaks, such as "at least 1"; empty if it is inside."""
        if self.least <= value <= self.largest:
            return ""
        if value < self.least:
            return f"at least {self.least:.10g}"
        if value > self.largest:
            return f"{'below' if self.is_open else 'at most'} {self.most:.10g}"
        return "a number"


_COUNT: Final = Range(0, 1_000_000)
_ASKS: Final = Range(0, 2 * _COUNT.most)
_HOSPITALS: Final = 1024
_NOISE: Final = Range(1e-9, 2.0**28)
_VOTES: Final = Range(1, 2**30 - 1)
_EPSILON: Final = Range(1e-9, 1e9)
_INVERSE_NOISE: Final = Range(1e-9, 1e10)

RANGES: Final[Mapping[str, Range]] = {
    "parties": Range(1, _HOSPITALS),
    "colluders": Range(1, _HOSPITALS),
    "dropouts": Range(0, _HOSPITALS),
    "shares": Range(1, 2048),
    "teachers": _VOTES,
    "records_per_teacher": _VOTES,
    "weights": _VOTES,
    "weight": Range(1e-9, _VOTES.most),
    "unit_votes": _VOTES,
    "classes": Range(2, 10_000),
    "vote_threshold": Range(-_VOTES.most, _VOTES.most),
    "sigma": _NOISE,
    "sigma1": _NOISE,
    "sigma2": _NOISE,
    "gamma": _INVERSE_NOISE,
    "test_epsilon": _INVERSE_NOISE,
    "test_delta": Range(1e-300, 0.5, is_open=True),
    "confidence": Range(0, 1),
    "orders": Range(1 + 1e-6, 1e6),
    "asks": _ASKS,
    "answers": _COUNT,
    "rows": _COUNT,
    "max_asks": Range(1, _COUNT.most),
    "max_answers": Range(1, _COUNT.most),
    "epsilon": _EPSILON,
    "budgets": _EPSILON,
    "delta": Range(1e-300, 1, is_open=True),
    "indices": Range(0, 2**31 - 1),
    "party_teachers": _VOTES,
    "party_epsilons": _EPSILON,
    "evaluation_epsilon": _EPSILON,
    "expected_dropouts": Range(0, _HOSPITALS),
    "queries": Range(1, _COUNT.most),
    "batch_size": Range(1, _COUNT.most),
    "patient_votes": Range(1, _COUNT.most),
    "labels": Range(2, 50),
    "label_cap": Range(1, 24),
    "patients": Range(1, 2**31 - 1),
    "prevalence": Range(1e-9, 1),
    "coverage": Range(0.5, 1, is_open=True),
    "seed": Range(0, 2**64 - 1),
}
"""The range of each number, by its one name in terms, events, records and settings; of a list, the
range of each entry. Noise is in votes, at most as much as can be drawn.
"""


def in_range(name: str, value: float) -> float:
    """Return a number of `RANGES` that is inside, as a float."""
    if rule := RANGES[name].broken_rule(value):
        raise InvalidParameterError(f"{name} must be {rule}", value)
    return float(value)


def broken_ranges(value: Any) -> Iterator[tuple[str, str, float]]:
    """Yield the name, the broken rule and the value of each number that is out of its range.

    Args:
        value: A dataclass; a field may be one, too, or None, and entries of a tuple no numbers.
    """
    for one in fields(value):
        allowed, held = RANGES.get(one.name), getattr(value, one.name)
        if is_dataclass(held):
            yield from broken_ranges(held)
        if allowed is None or held is None:
            continue
        for number in held if isinstance(held, tuple) else (held,):
            if isinstance(number, int | float) and (rule := allowed.broken_rule(number)):
                yield one.name, rule, number


def require_ranges(value: Any) -> None:
    """Check every number of a dataclass that has a range."""
    for name, _, number in broken_ranges(value):
        in_range(name, number)


_LARGEST: Final = float(np.finfo(np.float64).max)


def positive(name: str, value: float) -> float:
    """Return `value` if it is a finite number above 0."""
    if not 0 < value <= _LARGEST:
        raise InvalidParameterError(f"{name} must be finite and above 0", value)
    return float(value)


def probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise InvalidParameterError(f"{name} must be in (0, 1)", value)
    return float(value)


def whole(name: str, value: int) -> int:
    """Return `value` if it is an integer of at least 0.

    Neither `True` nor 3.0 is one.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InvalidParameterError(f"{name} must be a whole number of at least 0", value)
    return int(value)


def renyi_orders(orders: ArrayLike) -> NDArray[np.float64]:
    """Return Renyi orders as float64, shape (orders,)."""
    # Integer orders would truncate results computed in their type.
    checked = _numbers(orders)
    if checked is None:
        raise InvalidParameterError("orders must be numbers")
    if checked.ndim != 1 or not checked.size or not (np.isfinite(checked) & (checked > 1)).all():
        raise InvalidParameterError("orders must be finite and above 1, on one axis")
    return checked


def vote_counts(counts: ArrayLike) -> NDArray[np.int64]:
    """Return vote counts as int64, shape (queries, classes).

    Integers of any width and floats that hold integers are accepted: unsigned counts must not
    be subtracted in their own type, where they wrap. Rows may differ in their number of votes:
    after the fold of a sum they may, and an error here would tell of votes.

    Raises:
        InvalidVotesError: fewer than 2 classes, not 2 axes, a negative count, or one that is
            not whole.
    """
    raw = _whole_numbers(counts)
    if raw is None:
        raise InvalidVotesError("counts must be whole numbers")
    if raw.ndim != 2 or raw.shape[1] < 2:
        raise InvalidVotesError("counts must have 2 axes and at least 2 classes", str(raw.shape))
    if (raw < 0).any() or (raw >= _TOO_MANY).any():
        raise InvalidVotesError("counts must be at least 0 and below 2^31")
    return raw.astype(np.int64)


def top_counts(maxima: ArrayLike) -> NDArray[np.float64]:
    """Return the counts that checks compare with their threshold as float64, shape (queries,).

    Whole numbers of any type, below 0 too: a student's share may be subtracted already.

    Raises:
        InvalidVotesError: not one axis, or a number that is not whole or beyond 2^31.
    """
    raw = _whole_numbers(maxima)
    if raw is None or raw.ndim != 1 or (raw >= _TOO_MANY).any() or (raw <= -_TOO_MANY).any():
        raise InvalidVotesError("top counts must be whole, within 2^31, on one axis")
    return raw.astype(np.float64)


def _whole_numbers(values: ArrayLike) -> NDArray[Any] | None:
    """Return an array of integers, or of floats that hold integers; None for anything else."""
    raw = _array(values)
    if raw is None or np.issubdtype(raw.dtype, np.integer):
        return raw
    numbers = _numbers(raw)
    if numbers is None or not np.isfinite(numbers).all():
        return None
    return numbers if np.array_equal(numbers, np.floor(numbers)) else None


def _numbers(values: ArrayLike) -> NDArray[np.float64] | None:
    raw = _array(values)
    # A complex number is none, and neither is a text that looks like one.
    if raw is None or raw.dtype.kind not in "biufO":
        return None
    try:
        return raw.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _array(values: ArrayLike) -> NDArray[Any] | None:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError):  # such as rows of different lengths
        return None
