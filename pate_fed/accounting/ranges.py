"""Ranges that arguments of the accounting and of the mechanisms must lie in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InvalidParameterError, InvalidVotesError

_TOO_MANY = 2**31


def positive(name: str, value: float) -> float:
    """Return `value` if it is a finite number above 0.

    Raises:
        InvalidParameterError: it is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise InvalidParameterError(f"{name} must be finite and above 0", value)
    return float(value)


def probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1.

    Raises:
        InvalidParameterError: it does not.
    """
    if not 0 < value < 1:
        raise InvalidParameterError(f"{name} must be in (0, 1)", value)
    return float(value)


def half_probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1/2.

    Raises:
        InvalidParameterError: it does not.
    """
    if not 0 < value < 0.5:
        raise InvalidParameterError(f"{name} must be in (0, 1/2)", value)
    return float(value)


def whole(name: str, value: int) -> int:
    """Return `value` if it is an integer of at least 0.

    Raises:
        InvalidParameterError: it is not; `True` and 3.0 are not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InvalidParameterError(f"{name} must be a whole number of at least 0", value)
    return int(value)


def renyi_orders(orders: ArrayLike) -> NDArray[np.float64]:
    """Return Renyi orders as float64, shape (orders,).

    Raises:
        InvalidParameterError: there is no order, or one is not finite and above 1.
    """
    # Integer orders would truncate results computed in their type.
    checked = _numbers(orders)
    if checked is None:
        raise InvalidParameterError("orders must be numbers", "others")
    if checked.ndim != 1 or not checked.size or not (np.isfinite(checked) & (checked > 1)).all():
        raise InvalidParameterError("orders must be finite and above 1, on one axis", "others")
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
        raise InvalidVotesError("counts must be whole numbers", "others")
    if raw.ndim != 2 or raw.shape[1] < 2:
        raise InvalidVotesError("counts must have 2 axes and at least 2 classes", raw.shape)
    if (raw < 0).any() or (raw >= _TOO_MANY).any():
        raise InvalidVotesError("counts must be at least 0 and below 2^31", "another")
    return raw.astype(np.int64)


def top_counts(maxima: ArrayLike) -> NDArray[np.float64]:
    """Return the counts that checks compare with their threshold as float64, shape (queries,).

    Whole numbers of any type, below 0 too: a student's share may be subtracted already.

    Raises:
        InvalidVotesError: not one axis, or a number that is not whole or beyond 2^31.
    """
    raw = _whole_numbers(maxima)
    if raw is None or raw.ndim != 1 or (raw >= _TOO_MANY).any() or (raw <= -_TOO_MANY).any():
        raise InvalidVotesError("top counts must be whole, within 2^31, on one axis", "others")
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
