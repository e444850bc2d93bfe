"""Ranges that arguments of the accounting and of the mechanisms must lie in."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InvalidParameterError, InvalidVotesError


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
        InvalidParameterError: an order is not finite and above 1, or there is none.
    """
    # Integer orders would truncate what is computed in their type.
    checked = np.asarray(orders, dtype=np.float64)
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
    raw = np.asarray(counts)
    if raw.ndim != 2 or raw.shape[1] < 2:
        raise InvalidVotesError("counts must have 2 axes and at least 2 classes", raw.shape)
    if not np.issubdtype(raw.dtype, np.integer):
        raw = np.asarray(raw, dtype=np.float64)
        if not (np.isfinite(raw).all() and np.array_equal(raw, np.floor(raw))):
            raise InvalidVotesError("counts must be whole numbers", "another")
    if (raw < 0).any() or (raw >= 2**31).any():
        raise InvalidVotesError("counts must be at least 0 and below 2^31", "another")
    return raw.astype(np.int64)
